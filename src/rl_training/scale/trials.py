"""One trial: its configuration, its folder, and its state as the folder tells it."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.errors import CheckpointError, RemoteError, RunLockedError
from rl_training.experiment.report.run_data import read_run
from rl_training.experiment.run_folder import finished_result
from rl_training.json_output import to_json
from rl_training.runtime.logging import STEP, read_metrics
from rl_training.runtime.outcome import read_result
from rl_training.runtime.remote.local_copy import fetch, records
from rl_training.runtime.run_lock import is_locked
from rl_training.urls import Location, join, local_path

DONE = ("completed", "stopped")
"""The states of a trial that needs nothing more."""

_LONGEST_NAME = 100
_SOON = 5.0
_refreshed: dict[str, float] = {}
"""When trials at URLs were last looked at."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        name: the name of its folder, which depends on ``changes`` and the seed only.
        changes: the settings in which it differs from the base, by their keys.
        config: the complete configuration.
    """

    name: str
    changes: dict[str, Any]
    config: TrainConfig

    @property
    def location(self) -> Location:
        """The folder of its run, or the URL."""
        return join(self.config.output_dir, self.name)

    @property
    def run_dir(self) -> Path:
        """The folder of its run; of a run at a URL, its local copy."""
        return local_path(self.location)


@dataclass(frozen=True)
class TrialState:
    """What the folder of a trial says about it."""

    status: str
    """``completed``, ``stopped``, ``interrupted``, ``failed``, ``running``, ``unfinished`` (killed) or ``missing``."""
    step: int
    total: int
    metrics: dict[str, float]
    """The latest values of success rate and return."""
    rate: float | None = None
    """Steps per second, as last measured."""
    error: str = ""

    @property
    def is_done(self) -> bool:
        """Whether the trial needs nothing more."""
        return self.status in DONE

    @property
    def seconds_left(self) -> float | None:
        """The time to its end at the last rate; None if that is unknown."""
        return max(0, self.total - self.step) / self.rate if self.rate else None


def trial_name(base: str, changes: dict[str, Any], seed: int) -> str:
    """Return the name of a trial's folder, such as ``learning_rate=0.001-backend=sac-s0``.

    A short hash of the changes is added if the name does not show them exactly.
    """
    parts = [f"{key.removeprefix('algo_kwargs.')}={_text(value)}" for key, value in sorted(changes.items())]
    whole = "-".join(parts) or base
    name = re.sub(r"[^\w.=+-]+", "-", whole)
    if changes and (name != whole or len(name) > _LONGEST_NAME):
        digest = hashlib.sha256(to_json(dict(sorted(changes.items()))).encode()).hexdigest()[:8]
        name = f"{name[:_LONGEST_NAME].rstrip('-')}-{digest}"
    return f"{name}-s{seed}"


def refresh(trial: Trial, *, soon: bool = False) -> None:
    """Bring the logs of a trial at a URL to this machine; ``soon``: unless that was done a few seconds ago."""
    url = trial.location
    if not isinstance(url, str) or (soon and time.monotonic() - _refreshed.get(url, -_SOON) < _SOON):
        return
    _refreshed[url] = time.monotonic()
    # It may not be there yet, or a process on this machine is training it in the local copy.
    with contextlib.suppress(CheckpointError, RunLockedError):
        fetch(url, records, patience=0.0)


def trial_state(trial: Trial, *, running: bool | None = None, error: str = "") -> TrialState:
    """Read the state of a trial from its folder.

    Args:
        trial: the trial.
        running: whether a process is training it; unset: the lock of its folder says so.
        error: why it failed, where its folder does not say so.
    """
    with contextlib.suppress(RemoteError):  # without a connection, the state that was last seen is shown
        refresh(trial, soon=True)
    folder, total = trial.run_dir, trial.config.total_timesteps
    rows = read_metrics(folder / "metrics.csv")
    step = int(rows[-1][STEP]) if rows else 0
    metrics = {name: row[name] for row in rows for name in _SHOWN if name in row}
    rate = next((row["time/fps"] for row in reversed(rows) if row.get("time/fps", 0) > 0), None)
    result = read_result(folder)
    if result is not None:
        step = result.global_step
    if is_locked(folder) if running is None else running:
        status = "running"
    elif error:
        status = "failed"
    elif not (folder / "config.yaml").is_file():
        status = "missing"
    elif finished_result(folder, total) is not None and result is not None:
        status = result.status
    elif result is not None and result.status == "failed":
        status, error = "failed", result.stop_reason
    else:
        status = "interrupted" if result is not None and result.status == "interrupted" else "unfinished"
    return TrialState(status, step, total, metrics, rate, error)


def training_rate(trial: Trial) -> float | None:
    """Return the steps per second of a finished trial, evaluations included; None if they are unknown."""
    seconds = read_run(trial.run_dir).seconds
    return trial_state(trial, running=False).step / seconds if seconds > 0 else None


_SHOWN = ("eval/success_rate", "eval/mean_reward")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)
