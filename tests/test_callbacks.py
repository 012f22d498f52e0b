"""Callbacks: when they are called, that they can end a run, and the ones that ship."""

from __future__ import annotations

import io
import re
import sys

import pytest

from rl_training.errors import RunFailedError
from rl_training.runtime import Callback, EarlyStoppingCallback, EarlyStoppingConfig, TrainerState, train_her
from rl_training.runtime.progress import ProgressCallback


class Record(Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_training_start(self, trainer):
        self.calls.append("start")

    def on_step(self, trainer):
        self.calls.append(f"step {trainer.state.global_step}")

    def on_evaluation(self, trainer, metrics):
        self.calls.append(f"evaluation {trainer.state.global_step}")
        assert metrics["eval/mean_reward"] <= 0

    def on_training_end(self, trainer):
        self.calls.append("end")


class StopAfter(Callback):
    def on_step(self, trainer):
        if trainer.state.global_step == 120:
            trainer.state.stop("enough")


class Fail(Callback):
    def on_step(self, trainer):
        raise RuntimeError("broken callback")


class Scored:
    """The part of a trainer that early stopping looks at."""

    def __init__(self) -> None:
        self.state = TrainerState()
        self.before_first_step = False
        self.collector = None


def test_callbacks_are_called_in_order(tiny_config):
    record = Record()
    train_her(tiny_config("her"), callbacks=[record])
    assert record.calls[0] == "start"
    assert record.calls[-1] == "end"
    assert [call for call in record.calls if call.startswith("evaluation")] == ["evaluation 150", "evaluation 300"]
    assert record.calls.index("step 150") + 1 == record.calls.index("evaluation 150")
    assert len([call for call in record.calls if call.startswith("step")]) == 300


def test_a_callback_can_end_a_run(tiny_config):
    result = train_her(tiny_config("her"), callbacks=[StopAfter()])
    assert (result.stop_reason, result.global_step, result.status) == ("enough", 120, "completed")


def test_callbacks_are_told_of_the_end_even_when_training_fails(tiny_config):
    record = Record()
    with pytest.raises(RunFailedError, match="callback Fail failed with RuntimeError: broken callback"):
        train_her(tiny_config("her"), callbacks=[record, Fail()])
    assert record.calls[-1] == "end"


def test_early_stopping_counts_evaluations_without_improvement():
    trainer, callback = Scored(), EarlyStoppingCallback(EarlyStoppingConfig(patience=2, min_delta=0.5))
    for reward in (1.0, 2.0, 2.3, 3.0):
        callback.on_evaluation(trainer, {"eval/mean_reward": reward})
    assert not trainer.state.should_stop
    callback.on_evaluation(trainer, {"eval/mean_reward": 3.4})
    copy = EarlyStoppingCallback(callback.config)
    copy.load_state_dict(callback.state_dict())
    copy.on_evaluation(trainer, {"eval/mean_reward": 3.5})
    assert trainer.state.stop_reason == "early stopping: no improvement in 2 evaluations"


def test_early_stopping_waits_for_the_first_step_online():
    trainer, callback = Scored(), EarlyStoppingCallback(EarlyStoppingConfig(patience=1, reward_threshold=4.0))
    trainer.before_first_step = True
    for _ in range(3):  # while pretraining, and at the hand-over
        callback.on_evaluation(trainer, {"eval/mean_reward": 5.0})
    assert not trainer.state.should_stop
    trainer.before_first_step = False
    callback.on_evaluation(trainer, {"eval/mean_reward": 5.0})
    assert trainer.state.stop_reason == "early stopping: eval/mean_reward 5 reached 4"


def test_early_stopping_takes_either_measure_as_improvement():
    trainer, callback = Scored(), EarlyStoppingCallback(EarlyStoppingConfig(patience=1))
    callback.on_evaluation(trainer, {"eval/mean_reward": -5.0, "eval/success_rate": 0.1})
    callback.on_evaluation(trainer, {"eval/mean_reward": -6.0, "eval/success_rate": 0.2})
    assert not trainer.state.should_stop
    callback.on_evaluation(trainer, {"eval/mean_reward": -5.0, "eval/success_rate": 0.2})
    assert trainer.state.should_stop


def test_early_stopping_at_a_success_rate():
    trainer, callback = Scored(), EarlyStoppingCallback(EarlyStoppingConfig(success_threshold=0.9))
    callback.on_evaluation(trainer, {"eval/mean_reward": -5.0, "eval/success_rate": 0.89})
    assert not trainer.state.should_stop
    callback.on_evaluation(trainer, {"eval/mean_reward": -5.0, "eval/success_rate": 0.9})
    assert trainer.state.stop_reason == "early stopping: eval/success_rate 0.9 reached 0.9"


def test_progress_prints_a_line_per_evaluation_where_there_is_no_terminal(tiny_config, capsys):
    train_her(tiny_config("her"), callbacks=[ProgressCallback()])
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("run folder     ")
    assert lines[-1] == "her seed 0: step 300 of 300, updates 200: stopped: total_timesteps"
    assert lines[1].startswith("her seed 0: step 150 of 300, updates 50: evaluation: success 0.")


def test_progress_says_why_the_first_update_takes_long(tiny_config, capsys, monkeypatch):
    monkeypatch.setattr("rl_training.runtime.compiled_updates.CompiledUpdates._compile", lambda *_: None)
    train_her(tiny_config("her", compile=True), callbacks=[ProgressCallback()])
    assert capsys.readouterr().err.splitlines()[1].startswith("compiling ")


def test_progress_prints_a_line_at_least_every_so_many_seconds(tiny_config, capsys, monkeypatch):
    monkeypatch.setattr("rl_training.runtime.progress._LINE_EVERY", 0.0)
    train_her(tiny_config("her"), callbacks=[ProgressCallback()])
    lines = [line for line in capsys.readouterr().err.splitlines() if " left" in line]
    assert len(lines) > 100
    line = next(line for line in lines if "step 200 of 300" in line)
    assert re.fullmatch(
        r"her seed 0: step 200 of 300: updates 100, success 0\.00, eval \d\.\d\d, [\d,]+ steps/s, 0:00:\d\d left", line
    )


def test_a_lost_terminal_does_not_end_the_run(tiny_config, monkeypatch):
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    assert train_her(tiny_config("her"), callbacks=[ProgressCallback()]).status == "completed"


def test_progress_shows_a_bar_on_a_terminal(tiny_config, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("CI", raising=False)
    train_her(tiny_config("her"), callbacks=[ProgressCallback()])
    shown = terminal.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "100%" in plain
    assert re.search(r"eval 0\.\d\d", plain)
    assert max(len(line) for line in plain.splitlines() if "%" in line) <= 80
