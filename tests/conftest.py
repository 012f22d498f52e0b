"""Shared set-up: one torch thread, and small helpers for building tiny runs."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "disabled")

import torch

from rl_training.config import TrainConfig, parse_config
from rl_training.runtime.callbacks import Callback
from warm_process import WarmProcess, WarmPython

torch.set_num_threads(1)


class StopAt(Callback):
    """Interrupts a run, as a signal would, once it has taken ``step`` steps and ``update`` updates."""

    def __init__(self, step: int = 0, update: int = 0) -> None:
        self.step, self.update = step, update

    def on_step(self, trainer: Any) -> None:
        if trainer.state.global_step >= self.step and trainer.state.update_count >= self.update:
            trainer.state.stop("interrupted by a test")


# A process that ignores SIGHUP, as under nohup, passes that on to the commands that the tests start.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Start Python programs as ``python`` does, without the two seconds that importing torch takes each time."""
    python = WarmPython()
    yield python
    python.close()


@pytest.fixture
def command_group(warm_python: WarmPython) -> Iterator[Callable[..., WarmProcess]]:
    """Return a function that starts the command line in a process group of its own, which is gone after the test."""
    started: list[WarmProcess] = []

    def start(*arguments: object) -> WarmProcess:
        started.append(warm_python.start("-m", "rl_training", *arguments))
        return started[-1]

    yield start
    for process in started:
        process.close()


def make_tiny_config(folder: Path, algo: str = "her", env_id: str | None = None, **changes: Any) -> TrainConfig:
    """Return a configuration small enough to train in a second, with its runs below ``folder``."""
    algo_kwargs = {
        "hidden_sizes": [16, 16],
        "batch_size": 16,
        "buffer_capacity": 2000,
        "learning_starts": 100,
        "eval_interval": 150,
        "checkpoint_interval": 100,
        "log_interval": 50,
        **changes.pop("algo_kwargs", {}),
    }
    default_env = {"her": "rl_training/PointGoal1D-v0", "dqn": "CartPole-v1"}.get(algo, "Pendulum-v1")
    values = {
        "algo": algo,
        "env_id": env_id or default_env,
        "total_timesteps": 300,
        "eval_episodes": 2,
        "output_dir": str(folder / "runs"),
        "algo_kwargs": algo_kwargs,
        **changes,
    }
    return parse_config(values)


@pytest.fixture
def tiny_config(tmp_path: Path) -> Callable[..., TrainConfig]:
    """Return ``make_tiny_config`` for the folder of the test."""
    return functools.partial(make_tiny_config, tmp_path)
