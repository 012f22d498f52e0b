"""The file of a sweep, and the list of trials that follows from it and from nothing else."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from rl_training.config import (
    Settings,
    TrainConfig,
    config_path,
    parse_config,
    parse_overrides,
    parse_seeds,
    parse_settings,
    preset_names,
    read_yaml,
)
from rl_training.errors import ConfigError
from rl_training.experiment.run_folder import require_same_run
from rl_training.json_output import to_json
from rl_training.runtime.settings import complete_config
from rl_training.scale.ranges import parse_ranges
from rl_training.scale.trials import Trial, refresh, trial_name
from rl_training.urls import Location, local_path, parse_location

_MOST_TRIALS = 10_000
_OWN_KEYS = {"seed": "use seeds", "output_dir": "use folder"}
"""Keys of a configuration that a sweep sets itself."""


class Base(Settings):
    """What the files of sweeps and of tuning have in common."""

    base: str | dict[str, Any] = Field(description="a preset, a YAML file beside this one, or a configuration")
    changes: dict[str, Any] = Field(default_factory=dict, alias="set", description="changes of the base, by their keys")
    folder: Location | None = Field(
        None, description="where the runs go, a path or a URL; unset: runs/NAME, after the file's name"
    )
    workers: int | None = Field(None, ge=1, description="trials at a time; unset: as many as there are CPUs for")
    gpus_per_trial: float | None = Field(
        None, ge=0, description="GPUs of a trial, such as 0.25; unset: one if its device is a GPU"
    )

    @field_validator("folder", mode="plain")
    @classmethod
    def _path_or_url(cls, value: Any) -> Location | None:
        return None if value is None else parse_location(value)


class Space(Settings):
    """The settings that a sweep varies: every combination of ``grid``, ``list`` and the ``random`` draws."""

    grid: dict[str, list[Any]] = Field(default_factory=dict, description="lists of values, by key")
    points: list[dict[str, Any]] = Field(default_factory=lambda: [dict[str, Any]()], alias="list")
    random: dict[str, Any] = Field(default_factory=dict, description="ranges, by key")
    samples: int | None = Field(None, ge=1, description="draws from random")
    seed: int = Field(0, ge=0, description="seed of the draws")


class SweepFile(Base):
    """The keys of a sweep's file."""

    sweep: Space = Field(default_factory=lambda: Space(), description="what varies")
    seeds: str | int | list[int] = Field("0", description="seeds of every configuration: 0-4 or [0, 3, 7]")
    stack: bool = Field(False, description="train the seeds of a configuration together, as one stack")


@dataclass(frozen=True)
class Source:
    """The base of a sweep: what ``train`` calls it, and its values."""

    command: str | None
    """A preset or a file, as ``rl-training train`` takes it; None for a configuration inside the sweep's file."""
    name: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """A sweep that was read and checked."""

    path: Path
    location: Location
    """The folder of the runs, or its URL."""
    source: Source
    settings: Base
    trials: list[Trial]

    @property
    def folder(self) -> Path:
        """The folder of the runs; if they are at a URL, that of their local copies."""
        return local_path(self.location)

    @property
    def groups(self) -> list[list[Trial]]:
        """The trials that are trained together: the seeds of a configuration in a stack, else each alone."""
        if not isinstance(self.settings, SweepFile) or not self.settings.stack:
            return [[trial] for trial in self.trials]
        found: dict[str, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(to_json(trial.changes), []).append(trial)
        return list(found.values())


def read_sweep(path: Path) -> Sweep:
    """Read the file of a sweep and list its trials; every trial's configuration is checked."""
    settings = parse_settings(SweepFile, read_file(path), where=str(path))
    source = read_base(path, settings)
    folder = settings.folder or Path("runs") / path.stem
    seeds = _seeds(settings.seeds, path)
    points = _points(settings.sweep, path)
    for key in dict.fromkeys(key for point in points for key in point):
        refuse_own_key(key, path)
    if len(points) * len(seeds) > _MOST_TRIALS:
        raise ConfigError(f"{path}: {len(points) * len(seeds):,} trials: expected at most {_MOST_TRIALS:,}")
    trials = [make_trial(source, point, seed, folder, path) for point in points for seed in seeds]
    _require_different(trials, path)
    return Sweep(path, folder, source, settings, trials)


def read_file(path: Path) -> dict[str, Any]:
    """Read the YAML file of a sweep."""
    if not path.is_file():
        raise ConfigError(f"no file {str(path)!r}")
    return read_yaml(path)


def read_base(path: Path, settings: Base) -> Source:
    """Return the base configuration with the changes of ``set``; a file's name counts from the sweep's folder."""
    for key in settings.changes:
        refuse_own_key(key, path)
    base = settings.base
    if isinstance(base, dict):
        values, command, name = copy.deepcopy(base), None, str(base.get("algo", "run"))
    else:
        beside = path.parent / base
        command = base if base in preset_names() or not beside.is_file() else str(beside)
        values, name = read_yaml(config_path(command)), base if base in preset_names() else Path(base).stem
    parse_overrides(overrides(settings.changes), values)
    return Source(command, name, values)


def make_trial(source: Source, changes: dict[str, Any], seed: int, folder: Location, where: Path) -> Trial:
    """Return a trial, with its configuration checked; ``where`` names the file in messages."""
    name = trial_name(source.name, changes, seed)
    return Trial(name, changes, check_changes(source, {**changes, "seed": seed, "output_dir": str(folder)}, where))


def check_changes(source: Source, changes: dict[str, Any], where: Path) -> TrainConfig:
    """Return the complete configuration of the base with changes, or raise an error that names what is wrong."""
    try:
        values = parse_overrides(overrides(changes), copy.deepcopy(source.values))
        return complete_config(parse_config(values, where=source.name))
    except ConfigError as error:
        own = ", ".join(f"{key} = {value!r}" for key, value in changes.items() if key not in _OWN_KEYS)
        raise ConfigError(f"{where}: {f'with {own}: ' if own else ''}{error}") from None


def overrides(changes: dict[str, Any]) -> list[str]:
    """Return changes as ``--set`` takes them."""
    return [f"{key}={to_json(value)}" for key, value in changes.items()]


def refuse_own_key(key: str, path: Path) -> None:
    """Refuse to vary a key that the sweep sets itself."""
    if key in _OWN_KEYS:
        raise ConfigError(f"{path}: {key!r} cannot be set here: {_OWN_KEYS[key]}")


def require_free_folders(trials: Sequence[Trial]) -> None:
    """Refuse folders that hold runs of other configurations, or longer ones."""
    for trial in trials:
        refresh(trial)
        if (trial.run_dir / "config.yaml").is_file():
            require_same_run(trial.run_dir, trial.config)


def _points(space: Space, path: Path) -> list[dict[str, Any]]:
    """Return the settings of every configuration, in order and without repetitions."""
    for key, values in space.grid.items():
        if not values:
            raise ConfigError(f"{path}: sweep.grid.{key} is empty: expected a list of values")
    if not space.points:
        raise ConfigError(f"{path}: sweep.list is empty: expected a list of settings, by their keys")
    if bool(space.random) != (space.samples is not None):
        raise ConfigError(f"{path}: sweep.random and sweep.samples belong together: expected both, or none")
    grid = [dict(zip(space.grid, values, strict=True)) for values in itertools.product(*space.grid.values())]
    ranges = parse_ranges(space.random, f"{path}: sweep.random")
    draws = [{one.key: one.draw(space.seed, n) for one in ranges} for n in range(space.samples or 1)]
    found: dict[str, dict[str, Any]] = {}
    for parts in itertools.product(grid, space.points, draws):
        _require_disjoint(parts, path)
        point = {key: value for part in parts for key, value in part.items()}
        found.setdefault(to_json(point), point)  # draws from a choice may repeat
        if len(found) > _MOST_TRIALS:
            raise ConfigError(f"{path}: more than {_MOST_TRIALS:,} configurations: expected fewer")
    return list(found.values())


def _require_disjoint(parts: Iterable[dict[str, Any]], path: Path) -> None:
    for one, other in itertools.combinations(parts, 2):
        if twice := set(one) & set(other):
            raise ConfigError(f"{path}: {min(twice)} is in two of grid, list and random: expected it in one")


def _seeds(given: str | int | list[int], path: Path) -> list[int]:
    seeds = list(dict.fromkeys(given)) if isinstance(given, list) else parse_seeds(str(given), f"{path}: seeds")
    if not seeds or min(seeds) < 0:
        raise ConfigError(f"{path}: seeds = {given!r}: expected a range such as 0-4 or a list such as [0, 3, 7]")
    return seeds


def _require_different(trials: Sequence[Trial], path: Path) -> None:
    """Refuse trials that have different names and the same configuration, such as 1 and 1.0."""
    known: dict[str, str] = {}
    for trial in trials:
        key = to_json(trial.config.model_dump(mode="json"))
        if key in known:
            raise ConfigError(f"{path}: {known[key]} and {trial.name} are the same configuration: expected it once")
        known[key] = trial.name


def env_configs(trials: Sequence[Trial]) -> Iterator[TrainConfig]:
    """Return one configuration for each environment, with its arguments, that the trials use."""
    known = set()
    for trial in trials:
        key = to_json([trial.config.env_id, trial.config.env_kwargs])
        if trial.config.env_id is not None and key not in known:
            known.add(key)
            yield trial.config
