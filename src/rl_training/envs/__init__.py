"""Environments: built-in goal tasks, the factory, goal helpers and reward transforms."""

from rl_training.envs.builtin import BitFlippingEnv, PointGoal1DEnv, PointReachGoalEnv
from rl_training.envs.factory import make_env, make_raw_env, make_vector_env, space_spec
from rl_training.envs.goals import GoalFunctions, GoalRewards, flatten_goal_observation, register_goal_envs
from rl_training.envs.rewards import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardShiftWrapper,
    RewardTransform,
    RewardTransformConfig,
    apply_reward_wrappers,
)

__all__ = [
    "BitFlippingEnv",
    "GoalFunctions",
    "GoalRewards",
    "PointGoal1DEnv",
    "PointReachGoalEnv",
    "RewardClipWrapper",
    "RewardScaleWrapper",
    "RewardShiftWrapper",
    "RewardTransform",
    "RewardTransformConfig",
    "apply_reward_wrappers",
    "flatten_goal_observation",
    "make_env",
    "make_raw_env",
    "make_vector_env",
    "register_goal_envs",
    "space_spec",
]
