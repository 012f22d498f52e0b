"""Which goals were achieved and which were pursued, counted on a grid over the goal space.

Achieved goals crowd where objects lie and hands rest; desired goals are elsewhere. The grid says how much more often a
region is pursued than achieved, and which achieved goal is nearest to one that was never achieved.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MOST_CELLS = 16_384
"""Goals in further cells are not counted: a space of so many cells is too large to cover."""

LARGEST_WEIGHT = 100.0

PLAIN_WEIGHT = 0.1
"""The part of every weight that does not depend on the counts."""

RESTING_WEIGHT = 1e-6
"""The factor of a goal that is no further than the tolerance from where its episode started."""

_FACTORS = np.array([73_856_093, 19_349_663, 83_492_791, 49_979_687, 86_028_121, 67_867_967, 32_452_843], np.int64)


def cell_factors(goal_dim: int) -> NDArray[np.int64]:
    """Return the numbers ``[goal_dim]`` by which the coordinates of a cell are multiplied; their sum is its key."""
    return np.resize(_FACTORS, goal_dim) * (1 + np.arange(goal_dim) // len(_FACTORS))


class GoalCells:
    """A grid whose cells are as wide as the tolerance of the task.

    Attributes:
        keys: the keys of the cells in ascending order, ``[cells]``.
        weights: how much a goal in each of these cells is wanted, ``[cells]``.
    """

    def __init__(self, goal_dim: int, width: float) -> None:
        self.goal_dim, self.width = goal_dim, width
        self._factors = cell_factors(goal_dim)
        # A pursued goal also counts for the cells around it, as far as there are few of them.
        steps = itertools.product((-1, 0, 1), repeat=goal_dim) if goal_dim <= 3 else [(0,) * goal_dim]
        self._around = np.array(list(steps), np.int64) @ self._factors
        self._index: dict[int, int] = {}
        self._achieved, self._pursued = np.zeros(256), np.zeros(256)
        self._goals = np.zeros((256, goal_dim), np.float32)  # the newest goal achieved in each cell
        self._visited = np.zeros(256, bool)
        self.keys, self.weights = np.zeros(0, np.int64), np.zeros(0, np.float32)
        self._order = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._index)

    def key(self, goals: Array) -> NDArray[np.int64]:
        """Return the keys ``[...]`` of the cells of goals ``[..., goal_dim]``."""
        cells = np.floor(goals.astype(np.float32) / np.float32(self.width)).astype(np.int64)
        keys: NDArray[np.int64] = (cells * self._factors).sum(axis=-1)
        return keys

    def add(self, achieved: Array, pursued: Array) -> None:
        """Count the goals of an episode: ``[T + 1, goal_dim]`` achieved ones and the one it pursued, ``[goal_dim]``.

        An achieved goal counts if it is away from the first one. Others say nothing about what can be reached.
        """
        away = np.linalg.norm(achieved - achieved[0], axis=1) > self.width
        keys = self.key(achieved)
        newest = {int(key): row for row, key in enumerate(keys)}
        for key, row in newest.items():
            index = self._cell(key)
            if index is not None:
                self._goals[index], self._visited[index] = achieved[row], True
        for key, count in zip(*np.unique(keys[away], return_counts=True), strict=True):
            index = self._cell(int(key))
            if index is not None:
                self._achieved[index] += count
        for key in self.key(pursued) + self._around:
            index = self._cell(int(key))
            if index is not None:
                self._pursued[index] += 1.0 / len(self._around)
        self._weigh()

    def wanted(self, goals: Array) -> NDArray[np.float32]:
        """Return the weights ``[...]`` of goals ``[..., goal_dim]``."""
        if not len(self.keys):
            return np.ones(goals.shape[:-1], np.float32)
        keys = self.key(goals)
        place = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
        weights: NDArray[np.float32] = np.where(self.keys[place] == keys, self.weights[place], np.float32(PLAIN_WEIGHT))
        return weights

    def nearest(self, goal: Array) -> Array | None:
        """Return the achieved goal nearest to one that was never achieved; None if it was, or if there is none.

        Also None if its cell is none of the grid's and there are too many: the grid then does not learn of further
        goals that are achieved, so the nearest of the first ones would be pursued for good.
        """
        index = self._index.get(int(self.key(goal)))
        visited = self._visited[: len(self)]
        reached = visited[index] if index is not None else len(self) == MOST_CELLS
        if reached or not visited.any():
            return None
        goals = self._goals[: len(self)][visited]
        distances = np.linalg.norm(goals - goal, axis=1)
        best = int(distances.argmin())
        return None if distances[best] <= self.width else goals[best].copy()

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        count = len(self)
        return {
            "keys": np.fromiter(self._index, np.int64, count),
            "achieved": self._achieved[:count].copy(),
            "pursued": self._pursued[:count].copy(),
            "goals": self._goals[:count].copy(),
            "visited": self._visited[:count].copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._index = {}
        for key in state["keys"].tolist():
            self._cell(key)
        count = len(self)
        self._achieved[:count], self._pursued[:count] = state["achieved"], state["pursued"]
        self._goals[:count], self._visited[:count] = state["goals"], state["visited"]
        self._weigh()

    def _cell(self, key: int) -> int | None:
        """Return the index of a cell, which is new if need be; None if there are too many."""
        index = self._index.get(key)
        if index is None and len(self._index) < MOST_CELLS:
            index = self._index[key] = len(self._index)
            if index == len(self._achieved):
                columns = self._achieved, self._pursued, self._goals, self._visited
                grown = (np.concatenate([column, np.zeros_like(column)]) for column in columns)
                self._achieved, self._pursued, self._goals, self._visited = grown
        return index

    def _weigh(self) -> None:
        """Weigh every cell by how much more often it was pursued than achieved."""
        count = len(self)
        if len(self._order) != count:
            keys = np.fromiter(self._index, np.int64, count)
            self._order = keys.argsort()
            self.keys = keys[self._order]
        achieved, pursued = self._achieved[:count], self._pursued[:count]
        had = np.maximum(achieved / max(achieved.sum(), 1.0), 1e-9)
        ratio = pursued / pursued.sum() / had
        weights = np.minimum(PLAIN_WEIGHT + (1.0 - PLAIN_WEIGHT) * ratio, LARGEST_WEIGHT)
        self.weights = weights[self._order].astype(np.float32)
