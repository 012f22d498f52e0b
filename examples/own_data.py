"""Train IQL on arrays in memory: no file, and no environment during training.

The arrays stand for a log of your own. Here they are 50 episodes of random play in Pendulum-v1.
"""

import sys

import gymnasium as gym
import numpy as np

from rl_training import IQL
from rl_training.data import TransitionDataset

UPDATES = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000

env = gym.make("Pendulum-v1")
env.action_space.seed(0)
columns = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
rows = {name: [] for name in columns}
for episode in range(50):
    observation, _ = env.reset(seed=episode)
    done = False
    while not done:
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(columns, (observation, action, reward, following, terminated, truncated), strict=True):
            rows[name].append(value)
        observation, done = following, terminated or truncated

# One row per step. Actions are in the environment's units; terminations and time-outs are separate columns.
dataset = TransitionDataset.from_dict({name: np.array(values) for name, values in rows.items()})
print(f"{len(dataset):,} transitions, mean return {dataset.episode_returns.mean():.0f}")

config = {
    "env_id": "Pendulum-v1",  # gives the bounds of the actions and evaluates the policy
    "total_timesteps": UPDATES,
    "eval_episodes": 5,
    "algo_kwargs": {"gamma": 0.98, "reward_scale": 0.1, "expectile": 0.9, "temperature": 10, "hidden_sizes": [64, 64]},
}
model = IQL(config)
result = model.learn(dataset=dataset)
print(f"mean return after {result.update_count:,} updates: {result.metrics['eval/mean_reward']:.0f}")
print(f"run: {result.run_dir}")
