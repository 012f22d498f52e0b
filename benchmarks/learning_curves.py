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
    import matplotlib.pyplot as plt

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
    figure, axes = plt.subplots(figsize=(7.2, 3.4), dpi=150)
    for (name, runs), colour in zip(curves.items(), ("#1f6feb", "#2da44e", "#8250df", "#d1242f"), strict=True):
        steps = sorted(runs[0])
        values = [[run[step] for run in runs] for step in steps]
        axes.plot(steps, [sum(column) / len(column) for column in values], label=name, color=colour, linewidth=2)
        axes.fill_between(steps, [min(c) for c in values], [max(c) for c in values], color=colour, alpha=0.15)
    axes.set(xlabel="environment steps", ylabel="success rate", ylim=(-0.03, 1.03), xlim=(0, 7500))
    axes.set_title(f"PointReach2D, sparse reward, {len(SEEDS)} seeds (mean and range)", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="center right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
