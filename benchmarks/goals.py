"""The goal tasks people bring, from scratch: train the presets over seeds, and make the table and the picture.

    python benchmarks/learning.py --suite goals --seeds 700-704 --runs goal_runs --device cuda
    python benchmarks/goals.py goal_runs --output benchmarks/results/goals.json --picture docs/assets/goal_tasks.png \
        --beside benchmarks/results/goals_sb3.json

The first command trains; if it is interrupted, the same command goes on. The second makes the table of whatever is in
the folder, beside runs of Stable-Baselines3 (``goals_sb3.py``). The score of a run is that of its last evaluation,
never of its best.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

TASKS = (
    "fetch_reach",
    "fetch_push",
    "fetch_pick_and_place",
    "fetch_slide",
    "point_maze",
    "hand_reach",
    "panda_push",
    "panda_pick_and_place",
)
CPU_TASKS = ("fetch_reach", "fetch_push_cpu", "point_maze_cpu", "panda_pick_and_place_cpu")
SOLVED = 0.9


def train_task(task: str, seeds: list[int], runs: Path, device: str, overrides: list[str]) -> None:
    """Train a preset with all seeds, together on CUDA, or go on with what is in the folder."""
    from rl_training.config import load_config
    from rl_training.runtime.outcome import read_result
    from rl_training.runtime.run import resume, train
    from rl_training.runtime.stack_runs import resume_stack, stack_members, train_stack

    folder = runs / task
    more = [*overrides, f"device={device}", f"output_dir={folder}"]
    configs = [load_config(f"her/{task}", [*more, f"seed={seed}"]) for seed in seeds]
    known = sorted(folder.glob("*/config.yaml")) if folder.is_dir() else []
    begun = {load_config(path).seed: path.parent for path in known}
    done = {seed for seed, run in begun.items() if (result := read_result(run)) and result.status == "completed"}
    if device == "cuda" and len(seeds) > 1:
        if not begun:
            train_stack(configs, run_name=task)
        elif set(begun) - done:
            resume_stack(next(run for run in begun.values() if stack_members(run)))
        return
    for config in configs:
        if config.seed in begun and config.seed not in done:
            resume(begun[config.seed])
        elif config.seed not in begun:
            train(config, run_name=task)


def read_run(run: Path) -> dict[str, Any]:
    """Return the curve of a run, and where and how long it was trained."""
    from rl_training.config import load_config
    from rl_training.runtime.logging import STEP, read_metrics

    config = load_config(run / "config.yaml")
    rows = read_metrics(run / "metrics.csv")
    curve = [(int(row[STEP]), row["eval/success_rate"]) for row in rows if "eval/success_rate" in row]
    seconds, before = 0.0, 0.0
    for row in rows:
        seconds += (row[STEP] - before) / row["time/fps"]
        before = row[STEP]
    return {
        "task": config.env_id,
        "seed": config.seed,
        "device": config.device,
        "eval_episodes": config.eval_episodes,
        "steps": int(before),
        "seconds": round(seconds),
        "curve": curve,
    }


def steps_to(curve: list[tuple[int, float]], success: float = SOLVED) -> int | None:
    """Return the step of the first evaluation from which on the success rate stays at or above a value."""
    below = [step for step, rate in curve if rate < success]
    later = [step for step, _ in curve if not below or step > max(below)]
    return later[0] if later else None


def read_curves(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a JSON file: one run, or a list of them."""
    runs = json.loads(path.read_text())
    return runs if isinstance(runs, list) else [runs]


def beside(task: str, steps: int, peers: list[dict[str, Any]]) -> str:
    """Return the success of the peer's runs of a task after as many steps, or after all steps they have."""
    cells = []
    for run in peers:
        if run["task"] == task:
            step, rate = max((point for point in run["curve"] if point[0] <= steps), default=(0, 0.0))
            cells.append(f"{rate:.2f}" if step == steps else f"{rate:.2f} at {step:,}")
    return " / ".join(cells)


def table(runs: list[dict[str, Any]], peers: list[dict[str, Any]] | None = None) -> list[str]:
    """Return a Markdown table with a line for each task, beside the runs of Stable-Baselines3 if there are any."""
    from rl_training.experiment.report.statistics import bootstrap_interval, interquartile_mean

    more = " Stable-Baselines3 |" if peers else ""
    lines = [
        f"| task | steps | success of each seed | interquartile mean (95%) | worst | steps to 0.90 | time |{more}",
        "|---|---|---|---|---|---|---|" + ("---|" if peers else ""),
    ]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["task"]].append(run)
    for task, members in groups.items():
        steps = min(max(step for step, _ in run["curve"]) for run in members)
        scores = np.array([dict(map(tuple, run["curve"]))[steps] for run in members])
        low, high = bootstrap_interval(scores[None])
        reached = [steps_to(run["curve"]) for run in members]
        latest = "not all" if None in reached else f"{max(step for step in reached if step is not None):,}"
        minutes = max(run["seconds"] for run in members) / 60
        lines.append(
            f"| {task} | {steps:,} | {' / '.join(f'{score:.2f}' for score in scores)} |"
            f" {float(interquartile_mean(scores)):.2f} ({low[0]:.2f} to {high[0]:.2f}) | {scores.min():.2f} |"
            f" {latest} | {minutes:.0f} min, {members[0]['device']} |"
            + (f" {beside(task, steps, peers)} |" if peers else "")
        )
    return lines


def draw(runs: list[dict[str, Any]], output: Path, peers: list[dict[str, Any]] | None = None) -> None:
    """Draw the curves of every task: each seed thin, the interquartile mean thick, Stable-Baselines3 dashed."""
    import matplotlib.pyplot as plt

    from rl_training.experiment.report.statistics import interquartile_mean

    tasks = list(dict.fromkeys(run["task"] for run in runs))
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.2), sharey=True, squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        curves = [dict(map(tuple, run["curve"])) for run in runs if run["task"] == task]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = np.array([[curve[step] for curve in curves] for step in steps])  # [T, seeds]
        thousands = [0, *(step / 1000 for step in steps)]
        axis.plot(thousands, np.vstack([np.zeros(len(curves)), values]), color="#2b7bba", alpha=0.35, linewidth=1)
        axis.plot(thousands, [0.0, *interquartile_mean(values)], color="#0b4a7f", linewidth=2.2)
        for run in peers or []:
            if run["task"] == task:
                points = [(0, 0.0), *(point for point in run["curve"] if point[0] <= steps[-1])]
                axis.plot([step / 1000 for step, _ in points], [rate for _, rate in points], "--", color="#c0504d")
        axis.axhline(SOLVED, color="#999999", linewidth=0.8, linestyle=":")
        axis.set(title=f"{task}, {len(curves)} seeds", xlabel="thousand environment steps", ylim=(-0.02, 1.02))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("success rate")
    figure.tight_layout()
    figure.savefig(output, dpi=110)


def main() -> None:
    """Read the runs of a folder and its subfolders, print the table, write JSON and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of the runs, or a JSON file that was made from one")
    parser.add_argument("--output", type=Path, help="write the curves here as JSON")
    parser.add_argument("--picture", type=Path, help="draw the curves here")
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="JSON files of Stable-Baselines3's runs")
    arguments = parser.parse_args()
    peers = [run for path in arguments.beside for run in read_curves(path)]
    if arguments.runs.is_file():
        runs = read_curves(arguments.runs)
    else:
        runs = [read_run(path.parent) for path in sorted(arguments.runs.rglob("metrics.csv"))]
        runs = [run for run in runs if run["curve"]]
    print("\n".join(table(runs, peers)))
    if arguments.output:
        arguments.output.write_text(json.dumps(runs, indent=1) + "\n")
    if arguments.picture:
        draw(runs, arguments.picture, peers)


if __name__ == "__main__":
    main()
