"""The command line. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done; 1 a run failed, or a bug; 2 the input is wrong; 3 interrupted, with a checkpoint saved if training.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from rl_training.cli_data import JsonOption, SetOption, TrustOption, data_app
from rl_training.cli_help import PlainCommand
from rl_training.cli_streams import lossy_streams, print_error, print_failure, printable
from rl_training.config import config_path, load_config, parse_overrides, preset_names
from rl_training.errors import ConfigError, RLTrainingError, did_you_mean, shown
from rl_training.interrupts import Interrupted, answer_signals, asked_to_stop
from rl_training.json_output import to_json

if TYPE_CHECKING:
    from rl_training.experiment.setting_tables import SettingGroup

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Policies from sparse rewards and logged data.",
)
app.add_typer(data_app, name="data")

DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N or auto.", metavar="DEVICE")]
PolicyArgument = Annotated[
    Path, typer.Argument(help="A run (its best checkpoint is taken) or a checkpoint.", metavar="RUN|CHECKPOINT")
]

_TOO_LARGE = ("can't allocate memory", "Overflow when unpacking", "Storage size calculation overflowed")
"""What PyTorch says about sizes that no memory holds."""

_SEED_TABLE = {"eval/success_rate": "success rate", "eval/mean_reward": "mean return"}
"""The metrics of the table after ``--seeds``, with their names there. More is better for all of them."""

_NAME_LENGTH = 38
"""How long preset and changes may get in a folder's name; seed and time add about 20 characters."""


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


@app.command(cls=PlainCommand)
def train(
    config: Annotated[
        str, typer.Argument(help="A preset, such as her/point_reach, or a YAML file.", metavar="PRESET|FILE")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any key, such as algo_kwargs.batch_size=128; may be given many times.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.", metavar="N")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Several runs, one after another: 0-4 or 0,3,7.", metavar="SEEDS")
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(help="A run or checkpoint whose policy to improve by playing in the environment.", metavar="PATH"),
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Folder in which the run's folder is made.", metavar="FOLDER")
    ] = None,
    device: DeviceOption = None,
    resume_auto: Annotated[
        bool, typer.Option("--resume-auto", help="Continue the run of this configuration in the output folder.")
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
        start = ["algo_kwargs.online=true", f"algo_kwargs.init_from={to_json(str(init_from.resolve()))}"]
    overrides = [
        *start,
        *(set_ or []),
        *(
            f"{key}={to_json(str(value) if key != 'seed' else value)}"
            for key, value in given.items()
            if value is not None
        ),
    ]
    configs = [read_config(config, [*overrides, *([f"seed={s}"] if seeds else [])]) for s in _parse_seeds(seeds)]
    name = _run_name(config if config in preset_names() else Path(config).stem, set_ or [])
    results = []
    for run_config in configs:
        result = (train_or_resume if resume_auto else train_experiment)(run_config, name=name, progress_bar=True)
        results.append(result)
        if not json_:
            _print_result(result)
        if result.status == "interrupted" or asked_to_stop():
            break
    answers = [result.to_json() for result in results]
    if json_:
        print(to_json(answers[0] if seeds is None else {"runs": answers, **_over_seeds(answers)}))
    elif seeds is not None:
        _print_seed_table([answer for answer in answers if answer["status"] != "interrupted"])
    if results[-1].status == "interrupted" or asked_to_stop():
        raise typer.Exit(3)


@app.command(cls=PlainCommand)
def resume(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A changed key, such as total_timesteps=20000; may be given many times.", metavar="KEY=VALUE"
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check on a copy that resuming is exact; the run is not changed.")
    ] = False,
    trust: TrustOption = False,
    json_: JsonOption = False,
) -> None:
    """Continue a run from its latest checkpoint."""
    from rl_training.envs.consent import trust_all_runs
    from rl_training.experiment.manager import resume_experiment

    if trust:
        trust_all_runs()
    if verify:
        if set_:
            raise ConfigError("--set and --verify exclude each other: --verify repeats the run as it is")
        _verify(run, json_)
        return
    result = resume_experiment(run, progress_bar=True, overrides=set_ or [])
    if json_:
        print(to_json(result.to_json()))
    else:
        _print_result(result)
    if result.status == "interrupted" or asked_to_stop():
        raise typer.Exit(3)


@app.command(cls=PlainCommand)
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


@app.command(cls=PlainCommand)
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


@app.command(cls=PlainCommand)
def report(
    runs: Annotated[list[Path], typer.Argument(help="One or more run folders.", metavar="RUN")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.", metavar="FILE")] = Path(
        "report.html"
    ),
) -> None:
    """Write a page with plots of one or more runs."""
    from rl_training.experiment.report import write_report

    print(write_report(runs, output))


@app.command(cls=PlainCommand)
def presets(
    name: Annotated[
        str | None, typer.Argument(help="Show this preset, or list those of an algorithm.", metavar="PRESET|ALGO")
    ] = None,
) -> None:
    """List the presets, or show one."""
    names = preset_names()
    algorithms = list(dict.fromkeys(preset.partition("/")[0] for preset in names))
    if name is None or name in algorithms:
        listed = [preset for preset in names if name is None or preset.startswith(f"{name}/")]
        width = max(map(len, listed))
        for preset in listed:
            print(f"{preset:{width}}  {load_config(preset).env_id}")
    elif name in names:
        print(config_path(name).read_text(encoding="utf-8"), end="")
    else:
        raise ConfigError(f"no preset or algorithm {name!r}{did_you_mean(name, [*names, *algorithms])}")


@app.command("settings", cls=PlainCommand)
def show_settings(
    algo: Annotated[
        str | None, typer.Argument(help="An algorithm, such as her; unset: list them.", metavar="ALGO")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """List every key that an algorithm accepts."""
    from dataclasses import asdict

    from rl_training.algorithms.table import ALGORITHMS, DEFAULT_BACKEND, find_algorithm
    from rl_training.experiment.setting_tables import algorithm_settings

    if algo is None:
        if json_:
            print(to_json({name: row.description for name, row in ALGORITHMS.items()}))
        else:
            for name, row in ALGORITHMS.items():
                print(f"{name:{max(map(len, ALGORITHMS))}}  {row.description}")
        return
    algorithm = find_algorithm(algo)
    groups = algorithm_settings(algorithm)
    if json_:
        answer = {"algo": algo, "description": algorithm.description, "groups": [asdict(group) for group in groups]}
        print(to_json(answer))
    else:
        note = f" The learner here is {DEFAULT_BACKEND}, the default backend." if algorithm.hindsight else ""
        _print_settings(f"{algo}: {algorithm.description}. All keys go under algo_kwargs.{note}", groups)


@app.command("check-env", cls=PlainCommand)
def check_env(
    env_id: Annotated[str, typer.Argument(help="A Gymnasium environment id.", metavar="ENV_ID")],
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Say whether HER can use an environment, or why not."""
    from dataclasses import asdict

    from rl_training.envs.check import check_env as examine

    found = examine(env_id, parse_overrides(set_ or []))
    if json_:
        print(to_json({**asdict(found), "fit_for_her": found.fit_for_her}))
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


@app.command(cls=PlainCommand)
def doctor(json_: JsonOption = False) -> None:
    """Show what is installed: versions, devices and extras."""
    from rl_training.experiment.doctor import diagnose

    facts = diagnose()
    if json_:
        print(to_json(facts))
    else:
        for name, value in facts.items():
            print(f"{name:22} {value}")


def _verify(run: Path, json_: bool) -> None:
    """Print whether a run can be resumed exactly; exit with 1 where it cannot."""
    from rl_training.tools.verification import verify_run

    found = verify_run(run)
    if json_:
        print(to_json(found.to_json()))
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
        for damage in found.damage:
            print(f"damaged        {shown(damage)}")
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


def _run_name(name: str, changes: list[str]) -> str:
    """Return the name of a run: the preset or file, and what ``--set`` changed, as far as it fits."""
    values = dict[str, str]()
    for change in changes:
        key, _, text = change.partition("=")
        if key.strip() not in ("seed", "output_dir"):
            last = text.strip(" '\"[]{}/").rpartition("/")[2]  # of a path or an environment's id
            values[key.strip().rpartition(".")[2]] = re.sub(r"[^\w.-]+", "-", last)
    left_out = 0
    for key, text in values.items():
        part = f"-{key}={text}"
        if len(name) + len(part) <= _NAME_LENGTH:
            name += part
        else:
            left_out += 1
    return f"{name}+{left_out}" if left_out else name


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


def _over_seeds(answers: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean of each metric over several runs, and std and worst of those that the table shows."""
    names = sorted(set.intersection(*(set(answer["metrics"]) for answer in answers)))
    values = {name: [answer["metrics"][name] for answer in answers] for name in names}
    mean = {name: sum(column) / len(column) for name, column in values.items()}
    shown_names = [name for name in _SEED_TABLE if name in values]
    return {
        "metrics": mean,
        "std": {
            name: math.sqrt(sum((value - mean[name]) ** 2 for value in values[name]) / len(answers))
            for name in shown_names
        },
        "worst": {name: min(values[name]) for name in shown_names},
    }


def _print_seed_table(answers: list[dict[str, Any]]) -> None:
    """Print mean, std and worst over the runs that ended by themselves, if there are several."""
    if len(answers) < 2:
        return
    table = _over_seeds(answers)
    rows = [(label, name) for name, label in _SEED_TABLE.items() if name in table["worst"]]
    if rows:
        print(f"\n{f'{len(answers)} seeds':14} {'mean':>10} {'std':>10} {'worst':>10}")
    for label, name in rows:
        print(f"{label:14} {table['metrics'][name]:10.2f} {table['std'][name]:10.2f} {table['worst'][name]:10.2f}")


def _print_settings(title: str, groups: list[SettingGroup]) -> None:
    """Print the settings of an algorithm, a line or more for each key."""
    width = max(shutil.get_terminal_size().columns, 60)
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    print(wrap.fill(title))
    print(f"\n  {'key':25} {'default':10} accepts")
    for group in groups:
        print(f"\n{group.name}{' (with online: true)' if group.needs_online else ''}")
        for setting in group.settings:
            wrap.initial_indent, wrap.subsequent_indent = f"  {setting.key:25} {setting.default:10} ", " " * 39
            print(wrap.fill(setting.accepts))
            wrap.initial_indent = wrap.subsequent_indent = " " * 6
            print(wrap.fill(setting.meaning))


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
        print(f"continue with  rl-training resume {result.run_dir}")
