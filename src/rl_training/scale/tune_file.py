"""The file of a search for settings, and the checks of its ranges against the settings' own types and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rl_training.config import Settings, TrainConfig, parse_settings
from rl_training.errors import ConfigError
from rl_training.runtime.settings import parse_run
from rl_training.scale.ranges import Range, parse_ranges
from rl_training.scale.sweep_file import Base, Source, check_changes, make_trial, read_base, read_file, refuse_own_key
from rl_training.scale.trials import Trial
from rl_training.urls import Location, local_path


class Asha(Settings):
    """When ASHA stops a trial: at each rung, unless it is among the best there."""

    grace: int | None = Field(None, ge=1, description="steps that every trial gets; unset: a quarter of the budget")
    reduction: float = Field(3.0, gt=1, le=100, description="one in so many trials goes on at each rung")


class Repeats(Settings):
    """How the best configurations are compared: on seeds that the search has not seen."""

    best: int = Field(3, ge=1, le=100, description="configurations that are repeated")
    seeds: int = Field(3, ge=2, le=1000, description="fresh seeds of each")


class TuneFile(Base):
    """The keys of the file of a search."""

    space: dict[str, Any] = Field(description="ranges, by key")
    metric: Literal["eval/success_rate", "eval/mean_reward", "eval/normalized_score"] = Field(
        "eval/success_rate", description="what to maximise"
    )
    trials: int = Field(20, ge=1, le=100_000, description="configurations to try")
    seed: int = Field(0, ge=0, le=2**31, description="seed of the search, and of the runs in it")
    asha: Asha | None = Field(default_factory=lambda: Asha(), description="null: every trial runs to its end")
    repeat: Repeats = Field(default_factory=lambda: Repeats(), description="the comparison at the end")


@dataclass(frozen=True)
class Search:
    """A search that was read and checked."""

    path: Path
    location: Location
    """The folder of the search, or its URL."""
    source: Source
    settings: TuneFile
    ranges: list[Range]
    config: TrainConfig
    """The base, which every trial starts from."""

    @property
    def folder(self) -> Path:
        """The folder of the search; if it is at a URL, its local copy."""
        return local_path(self.location)

    @property
    def journal(self) -> Path:
        """The file in which Optuna keeps the search."""
        return self.folder / "optuna.journal"

    @property
    def grace(self) -> int:
        """Steps before ASHA may stop a trial."""
        given = self.settings.asha.grace if self.settings.asha is not None else None
        interval = parse_run(self.config).loop.eval_interval or 1
        return given or max(interval, -(-self.config.total_timesteps // 4))

    def trial(self, changes: dict[str, Any], seed: int | None = None, folder: Location | None = None) -> Trial:
        """Return the trial with these settings; unset: with the seed and in the folder of the search."""
        seed = self.settings.seed if seed is None else seed
        return make_trial(self.source, changes, seed, folder or self.location, self.path)


def read_search(path: Path) -> Search:
    """Read the file of a search and check its base, and each range at its ends and between them."""
    settings = parse_settings(TuneFile, read_file(path), where=str(path))
    if not settings.space:
        raise ConfigError(f"{path}: space is empty: expected ranges such as algo_kwargs.tau: {{uniform: [0.01, 0.1]}}")
    source = read_base(path, settings)
    ranges = parse_ranges(settings.space, f"{path}: space")
    for one in ranges:
        refuse_own_key(one.key, path)
        if one.key in ("total_timesteps", "num_threads", "device"):
            raise ConfigError(f"{path}: space.{one.key}: trials must have the same {one.key} to be compared")
        for value in one.probes():
            check_changes(source, {one.key: value}, path)
    config = check_changes(source, {one.key: one.probes()[0] for one in ranges}, path)
    search = Search(path, settings.folder or Path("runs") / path.stem, source, settings, ranges, config)
    _check_evaluations(search)
    return search


def _check_evaluations(search: Search) -> None:
    """Refuse a search whose trials are not evaluated, or not before ASHA decides."""
    config, interval = search.config, parse_run(search.config).loop.eval_interval
    if config.env_id is None:
        raise ConfigError(f"{search.path}: tune compares evaluations, so key 'env_id' is required")
    if search.settings.asha is None:
        return
    if interval is None or interval > search.grace:
        raise ConfigError(
            f"{search.path}: algo_kwargs.eval_interval = {interval}: ASHA decides after {search.grace} steps;"
            f" expected an evaluation every {search.grace} steps or more often"
        )
    if search.grace > config.total_timesteps:
        raise ConfigError(
            f"{search.path}: asha.grace = {search.grace}: expected at most total_timesteps = {config.total_timesteps}"
        )
