"""Train HER on a goal environment of your own, given as a class: no file and no registration.

A cart on a rail is pushed left or right and has to stop at a mark. The reward is 0 at the mark and -1 elsewhere.
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training import HER

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000


class Cart(gym.Env):
    """The goal is a position. The observation has the velocity as well, because the policy must know how to brake."""

    distance_threshold = 0.05

    def __init__(self):
        place = spaces.Box(-1.0, 1.0, (1,), np.float32)
        state = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(observation=state, achieved_goal=place, desired_goal=place)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        """Put the cart, at rest, and the mark at new places."""
        super().reset(seed=seed)
        self.position, self.goal = self.np_random.uniform(-1, 1, (2, 1)).astype(np.float32)
        self.velocity, self.elapsed = np.zeros(1, np.float32), 0
        return self._observe(), {}

    def step(self, action):
        """Push the cart."""
        self.velocity = np.clip(self.velocity + 0.3 * action, -1, 1).astype(np.float32)
        self.position = np.clip(self.position + 0.1 * self.velocity, -1, 1).astype(np.float32)
        self.elapsed += 1
        reward = float(self.compute_reward(self.position, self.goal, {}))
        return self._observe(), reward, False, self.elapsed >= 40, {"is_success": reward == 0.0}

    def compute_reward(self, achieved_goal, desired_goal, info):
        """Return the rewards of any goals, one or a batch: HER asks about goals that were reached by chance."""
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > self.distance_threshold).astype(np.float32)

    def _observe(self):
        state = np.concatenate([self.position, self.velocity])
        return {"observation": state, "achieved_goal": self.position, "desired_goal": self.goal}


settings = {"gamma": 0.95, "tau": 0.05, "learning_rate": 1e-3, "random_action_prob": 0.3, "hidden_sizes": [64, 64]}
model = HER({"total_timesteps": STEPS, "algo_kwargs": {**settings, "learning_starts": 400}}, env=Cart)
result = model.learn()
print(f"success rate {result.metrics['eval/success_rate']:.2f} after {result.global_step:,} steps")

env = Cart()
observation, _ = env.reset(seed=1)
for _ in range(40):
    observation, *_ = env.step(model.predict(observation)[0])
print(f"the goal was {env.goal[0]:.2f}, the cart is at {env.position[0]:.2f}")
print(f"run: {result.run_dir}")
