"""Practising: an episode whose goal was never achieved pursues the nearest goal that was.

As long as a goal is far from everything achieved so far, a policy cannot know how to reach it, and its episodes teach
little. The nearest achieved goal is one that the policy can learn to reach, and from there it gets further. The idea
is that of hindsight goal generation (Ren et al., 2019, https://arxiv.org/abs/1906.04279), without its matching.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.goal_cells import GoalCells
from rl_training.envs.goals import GoalRewards

Array = NDArray[Any]


class Practice:
    """The goals that environments pursue in place of their own.

    Attributes:
        active: ``[E]``, whether an environment pursues another goal.
        pursued: ``[E, goal_dim]``, that goal.
    """

    def __init__(self, cells: GoalCells, goals: GoalRewards, num_envs: int) -> None:
        self._cells, self._goals = cells, goals
        self.active, self.pursued = np.zeros(num_envs, bool), np.zeros((num_envs, cells.goal_dim), np.float32)

    def begin(self, starting: Array, desired: Array) -> None:
        """Choose the goals of episodes that start: ``[E]`` flags, and the environments' goals ``[E, goal_dim]``."""
        for index in np.flatnonzero(starting):
            goal = self._cells.nearest(np.asarray(desired[index], np.float32))
            self.active[index] = goal is not None
            if goal is not None:
                self.pursued[index] = goal

    def show(self, observations: dict[str, Array]) -> dict[str, Array]:
        """Return observations with the goals that are pursued."""
        if not self.active.any():
            return observations
        desired = observations["desired_goal"]
        return {**observations, "desired_goal": np.where(self.active[:, None], self.pursued, desired)}

    def judge(self, after: dict[str, Array], rewards: Array, terminated: Array) -> tuple[Array, Array]:
        """Return rewards and terminations of a step for the goals that are pursued, ``[E]`` each.

        An environment may end the episode because its own goal was met. To a policy that pursued another goal, that is
        a time-out.
        """
        if not self.active.any():
            return rewards, terminated
        achieved = np.asarray(after["achieved_goal"], np.float32)
        rewards = np.array(rewards)
        rewards[self.active] = self._goals.raw_rewards(achieved[self.active], self.pursued[self.active])
        return rewards, terminated & ~self.active

    def undo_point(self) -> Callable[[], None]:
        """Return a function that restores the goals of this moment."""
        active, pursued = self.active.copy(), self.pursued.copy()

        def undo() -> None:
            self.active, self.pursued = active, pursued

        return undo

    def state_dict(self) -> dict[str, Any]:
        """Return the goals."""
        return {"active": self.active.copy(), "pursued": self.pursued.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.active, self.pursued = state["active"].copy(), state["pursued"].copy()
