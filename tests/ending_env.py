"""PointReach2D as an environment that ends an episode when its goal is met, and has no ``compute_terminated``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rl_training.envs.builtin import PointReachGoalEnv

ENV_ID = "tests/Ending-v0"


class _EndingReach(PointReachGoalEnv):
    terminate_on_success = True


class EndingEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode when its goal is met, like the tasks of panda-gym. Hindsight has to find that out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(_EndingReach(**options))

    def has_wrapper_attr(self, name: str) -> bool:
        return name != "compute_terminated" and super().has_wrapper_attr(name)


if ENV_ID not in gym.registry:
    gym.register(ENV_ID, entry_point=EndingEnv)
