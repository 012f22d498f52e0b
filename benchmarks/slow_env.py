"""PointReach2D with a pause in every step, as a robot or an external simulator has: ``slow_env:SlowReach-v0``."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym

from rl_training.envs.builtin import PointReachGoalEnv


class SlowReachEnv(PointReachGoalEnv):
    """PointReach2D whose steps take at least ``seconds``."""

    def __init__(self, seconds: float = 0.005, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """Wait, then take a step."""
        time.sleep(self._seconds)
        return super().step(action)


gym.register("SlowReach-v0", entry_point=SlowReachEnv)
