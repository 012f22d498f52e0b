"""Loggers: which files and services get the metrics, the same run there after a resume, and services that fail."""

from __future__ import annotations

import json
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conftest import StopAt
from rl_training.config import load_config, parse_config
from rl_training.errors import ConfigError, MissingExtraError, RLTrainingError
from rl_training.runtime import tracking
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.logging import MetricsLogger, read_metrics
from rl_training.runtime.run import resume, train
from rl_training.runtime.tracking import TrackedRun
from rl_training.tools.verification import verify_run


class MemoryTracker:
    """A service that remembers what it got."""

    runs: list[MemoryTracker]
    fails_at: str | None = None

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, dict[str, float]]] = []
        self.notes: dict[str, str] = {}
        self.continued: str | None = None
        self.failed: bool | None = None
        type(self).runs.append(self)

    def start(self, run_dir: Path, config: Mapping[str, Any], run_id: str | None) -> str:
        if self.fails_at == "start":
            raise RuntimeError("no route\nto host")
        self.config, self.continued = config, run_id
        return run_id or f"run-{len(self.runs)}"

    def log(self, metrics: Mapping[str, float], *, axis: str, position: int) -> None:
        if self.fails_at == "log":
            raise RuntimeError("connection lost")
        self.rows.append((axis, position, dict(metrics)))

    def note(self, name: str, text: str) -> None:
        self.notes[name] = text

    def finish(self, *, failed: bool) -> None:
        self.failed = failed


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> type[MemoryTracker]:
    """Put a service in memory in the place of wandb."""

    class Service(MemoryTracker):
        runs: list[MemoryTracker] = []  # noqa: RUF012 (of this class, new for each test)

    monkeypatch.setitem(tracking.TRACKERS, "wandb", Service)
    return Service


@pytest.fixture
def short(tiny_config):
    """Return a function that makes a configuration of 160 steps."""
    return lambda **changes: tiny_config(
        total_timesteps=160, algo_kwargs={"log_interval": 30, "eval_interval": 80}, **changes
    )


def test_csv_is_always_written_and_the_order_is_kept() -> None:
    values = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 10}
    assert parse_config(values).loggers == ("tensorboard", "csv")
    assert parse_config({**values, "loggers": ["wandb"]}).loggers == ("wandb", "csv")
    assert parse_config({**values, "loggers": []}).loggers == ("csv",)
    assert parse_config({**values, "loggers": ["csv", "mlflow", "csv"]}).loggers == ("csv", "mlflow")
    with pytest.raises(ConfigError, match=r"loggers.*'tensorbord'.*'tensorboard'"):
        parse_config({**values, "loggers": ["tensorbord"]})


def test_tensorboard_can_be_left_out(short) -> None:
    with_it, without = (train(short(loggers=names)).run_dir for names in (["tensorboard"], []))
    assert list(with_it.glob("events.out.tfevents.*"))
    assert not list(without.glob("events.out.tfevents.*"))
    first, second = (
        [{key: value for key, value in row.items() if "time/" not in key} for row in read_metrics(run / "metrics.csv")]
        for run in (with_it, without)
    )
    assert first == second


def test_a_service_gets_every_row_of_metrics(short, service) -> None:
    run_dir = train(short(loggers=["wandb"])).run_dir
    (run,) = service.runs
    expected = [
        ("global_step", row["global_step"], {k: v for k, v in row.items() if k not in ("global_step", "update_count")})
        for row in read_metrics(run_dir / "metrics.csv")
    ]
    assert len(expected) > 3
    assert [(axis, position) for axis, position, _ in run.rows] == [(axis, step) for axis, step, _ in expected]
    for (_, _, sent), (_, _, written) in zip(run.rows, expected, strict=True):
        assert sent == pytest.approx(written)
    assert run.config["algo_kwargs"]["batch_size"] == 16
    assert run.notes == {"stop_reason": "total_timesteps"}
    assert run.failed is False


def test_pretraining_is_sent_over_the_updates(tmp_path: Path, service) -> None:
    logger = MetricsLogger(tmp_path, tensorboard=False, tracked=TrackedRun(tmp_path, {"wandb": service()}, {}))
    logger.open()
    for step, updates in ((0, 5), (3, 8)):
        logger.record({"train/loss": 1.5})
        logger.flush(step, updates)
    logger.close()
    assert service.runs[0].rows == [
        ("update_count", 5, {"pretrain/train/loss": 1.5}),
        ("global_step", 3, {"train/loss": 1.5}),
    ]
    assert service.runs[0].failed is True  # nothing said how it ended


def test_a_resumed_run_continues_in_the_service(short, service) -> None:
    run_dir = train(short(loggers=["wandb"]), callbacks=[StopAt(step=120)]).run_dir
    assert json.loads((run_dir / "trackers.json").read_text()) == {"wandb": "run-1"}
    resume(run_dir)
    first, second = service.runs
    assert (first.continued, second.continued) == (None, "run-1")
    steps = [position for run in service.runs for _, position, _ in run.rows]
    assert steps == [row["global_step"] for row in read_metrics(run_dir / "metrics.csv")]
    verify_run(run_dir)
    assert len(service.runs) == 2  # a copy of the run is not tracked
    (run_dir / "trackers.json").write_text('["damaged"]')
    resume(run_dir, overrides=["total_timesteps=180"])
    assert service.runs[2].continued is None


def test_a_service_that_cannot_start_ends_the_run_before_it_trains(short, service) -> None:
    service.fails_at = "start"
    with pytest.raises(ConfigError, match=r"wandb could not start: no route to host.*WANDB_MODE=offline"):
        train(short(loggers=["wandb"]))


def test_a_service_that_fails_later_is_left_out(short, service) -> None:
    service.fails_at = "log"
    with pytest.warns(
        UserWarning, match=r"wandb failed and gets no more metrics of this run: connection lost"
    ) as caught:
        result = train(short(loggers=["wandb"]))
    assert sum("wandb failed" in str(warning.message) for warning in caught) == 1
    assert result.status == "completed"
    assert service.runs[0].failed is None


def test_a_run_that_fails_is_marked_as_failed(short, service) -> None:
    class Broken(Callback):
        def on_step(self, trainer: Any) -> None:
            raise ValueError("broken")

    with pytest.raises(RLTrainingError, match="broken"):
        train(short(loggers=["wandb"]), callbacks=[Broken()])
    assert service.runs[0].failed is True


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_before_anything_is_written(
    short, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"loggers: {name} needs .*\[{name}\]"):
        train(short(loggers=[name]))
    assert not (tmp_path / "runs").exists()


def test_mlflow_writes_one_run_to_a_folder(short, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = short(loggers=["mlflow"])
    run_dir = train(config, callbacks=[StopAt(step=120)]).run_dir
    resume(run_dir)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "runs" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("rl_training")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((run_dir / "trackers.json").read_text())["mlflow"]
    assert (run.info.run_name, run.info.status) == (run_dir.name, "FINISHED")
    assert run.data.params["algo_kwargs.batch_size"] == "16"
    assert run.data.tags["stop_reason"] == "total_timesteps"
    rows = [row for row in read_metrics(run_dir / "metrics.csv") if "eval/mean_reward" in row]
    history = client.get_metric_history(run.info.run_id, "eval/mean_reward")
    assert [(point.step, point.value) for point in history] == [
        (row["global_step"], pytest.approx(row["eval/mean_reward"])) for row in rows
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    with pytest.raises(ConfigError, match=rf"mlflow could not start.*{run.info.run_id}.*trackers\.json"):
        resume(run_dir, overrides=["total_timesteps=180"])


def test_wandb_writes_one_run_offline(short, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    sent: list[dict[str, Any]] = []
    log = wandb.sdk.wandb_run.Run.log
    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", lambda run, row: (sent.append(dict(row)), log(run, row)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run_dir = train(short(loggers=["wandb"]), callbacks=[StopAt(step=120)]).run_dir
        resume(run_dir)
    run_id = json.loads((run_dir / "trackers.json").read_text())["wandb"]
    files = sorted((run_dir / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert files
    assert all(file.stat().st_size > 500 for file in files)
    rows = read_metrics(run_dir / "metrics.csv")
    assert [row["global_step"] for row in sent] == [row["global_step"] for row in rows]
    assert sent[-1]["eval/mean_reward"] == pytest.approx(rows[-1]["eval/mean_reward"])
    assert capsys.readouterr().out == ""  # stdout is for results
    assert load_config(run_dir / "config.yaml").loggers == ("wandb", "csv")


def test_wandb_looks_a_resumed_run_up_when_it_is_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def init(**options: Any) -> Any:
        calls.append(options)
        return types.SimpleNamespace(id=options["id"] or "new", define_metric=lambda *a, **k: None)

    fake = types.ModuleType("wandb")
    fake.init, fake.Settings = init, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    for run_id, expected in ((None, (None, None)), ("abc", ("abc", "allow"))):
        tracking.WandbTracker().start(tmp_path, {"seed": 1}, run_id)
        assert (calls[-1]["id"], calls[-1]["resume"]) == expected
    assert (calls[0]["project"], calls[0]["config"], calls[0]["dir"]) == ("mine", {"seed": 1}, str(tmp_path))
    assert calls[0]["settings"]["reinit"] == "create_new"  # the runs of a stack are open at the same time
