"""Tracking services besides the run's own files: Weights & Biases and MLflow.

Each tracker has ``start``, ``log``, ``note`` and ``finish``. ``trackers.json`` in the run's folder holds the id that a
service gave to the run, so that a resumed run continues there.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rl_training.errors import CheckpointError, ConfigError, MissingExtraError, shown
from rl_training.json_output import to_json
from rl_training.runtime.checkpoint_files import write_durably

IDS = "trackers.json"
PROJECT = "rl_training"
"""The default project of Weights & Biases, and the default experiment of MLflow."""

_PARAMETERS = 100  # MLflow takes this many in one call
_PARAMETER_LENGTH = 500


class Tracker(Protocol):
    """A service that gets every row of metrics."""

    def start(self, run_dir: Path, config: Mapping[str, Any], run_id: str | None) -> str:
        """Begin a run there, or continue the one with this id, and return its id."""
        ...

    def log(self, metrics: Mapping[str, float], *, axis: str, position: int) -> None:
        """Send values over ``axis``: the name of a counter, which is at ``position``."""
        ...

    def note(self, name: str, text: str) -> None:
        """Send a text."""
        ...

    def finish(self, *, failed: bool) -> None:
        """End the run there."""
        ...


class WandbTracker:
    """Weights & Biases. ``WANDB_MODE=offline`` writes to the run's folder only; ``WANDB_PROJECT`` names the project."""

    def __init__(self) -> None:
        self._wandb = importlib.import_module("wandb")
        self._run: Any = None

    def start(self, run_dir: Path, config: Mapping[str, Any], run_id: str | None) -> str:
        """Begin or continue a run."""
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(run_dir),
            name=run_dir.name,
            id=run_id,
            # Offline there is nothing to look up: both parts have the same id, and `wandb sync` joins them.
            resume=None if run_id is None or os.environ.get("WANDB_MODE") == "offline" else "allow",
            config=dict(config),
            # stdout belongs to the command, and the runs of a stack are open at the same time.
            settings=self._wandb.Settings(console="off", reinit="create_new"),
        )
        self._run.define_metric("*", step_metric="global_step")
        self._run.define_metric("pretrain/*", step_metric="update_count")
        return str(self._run.id)

    def log(self, metrics: Mapping[str, float], *, axis: str, position: int) -> None:
        """Send one row."""
        self._run.log({axis: position, **metrics})

    def note(self, name: str, text: str) -> None:
        """Put a text into the summary."""
        self._run.summary[name] = text

    def finish(self, *, failed: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=int(failed))


class MlflowTracker:
    """MLflow. ``MLFLOW_TRACKING_URI`` names the server; unset: the folder ``mlruns`` beside the run."""

    def __init__(self) -> None:
        # The file store is in maintenance mode, and needs consent since MLflow 3.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._mlflow = importlib.import_module("mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        self._client: Any = None
        self._id = ""

    def start(self, run_dir: Path, config: Mapping[str, Any], run_id: str | None) -> str:
        """Begin or continue a run."""
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (run_dir.parent / "mlruns").as_uri()
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
            self._id = run_id
            return run_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        key = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
        self._id = str(self._client.create_run(key, run_name=run_dir.name).info.run_id)
        parameters = [
            self._entities.Param(name, str(value)[:_PARAMETER_LENGTH]) for name, value in _flat(config, "").items()
        ]
        for start in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + _PARAMETERS])
        return self._id

    def log(self, metrics: Mapping[str, float], *, axis: str, position: int) -> None:
        """Send one row."""
        now = int(time.time() * 1000)
        values = [self._entities.Metric(name, float(value), now, position) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=values)

    def note(self, name: str, text: str) -> None:
        """Set a tag."""
        self._client.set_tag(self._id, name, text)

    def finish(self, *, failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


TRACKERS: dict[str, Callable[[], Tracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}


def make_trackers(loggers: Iterable[str]) -> dict[str, Tracker]:
    """Return the trackers among the loggers; an error names the extra of one whose package is not installed."""
    trackers: dict[str, Tracker] = {}
    for name in loggers:
        if name in TRACKERS:
            try:
                trackers[name] = TRACKERS[name]()
            except ImportError:
                raise MissingExtraError(f"loggers: {name}", name) from None
    return trackers


class TrackedRun:
    """One run in all its tracking services.

    A service that cannot be reached at the start ends the run before it trains. One that fails later is left out, with
    a warning: training goes on.
    """

    def __init__(self, run_dir: Path, trackers: Mapping[str, Tracker], config: Mapping[str, Any]) -> None:
        self._run_dir, self._config = run_dir, config
        self._trackers = dict(trackers)
        self._started: dict[str, Tracker] = {}

    def start(self, *, resumed: bool) -> None:
        """Begin the run in each service, or continue it there."""
        if not self._trackers:
            return
        ids = _read_ids(self._run_dir / IDS) if resumed else {}
        for name, tracker in self._trackers.items():
            try:
                ids[name] = tracker.start(self._run_dir, self._config, ids.get(name))
            except Exception as error:  # each service has classes of its own
                self.finish(failed=True)
                raise ConfigError(_not_started(name, error, ids.get(name), self._run_dir)) from error
            self._started[name] = tracker
        try:
            write_durably(self._run_dir / IDS, to_json(ids, indent=1) + "\n")
        except OSError as error:
            raise CheckpointError(f"{self._run_dir / IDS}: cannot be written: {error.strerror}") from error

    def log(self, metrics: Mapping[str, float], *, axis: str, position: int) -> None:
        """Send one row to each service."""
        self._each(lambda tracker: tracker.log(metrics, axis=axis, position=position))

    def note(self, name: str, text: str) -> None:
        """Send a text to each service."""
        self._each(lambda tracker: tracker.note(name, text))

    def finish(self, *, failed: bool) -> None:
        """End the run in each service."""
        self._each(lambda tracker: tracker.finish(failed=failed))
        self._started = {}

    def _each(self, send: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._started.items()):
            try:
                send(tracker)
            except Exception as error:  # each service has classes of its own
                del self._started[name]
                warnings.warn(
                    f"loggers: {name} failed and gets no more metrics of this run: {_reason(error)}", stacklevel=4
                )


def _not_started(name: str, error: Exception, run_id: str | None, run_dir: Path) -> str:
    advice = {
        "wandb": "run `wandb login`, or set WANDB_MODE=offline",
        "mlflow": "set MLFLOW_TRACKING_URI to a server that runs, or leave it unset to write to a folder",
    }[name]
    if run_id is not None:
        advice += f"; its run there has the id {run_id}, and without {run_dir / IDS} a new one is started"
    return f"loggers: {name} could not start: {_reason(error)} ({advice})"


def _reason(error: Exception) -> str:
    return shown(" ".join(str(error).split()))[:300] or type(error).__name__


def _read_ids(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if isinstance(value, str)}
    return {}


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return nested settings as one level, with names such as ``algo_kwargs.gamma``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat
