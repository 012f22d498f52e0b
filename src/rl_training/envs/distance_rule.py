"""Rewards that only test the distance of two goals, and goal rewards as functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.envs.rewards import RewardTransform
from rl_training.fusing import fused

Array = NDArray[Any]
TensorFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class DistanceRule:
    """A function of two goals that has one value up to a distance and another one beyond it."""

    threshold: float
    near: float
    far: float

    def __call__(self, achieved_goals: Array, desired_goals: Array) -> Array:
        """Return the values ``[B]`` of goals ``[B, D]``."""
        offset = achieved_goals - desired_goals
        ones = np.ones(offset.shape[1], np.float32)
        near = np.sqrt((offset * offset) @ ones) <= self.threshold
        values: Array = np.where(near, np.float32(self.near), np.float32(self.far))
        return values

    def of_tensors(self, achieved_goals: Tensor, desired_goals: Tensor) -> Tensor:
        """Return the values ``[B]`` of goals ``[B, D]`` on their device."""
        return _by_distance(achieved_goals, desired_goals, self.threshold, self.near, self.far)


@fused
def _by_distance(achieved: Tensor, desired: Tensor, threshold: float, near: float, far: float) -> Tensor:
    distance = (achieved - desired).square().sum(-1).sqrt()
    return torch.where(distance <= threshold, near, far)


class DeviceRewards(NamedTuple):
    """Rewards and terminations of goals ``[B, D]``, computed on an accelerator without the environment."""

    raw_reward: TensorFunction
    raw_terminated: TensorFunction | None
    transform: RewardTransform
    ends_are_learned: bool = False
    """Whether the terminations hold only once play has shown that an episode ends when its goal is met."""

    def rewards(self, achieved_goals: Tensor, desired_goals: Tensor) -> Tensor:
        """Return the transformed rewards ``[B]``."""
        return self.transform.of_tensors(self.raw_reward(achieved_goals, desired_goals))

    def terminated(self, achieved_goals: Tensor, desired_goals: Tensor) -> Tensor | None:
        """Return ``[B]`` of 0 and 1; None if replaced goals keep the termination of their row."""
        return None if self.raw_terminated is None else self.raw_terminated(achieved_goals, desired_goals)


def find_threshold(function: Callable[..., Array], goal: Array) -> float | None:
    """Return the distance from ``goal`` ``[D]`` at which a function of two goals changes; None if it does not.

    For environments that do not name their tolerance. ``find_distance_rule`` says whether the distance alone decides.
    """

    def value(distance: float) -> float:
        other = np.array(goal, np.float64)
        other[0] += distance
        return float(function(np.asarray(goal, np.float64)[None], other[None])[0])

    near = value(0.0)
    high = next((float(size) for size in np.geomspace(1e-4, 1e3, 36) if value(size) != near), None)
    if high is None:
        return None
    low = 0.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if value(middle) == near else (low, middle)
    return float(f"{low:.6g}") if low > 1e-5 else None  # below it the goals must be equal


def find_distance_rule(function: Callable[..., Array], achieved: Array, threshold: float) -> DistanceRule | None:
    """Return ``function`` as a distance rule if it is one: two values that depend on the distance of the goals only.

    Most sparse goal tasks have such a reward. The rule is used only if it gives the same values around the threshold,
    from equal goals to far ones, in random directions. Otherwise this returns None, and the environment computes them.
    """
    rng = np.random.default_rng(0)
    directions = rng.normal(size=achieved.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    factors = np.resize([0.0, 0.5, 0.98, 0.999, 1.001, 1.02, 1.5, 2.0, 10.0, 100.0, 1e3, 1e4], len(achieved))
    desired = (achieved + directions * (factors * threshold)[:, None]).astype(np.float32)
    expected = function(achieved, desired)
    rule = DistanceRule(threshold, near=float(expected[0]), far=float(expected[9]))  # at factors 0 and 100
    return rule if np.array_equal(rule(achieved, desired), expected) else None
