"""The picture of the README: success on PointReach2D over training, with each backend and without hindsight.

    python benchmarks/learning_curves.py --workers 2

Trains her/point_reach with seeds 0 to 2, evaluates every 500 steps on 50 episodes, and draws mean and range.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from curve_plot import draw_curves

os.environ.setdefault("OMP_NUM_THREADS", "1")

CURVES = {
    "HER with DDPG": ["algo_kwargs.backend=ddpg"],
    "HER with TD3": ["algo_kwargs.backend=td3"],
    "HER with SAC": ["algo_kwargs.backend=sac"],
    "DDPG without hindsight": ["algo_kwargs.backend=ddpg", "algo_kwargs.her_ratio=0"],
}
SEEDS = range(3)


def success_over_steps(overrides: list[str], seed: int) -> dict[int, float]:
    """Train once and return the success rate at each evaluation."""
    from rl_training.config import load_config
    from rl_training.runtime import train_her
    from rl_training.runtime.logging import STEP, read_metrics

    with tempfile.TemporaryDirectory() as folder:
        more = ["algo_kwargs.eval_interval=500", "eval_episodes=50", f"seed={seed}", f"output_dir={folder}"]
        run_dir = train_her(load_config("her/point_reach", [*overrides, *more])).run_dir
        rows = read_metrics(run_dir / "metrics.csv")
    return {int(row[STEP]): row["eval/success_rate"] for row in rows if "eval/success_rate" in row}


def main() -> None:
    """Train all curves and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=Path("docs/assets/point_reach.png"))
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.workers) as pool:
        futures = {
            name: [pool.submit(success_over_steps, overrides, seed) for seed in SEEDS]
            for name, overrides in CURVES.items()
        }
        curves = {name: [future.result() for future in group] for name, group in futures.items()}
    title = f"PointReach2D, sparse reward, {len(SEEDS)} seeds (mean and range)"
    draw_curves(curves, title, arguments.output)


if __name__ == "__main__":
    main()
