"""A sweep whose driver is killed with SIGKILL and started again ends like a sweep that was not disturbed.

    python benchmarks/sweep_crash_test.py --kills 3

A sweep of twelve short trials runs once without disturbance. The same sweep runs in another folder, and its driver is
killed at random instants of what the first one took, then started again until it ends. Every start lists what was
finished before it; a finished trial must not be touched again. In the end weights, optimisers, replay, counters,
generators and the lines of metrics.csv of every trial are compared. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.outcome import RESULT, read_result
from rl_training.tools.comparison import State, full_state, state_differences, state_hash

SWEEP = """\
base: her/point_goal
set:
  total_timesteps: {steps}
  eval_episodes: 2
  algo_kwargs.learning_starts: 100
  algo_kwargs.checkpoint_interval: 50
  algo_kwargs.eval_interval: 150
  algo_kwargs.log_interval: 50
sweep:
  grid:
    algo_kwargs.backend: [ddpg, sac]
    algo_kwargs.learning_rate: [1e-3, 3e-4]
seeds: 0-2
folder: {folder}
"""


def run_driver(file: Path, workers: int, seconds: float | None = None) -> bool:
    """Run the command, kill it alone after ``seconds``, and return whether it had ended by itself."""
    command = [sys.executable, "-m", "rl_training", "sweep", str(file), "--workers", str(workers), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        if process.wait(timeout=seconds) != 0:
            raise RuntimeError(f"the sweep exited with {process.returncode}")
        return True
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return False


def finished(folder: Path) -> dict[str, int]:
    """Return the finished trials, each with the time at which its result was written."""
    runs = [run for run in folder.glob("*-s*") if (result := read_result(run)) and result.status == "completed"]
    return {run.name: (run / RESULT).stat().st_mtime_ns for run in runs}


def final_state(run: Path) -> State:
    """Return everything that a run has come to, its log included."""
    rows = [
        {name: value for name, value in row.items() if not name.startswith("time/")}
        for row in read_metrics(run / "metrics.csv")
    ]
    return {**full_state(resolve_checkpoint(run / "checkpoints")), "metrics.csv": rows}


def main() -> int:
    """Run both sweeps, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="of each trial")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    arguments = parser.parse_args()
    rng, problems = np.random.default_rng(arguments.seed), 0
    with tempfile.TemporaryDirectory(prefix="rl-training-sweep-") as name:
        files = {part: Path(name) / f"{part}.yaml" for part in ("whole", "killed")}
        for part, file in files.items():
            file.write_text(SWEEP.format(steps=arguments.steps, folder=Path(name) / part))
        started = time.monotonic()
        run_driver(files["whole"], arguments.workers)
        duration = time.monotonic() - started
        print(f"undisturbed: {len(finished(Path(name) / 'whole'))} trials in {duration:.0f} s", flush=True)
        kills, before = 0, dict[str, int]()
        while True:
            seconds = float(rng.uniform(0.1, 0.5) * duration) if kills < arguments.kills else None
            ended = run_driver(files["killed"], arguments.workers, seconds)
            now = finished(Path(name) / "killed")
            touched = [trial for trial, at in before.items() if now.get(trial) != at]
            problems += len(touched)
            what = "ended" if ended else f"killed after {seconds:.1f} s"
            print(f"{what}: {len(now)} finished, {len(touched)} of the earlier {len(before)} touched", flush=True)
            if ended:
                break
            kills, before = kills + 1, now
        for run in sorted((Path(name) / "whole").glob("*-s*")):
            expected, found = final_state(run), final_state(Path(name) / "killed" / run.name)
            unlike = state_differences(expected, found)
            problems += bool(unlike)
            print(f"{run.name:40} {'identical' if not unlike else unlike[0]}  {state_hash(found)[:16]}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
