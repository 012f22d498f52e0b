"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done; 1 a bug; 2 the input is wrong; 3 interrupted, with a checkpoint saved.
"""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from rl_training.cli_data import data_app
from rl_training.config import config_path, load_config, parse_overrides, preset_names
from rl_training.errors import ConfigError, RLTrainingError, did_you_mean

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Policies from sparse rewards and logged data.",
)
app.add_typer(data_app, name="data")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.")]


def main() -> NoReturn:
    """Run the command line."""
    warnings.showwarning = cast(Any, _print_warning)
    threading.excepthook = _thread_failed
    if "" not in sys.path:
        sys.path.insert(0, "")  # an env_id such as my_task:Reach-v0 names a module of the current folder
    try:
        app()
    except RLTrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)


def _print_version(asked: bool) -> None:
    if asked:
        from rl_training.runtime.machine import package_version

        print(package_version())
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None: ...


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="A preset, such as her/point_reach, or a YAML file.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key.path=value; may be given many times.", metavar="KEY=VALUE")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several runs, one after another: 0-4 or 0,3,7.")] = None,
    init_from: Annotated[
        Path | None, typer.Option(help="A run or checkpoint whose policy to improve by playing in the environment.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Folder in which the run's folder is made.")] = None,
    device: DeviceOption = None,
    resume_auto: Annotated[
        bool, typer.Option("--resume-auto", help="Go on with the run of this configuration in the output folder.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Train a policy."""
    from rl_training.experiment.manager import train_experiment, train_or_resume
    from rl_training.runtime.settings import read_config

    if seed is not None and seeds is not None:
        raise ConfigError("--seed and --seeds exclude each other")
    given = {"seed": seed, "output_dir": output_dir, "device": device}
    # An offline algorithm goes online when it starts from a policy, unless --set says otherwise.
    start = []
    if init_from is not None:
        start = ["algo_kwargs.online=true", f"algo_kwargs.init_from={json.dumps(str(init_from.resolve()))}"]
    overrides = [
        *start,
        *(set_ or []),
        *(
            f"{key}={json.dumps(str(value) if key != 'seed' else value)}"
            for key, value in given.items()
            if value is not None
        ),
    ]
    name = config if config in preset_names() else Path(config).stem
    configs = [read_config(config, [*overrides, *([f"seed={s}"] if seeds else [])]) for s in _parse_seeds(seeds)]
    results = []
    for run_config in configs:
        result = (train_or_resume if resume_auto else train_experiment)(run_config, name=name, progress_bar=True)
        results.append(result)
        if not json_:
            _print_result(result)
        if result.status == "interrupted":
            break
    if json_:
        answers = [result.to_json() for result in results]
        print(json.dumps(answers[0] if seeds is None else {"runs": answers, **_mean_over(answers)}))
    if results[-1].status == "interrupted":
        raise typer.Exit(3)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove on a copy that resuming is exact; the run is left alone.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Go on with a run from its latest checkpoint."""
    from rl_training.experiment.manager import resume_experiment

    if verify:
        _verify(run, json_)
        return
    result = resume_experiment(run, progress_bar=True)
    if json_:
        print(json.dumps(result.to_json()))
    else:
        _print_result(result)
    if result.status == "interrupted":
        raise typer.Exit(3)


@app.command()
def evaluate(
    path: Annotated[Path, typer.Argument(help="A run (its best checkpoint is taken) or a checkpoint.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 100,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episodes.")] = None,
    video: Annotated[bool, typer.Option("--video", help="Record the first three episodes.")] = False,
    device: DeviceOption = None,
    json_: JsonOption = False,
) -> None:
    """Play seeded episodes with a trained policy."""
    from rl_training.experiment.manager import EVALUATION_SEED, evaluate_experiment

    run_dir = next((p for p in (path, *path.parents) if (p / "checkpoints").is_dir()), path.parent)
    answer = evaluate_experiment(
        path,
        episodes=episodes,
        seed=EVALUATION_SEED if seed is None else seed,
        video=run_dir / "videos" if video else None,
        device=device or "cpu",
    )
    if json_:
        print(json.dumps(answer))
        return
    metrics = answer["metrics"]
    if "eval/success_rate" in metrics:
        print(f"success rate   {metrics['eval/success_rate']:.2f}")
    print(f"mean return    {metrics['eval/mean_reward']:.2f} (deviation {metrics['eval/std_reward']:.2f})")
    print(f"episodes       {episodes}, mean length {metrics['eval/mean_ep_length']:.1f}")
    print(f"checkpoint     {answer['checkpoint']}")
    for file in answer.get("videos", []):
        print(f"video          {file}")


@app.command()
def predict(
    path: Annotated[Path, typer.Argument(help="A run (its best checkpoint is taken) or a checkpoint.")],
    obs: Annotated[str, typer.Option(help="A file of observations, one JSON value a line, or - for standard input.")],
    device: DeviceOption = None,
) -> None:
    """Print an action for each observation: JSON lines in, JSON lines out."""
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
            print(json.dumps({"action": action}), flush=True)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="One or more run folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write a page with plots of one or more runs."""
    from rl_training.experiment.report import write_report

    print(write_report(runs, output))


@app.command()
def presets(name: Annotated[str | None, typer.Argument(help="Show this preset.")] = None) -> None:
    """List the presets, or show one."""
    if name is None:
        for preset in preset_names():
            print(f"{preset:24} {load_config(preset).env_id}")
    elif name in preset_names():
        print(config_path(name).read_text(encoding="utf-8"), end="")
    else:
        raise ConfigError(f"no preset {name!r}{did_you_mean(name, preset_names())}")


@app.command("check-env")
def check_env(
    env_id: Annotated[str, typer.Argument(help="A Gymnasium environment id.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An argument of the environment.", metavar="KEY=VALUE")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Say whether an environment is fit for hindsight; exit 2 with the reasons where it is not."""
    from dataclasses import asdict

    from rl_training.envs.check import check_env as examine

    found = examine(env_id, parse_overrides(set_ or []))
    if json_:
        print(json.dumps({**asdict(found), "fit_for_her": found.fit_for_her}))
    else:
        for fact, value in found.facts.items():
            print(f"{fact:20} {value}")
        for warning in found.warnings:
            print(f"warning: {warning}")
        print(f"{env_id} is {'fit' if found.fit_for_her else 'not fit'} for HER")
    for problem in found.problems:
        print(f"error: {problem}" if env_id in problem else f"error: {env_id}: {problem}", file=sys.stderr)
    if not found.fit_for_her:
        raise typer.Exit(2)


@app.command()
def doctor(json_: JsonOption = False) -> None:
    """Show what is installed: versions, devices and extras."""
    from rl_training.experiment.doctor import diagnose

    facts = diagnose()
    if json_:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:22} {value}")


def _verify(run: Path, json_: bool) -> None:
    """Print whether a run can be resumed exactly; exit with 1 where it cannot."""
    from rl_training.tools.verification import verify_run

    found = verify_run(run)
    if json_:
        print(json.dumps(found.to_json()))
    else:
        print(found.grade)
        print(f"from           {found.start}")
        print(f"to             {found.end}" + (" (beyond the run, twice)" if found.method == "stretch" else ""))
        print(f"sha256         {found.sha256}")
        for difference in found.differences[:20]:
            print(f"differs        {difference}")
        if len(found.differences) > 20:
            print(f"               and {len(found.differences) - 20} more")
        for reason in found.reasons:
            print(f"reason         {reason}")
    if found.differences:
        raise typer.Exit(1)


def _print_warning(message: Warning | str, *_details: object) -> None:
    """Show a warning as a line for the user, without the place in the code it came from."""
    print(f"warning: {message}", file=sys.stderr)


def _thread_failed(details: threading.ExceptHookArgs) -> None:
    """Leave it to the main thread to report a full disk: it hears of it from the thread that writes TensorBoard's."""
    if not issubclass(details.exc_type, OSError):
        threading.__excepthook__(details)


def _parse_seeds(text: str | None) -> list[int]:
    """Read ``0-4`` or ``0,3,7``."""
    if text is None:
        return [0]
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        first, last = int(match[1]), int(match[2])
        if first <= last < first + 1000:
            return list(range(first, last + 1))
    if re.fullmatch(r"\d+(,\d+)*", text):
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    raise ConfigError(f"--seeds {text!r}: expected a range such as 0-4 or a list such as 0,3,7")


def _mean_over(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of each metric over several runs."""
    names = set.intersection(*(set(answer["metrics"]) for answer in answers))
    return {"metrics": {name: sum(a["metrics"][name] for a in answers) / len(answers) for name in sorted(names)}}


def _print_result(result: Any) -> None:
    success = result.metrics.get("eval/success_rate")
    print(
        f"{result.status}: {result.stop_reason} after {result.global_step:,} steps and {result.update_count:,} updates"
    )
    if result.metrics:
        print(
            (f"success rate   {success:.2f}\n" if success is not None else "")
            + f"mean return    {result.metrics['eval/mean_reward']:.2f}"
        )
    print(f"run            {result.run_dir}")
    print(f"checkpoints    {result.run_dir / 'checkpoints'}")
    print(f"plots          {result.run_dir / 'report.html'}")
    if result.status == "interrupted":
        print(f"go on with     rl-training resume {result.run_dir}")
