"""Practising: which goals episodes pursue in place of those that the environment gave them.

An episode whose goal was never achieved pursues the nearest goal that was. As long as a goal is far from everything
achieved so far, a policy cannot know how to reach it, and its episodes teach little. The nearest achieved goal is one
that the policy can learn to reach, and from there it gets further. The idea is that of hindsight goal generation (Ren
et al., 2019, https://arxiv.org/abs/1906.04279), without its matching.

An episode that has held its goal for some steps pursues the goal of an earlier episode. Otherwise a long episode would
teach nothing but to stay once its goal is reached. For the replay buffer a new episode starts there. Where episodes end
as soon as their goal is met, that happens at once, and it is a termination.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.goal_cells import GoalCells
from rl_training.envs.goals import GoalRewards

Array = NDArray[Any]

_MOST_GOALS = 1_000
"""How many goals of earlier episodes are remembered."""


class Practice:
    """The goals that environments pursue in place of their own.

    Attributes:
        active: ``[E]``, whether an environment pursues another goal.
        pursued: ``[E, goal_dim]``, that goal.
        held: ``[E]``, for how many steps in a row the pursued goal has been met.
        reached: ``[E]``, whether the episode has held its own goal and pursues another one since.
    """

    def __init__(
        self, cells: GoalCells, goals: GoalRewards, num_envs: int, *, nearest: bool = True, hold: int | None = None
    ) -> None:
        """Replace goals that were never achieved, if ``nearest``, and goals that were held for ``hold`` steps."""
        self._cells, self._goals, self._nearest, self._hold = cells, goals, nearest, hold
        self.active, self.pursued = np.zeros(num_envs, bool), np.zeros((num_envs, cells.goal_dim), np.float32)
        self.held, self.reached = np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)
        self._earlier: list[Array] = []  # the goals of earlier episodes, ``[goal_dim]`` each
        self._next = 0  # the one to pursue next

    def begin(self, starting: Array, desired: Array) -> None:
        """Choose the goals of episodes that start: ``[E]`` flags, and the environments' goals ``[E, goal_dim]``."""
        for index in np.flatnonzero(starting):
            own = np.array(desired[index], np.float32)
            goal = self._cells.nearest(own) if self._nearest else None
            self.active[index] = goal is not None
            if goal is not None:
                self.pursued[index] = goal
            self.held[index], self.reached[index] = 0, False
            self._earlier = [*self._earlier, own][-_MOST_GOALS:]

    def replace_held(self, after: dict[str, Array], ended: Array, going_on: Array) -> Array:
        """Choose another goal in environments that have held theirs long enough, and return which they are, ``[E]``.

        Args:
            after: the observations after a step, as the environments returned them.
            ended: ``[E]``, whether the step met a goal that ends the episode.
            going_on: ``[E]``, whether the environment's own episode goes on.
        """
        replaced = np.zeros(len(self.active), bool)
        if self._hold is None and not ended.any():
            return replaced
        achieved = np.asarray(after["achieved_goal"], np.float32)  # [E, goal_dim]
        goals = self.show(after)["desired_goal"]  # [E, goal_dim]
        met = np.linalg.norm(achieved - goals, axis=1) <= self._cells.width
        self.held = np.where(met, self.held + 1, 0)
        long_held = self.held >= self._hold if self._hold is not None else np.zeros_like(met)
        for index in np.flatnonzero((long_held | ended) & going_on):
            goal = self._another(achieved[index])
            if goal is not None:
                self.reached[index] |= not self.active[index]
                self.active[index], self.pursued[index], self.held[index] = True, goal, 0
                replaced[index] = True
            elif ended[index]:  # it was another goal than the environment's, which is not met yet
                self.active[index], self.held[index], replaced[index] = False, 0, True
        return replaced

    def _another(self, achieved: Array) -> Array | None:
        """Return the next goal of an earlier episode that is not met already; None if there is none.

        If it was never achieved, the nearest achieved goal takes its place.
        """
        for _ in self._earlier:
            goal = self._earlier[self._next % len(self._earlier)]
            self._next += 1
            nearest = self._cells.nearest(goal) if self._nearest else None
            goal = goal if nearest is None else nearest
            if np.linalg.norm(goal - achieved) > self._cells.width:
                return goal
        return None

    def show(self, observations: dict[str, Array]) -> dict[str, Array]:
        """Return observations with the goals that are pursued."""
        if not self.active.any():
            return observations
        desired = observations["desired_goal"]
        return {**observations, "desired_goal": np.where(self.active[:, None], self.pursued, desired)}

    def judge(self, after: dict[str, Array], rewards: Array, terminated: Array) -> tuple[Array, Array]:
        """Return rewards and terminations of a step for the goals that are pursued, ``[E]`` each.

        An environment may end the episode because its own goal was met. To a policy that pursued another goal, that is
        a time-out. If episodes end when their goal is met, so does one that meets the goal it pursues.
        """
        achieved, own = (np.asarray(after[key], np.float32) for key in ("achieved_goal", "desired_goal"))
        self._goals.learn_ends(achieved, own, terminated)
        if not self.active.any():
            return rewards, terminated
        rewards, ended = np.array(rewards), terminated & ~self.active
        goals = achieved[self.active], self.pursued[self.active]
        rewards[self.active] = self._goals.raw_rewards(*goals)
        if self._goals.ends_when_met:
            ended[self.active] = self._goals.met(*goals)
        return rewards, ended

    def undo_point(self) -> Callable[[], None]:
        """Return a function that restores the goals of this moment."""
        state, earlier = self._arrays(), self._earlier

        def undo() -> None:
            self._restore(state)
            self._earlier = earlier

        return undo

    def state_dict(self) -> dict[str, Any]:
        """Return the goals."""
        return {**self._arrays(), "earlier": np.array(self._earlier, np.float32).reshape(-1, self._cells.goal_dim)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._restore({**self._arrays(), **state})  # states from before 0.6 have only the goals
        self._earlier = list(state.get("earlier", []))

    def _arrays(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).copy() for name in ("active", "pursued", "held", "reached")}
        return {**arrays, "next": self._next}

    def _restore(self, state: dict[str, Any]) -> None:
        self.active, self.pursued = state["active"].copy(), state["pursued"].copy()
        self.held, self.reached, self._next = state["held"].copy(), state["reached"].copy(), int(state["next"])
