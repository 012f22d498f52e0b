"""What a report reads of a run's folder. Only ``config.yaml`` and ``metrics.csv`` have to be there."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rl_training.algorithms.table import ALGORITHMS
from rl_training.config import TrainConfig, differences, load_config, preset_names
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.report.statistics import mean_interval, success_interval
from rl_training.runtime.checkpoint_files import read_manifest
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.logging import STEP, UPDATES, read_metrics
from rl_training.runtime.outcome import read_result
from rl_training.runtime.run_lock import is_locked
from rl_training.runtime.run_records import DATA, EPISODES, EVALUATION, read_episodes, read_json
from rl_training.runtime.settings import complete_config
from rl_training.runtime.warning_log import read_warnings

Row = dict[str, float]

MAIN_METRICS = {
    "eval/success_rate": "success rate",
    "eval/normalized_score": "normalised score",
    "eval/mean_reward": "mean return",
    "rollout/success_rate": "success rate while exploring",
    "rollout/ep_rew_mean": "mean return while exploring",
}
"""The metrics that may head a report, the most telling one first."""

_DEPTH = 4
"""How many levels of folders are searched for runs."""


@dataclass(frozen=True)
class Episode:
    """One row of ``episodes.csv``; NaN or None where there is no value."""

    step: int
    reward: float
    success: bool | None
    distance: float
    goal: tuple[float, ...] | None


@dataclass(frozen=True)
class EvaluatedEpisode:
    """One episode of ``evaluation.json``."""

    reward: float
    length: int
    success: bool | None
    goal: tuple[float, ...] | None
    path: list[tuple[float, ...]]
    """The achieved goals from start to end; empty if the path was not recorded."""


@dataclass(frozen=True)
class DataSummary:
    """What ``data.json`` says about the offline data."""

    source: str
    transitions: int
    episodes: int
    returns: list[float]


@dataclass(frozen=True)
class RunData:
    """One run as the report shows it."""

    path: Path
    config: TrainConfig
    rows: list[Row]
    """The rows of ``metrics.csv`` over the steps; those of pretraining, which takes no steps, are apart."""
    pretraining: list[Row] = field(default_factory=list)
    evaluation: list[EvaluatedEpisode] = field(default_factory=list)
    """The episodes of the latest evaluation."""
    data: DataSummary | None = None
    """Size and returns of the offline data, if there is any."""
    result: TrainResult | None = None
    running: bool = False
    warnings: list[tuple[int, str]] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)
    """Versions and hardware."""

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.path.name or str(self.path)

    @property
    def algorithm(self) -> str:
        """The algorithm in words, such as ``HER with DDPG``."""
        row = ALGORITHMS.get(self.config.algo)
        name = row.class_name if row is not None else self.config.algo
        backend = self.config.algo_kwargs.get("backend")
        return f"{name} with {ALGORITHMS[backend].class_name}" if backend in ALGORITHMS else name

    @property
    def task(self) -> str:
        """The environment without its namespace, or the data."""
        if self.config.env_id is not None:
            return self.config.env_id.rpartition("/")[2]
        return Path(self.data.source).name if self.data is not None else "logged data"

    @property
    def step_name(self) -> str:
        """What the steps count."""
        row = ALGORITHMS.get(self.config.algo)
        online = self.config.algo_kwargs.get("online")
        return "environment steps" if (row is None or row.online if online is None else online) else "updates"

    @property
    def status(self) -> str:
        """One word: completed, stopped, interrupted, failed, running or unfinished."""
        return self.result.status if self.result is not None else "running" if self.running else "unfinished"

    @property
    def outcome(self) -> str:
        """How the run ended, or how far it is."""
        last = self.rows[-1] if self.rows else self.pretraining[-1] if self.pretraining else {STEP: 0, UPDATES: 0}
        if self.result is None:
            state = "Running" if self.running else "Not finished, or ended without a result.json"
            return f"{state}: step {last[STEP]:,.0f} of {self.config.total_timesteps:,}, {last[UPDATES]:,.0f} updates"
        reason = self.result.stop_reason
        if not reason.startswith(self.result.status):
            reason = f"{self.result.status}: {reason}"
        counted = f"{self.result.global_step:,} steps and {self.result.update_count:,} updates"
        return f"{reason[:1].upper()}{reason[1:]} after {counted}"

    @cached_property
    def episodes(self) -> list[Episode]:
        """The collected episodes. They are read when they are first needed: there may be very many."""
        return _episodes(self.path / EPISODES)

    @cached_property
    def seconds(self) -> float:
        """The training time, evaluations included, as the rates in the log add up."""
        total, step, updates = 0.0, 0.0, 0.0
        for row in [*self.pretraining, *self.rows]:
            fps, rate = row.get("time/fps", 0.0), row.get("time/updates_per_second", 0.0)
            if fps > 0 and math.isfinite(fps):
                total += max(0.0, row[STEP] - step) / fps
            elif rate > 0 and math.isfinite(rate):
                total += max(0.0, row[UPDATES] - updates) / rate
            step, updates = row[STEP], row[UPDATES]
        return total

    @property
    def main_metric(self) -> str | None:
        """The metric that matters most among those that were measured."""
        return next((name for name in MAIN_METRICS if self.last(name) is not None), None)

    def last(self, metric: str) -> float | None:
        """Return the latest value of a metric, if there is one."""
        found = (row[metric] for row in reversed([*self.pretraining, *self.rows]) if metric in row)
        return next(found, None)

    def last_row(self, metric: str) -> Row:
        """Return the latest row that has a metric."""
        return next(row for row in reversed([*self.pretraining, *self.rows]) if metric in row)

    def interval(self, metric: str, row: Row) -> tuple[float, float] | None:
        """Return the 95% interval of an evaluation's metric, if its spread is known."""
        count = self.config.eval_episodes
        if metric == "eval/success_rate":
            return success_interval(row[metric], count)
        if metric == "eval/mean_reward" and "eval/std_reward" in row:
            return mean_interval(row[metric], row["eval/std_reward"], count)
        return None

    @property
    def command_path(self) -> str:
        """The run's folder as an argument of a command, from the working folder if it is below it."""
        path = self.path.absolute()
        with contextlib.suppress(ValueError):
            path = path.relative_to(Path.cwd())
        return shlex.quote(str(path))

    @property
    def reward_note(self) -> str:
        """What is done to the reward before learning; empty if nothing is."""
        wrapped = (self.config.env_kwargs.get("wrappers") or {}).get("reward") or {}
        given = self.config.algo_kwargs
        own = {key: given[f"reward_{key}"] for key in _NO_TRANSFORM if f"reward_{key}" in given}
        changes = [
            f"{key} {value}"
            for values in (wrapped, own)
            for key, value in values.items()
            if value != _NO_TRANSFORM.get(key)
        ]
        return f"Returns are raw; the learner sees rewards after {', '.join(changes)}." if changes else ""


_NO_TRANSFORM = {"scale": 1.0, "shift": 0.0, "clip_min": None, "clip_max": None}


def read_run(path: Path) -> RunData:
    """Read a run's folder; files that a run of an earlier version does not have may be missing."""
    rows = read_metrics(path / "metrics.csv")
    if not rows:
        raise ConfigError(f"{path}: not a run with metrics (there is no metrics.csv, or it is empty)")
    config = load_config(path / "config.yaml")
    result = read_result(path)
    machine: dict[str, str] = {}
    with contextlib.suppress(RLTrainingError):
        manifest = read_manifest(resolve_checkpoint(path / "checkpoints"))
        machine = {str(key): str(value) for key, value in dict(manifest.get("machine") or {}).items()}
    return RunData(
        path=path,
        config=config,
        rows=[row for row in rows if not _is_pretraining(row)],
        pretraining=[row for row in rows if _is_pretraining(row)],
        evaluation=_evaluation(path / EVALUATION),
        data=_data(path / DATA),
        result=result,
        running=result is None and is_locked(path),
        warnings=read_warnings(path),
        machine=machine,
    )


def find_runs(path: Path) -> list[Path]:
    """Return a run's folder, or the runs in the folders below it, sorted by name."""
    if (path / "config.yaml").is_file() or (path / "metrics.csv").is_file() or not path.is_dir():
        return [path]
    found = []
    base = len(path.parts)
    for folder, folders, files in os.walk(path):
        if "config.yaml" in files and "metrics.csv" in files:
            found.append(Path(folder))
            folders.clear()
        elif len(Path(folder).parts) - base >= _DEPTH:
            folders.clear()
    return sorted(found)


def compared_with(config: TrainConfig) -> tuple[str | None, list[tuple[str, Any, Any]]]:
    """Return the preset nearest to a configuration, and each key with the preset's value and its own.

    Without a preset of the same algorithm and environment, there is no name and no difference.
    """
    now = _settings(config)
    candidates = []
    for name in preset_names():
        if name.partition("/")[0] == config.algo:
            preset = _preset(name)
            if preset is not None and preset.env_id == config.env_id:
                candidates.append((differences(_settings(preset), now), name))
    if not candidates:
        return None, []
    found, name = min(candidates, key=lambda candidate: len(candidate[0]))
    return name, found


@functools.cache
def _preset(name: str) -> TrainConfig | None:
    """Read a preset once for all runs of a report; None if it cannot be read."""
    with contextlib.suppress(ConfigError):
        return load_config(name)
    return None


def differing_keys(runs: Sequence[RunData]) -> list[str]:
    """Return the settings in which runs differ; seed and folder do not count."""
    first = _settings(runs[0].config)
    return list(dict.fromkeys(key for run in runs[1:] for key, _, _ in differences(first, _settings(run.config))))


def setting(config: TrainConfig, key: str) -> Any:
    """Return the value at a dotted key, or None."""
    value: Any = _settings(config)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _is_pretraining(row: Row) -> bool:
    """Return whether a row was written before the first step, when updates use offline data only."""
    return row[STEP] == 0 and row[UPDATES] > 0


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Return all settings but seed and folder, with the defaults that an older file lacks."""
    with contextlib.suppress(ConfigError):
        config = complete_config(config)
    return config.model_dump(mode="json", exclude={"seed", "output_dir"})


def _episodes(path: Path) -> list[Episode]:
    episodes = []
    for row in read_episodes(path):
        with contextlib.suppress(ValueError):  # a row that this package did not write
            goal = tuple(map(float, row["goal"].split())) or None
            success = None if row["success"] == "" else row["success"] == "1"
            distance = float(row["final_distance"] or math.nan)
            episodes.append(Episode(int(row[STEP]), float(row["return"]), success, distance, goal))
    return episodes


def _evaluation(path: Path) -> list[EvaluatedEpisode]:
    try:
        return [
            EvaluatedEpisode(
                reward=float(one["return"]),
                length=int(one["length"]),
                success=None if one.get("success") is None else bool(one["success"]),
                goal=_numbers(one["goal"]) if one.get("goal") else None,
                path=[_numbers(at) for at in one.get("path") or []],
            )
            for one in read_json(path).get("episodes") or []
        ]
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        return []  # not a file of this package


def _data(path: Path) -> DataSummary | None:
    content = read_json(path)
    try:
        counts = int(content["transitions"]), int(content["episodes"])
        return DataSummary(str(content["source"]), *counts, list(_numbers(content["returns"])))
    except (LookupError, OverflowError, TypeError, ValueError):
        return None


def _numbers(values: Any) -> tuple[float, ...]:
    """Return finite numbers, or raise ``ValueError``."""
    numbers = tuple(float(value) for value in values)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("not finite")
    return numbers
