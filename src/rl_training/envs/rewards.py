"""Reward transforms: scale, then shift, then clip; as wrappers around an environment and as one function on arrays."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from rl_training.config import Settings


class RewardTransformConfig(Settings):
    """One transform of the reward: ``clip(scale * reward + shift)``."""

    scale: float = Field(1.0, description="factor of the reward")
    shift: float = Field(0.0, description="added after scaling")
    clip_min: float | None = Field(None, description="lower bound after shifting")
    clip_max: float | None = Field(None, description="upper bound after shifting")

    @model_validator(mode="before")
    @classmethod
    def _clip_pair(cls, values: Any) -> Any:
        """Accept ``clip: [low, high]`` for the two bounds."""
        if not isinstance(values, dict) or "clip" not in values:
            return values
        values = dict(values)
        clip = values.pop("clip")
        if "clip_min" in values or "clip_max" in values:
            raise ValueError(f"clip = {clip!r} and clip_min or clip_max are both given: expected one of the two forms")
        if not isinstance(clip, (list, tuple)) or len(clip) != 2:
            raise ValueError(f"clip = {clip!r}: expected two bounds, [low, high]")
        return {**values, "clip_min": clip[0], "clip_max": clip[1]}

    @model_validator(mode="after")
    def _ordered(self) -> RewardTransformConfig:
        if self.clip_min is not None and self.clip_max is not None and self.clip_min > self.clip_max:
            raise ValueError(f"clip_min = {self.clip_min} is above clip_max = {self.clip_max}")
        return self

    def apply(self, rewards: NDArray[Any]) -> NDArray[Any]:
        """Transform an array of rewards of any shape."""
        if self.scale != 1.0 or self.shift != 0.0:
            rewards = rewards * self.scale + self.shift
        if self.clip_min is not None or self.clip_max is not None:
            rewards = np.clip(rewards, self.clip_min, self.clip_max)
        return rewards

    def of_tensors(self, rewards: Tensor) -> Tensor:
        """Transform a tensor of rewards of any shape, on its device."""
        rewards = rewards * self.scale + self.shift
        if self.clip_min is not None or self.clip_max is not None:
            rewards = rewards.clamp(self.clip_min, self.clip_max)
        return rewards

    def apply_range(self, reward_range: tuple[float, float] | None) -> tuple[float, float] | None:
        """Return the range of the transformed reward, from that of the raw one."""
        if reward_range is None:
            return None
        low, high = sorted(float(value) + 0.0 for value in self.apply(np.asarray(reward_range)))  # + 0.0: no -0
        return low, high


class RewardTransform:
    """Several transforms of the reward, applied one after the other; without any, rewards stay as they are.

    A run has one of these: first the environment's (``env_kwargs.wrappers.reward``), then the algorithm's
    (``algo_kwargs.reward_*``)::

        transform = RewardTransform(env_settings.wrappers.reward, algo_settings.reward_transform(dataset))

    Attributes:
        steps: the transforms that change anything, in the order in which they are applied.
    """

    def __init__(self, *transforms: RewardTransformConfig | RewardTransform | None) -> None:
        steps: list[RewardTransformConfig] = []
        for transform in transforms:
            if isinstance(transform, RewardTransform):
                steps += transform.steps
            elif transform is not None and transform != RewardTransformConfig():
                steps.append(transform)
        self.steps: tuple[RewardTransformConfig, ...] = tuple(steps)

    def __repr__(self) -> str:
        return f"RewardTransform({', '.join(map(repr, self.steps))})"

    @property
    def identity(self) -> bool:
        """Whether every reward stays as it is."""
        return not self.steps

    def apply(self, rewards: NDArray[Any]) -> NDArray[Any]:
        """Transform an array of rewards of any shape."""
        for step in self.steps:
            rewards = step.apply(rewards)
        return rewards

    def of_tensors(self, rewards: Tensor) -> Tensor:
        """Transform a tensor of rewards of any shape, on its device."""
        for step in self.steps:
            rewards = step.of_tensors(rewards)
        return rewards

    def apply_range(self, reward_range: tuple[float, float] | None) -> tuple[float, float] | None:
        """Return the range of the transformed reward, from that of the raw one."""
        for step in self.steps:
            reward_range = step.apply_range(reward_range)
        return reward_range


class RewardScaleWrapper(gym.RewardWrapper[Any, Any]):
    """Multiply the reward."""

    def __init__(self, env: gym.Env[Any, Any], scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def reward(self, reward: Any) -> float:
        """Return the scaled reward."""
        return float(reward) * self.scale


class RewardShiftWrapper(gym.RewardWrapper[Any, Any]):
    """Add a constant to the reward."""

    def __init__(self, env: gym.Env[Any, Any], shift: float) -> None:
        super().__init__(env)
        self.shift = shift

    def reward(self, reward: Any) -> float:
        """Return the shifted reward."""
        return float(reward) + self.shift


class RewardClipWrapper(gym.RewardWrapper[Any, Any]):
    """Keep the reward within bounds, either of which may be open."""

    def __init__(self, env: gym.Env[Any, Any], clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__(env)
        self.clip_min, self.clip_max = clip_min, clip_max

    def reward(self, reward: Any) -> float:
        """Return the clipped reward."""
        return float(np.clip(reward, self.clip_min, self.clip_max))


def apply_reward_wrappers(env: gym.Env[Any, Any], config: RewardTransformConfig | None) -> gym.Env[Any, Any]:
    """Wrap ``env`` with the transforms that ``config`` sets; without any, return ``env`` itself."""
    if config is None:
        return env
    if config.scale != 1.0:
        env = RewardScaleWrapper(env, config.scale)
    if config.shift != 0.0:
        env = RewardShiftWrapper(env, config.shift)
    if config.clip_min is not None or config.clip_max is not None:
        env = RewardClipWrapper(env, config.clip_min, config.clip_max)
    return env
