"""Time of sampling and updating on a GPU, alone and as a stack of learners.

    python benchmarks/device_speed.py --device cuda

Prints microseconds for one batch and its update, as a Markdown table, and writes JSON with ``--json FILE``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Lock
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.stack import LearnerStack
from rl_training.algorithms.table import ALGORITHMS
from rl_training.data import HERReplayBuffer, TransitionDataset
from rl_training.data.hindsight_settings import HindsightSettings
from rl_training.data.mixture import Mixture, Source
from rl_training.envs.distance_rule import DeviceRewards, DistanceRule
from rl_training.envs.rewards import RewardTransform
from rl_training.runtime.acceleration import accelerated_updates
from rl_training.runtime.stack_data import DataStack
from rl_training.types import SpaceSpec

FETCH = SpaceSpec(observation_dim=25, action_dim=4, goal_dim=3, reward_range=(-1.0, 0.0))
PLAIN = SpaceSpec(observation_dim=17, action_dim=6)


class Distance:
    """The part of ``GoalRewards`` that a buffer needs, for a reward of -1 beyond 0.05 and 0 within."""

    reward_range = (-1.0, 0.0)
    distance_threshold = 0.05
    recomputes_termination = False
    rule = DistanceRule(0.05, near=0.0, far=-1.0)

    def rewards(self, achieved: Any, desired: Any) -> Any:
        """Return the rewards of goals."""
        return self.rule(achieved, desired)

    def on_device(self) -> DeviceRewards:
        """Return the same as functions of tensors."""
        return DeviceRewards(self.rule.of_tensors, None, RewardTransform())

    def spot_check(self, *_: Any) -> None:
        """Accept everything."""

    def check_play(self, *_: Any) -> None:
        """Accept everything."""

    def learn_ends(self, *_: Any) -> None:
        """Accept everything."""


def hindsight(device: str, rows: int, seed: int, settings: HindsightSettings) -> HERReplayBuffer:
    """Return a buffer with episodes of 50 steps, in half of which the goal moves."""
    goals: Any = Distance()
    buffer = HERReplayBuffer(FETCH, rows + 1_000, goals, device=device, seed=seed, settings=settings)
    rng = np.random.default_rng(seed)
    for episode in range(rows // 51):
        path = np.cumsum(rng.normal(0, 0.02 * (episode % 2), (51, 3)), axis=0)
        goal = np.tile(rng.normal(0, 0.1, 3), (51, 1))
        parts = {"observation": rng.normal(size=(51, 25)), "achieved_goal": path, "desired_goal": goal}
        buffer.add_episode(parts, rng.uniform(-1, 1, (50, 4)), np.full(50, -1.0))
    return buffer


def logged(device: str, rows: int, seed: int) -> TransitionDataset:
    """Return random transitions."""
    rng = np.random.default_rng(seed)
    ends = np.arange(rows) % 1000 == 999
    columns = {
        "observations": rng.normal(size=(rows, 17)),
        "actions": rng.uniform(-1, 1, (rows, 6)),
        "rewards": rng.normal(size=rows),
        "terminated": np.zeros(rows, bool),
        "truncated": ends,
    }
    return TransitionDataset.from_dict(columns).for_task(PLAIN, device=device, seed=seed)


CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("DDPG + HER, batch 256, 2x256", "ddpg", {"batch_size": 256}, "hindsight"),
    ("SAC + HER, batch 256, 2x256", "sac", {"batch_size": 256}, "hindsight"),
    ("SAC + HER, batch 1,024, 3x256", "sac", {"batch_size": 1024, "hidden_sizes": [256] * 3}, "hindsight"),
    ("SAC + HER, pursued goals, batch 512, 3x256", "sac", {"batch_size": 512, "hidden_sizes": [256] * 3}, "pursued"),
    ("RLPD, 10 critics, batch 256, 2x256", "rlpd", {"batch_size": 256}, "mixture"),
    ("TD3+BC, batch 256, 2x256", "td3_bc", {"batch_size": 256}, "logged"),
    ("IQL, batch 256, 2x256", "iql", {"batch_size": 256}, "logged"),
]


def source(kind: str, device: str, rows: int, seed: int) -> Source:
    """Return the data of one learner."""
    if kind == "hindsight":
        return hindsight(device, rows, seed, HindsightSettings())
    if kind == "pursued":
        return hindsight(device, rows, seed, HindsightSettings(goal_priority="pursued"))
    if kind == "mixture":
        return Mixture(logged(device, rows, seed), logged(device, rows, seed + 100), 0.5)
    return logged(device, rows, seed)


def measure(case: int, members: int, options: argparse.Namespace, warm: Barrier, turn: Lock, found: Queue[Any]) -> None:
    """Put the microseconds of one batch and its update into ``found``, of one learner or of a stack.

    The processes of all cases compile at the same time. Then they wait for each other, and are timed one by one.
    """
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest" if options.precision == "fp32" else "high")
    _, name, chosen, kind = CASES[case]
    settings = {**chosen, "normalize_observations": options.normalize}
    spec = FETCH if kind in ("hindsight", "pursued") else PLAIN
    try:
        learners = [ALGORITHMS[name].learner(spec, settings, device=options.device, seed=i) for i in range(members)]
        for each in learners:
            each.fuses_kernels = options.compile
        sources = [source(kind, options.device, options.rows, seed=i) for i in range(members)]
        learner, data = (learners[0], sources[0]) if members == 1 else (LearnerStack(learners), DataStack(sources))
        update = accelerated_updates(learner, data, chosen["batch_size"])  # type: ignore[arg-type]
        for _ in range(45):  # every phase of a delayed actor is recorded
            update()
        warm.wait()
    except Exception:
        warm.abort()  # the others need not wait
        raise
    with turn:
        found.put((case, members, min(timed(update, options.device) for _ in range(3))))


def timed(update: Any, device: str, seconds: float = 0.3) -> float:
    """Return the mean time of a call in microseconds."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wait()
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(50):
            update()
        calls += 50
        wait()
    return (time.perf_counter() - start) / calls * 1e6


def measure_all(options: argparse.Namespace) -> dict[tuple[int, int], float]:
    """Return the time of every case and number of members."""
    jobs = [(case, members) for members in (1, options.members) for case in range(len(CASES))]
    context, times = multiprocessing.get_context("spawn"), {}
    for first in range(0, len(jobs), options.jobs):
        some = jobs[first : first + options.jobs]
        warm, turn, found = context.Barrier(len(some), timeout=600), context.Lock(), context.Queue()
        processes = [context.Process(target=measure, args=(*job, options, warm, turn, found)) for job in some]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit("a case failed; its error stands above")
        for _ in some:
            case, members, time_needed = found.get()
            times[case, members] = time_needed
    return times


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--precision", choices=["fp32", "tf32"], default="tf32")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--normalize", action="store_true", help="normalise observations, as the presets do")
    most = min(2 * len(CASES), os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=most, help="cases that are compiled at the same time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    compiled = "compiled" if options.compile else "not compiled"
    print(f"{machine}, torch {torch.__version__}, {options.precision}, {options.rows:,} rows, {compiled}\n")
    times = measure_all(options)
    print(f"| | one learner, us | {options.members} stacked, us | ratio |\n|---|---|---|---|")
    found = {}
    for case, (title, *_) in enumerate(CASES):
        one, many = times[case, 1], times[case, options.members]
        found[title] = {"one": one, "stacked": many}
        print(f"| {title} | {one:.0f} | {many:.0f} | {many / one:.2f} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine, "precision": options.precision, "us": found}, indent=1))


if __name__ == "__main__":
    main()
