"""Single episodes, before they are stored: their rows, their flags, and how much of them comes before motion."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def steps_before_motion(achieved: Array, scale: float) -> int:
    """Return how many steps of an episode are followed by an achieved goal more than ``scale`` away.

    Args:
        achieved: ``[T + 1, goal_dim]``. Of a long episode only some of the later goals are compared.
        scale: the distance.
    """
    later = np.arange(1, len(achieved), max(1, len(achieved) // 256))
    away = np.zeros((len(achieved) - 1, len(later)), np.float32)  # squared distances
    for goals in achieved.T:
        away += np.square(goals[:-1, None] - goals[later])
    away[np.arange(len(away))[:, None] >= later] = 0.0
    return int((away.max(axis=1) > scale * scale).sum())


def flags_of_steps(name: str, value: Array | bool, steps: int) -> Array:
    """Return ``[T]`` flags of an episode's steps, from an array or from the flag of the last step."""
    flags = np.asarray(value, bool)
    if flags.ndim == 0:
        flags = np.append(np.zeros(steps - 1, bool), flags)
    if flags.shape != (steps,):
        raise ValueError(f"{name} has shape {flags.shape}: expected ({steps},), or one bool for the last step")
    if flags[:-1].any():
        step = int(flags.argmax())
        raise ValueError(f"{name}[{step}] is set, but the episode has {steps} steps: expected it at the last step only")
    return flags


class OpenEpisode:
    """The rows ``[t, width]`` of an episode that is still being played."""

    def __init__(self, width: int) -> None:
        self._rows = np.empty((64, width), np.float32)
        self._count = 0

    @property
    def rows(self) -> Array:
        """The rows so far, a view."""
        return self._rows[: self._count]

    def append(self, row: Array) -> None:
        """Add a row ``[width]``."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._count] = row
        self._count += 1

    def take(self) -> Array:
        """Return a copy of the rows and start the next episode."""
        rows: Array = self.rows.copy()
        self._count = 0
        return rows

    def restore(self, rows: Array) -> None:
        """Replace the rows by stored ones."""
        self._count = 0
        for row in rows:
            self.append(row)
