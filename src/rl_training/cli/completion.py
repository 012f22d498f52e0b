"""What the shell completes: presets, algorithms, runs and built-in environments.

typer keeps what begins with the word at hand. If nothing does, the shell completes file names.
"""

from __future__ import annotations

from pathlib import Path

from rl_training.config import preset_names
from rl_training.gym_ids import GOAL_ENVS


def complete_preset() -> list[str]:
    """Return the presets."""
    return preset_names()


def complete_algorithm() -> list[str]:
    """Return the algorithms. Every one has a preset, and reading the names of presets needs no torch."""
    return list(dict.fromkeys(name.partition("/")[0] for name in preset_names()))


def complete_preset_or_algorithm() -> list[str]:
    """Return the algorithms and the presets."""
    return [*complete_algorithm(), *complete_preset()]


def complete_env() -> list[str]:
    """Return the built-in environments."""
    return list(GOAL_ENVS)


def complete_run() -> list[str]:
    """Return the runs in ``runs``, newest first."""
    runs = [file.parent for file in Path("runs").glob("*/config.yaml")]
    return [str(run) for run in sorted(runs, key=lambda run: run.stat().st_mtime, reverse=True)]
