"""Draw the pictures of the docs with the package itself.

python docs/draw_pictures.py            # her_episode.svg, in seconds
python docs/draw_pictures.py --train    # learning.png as well: two runs of her/point_reach, a few minutes
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from rl_training.algorithms.base import Learner
from rl_training.config import load_config
from rl_training.data import HERReplayBuffer, HindsightSettings
from rl_training.envs import GoalRewards, make_env, space_spec
from rl_training.runtime.run import load_learner, train
from rl_training.types import Batch

ASSETS = Path(__file__).parent / "assets"
ENV_ID = "rl_training/PointReach2D-v0"
STRATEGIES = ("future", "final", "episode")
STEPS = (1_500, 3_000, 4_500, 7_500)
MET, MISSED, PATH, GOAL = "#2ca02c", "#d62728", "#7f7f7f", "#1f77b4"


def wandering_episode() -> dict[str, Any]:
    """Play one episode whose actions are random but change slowly, so that it goes somewhere; it misses its goal."""
    env, rng = make_env(ENV_ID), np.random.default_rng(3)
    observation, _ = env.reset(seed=4)
    seen, actions, rewards, action = [observation], [], [], np.zeros(2)
    for _ in range(50):
        action = np.clip(0.8 * action + 0.25 * rng.normal(size=2), -1, 1)
        observation, reward, *_ = env.step(action.astype(np.float32))
        seen.append(observation)
        actions.append(action)
        rewards.append(reward)
    observations = {key: np.stack([each[key] for each in seen]) for key in seen[0]}
    return {"observations": observations, "actions": np.stack(actions), "rewards": np.array(rewards)}


def relabelled(episode: dict[str, Any], strategy: str, rows: int) -> Batch:
    """Return a batch of one episode in which every goal is replaced."""
    env, goals = make_env(ENV_ID), GoalRewards(make_env(ENV_ID))
    settings = HindsightSettings(her_ratio=1.0, goal_selection_strategy=strategy, episode_priority="uniform")
    buffer = HERReplayBuffer(space_spec(env, goals), 1_000, goals, settings=settings, seed=1)
    buffer.add_episode(**episode, truncated=True)
    return buffer.sample(rows)


def draw_episode(file: Path) -> None:
    """Draw an episode as it was played, and samples of it under each strategy."""
    episode = wandering_episode()
    path, goal = episode["observations"]["achieved_goal"], episode["observations"]["desired_goal"][0]
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.6), layout="constrained", sharex=True, sharey=True)
    for axis in axes:
        axis.plot(*path.T, color=PATH, linewidth=1)
        axis.plot(*path[0], "o", color=PATH)
        axis.set_aspect("equal")
        axis.tick_params(labelsize=7)
    axes[0].plot(*path[1:].T, ".", color=MISSED, markersize=4)
    axes[0].add_patch(plt.Circle(goal, 0.05, color=GOAL))
    axes[0].annotate("its own goal", goal, (0, 12), textcoords="offset points", ha="center", fontsize=8, color=GOAL)
    axes[0].set_title("as it was played", fontsize=10)
    for axis, strategy in zip(axes[1:], STRATEGIES, strict=True):
        batch = relabelled(episode, strategy, 14)
        places, goals = batch.next_observations[:, :2].numpy(), batch.observations[:, -2:].numpy()
        for place, new_goal, reward in zip(places, goals, batch.rewards.numpy(), strict=True):
            colour = MET if reward == 0 else MISSED
            arrow = {"arrowstyle": "->", "color": GOAL, "alpha": 0.5, "connectionstyle": "arc3,rad=0.25"}
            if reward != 0:
                axis.annotate("", new_goal, place, arrowprops=arrow)
            axis.add_patch(plt.Circle(new_goal, 0.05, color=GOAL, alpha=0.25))
            axis.plot(*place, ".", color=colour, markersize=8)
        axis.set_title(f"relabelled: {strategy}", fontsize=10)
    figure.savefig(file, metadata={"Date": None})


def play(learner: Learner, env: Any, goal: Any | None, seed: int) -> tuple[Any, bool]:
    """Return the path ``[T + 1, 2]`` of an episode without exploration, and whether it succeeded."""
    observation, _ = env.reset(seed=seed)
    if goal is not None:
        env.unwrapped._goal = np.asarray(goal, np.float32)
        observation["desired_goal"] = env.unwrapped._goal.copy()
    path, done, info = [observation["achieved_goal"]], False, {}
    while not done:
        observation, _, terminated, truncated, info = env.step(learner.predict(observation))
        path.append(observation["achieved_goal"])
        done = terminated or truncated
    return np.stack(path), bool(info["is_success"])


def draw_learning(file: Path) -> None:
    """Train with and without hindsight; draw curves, paths and the map of final distance over goals at four times."""
    curves, learners = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, ratio in (("with hindsight", 0.8), ("without", 0.0)):
            changes = [f"output_dir={folder}", f"algo_kwargs.her_ratio={ratio}", "algo_kwargs.eval_interval=500"]
            changes += ["algo_kwargs.checkpoint_interval=500", "algo_kwargs.keep_checkpoints=20"]
            run = train(load_config("her/point_reach", changes)).run_dir
            with open(run / "metrics.csv", newline="") as rows:
                evaluated = [row for row in csv.DictReader(rows) if row["eval/success_rate"]]
            curves[name] = [(int(row["global_step"]), float(row["eval/success_rate"])) for row in evaluated]
            if ratio:
                for step in STEPS:
                    checkpoint = next((run / "checkpoints").glob(f"{step:09d}-*"))
                    learners[step] = load_learner(checkpoint)[0]
    env = make_env(ENV_ID)
    figure = plt.figure(figsize=(12, 8.2), layout="constrained")
    grid = figure.add_gridspec(3, 4, height_ratios=(0.8, 1, 1))
    curve = figure.add_subplot(grid[0, :])
    for (name, points), colour in zip(curves.items(), (MET, MISSED), strict=True):
        curve.plot(*zip(*points, strict=True), "o-", color=colour, label=name, markersize=4)
    curve.set(ylabel="success in 20 episodes", xlabel="environment steps", ylim=(-0.05, 1.05))
    curve.legend(frameon=False, loc="center right")
    curve.grid(alpha=0.3)
    places = np.linspace(-0.9, 0.9, 13)
    for column, (step, learner) in enumerate(learners.items()):
        paths = figure.add_subplot(grid[1, column])
        for seed in range(8):
            path, success = play(learner, env, None, 500 + seed)
            goal = env.unwrapped._goal
            paths.plot(*path.T, color=MET if success else MISSED, linewidth=1.2)
            paths.plot(*path[0], "o", color="black", markersize=3)
            paths.add_patch(plt.Circle(goal, 0.05, color=GOAL, alpha=0.6))
        paths.set_title(f"after {step:,} steps", fontsize=10)
        area = figure.add_subplot(grid[2, column])
        distance = [[_final_distance(learner, env, (x, y)) for x in places] for y in places]
        image = area.pcolormesh(places, places, distance, vmin=0, vmax=0.5, cmap="viridis_r")
        for axis in (paths, area):
            axis.set(xlim=(-1.03, 1.03), ylim=(-1.03, 1.03), aspect="equal")
            axis.tick_params(labelsize=7)
    figure.colorbar(image, ax=figure.axes[2::2], label="final distance to the goal", shrink=0.8)
    figure.savefig(file, dpi=100)


def _final_distance(learner: Learner, env: Any, goal: tuple[float, float]) -> float:
    path, _ = play(learner, env, goal, seed=7)
    return float(np.linalg.norm(path[-1] - np.asarray(goal)))


def main() -> None:
    """Write the pictures."""
    plt.rcParams["svg.hashsalt"] = "rl_training"
    draw_episode(ASSETS / "her_episode.svg")
    if "--train" in sys.argv[1:]:
        draw_learning(ASSETS / "learning.png")


if __name__ == "__main__":
    main()
