"""Metrics on disk: every row once, pretraining on its own axis, and JSON that every reader accepts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_training.errors import CheckpointError
from rl_training.json_output import to_json
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.logging import MetricsLogger, read_metrics
from rl_training.runtime.outcome import _write_result, read_result
from rl_training.runtime.run import resume, train
from test_checkpoint_workflows import StopAt

Points = dict[str, list[tuple[int, float]]]


def points(run_dir: Path) -> Points:
    """Return what TensorBoard shows."""
    found = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
        if "time/" not in tag
    }


def log(run_dir: Path, rows: list[tuple[int, int]], resume_at: tuple[int, int] | None = None) -> None:
    logger = MetricsLogger(run_dir)
    logger.open(resume_at)
    for step, updates in rows:
        logger.record({"train/loss": 1000.0 * step + updates})
        logger.flush(step, updates)
    logger.close()


@pytest.mark.parametrize("resume_at", [(0, 200), (0, 300), (50, 350), (150, 450)])
def test_pretraining_has_its_own_axis_and_resuming_doubles_no_point(tmp_path: Path, resume_at: tuple[int, int]) -> None:
    rows = [(0, 100), (0, 200), (0, 300), (50, 350), (100, 400), (150, 450), (200, 500)]
    log(tmp_path, rows[:6])
    log(tmp_path, [row for row in rows if row > resume_at], resume_at)
    assert points(tmp_path) == {
        "pretrain/train/loss": [(100, 100.0), (200, 200.0), (300, 300.0)],
        "train/loss": [(step, 1000.0 * step + updates) for step, updates in rows[3:]],
    }
    assert [(row["global_step"], row["update_count"]) for row in read_metrics(tmp_path / "metrics.csv")] == rows


def test_a_run_that_is_stopped_while_it_pretrains_shows_the_same_points(tiny_config) -> None:
    kwargs = {"dataset_kind": "random", "dataset_size": 200, "offline_pretrain_updates": 130, "log_interval": 20}
    kwargs["num_critics"] = 3
    config = tiny_config("rlpd", total_timesteps=120, algo_kwargs=kwargs)

    class StopPretraining(StopAt):
        def on_step(self, trainer) -> None:
            if trainer.state.update_count >= self.step:
                trainer.state.stop("interrupted by a test")

    straight = train(config, run_name="straight")
    broken = train(config, run_name="broken", callbacks=[StopPretraining(75)])
    assert broken.global_step == 0
    resume(broken.run_dir, callbacks=[StopAt(70)])
    resume(broken.run_dir)
    expected = points(straight.run_dir)
    assert points(broken.run_dir) == expected
    assert [step for step, _ in expected["pretrain/train/critic_loss"]][:3] == [20, 40, 60]
    assert all(step > 0 for step, _ in expected["train/critic_loss"])


@pytest.mark.parametrize("cell", ["1e400", "-1e400", "9" * 400, "nan"])
def test_a_row_whose_step_is_no_number_of_steps_is_left_out(tmp_path: Path, cell: str) -> None:
    (tmp_path / "metrics.csv").write_text(f"global_step,update_count,x\n1,1,2\n{cell},2,3\n2,2,{cell}\n")
    first, second = read_metrics(tmp_path / "metrics.csv")
    assert first == {"global_step": 1, "update_count": 1, "x": 2.0}
    assert not math.isfinite(second["x"])
    log(tmp_path, [(3, 3)], (2, 2))
    assert len(read_metrics(tmp_path / "metrics.csv")) == 3


def test_a_file_of_metrics_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"global_step,update_count,x\n1,1,{'9' * 200_000}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.csv: metrics cannot be read: field larger"):
        read_metrics(tmp_path / "metrics.csv")


def test_json_has_null_for_what_json_cannot_say() -> None:
    value = {"a": math.nan, "b": [1.5, -math.inf, (math.inf, "x")], "c": None, "d": {"e": True, "f": 3}}
    expected = {"a": None, "b": [1.5, None, [None, "x"]], "c": None, "d": {"e": True, "f": 3}}
    assert json.loads(to_json(value), parse_constant=pytest.fail) == expected


def test_a_result_with_a_metric_that_is_not_finite_is_valid_json_and_can_be_read(tmp_path: Path) -> None:
    result = TrainResult(tmp_path, "completed", "total_timesteps", 5, 4, {"eval/mean_reward": math.nan, "x": 1.0})
    _write_result(result)
    assert json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)["metrics"]["x"] == 1.0
    found = read_result(tmp_path)
    assert found is not None
    assert math.isnan(found.metrics["eval/mean_reward"])
    assert (found.status, found.metrics["x"]) == ("completed", 1.0)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"metrics": [1]}', "[]", '{"metrics": {"x": "y"}}', "{}"])
def test_a_result_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    assert read_result(tmp_path) is None
