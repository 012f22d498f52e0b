"""Commands that look something up: ``presets``, ``settings``, ``check-env`` and ``doctor``."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.completion import complete_algorithm, complete_env, complete_preset_or_algorithm
from rl_training.cli.options import JsonOption, SetOption
from rl_training.cli.streams import print_answer, print_error
from rl_training.config import config_path, load_config, parse_overrides, preset_names
from rl_training.errors import ConfigError, did_you_mean, shown
from rl_training.experiment.preset_table import read_preset

if TYPE_CHECKING:
    from rl_training.experiment.preset_time import Duration
    from rl_training.experiment.setting_tables import SettingGroup


def presets(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show this preset, or list those of an algorithm.",
            metavar="PRESET|ALGO",
            autocompletion=complete_preset_or_algorithm,
        ),
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="Measure how long each takes on this machine; a second or two for each.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """List the presets and what they score, or show one."""
    names = preset_names()
    algorithms = list(dict.fromkeys(preset.partition("/")[0] for preset in names))
    if name is not None and name not in (*names, *algorithms):
        raise ConfigError(f"no preset or algorithm {name!r}{did_you_mean(name, [*names, *algorithms])}")
    if name in names and not json_:
        if time:
            print(f"# Time on this machine: {_measured(name)}")
        print(config_path(name).read_text(encoding="utf-8"), end="")
        return
    listed = [preset for preset in names if name in (None, preset, preset.partition("/")[0])]
    if json_:
        print_answer({preset: _describe_preset(preset, time) for preset in listed})
        return
    for preset in listed:
        _print_preset(preset, max(map(len, listed)), time)
    if not time:
        print("\nrl-training presets --time measures how long each takes on this machine.")


def show_settings(
    algo: Annotated[
        str | None,
        typer.Argument(
            help="An algorithm, such as her; unset: list them.", metavar="ALGO", autocompletion=complete_algorithm
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """List every key that an algorithm accepts."""
    from dataclasses import asdict

    from rl_training.algorithms.table import ALGORITHMS, DEFAULT_BACKEND, find_algorithm
    from rl_training.experiment.setting_tables import algorithm_settings

    if algo is None:
        if json_:
            print_answer({name: row.description for name, row in ALGORITHMS.items()})
        else:
            for name, row in ALGORITHMS.items():
                print(f"{name:{max(map(len, ALGORITHMS))}}  {row.description}")
        return
    algorithm = find_algorithm(algo)
    groups = algorithm_settings(algorithm)
    if json_:
        answer = {"algo": algo, "description": algorithm.description, "groups": [asdict(group) for group in groups]}
        print_answer(answer)
    else:
        note = f" The learner here is {DEFAULT_BACKEND}, the default backend." if algorithm.hindsight else ""
        _print_settings(f"{algo}: {algorithm.description}. All keys go under algo_kwargs.{note}", groups)


def check_env(
    env_id: Annotated[
        str, typer.Argument(help="A Gymnasium environment id.", metavar="ENV_ID", autocompletion=complete_env)
    ],
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Say whether HER can use an environment, or why not."""
    from dataclasses import asdict

    from rl_training.envs.check import check_env as examine

    found = examine(env_id, parse_overrides(set_ or []))
    if json_:
        print_answer({**asdict(found), "fit_for_her": found.fit_for_her})
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


def doctor(json_: JsonOption = False) -> None:
    """Show versions, devices and extras, and name known clashes."""
    from rl_training.experiment.doctor import diagnose, find_problems

    facts, problems = diagnose(), find_problems()
    if json_:
        print_answer({**facts, "problems": problems})
        return
    for name, value in facts.items():
        print(f"{name:22} {shown(value)}")
    for problem in problems:
        print(f"problem: {problem}")
    if not problems:
        print("no known problem")


def _measured(preset: str) -> Duration:
    from rl_training.experiment.preset_time import measure_duration
    from rl_training.interrupts import raise_if_asked_to_stop

    duration = measure_duration(load_config(preset))
    raise_if_asked_to_stop()
    return duration


def _describe_preset(name: str, time: bool) -> dict[str, object]:
    """Return the line of a preset as JSON."""
    preset = read_preset(name)
    facts = {"env_id": preset.config.env_id, "total_timesteps": preset.config.total_timesteps}
    measured = {"seconds": _measured(name).seconds} if time else {}
    return {**facts, "purpose": preset.purpose, "expect": preset.expect, **measured}


def _print_preset(name: str, width: int, time: bool) -> None:
    """Print what a preset is for, on a line for its name and some for the rest."""
    preset = read_preset(name)
    print(f"{name:{width}}  {preset.config.env_id}, {preset.config.total_timesteps:,} steps", flush=True)
    wrap = textwrap.TextWrapper(max(shutil.get_terminal_size().columns, 60), break_long_words=False)
    wrap.initial_indent = wrap.subsequent_indent = " " * 4
    print(wrap.fill(preset.purpose))
    print(wrap.fill(f"expect {preset.expect}" + (f"; time here: {_measured(name)}" if time else "")), flush=True)


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
