"""Commands that use a trained policy: ``evaluate``, ``predict``, ``export`` and ``verify``."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import (
    DeviceOption,
    JsonOption,
    PolicyArgument,
    QuietOption,
    TrainedArgument,
    TrustOption,
)
from rl_training.cli.streams import print_answer
from rl_training.errors import ConfigError, shown
from rl_training.urls import require_local, to_location


def evaluate(
    path: PolicyArgument,
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Episodes to play.", metavar="N")] = 100,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episodes.", metavar="N")] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Record the best, the worst and a random episode in RUN/videos.")
    ] = False,
    video_format: Annotated[
        str | None, typer.Option(help="mp4 or gif; unset: mp4 where it can be written.", metavar="FORMAT")
    ] = None,
    device: DeviceOption = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Play seeded episodes with a trained policy."""
    from rl_training.envs.consent import trust_all_runs
    from rl_training.experiment.manager import evaluate_experiment
    from rl_training.runtime.remote.local_copy import fetch, policy
    from rl_training.seeding import EVALUATION_SEED

    if video_format is not None and not video:
        raise ConfigError(f"--video-format {video_format}: expected --video as well")
    if trust:
        trust_all_runs()
    folder = fetch(path, policy)
    run_dir = next((p for p in (folder, *folder.parents) if (p / "checkpoints").is_dir()), None)
    beside = folder.absolute().with_name(f"{folder.absolute().name}_videos")  # of a bundle or a lone checkpoint
    answer = evaluate_experiment(
        folder,
        episodes=episodes,
        seed=EVALUATION_SEED if seed is None else seed,
        video=None if not video else beside if run_dir is None else run_dir / "videos",
        video_kind=video_format,
        device=device or "cpu",
        progress_bar=not quiet,
    )
    if json_:
        print_answer(answer)
        return
    metrics = answer["metrics"]
    if "eval/success_rate" in metrics:
        print(f"success rate   {metrics['eval/success_rate']:.2f}")
    print(f"mean return    {metrics['eval/mean_reward']:.2f} (std {metrics['eval/std_reward']:.2f})")
    print(f"episodes       {episodes}, mean length {metrics['eval/mean_ep_length']:.1f}")
    print(f"checkpoint     {answer['checkpoint']}")
    for file in answer.get("videos", []):
        print(f"video          {file}")


def predict(
    path: PolicyArgument,
    obs: Annotated[
        str,
        typer.Option(help="A file of observations, one JSON value a line, or - for standard input.", metavar="FILE"),
    ],
    device: DeviceOption = None,
) -> None:
    """Print an action for each observation, as JSON lines."""
    from rl_training.experiment.manager import load_predictor
    from rl_training.experiment.observations import parse_observation

    policy, _, _ = load_predictor(to_location(path), device or "cpu")
    if obs != "-" and not Path(obs).is_file():
        raise ConfigError(f"--obs {obs!r}: no such file")
    lines = sys.stdin if obs == "-" else Path(obs).open(encoding="utf-8", errors="replace")  # noqa: SIM115
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{obs}, line {number}"
            action = policy.predict(parse_observation(line, policy.spec, where=where)).tolist()
            if not all(map(math.isfinite, action if isinstance(action, list) else [action])):
                raise ConfigError(f"{where}: no finite action comes of it; expected smaller numbers")
            if not print_answer({"action": action}):
                return  # nobody reads the answers any more


def export(
    path: TrainedArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.", metavar="FOLDER")],
    overwrite: Annotated[bool, typer.Option("--overwrite", "-y", help="Replace a bundle that is there.")] = False,
    json_: JsonOption = False,
) -> None:
    """Write a policy as a bundle that runs without this package: ONNX graph, contract, test vectors, examples."""
    from rl_training.export import export_policy
    from rl_training.runtime.remote.local_copy import fetch, policy

    require_local(output, "--output")
    contract = export_policy(fetch(path, policy), output, overwrite=overwrite)
    if json_:
        print_answer({"bundle": str(output), "contract": contract.model_dump(mode="json")})
        return
    for label, ports in (("input", contract.inputs), ("output", contract.outputs)):
        for port in ports:
            print(f"{label:14} {port.name} {port.dtype} [{', '.join(map(str, port.shape))}]")
    print(f"bundle         {shown(output)}")
    print(f"try it         python {shown(output / 'example.py')}")


def verify(
    bundle: Annotated[str, typer.Argument(help="A folder that export wrote, or its URL.", metavar="BUNDLE")],
    json_: JsonOption = False,
) -> None:
    """Check a bundle: its checksums, and its actions on the test vectors; exit with 1 if it fails."""
    from rl_training.cli.streams import print_error
    from rl_training.export import verify_bundle
    from rl_training.runtime.remote.local_copy import fetch

    found = verify_bundle(fetch(bundle))
    if json_:
        print_answer(found.to_json())
    elif found.passed:
        largest = max(found.largest_differences.values())
        print(f"passed         {found.vectors} test vectors, largest difference {largest:.1e}")
    else:
        print_error(found.problems[0] + (f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""))
    if not found.passed:
        raise typer.Exit(1)
