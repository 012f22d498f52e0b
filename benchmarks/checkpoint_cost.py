"""What a checkpoint costs: how long training stands still, and how much of its speed is left.

    python benchmarks/checkpoint_cost.py

First, a hindsight buffer of 1,000,000 rows (observation 25, goal 3, action 4) to which 10,000 rows were added since the
last checkpoint, with a SAC learner of three times 256 units. Then her/point_reach with a checkpoint every 1,000 steps
beside none until the end, in turns; the median of the rounds counts. Waiting for the disk (fsync) is shown apart: it
depends on the disk, and on what else is written to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms import SAC
from rl_training.data import HERReplayBuffer
from rl_training.envs.factory import make_env
from rl_training.envs.goals import GoalFunctions
from rl_training.experiment.manager import train_experiment
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.settings import read_config
from rl_training.types import Batch, SpaceSpec

ROWS, NEW, EPISODE = 1_000_000, 10_000, 50


class Waiting:
    """Counts the time that is spent in waiting for the disk."""

    def __init__(self) -> None:
        self.seconds, self._fsync = 0.0, os.fsync
        os.fsync = self._timed

    def _timed(self, descriptor: Any) -> None:
        started = time.perf_counter()
        self._fsync(descriptor)
        self.seconds += time.perf_counter() - started


def fill(replay: HERReplayBuffer, rows: int, rng: np.random.Generator) -> None:
    """Add whole episodes."""
    width = replay.ring.rows.shape[1]
    for _ in range(rows // (EPISODE + 1)):
        replay._store(rng.normal(size=(EPISODE + 1, width)).astype(np.float32))


def stall(rounds: int, waiting: Waiting) -> dict[str, float]:
    """Return how long one checkpoint of a large buffer takes, in milliseconds."""
    rng, spec = np.random.default_rng(0), SpaceSpec(25, 4, 3)
    goals = GoalFunctions(make_env("rl_training/PointReach2D-v0"))
    replay = HERReplayBuffer(spec, ROWS, goals)
    learner = SAC(spec, {"hidden_sizes": [256, 256, 256]})
    rows = [np.zeros((8, size), np.float32) for size in (28, 4, 28)]
    flat = np.zeros(8, np.float32)
    learner.update(Batch(*map(torch.from_numpy, (rows[0], rows[1], flat, rows[2], flat))))
    fill(replay, ROWS, rng)
    times, waits = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder))
        for step in range(rounds + 1):
            started, waited = time.perf_counter(), waiting.seconds
            state = {"learner": learner.training_state(), "experience": replay.state_dict(with_rows=False)}
            store.save(state, {"config": {}, "spec": {}, "global_step": step, "update_count": step}, replay)
            times.append(1000 * (time.perf_counter() - started))
            waits.append(1000 * (waiting.seconds - waited))
            fill(replay, NEW, rng)
    return {
        "first_ms": times[0],
        "median_ms": statistics.median(times[1:]),
        "worst_ms": max(times[1:]),
        "median_fsync_ms": statistics.median(waits[1:]),
    }


def throughput(rounds: int, waiting: Waiting) -> dict[str, float]:
    """Return steps per second of her/point_reach with checkpoints and without."""
    seconds: dict[str, list[float]] = {"1000": [], "null": []}
    waits: dict[str, list[float]] = {"1000": [], "null": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * rounds):
            interval = list(seconds)[number % 2]
            sets = [f"output_dir={folder}", "total_timesteps=7000", "algo_kwargs.eval_interval=null"]
            config = read_config("her/point_reach", [*sets, f"algo_kwargs.checkpoint_interval={interval}"])
            started, waited = time.perf_counter(), waiting.seconds
            train_experiment(config)
            seconds[interval].append(time.perf_counter() - started)
            waits[interval].append(waiting.seconds - waited)
    with_them, without = (statistics.median(seconds[interval]) for interval in seconds)
    return {
        "steps_per_second_with": 7000 / with_them,
        "steps_per_second_without": 7000 / without,
        "share": without / with_them,
        "share_but_for_fsync": (without - statistics.median(waits["null"]))
        / (with_them - statistics.median(waits["1000"])),
    }


def main() -> None:
    """Measure both and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    waiting = Waiting()
    answer = {"stall": stall(arguments.rounds, waiting), "throughput": throughput(arguments.rounds, waiting)}
    for part, figures in answer.items():
        for name, value in figures.items():
            print(f"{part:12} {name:26} {value:10.2f}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
