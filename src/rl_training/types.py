"""The types that all layers share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

Metrics: TypeAlias = dict[str, Tensor]
"""What ``Learner.update`` reports: tensors until they are logged, so that no update waits for the device."""

Observation: TypeAlias = "np.ndarray[Any, Any] | dict[str, np.ndarray[Any, Any]]"
"""An array, or a goal dictionary with ``observation``, ``achieved_goal`` and ``desired_goal``."""


GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
"""The keys of a goal observation."""


class GoalParts(NamedTuple):
    """The three parts of a goal observation, as float32: ``[D]`` each, or ``[B, D]``."""

    observation: np.ndarray[Any, Any]
    achieved_goal: np.ndarray[Any, Any]
    desired_goal: np.ndarray[Any, Any]


def extract_goal_parts(observation: dict[str, np.ndarray[Any, Any]]) -> GoalParts:
    """Split a goal observation, single or batched, into its parts."""
    return GoalParts(*(np.asarray(observation[key], dtype=np.float32) for key in GOAL_KEYS))


def flatten_goal_observation(observation: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return what the policy sees, single or batched: the observation followed by the desired goal."""
    return np.concatenate([observation["observation"], observation["desired_goal"]], axis=-1, dtype=np.float32)


class Batch(NamedTuple):
    """One minibatch of B transitions, as a learner sees it (goal tasks: observation and desired goal, concatenated)."""

    observations: Tensor
    """``[B, policy_dim]``"""
    actions: Tensor
    """``[B, action_dim]`` in [-1, 1]; for discrete actions ``[B, 1]``, the index."""
    rewards: Tensor
    """``[B]``"""
    next_observations: Tensor
    """``[B, policy_dim]``, the true next observation, also at the end of an episode."""
    terminated: Tensor
    """``[B]``, 1.0 if the task ended. A time-out is not a termination: its value is bootstrapped."""
    returns: Tensor | None = None
    """``[B]``, the discounted return from this row to the episode's end, if the learner needs it."""
    offline_rows: int = 0
    """The number of offline rows, which come first; the others are online rows."""


@dataclass(frozen=True)
class SpaceSpec:
    """The sizes and bounds of a task, for learners and buffers.

    Inside the package all actions are in [-1, 1]; ``to_env`` and ``to_policy`` convert to and from environment units.
    """

    observation_dim: int
    action_dim: int
    """Size of a continuous action; 1 for discrete actions."""
    goal_dim: int = 0
    """0 for a task without goals."""
    num_actions: int | None = None
    """The number of discrete actions; None for continuous ones."""
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    """Bounds in the environment's own units; None means [-1, 1]."""
    reward_range: tuple[float, float] | None = None
    """Smallest and largest reward the learner can see, if known: it bounds bootstrapped values."""
    idle_actions: tuple[int, ...] = ()
    """The components of a continuous action that are known to have no effect."""

    @property
    def policy_dim(self) -> int:
        """The size of what a policy sees: the observation and, in goal tasks, the desired goal."""
        return self.observation_dim + self.goal_dim

    @property
    def is_discrete(self) -> bool:
        """Whether actions are indices rather than vectors."""
        return self.num_actions is not None

    @property
    def action_bounds(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The lowest and highest action in the environment's own units, ``[action_dim]`` float32 each."""
        low = self.action_low if self.action_low is not None else (-1.0,) * self.action_dim
        high = self.action_high if self.action_high is not None else (1.0,) * self.action_dim
        return np.asarray(low, np.float32), np.asarray(high, np.float32)

    def to_env(self, actions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Convert ``[..., action_dim]`` policy actions to what the environment's ``step`` takes."""
        if self.is_discrete:
            return np.asarray(actions[..., 0], dtype=np.int64)
        if self.action_low is None or self.action_high is None:
            return actions
        low, high = np.asarray(self.action_low, np.float32), np.asarray(self.action_high, np.float32)
        return np.asarray(np.clip(low + (actions + 1.0) * 0.5 * (high - low), low, high), np.float32)

    def to_policy(self, actions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Convert environment actions to ``[..., action_dim]`` policy actions."""
        if self.is_discrete:
            return np.asarray(actions, dtype=np.float32)[..., None]
        if self.action_low is None or self.action_high is None:
            return np.asarray(np.clip(actions, -1.0, 1.0), np.float32)
        low, high = np.asarray(self.action_low, np.float32), np.asarray(self.action_high, np.float32)
        return np.asarray(np.clip(2.0 * (actions - low) / (high - low) - 1.0, -1.0, 1.0), np.float32)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, for a checkpoint's manifest."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> SpaceSpec:
        """Rebuild what ``to_json`` wrote."""
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
        return cls(**values)
