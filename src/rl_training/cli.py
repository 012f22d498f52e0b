"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done; 1 a run failed, or a bug; 2 the input is wrong; 3 interrupted, with a checkpoint saved if training.
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

from rl_training.cli_data import TrustOption, data_app
from rl_training.cli_streams import lossy_streams, print_error, print_failure, printable
from rl_training.config import config_path, load_config, parse_overrides, preset_names
from rl_training.errors import ConfigError, RLTrainingError, did_you_mean, shown
from rl_training.interrupts import Interrupted, answer_signals, asked_to_stop

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Policies from sparse rewards and logged data.",
)
app.add_typer(data_app, name="data")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.")]

_TOO_LARGE = ("can't allocate memory", "Overflow when unpacking", "Storage size calculation overflowed")
"""What PyTorch says about sizes that no memory holds."""


def main() -> NoReturn:
    """Run the command line."""
    warnings.showwarning = cast(Any, _print_warning)
    threading.excepthook = _thread_failed
    with answer_signals(), lossy_streams() as streams:
        try:
            code = _run()
        except Interrupted as request:
            print_error(f"interrupted by {request}")
            code = 3
        code = streams.exit_code(code)
    sys.exit(code)


def _run() -> int:
    """Run a command, print one message if it fails, and return the exit code."""
    try:
        for argument in sys.argv[1:]:
            if any("\ud800" <= char <= "\udfff" for char in argument):
                raise ConfigError(f"argument {shown(argument)}: expected UTF-8")
        app()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except RLTrainingError as error:
        print_error(error)
        return error.exit_code
    except MemoryError as error:
        print_error(f"not enough memory: {error}" if str(error) else "not enough memory")
        return 2
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}" if error.filename is not None else error)
        return 2 if error.filename is not None else 1
    except Exception as error:
        if any(words in str(error) for words in _TOO_LARGE):
            print_error(f"a size, such as hidden_sizes or a capacity, is too large: {str(error).splitlines()[0]}")
            return 2
        print_failure(error)  # a bug
        return 1
    return 0


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
    for run_config in configs:
        _require_text(run_config.model_dump(mode="json"))
    results = []
    for run_config in configs:
        result = (train_or_resume if resume_auto else train_experiment)(run_config, name=name, progress_bar=True)
        results.append(result)
        if not json_:
            _print_result(result)
        if result.status == "interrupted" or asked_to_stop():
            break
    if json_:
        answers = [result.to_json() for result in results]
        print(json.dumps(answers[0] if seeds is None else {"runs": answers, **_mean_over(answers)}))
    if results[-1].status == "interrupted" or asked_to_stop():
        raise typer.Exit(3)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove on a copy that resuming is exact; the run is left alone.")
    ] = False,
    trust: TrustOption = False,
    json_: JsonOption = False,
) -> None:
    """Go on with a run from its latest checkpoint."""
    from rl_training.envs.consent import trust_all_runs
    from rl_training.experiment.manager import resume_experiment

    if trust:
        trust_all_runs()
    if verify:
        _verify(run, json_)
        return
    result = resume_experiment(run, progress_bar=True)
    if json_:
        print(json.dumps(result.to_json()))
    else:
        _print_result(result)
    if result.status == "interrupted" or asked_to_stop():
        raise typer.Exit(3)


@app.command()
def evaluate(
    path: Annotated[Path, typer.Argument(help="A run (its best checkpoint is taken) or a checkpoint.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 100,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episodes.")] = None,
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
            if getattr(sys.stdout, "lost", None) is not None:
                return  # nobody reads the answers any more


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
            print(f"{fact:20} {shown(value)}")
        for warning in found.warnings:
            print(f"warning: {shown(warning)}")
        print(f"{env_id} is {'fit' if found.fit_for_her else 'not fit'} for HER")
    for problem in found.problems:
        print_error(problem if env_id in problem else f"{env_id}: {problem}")
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
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(message))  # Gymnasium colours its own
    print(f"warning: {printable(plain)}", file=sys.stderr)


def _thread_failed(details: threading.ExceptHookArgs) -> None:
    """Print nothing for a full disk: the main thread gets the same error from the TensorBoard writer."""
    if not issubclass(details.exc_type, OSError):
        threading.__excepthook__(details)


def _require_text(value: Any, key: str = "") -> None:
    """Refuse texts that no file system takes as a path, in any setting."""
    if isinstance(value, str) and any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value):
        raise ConfigError(f"{key} = {shown(value)}: expected a text without NUL and surrogate characters")
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        _require_text(part, f"{key}.{name}" if key else str(name))


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
    reason = (
        result.stop_reason if result.stop_reason.startswith(result.status) else f"{result.status}: {result.stop_reason}"
    )
    print(f"{reason} after {result.global_step:,} steps and {result.update_count:,} updates")
    if result.metrics:
        print(
            (f"success rate   {success:.2f}\n" if success is not None else "")
            + f"mean return    {result.metrics['eval/mean_reward']:.2f}"
        )
    print(f"run            {result.run_dir}")
    print(f"checkpoints    {result.run_dir / 'checkpoints'}")
    if (result.run_dir / "report.html").is_file():
        print(f"plots          {result.run_dir / 'report.html'}")
    if result.status == "interrupted":
        print(f"go on with     rl-training resume {result.run_dir}")
