# ruff: noqa: F401, F811 (fixtures of another module)
"""A signal, whenever it comes, is answered with a checkpoint and exit code 3; a second one is not argued with."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.runtime import checkpointing, trainer
from rl_training.runtime.checkpoint_files import read_manifest
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.tools.comparison import full_state, state_differences
from test_cli import Answer, Run, run, tiny, train

OFFLINE = [
    "total_timesteps=120",
    "eval_episodes=2",
    "algo_kwargs.dataset_size=200",
    "algo_kwargs.batch_size=16",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.eval_interval=60",
    "algo_kwargs.log_interval=30",
]


def signal_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool = False) -> None:
    """Send SIGTERM at the n-th call of a function: while it is at work, or once it has done it."""
    real, calls = getattr(owner, name), [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and not after:
            os.kill(os.getpid(), signal.SIGTERM)
        answer = real(*arguments, **options)
        if calls[0] == call and after:
            os.kill(os.getpid(), signal.SIGTERM)
        return answer

    monkeypatch.setattr(owner, name, counted)


MOMENTS: dict[str, tuple[Any, str, int, bool]] = {
    "collection": (trainer.Collector, "step", 70, False),
    "an update": (trainer.Trainer, "_learn", 70, False),
    "evaluation": (trainer.Evaluator, "run", 1, False),
    "logging": (trainer.MetricsLogger, "flush", 2, False),
    "writing a checkpoint": (checkpointing, "write_checkpoint", 1, False),
    "removing old ones": (checkpointing.CheckpointStore, "_prune", 1, False),
    "the end of a step": (trainer.Trainer, "_report_and_save", 70, True),
}


def check_exactness(broken: Answer, whole: Answer, run: Run) -> None:
    """Check that a run was stopped with a checkpoint of its last step, and ends like one that was not."""
    assert broken.code == 3, broken
    result = broken.json
    assert (result["status"], result["stop_reason"]) == ("interrupted", "interrupted by SIGTERM")
    run_dir = Path(result["run_dir"])
    manifest = read_manifest(resolve_checkpoint(run_dir / "checkpoints"))
    assert (manifest["global_step"], manifest["update_count"]) == (result["global_step"], result["update_count"])
    assert run("resume", run_dir, "--json").json["metrics"] == whole.json["metrics"]
    ends = [resolve_checkpoint(Path(answer.json["run_dir"]) / "checkpoints") for answer in (broken, whole)]
    assert state_differences(*map(full_state, ends)) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_at_any_moment_saves_and_exits_with_3(train: Run, run: Run, monkeypatch, moment):
    owner, name, call, after = MOMENTS[moment]
    whole = train(options=("--json",))
    with monkeypatch.context() as patch:
        signal_in(patch, owner, name, call, after=after)
        broken = train(options=("--json",))
    check_exactness(broken, whole, run)


@pytest.mark.parametrize("moment", ["an update", "evaluation", "writing a checkpoint"])
def test_sigterm_on_logged_data(run: Run, tmp_path, monkeypatch, moment):
    sets = [part for setting in OFFLINE for part in ("--set", setting)]
    command = ("train", "bc/pendulum", *sets, "--output-dir", tmp_path / "runs", "--json")
    whole = run(*command)
    with monkeypatch.context() as patch:
        owner, name, call, after = MOMENTS[moment]
        signal_in(patch, owner, name, call, after=after)
        broken = run(*command)
    check_exactness(broken, whole, run)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)], ids=["SIGINT", "SIGTERM"]
)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_second_signal_leaves_at_once(tmp_path: Path, command_group, vectorization: str, number, code: int) -> None:
    """The evaluation it is in would take hours; the run stays as its last checkpoint has it."""
    sets = tiny("num_envs=2", "eval_episodes=10000000", "algo_kwargs.checkpoint_interval=30")
    sets += ["--set", f"env_kwargs.vectorization={vectorization}"]
    process = command_group("train", "her/point_goal", *sets, "--output-dir", tmp_path)
    wait_for(lambda: any(tmp_path.glob("*/checkpoints/latest")))
    time.sleep(1.0)
    os.killpg(process.pid, number)
    time.sleep(0.5)
    assert process.poll() is None  # it is still about to finish its evaluation
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == code, err
    assert "Traceback" not in err
    (run_dir,) = tmp_path.iterdir()
    assert read_manifest(resolve_checkpoint(run_dir / "checkpoints"))["global_step"] == 30


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
