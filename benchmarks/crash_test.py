"""Runs that are killed with SIGKILL at random instants and restarted until they finish end like runs that were not.

    python benchmarks/crash_test.py --runs 100
    python benchmarks/crash_test.py --runs 20 --device cuda

Each run is a process that does what ``train --resume-auto`` does, for a random one of several small configurations,
which spend much of their time in writing checkpoints. It is killed one to three times, each time at a random instant
of what an uninterrupted run takes, and restarted. In the end weights, optimisers, replay, counters, generators and the
lines of metrics.csv are compared with those of an uninterrupted run. The exit code is 1 if any of them differs.

Processes are forked from this one, so that packages are imported once and not hundreds of times.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config import TrainConfig, parse_config
from rl_training.experiment.manager import train_or_resume
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.tools.comparison import State, full_state, state_differences, state_hash

ONLINE = {"learning_starts": 60, "buffer_capacity": 250}
OFFLINE = {"dataset_kind": "random", "dataset_size": 300}
POINT = "rl_training/PointGoal1D-v0"
ASYNC = {"vectorization": "async"}
CASES: dict[str, dict[str, Any]] = {
    "her": {"algo": "her", "env_id": POINT, "algo_kwargs": {**ONLINE, "backend": "sac"}},
    "her, 4 envs": {"algo": "her", "env_id": POINT, "num_envs": 4, "algo_kwargs": ONLINE},
    "her, 4 workers": {"algo": "her", "env_id": POINT, "num_envs": 4, "env_kwargs": ASYNC, "algo_kwargs": ONLINE},
    "sac": {"algo": "sac", "env_id": "Pendulum-v1", "algo_kwargs": {**ONLINE, "normalize_observations": True}},
    "sac, 4 envs": {"algo": "sac", "env_id": "Pendulum-v1", "num_envs": 4, "algo_kwargs": ONLINE},
    "dqn": {"algo": "dqn", "env_id": "CartPole-v1", "algo_kwargs": ONLINE},
    "dqn, 4 envs": {"algo": "dqn", "env_id": "CartPole-v1", "num_envs": 4, "algo_kwargs": ONLINE},
    "bc": {"algo": "bc", "env_id": "Pendulum-v1", "algo_kwargs": OFFLINE},
    "iql": {"algo": "iql", "env_id": "Pendulum-v1", "algo_kwargs": OFFLINE},
    "rlpd": {
        "algo": "rlpd",
        "env_id": "Pendulum-v1",
        "algo_kwargs": {**ONLINE, **OFFLINE, "offline_pretrain_updates": 100, "num_critics": 3},
    },
}
SHARED = {
    "hidden_sizes": [16, 16],
    "batch_size": 16,
    "checkpoint_interval": 20,
    "log_interval": 20,
    "eval_interval": 80,
}


def configuration(case: str, output_dir: Path, device: str = "cpu", compiles: bool = False) -> TrainConfig:
    """Return one of the small configurations."""
    values = CASES[case]
    settings = {**SHARED, **values["algo_kwargs"]}
    budget = {"total_timesteps": 400, "eval_episodes": 1, "output_dir": str(output_dir)}
    place = {"device": device, "compile": compiles}
    return parse_config({**values, **budget, **place, "algo_kwargs": settings})


def run_until(config: TrainConfig, log: Path, seconds: float | None = None) -> bool:
    """Train or resume in a process of its own, kill it after ``seconds``, and return whether it had finished."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            os._exit(0 if train_or_resume(config, name="run").status == "completed" else 1)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        finished, status = os.waitpid(pid, os.WNOHANG)
        if finished:
            if status != 0:
                raise RuntimeError(f"{config.algo} failed: {log.read_text()}")
            return True
        if end is not None and time.monotonic() >= end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.001)


def final_state(output_dir: Path) -> State:
    """Return everything a finished run has come to, its log included."""
    run_dir = max(output_dir.iterdir(), key=lambda path: (path / "result.json").exists())
    rows = [
        {name: value for name, value in row.items() if not name.startswith("time/")}
        for row in read_metrics(run_dir / "metrics.csv")
    ]
    return {**full_state(resolve_checkpoint(run_dir / "checkpoints")), "metrics.csv": rows}


def main() -> int:
    """Kill and restart runs, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of configurations and instants")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--compile", action="store_true", help="compile the updates, which takes longer than these runs"
    )
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    place = arguments.device, arguments.compile
    rng, started = np.random.default_rng(arguments.seed), time.monotonic()
    references: dict[str, tuple[State, float]] = {}
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="rl-training-crash-") as folder:
        train_or_resume(configuration("bc", Path(folder) / "warm"))  # imports what a run imports late; never on CUDA
        for number in range(arguments.runs):
            case = str(rng.choice(list(CASES)))
            if case not in references:
                output_dir, before = Path(folder) / f"whole-{len(references)}", time.monotonic()
                run_until(configuration(case, output_dir, *place), Path(folder) / "whole.log")
                references[case] = final_state(output_dir), time.monotonic() - before
            expected, duration = references[case]
            count, log, kills, attempts = counts.setdefault(case, Counter()), Path(folder) / f"run-{number}.log", 0, 0
            while kills == 0:  # one that is done before its first kill is begun anew
                output_dir = Path(folder) / f"run-{number}-{attempts}"
                config, attempts = configuration(case, output_dir, *place), attempts + 1
                for _ in range(int(rng.integers(1, 4))):
                    if run_until(config, log, float(rng.uniform(0, duration))):
                        break
                    kills += 1
            count["kills"] += kills
            run_until(config, log)
            unlike = state_differences(expected, final_state(output_dir))
            count["runs"] += 1
            count["identical"] += not unlike
            count["damaged"] += log.read_text().count("resuming from")
            for line in unlike:
                print(f"run {number}, {case}: {line}", file=sys.stderr)
    total = sum(counts.values(), Counter())
    print(f"{'configuration':16} {'runs':>5} {'kills':>6} {'damaged':>8} {'identical':>10}  sha256 of the end")
    for case, count in sorted(counts.items()):
        print(_line(case, count) + f"  {state_hash(references[case][0])[:16]}")
    print(_line("all", total) + f"  {time.monotonic() - started:.0f} s")
    if arguments.output is not None:
        answer = {"seed": arguments.seed, "total": dict(total), "cases": {k: dict(v) for k, v in counts.items()}}
        arguments.output.write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n")
    return 0 if total["identical"] == total["runs"] else 1


def _line(name: str, count: Counter[str]) -> str:
    return f"{name:16} {count['runs']:5} {count['kills']:6} {count['damaged']:8} {count['identical']:10}"


if __name__ == "__main__":
    sys.exit(main())
