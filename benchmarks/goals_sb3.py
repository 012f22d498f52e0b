"""Stable-Baselines3's SAC with HER on a goal task, with the networks and the numbers of this package's presets.

    python benchmarks/goals_sb3.py FetchPush-v4 --steps 150000 --seed 0 --json sb3_push.json

Needs ``pip install -c constraints.txt stable-baselines3``. Evaluates with the mean action and prints the success rates.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_robotics
import torch
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

gymnasium.register_envs(gymnasium_robotics)


class Curve(BaseCallback):
    """Success rates of deterministic episodes at regular steps, as ``[[step, success], ...]``."""

    def __init__(self, env: gymnasium.Env[Any, Any], every: int, episodes: int) -> None:
        super().__init__()
        self.env, self.every, self.episodes = env, every, episodes
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            self.points.append((self.num_timesteps, self.success()))
            print(*self.points[-1], flush=True)
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
            successes += float(info["is_success"])
        return successes / self.episodes


def main() -> None:
    """Train and write the curve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--every", type=int, default=25_000)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    curve = Curve(gymnasium.make(options.task), options.every, options.episodes)
    model = SAC(
        "MultiInputPolicy",
        gymnasium.make(options.task),
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
    start = time.perf_counter()
    model.learn(options.steps, callback=curve)
    seconds = round(time.perf_counter() - start)
    result = {
        "task": options.task,
        "seed": options.seed,
        "device": options.device,
        "eval_episodes": options.episodes,
        "steps": options.steps,
        "seconds": seconds,
        "curve": curve.points,
    }
    print(json.dumps(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
