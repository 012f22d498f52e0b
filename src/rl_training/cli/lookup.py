"""Commands that look something up: ``presets``, ``settings``, ``check-env`` and ``doctor``."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.options import JsonOption, SetOption
from rl_training.cli.streams import print_error
from rl_training.config import config_path, load_config, parse_overrides, preset_names
from rl_training.errors import ConfigError, did_you_mean, shown
from rl_training.json_output import to_json

if TYPE_CHECKING:
    from rl_training.experiment.setting_tables import SettingGroup


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


def doctor(json_: JsonOption = False) -> None:
    """Show what is installed: versions, devices and extras."""
    from rl_training.experiment.doctor import diagnose

    facts = diagnose()
    if json_:
        print(to_json(facts))
    else:
        for name, value in facts.items():
            print(f"{name:22} {value}")


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
