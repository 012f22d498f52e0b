"""``rl-training train`` and ``resume``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.completion import complete_preset, complete_run
from rl_training.cli.options import DeviceOption, JsonOption, QuietOption, TrustOption
from rl_training.cli.streams import print_answer
from rl_training.config import parse_seeds, preset_names
from rl_training.errors import ConfigError, shown
from rl_training.interrupts import asked_to_stop
from rl_training.json_output import to_json
from rl_training.urls import Location, is_url, last_name, to_location

if TYPE_CHECKING:
    from rl_training.config import TrainConfig
    from rl_training.runtime.controls import TrainResult

_SEED_TABLE = {"eval/success_rate": "success rate", "eval/mean_reward": "mean return"}
"""The metrics of the table after ``--seeds``, with their names there. More is better for all of them."""

_NAME_LENGTH = 38
"""How long preset and changes may get in a folder's name; seed and time add about 20 characters."""


def train(
    config: Annotated[
        str,
        typer.Argument(
            help="A preset, such as her/point_reach, or a YAML file.",
            metavar="PRESET|FILE",
            autocompletion=complete_preset,
        ),
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
        str | None,
        typer.Option(
            "--seeds", help="Several runs: 0-4 or 0,3,7; together on CUDA, else one after another.", metavar="SEEDS"
        ),
    ] = None,
    stack: Annotated[
        bool | None,
        typer.Option("--stack/--no-stack", help="Train several runs together, or one after another, on any device."),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            help="A run or checkpoint whose policy to improve by playing in the environment.",
            metavar="PATH",
            autocompletion=complete_run,
        ),
    ] = None,
    output_dir: Annotated[
        str | None, typer.Option(help="Folder in which the run's folder is made, or a URL.", metavar="FOLDER")
    ] = None,
    run_dir: Annotated[
        str | None,
        typer.Option(
            help="The run's folder itself, or its URL: continue the run there, or start it.", metavar="FOLDER"
        ),
    ] = None,
    device: DeviceOption = None,
    resume_auto: Annotated[
        bool, typer.Option("--resume-auto", help="Continue the run of this configuration in the output folder.")
    ] = False,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Train a policy."""
    from rl_training.runtime.run import resolve_device
    from rl_training.runtime.settings import read_stack

    if seed is not None and seeds is not None:
        raise ConfigError("--seed and --seeds exclude each other")
    if run_dir is not None and (output_dir is not None or resume_auto):
        raise ConfigError("--run-dir excludes --output-dir and --resume-auto: it names the folder, and resumes its run")
    overrides = _overrides(init_from, set_ or [], {"seed": seed, "output_dir": output_dir, "device": device})
    configs = read_stack(config, overrides, None if seeds is None else parse_seeds(seeds, "--seeds"))
    name = _run_name(config if config in preset_names() else Path(config).stem, set_ or [])
    if stack is None:
        stack = resolve_device(configs[0].device).type == "cuda"
    show: Callable[[TrainResult], None] = (lambda _: None) if json_ else _print_result
    if run_dir is not None:
        if seeds is not None or len(configs) > 1:
            raise ConfigError(f"--run-dir {run_dir} is the folder of one run: expected one seed and no stack")
        results = [_train_there(configs[0], to_location(run_dir), progress_bar=not quiet)]
        show(results[0])
    else:
        results = _train_all(configs, name, show, stack=stack, resume_auto=resume_auto, progress_bar=not quiet)
    noun = "seeds" if len({run_config.seed for run_config in configs}) == len(configs) else "runs"
    _print_answers(results, noun if seeds is not None or len(configs) > 1 else None, json_)
    _exit_as(results)


def _print_answers(results: list[TrainResult], several: str | None, json_: bool) -> None:
    """Print the results as JSON, or a table over ``several`` seeds or runs; that of one run is printed already."""
    answers = [_answer(result) for result in results]
    if json_:
        print_answer({"runs": answers, **_over_seeds(answers)} if several else answers[0])
    elif several:
        ended = [answer for answer in answers if answer["status"] not in ("interrupted", "failed")]
        _print_seed_table(ended, several)


def _overrides(init_from: str | None, changes: list[str], given: dict[str, Any]) -> list[str]:
    """Return the changes of a configuration that the options ask for; later ones win."""
    start = []
    if init_from is not None:  # an offline algorithm goes online when it starts from a policy, unless --set forbids it
        there = init_from if is_url(init_from) else str(Path(init_from).resolve())
        start = ["algo_kwargs.online=true", f"algo_kwargs.init_from={to_json(there)}"]
    return [*start, *changes, *(f"{key}={to_json(value)}" for key, value in given.items() if value is not None)]


def _train_there(config: TrainConfig, run_dir: Location, *, progress_bar: bool) -> TrainResult:
    from rl_training.experiment.run_folder import train_in_folder

    return train_in_folder(config, run_dir, name=last_name(run_dir), progress_bar=progress_bar)


def _train_all(
    configs: list[TrainConfig],
    name: str,
    show: Callable[[TrainResult], None],
    *,
    stack: bool,
    resume_auto: bool,
    progress_bar: bool,
) -> list[TrainResult]:
    """Train several runs, together or one after another, and show each result as soon as it is there."""
    from rl_training.experiment.manager import train_experiment, train_or_resume, train_stack_experiment

    if stack and len(configs) > 1:
        results = train_stack_experiment(configs, name=name, progress_bar=progress_bar, resume_auto=resume_auto)
        for result in results:
            show(result)
        return results
    results = []
    for config in configs:
        result = (train_or_resume if resume_auto else train_experiment)(config, name=name, progress_bar=progress_bar)
        results.append(result)
        show(result)
        if result.status == "interrupted" or asked_to_stop():
            break
    return results


def resume(
    run: Annotated[str, typer.Argument(help="A run's folder, or its URL.", metavar="RUN", autocompletion=complete_run)],
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
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Continue a run, and the runs that were trained together with it, from its latest checkpoint."""
    from rl_training.envs.consent import trust_all_runs
    from rl_training.experiment.manager import resume_experiment, resume_stack_experiment
    from rl_training.runtime.remote.local_copy import fetch
    from rl_training.runtime.remote.mirror import run_folder
    from rl_training.runtime.run import stack_members

    if trust:
        trust_all_runs()
    if verify:
        if set_:
            raise ConfigError("--set and --verify exclude each other: --verify repeats the run as it is")
        _verify(fetch(run), json_)
        return
    with run_folder(to_location(run)) as folder:
        if len(stack_members(folder)) > 1:
            results = resume_stack_experiment(folder, progress_bar=not quiet, overrides=set_ or [])
        else:
            results = [resume_experiment(folder, progress_bar=not quiet, overrides=set_ or [])]
    answers = [_answer(result) for result in results]
    if json_:
        print_answer({"runs": answers, **_over_seeds(answers)} if len(answers) > 1 else answers[0])
    else:
        for result in results:
            _print_result(result)
    _exit_as(results)


def _exit_as(results: list[TrainResult]) -> None:
    """Exit with 3 if the last run was interrupted, and with 1 if a run of a stack failed or was not uploaded."""
    from rl_training.runtime.remote.local_copy import is_uploaded

    if results[-1].status == "interrupted" or asked_to_stop():
        raise typer.Exit(3)
    if any(result.status == "failed" or not is_uploaded(result.run_dir) for result in results):
        raise typer.Exit(1)


def _answer(result: TrainResult) -> dict[str, Any]:
    """Return a result as JSON, with the URL of a run that is mirrored to one."""
    from rl_training.runtime.remote.local_copy import url_of

    url = url_of(result.run_dir)
    return {**result.to_json(), **({"url": url} if url is not None else {})}


def _verify(run: Path, json_: bool) -> None:
    """Print whether a run can be resumed exactly; exit with 1 where it cannot."""
    from rl_training.tools.verification import verify_run

    found = verify_run(run)
    if json_:
        print_answer(found.to_json())
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


def _print_seed_table(answers: list[dict[str, Any]], noun: str) -> None:
    """Print mean, std and worst over the runs that ended by themselves, if there are several."""
    if len(answers) < 2:
        return
    table = _over_seeds(answers)
    rows = [(label, name) for name, label in _SEED_TABLE.items() if name in table["worst"]]
    if rows:
        print(f"\n{f'{len(answers)} {noun}':14} {'mean':>10} {'std':>10} {'worst':>10}")
    for label, name in rows:
        print(f"{label:14} {table['metrics'][name]:10.2f} {table['std'][name]:10.2f} {table['worst'][name]:10.2f}")


def _print_result(result: TrainResult) -> None:
    from rl_training.runtime.remote.local_copy import url_of

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
    url = url_of(result.run_dir)
    if url is not None:
        print(f"url            {url}")
    print(f"run            {result.run_dir}")
    print(f"checkpoints    {result.run_dir / 'checkpoints'}")
    if (result.run_dir / "report.html").is_file():
        print(f"plots          {result.run_dir / 'report.html'}")
    if result.status == "interrupted":
        print(f"continue with  rl-training resume {url or result.run_dir}")
