"""An environment whose every number is known in advance, for tests of what plays in it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ENV_ID = "tests/Scripted-v0"
LOW, HIGH = (-2.0, 0.0), (2.0, 10.0)


class ScriptedEnv(gym.Env[Any, Any]):
    """Episodes of a fixed length; step t pays t, plus ``action_reward`` times the first action.

    An observation is ``[tag, draw, t]``, where ``draw`` is one random number per episode. With ``goals`` the achieved
    goal is 5 and the desired goal 1, always. Success is reported at the steps in ``successes``; None: never.
    """

    def __init__(
        self,
        length: int = 4,
        ends: str = "terminated",
        tag: float = 0.0,
        action_reward: float = 0.0,
        successes: Collection[int] | None = None,
        goals: bool = False,
        discrete: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.length, self.ends, self.tag, self.action_reward = length, ends, tag, action_reward
        self.successes, self.goals, self.render_mode = successes, goals, render_mode
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        goal = spaces.Box(-10.0, 10.0, (1,), np.float32)
        self.observation_space = (
            spaces.Dict({"observation": box, "achieved_goal": goal, "desired_goal": goal}) if goals else box
        )
        self.action_space = (
            spaces.Discrete(4) if discrete else spaces.Box(np.array(LOW, np.float32), np.array(HIGH, np.float32))
        )
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.draw, self.t = self.np_random.random(), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.actions.append(np.array(action))
        done = self.t == self.length
        info = {} if self.successes is None else {"is_success": self.t in self.successes}
        reward = self.t + self.action_reward * float(np.ravel(action)[0])
        return self._observe(), reward, done and self.ends == "terminated", done and self.ends == "truncated", info

    def _observe(self) -> Any:
        observation = np.array([self.tag, self.draw, self.t], np.float32)
        if not self.goals:
            return observation
        return {"observation": observation, "achieved_goal": np.float32([5.0]), "desired_goal": np.float32([1.0])}


if ENV_ID not in gym.registry:
    gym.register(ENV_ID, entry_point=ScriptedEnv)
