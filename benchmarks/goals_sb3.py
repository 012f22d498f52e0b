"""Stable-Baselines3's SAC with HER on a goal task, with the networks and the numbers of this package's presets.

    python benchmarks/goals_sb3.py FetchPush-v4 --steps 150000 --seed 0 --json sb3_push.json
    python benchmarks/goals_sb3.py PointMaze_Medium-v3 --gamma 0.99 --shift -1 --json sb3_maze.json

Needs ``pip install -c constraints.txt stable-baselines3``, and the extra panda for the tasks of the Panda arm. It
evaluates with the mean action and writes the file after every evaluation, so a run that is stopped keeps its curve.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_robotics
import torch
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from rl_training.models.cpu_products import fast_products

gymnasium.register_envs(gymnasium_robotics)
with contextlib.suppress(ImportError):
    import panda_gym

    gymnasium.register_envs(panda_gym)


class Shifted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds a number to all rewards, also to those of new goals."""

    def __init__(self, env: gymnasium.Env[Any, Any], shift: float) -> None:
        super().__init__(env)
        self.shift = shift

    def step(self, action: Any) -> Any:
        """Take a step."""
        observation, reward, *rest = self.env.step(action)
        return observation, float(reward) + self.shift, *rest

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return the rewards of goals."""
        return self.env.get_wrapper_attr("compute_reward")(achieved_goal, desired_goal, info) + self.shift


class Curve(BaseCallback):
    """Success rates of deterministic episodes at regular steps, as ``[[step, success], ...]``."""

    def __init__(self, env: gymnasium.Env[Any, Any], every: int, episodes: int, write: Callable[[Any], None]) -> None:
        super().__init__()
        self.env, self.every, self.episodes, self.write = env, every, episodes, write
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self.points.append((self.num_timesteps, self.success()))
            print(*self.points[-1], flush=True)
            self.write(self.points)
        return True

    def success(self) -> float:
        """Return the share of episodes that end in success."""
        successes = 0.0
        for episode in range(self.episodes):
            observation, _ = self.env.reset(seed=10_000 + episode if episode == 0 else None)
            ended = False
            while not ended:
                action, _ = self.model.predict(observation, deterministic=True)
                observation, _, terminated, truncated, info = self.env.step(action)
                ended = terminated or truncated
            successes += float(info["is_success"] if "is_success" in info else info["success"])
        return successes / self.episodes


def main() -> None:
    """Train and write the curve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--shift", type=float, default=0.0, help="add this number to all rewards")
    parser.add_argument("--every", type=int, default=25_000)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()

    def make() -> gymnasium.Env[Any, Any]:
        env = gymnasium.make(options.task)
        return Shifted(env, options.shift) if options.shift else env

    def write(points: list[tuple[int, float]]) -> None:
        result = {
            "task": options.task,
            "seed": options.seed,
            "device": options.device,
            "batch_size": options.batch_size,
            "eval_episodes": options.episodes,
            "steps": points[-1][0],
            "seconds": round(time.perf_counter() - start),
            "curve": points,
        }
        if options.json is not None:
            options.json.write_text(json.dumps(result) + "\n")

    model = SAC(
        "MultiInputPolicy",
        make(),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        policy_kwargs={"net_arch": [256, 256, 256]},
        batch_size=options.batch_size,
        gamma=options.gamma,
        tau=0.02,
        learning_rate=1e-3,
        learning_starts=1_000,
        seed=options.seed,
        device=options.device,
    )
    with fast_products(model.device):  # on a CPU, the matrix products of this package: exact, and faster on AMD
        model.learn(options.steps, callback=Curve(make(), options.every, options.episodes, write))


if __name__ == "__main__":
    main()
