"""Commands that use a trained policy: ``evaluate`` and ``predict``."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import DeviceOption, JsonOption, PolicyArgument, TrustOption
from rl_training.errors import ConfigError
from rl_training.json_output import to_json


def evaluate(
    path: PolicyArgument,
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Episodes to play.", metavar="N")] = 100,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episodes.", metavar="N")] = None,
    video: Annotated[bool, typer.Option("--video", help="Record the first three episodes.")] = False,
    device: DeviceOption = None,
    trust: TrustOption = False,
    json_: JsonOption = False,
) -> None:
    """Play seeded episodes with a trained policy."""
    from rl_training.envs.consent import trust_all_runs
    from rl_training.experiment.manager import EVALUATION_SEED, evaluate_experiment

    if trust:
        trust_all_runs()
    run_dir = next((p for p in (path, *path.parents) if (p / "checkpoints").is_dir()), path.parent)
    answer = evaluate_experiment(
        path,
        episodes=episodes,
        seed=EVALUATION_SEED if seed is None else seed,
        video=run_dir / "videos" if video else None,
        device=device or "cpu",
    )
    if json_:
        print(to_json(answer))
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
    from rl_training.experiment.manager import load_policy
    from rl_training.experiment.observations import parse_observation

    learner, _, _ = load_policy(path, device or "cpu")
    if obs != "-" and not Path(obs).is_file():
        raise ConfigError(f"--obs {obs!r}: no such file")
    lines = sys.stdin if obs == "-" else Path(obs).open(encoding="utf-8", errors="replace")  # noqa: SIM115
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{obs}, line {number}"
            action = learner.predict(parse_observation(line, learner.spec, where=where)).tolist()
            if not all(map(math.isfinite, action if isinstance(action, list) else [action])):
                raise ConfigError(f"{where}: no finite action comes of it; expected smaller numbers")
            print(to_json({"action": action}), flush=True)
            if getattr(sys.stdout, "lost", None) is not None:
                return  # nobody reads the answers any more
