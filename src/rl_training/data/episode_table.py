"""Which episodes a buffer holds, and drawing them by weight."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Episode(NamedTuple):
    """Where an episode lies: its first slot, its number of transitions, and the number of its first row."""

    start: int
    length: int
    first_row: int


class EpisodeTable:
    """Episodes in the order they came, drawn in proportion to their weights.

    Episodes leave in the order they came, so a running sum of weights is enough: dropping the oldest raises the lower
    end of the interval that is drawn from, appending one raises the upper end. Both cost O(1), a draw O(log n), and an
    episode's weight leaves with it.
    """

    # The sum starts again from 0 here, long before adding a small weight to it would lose digits that matter.
    _REBASE_AT = 2.0**36

    def __init__(self, size: int = 1024) -> None:
        self._starts = np.empty(size, np.int64)
        self._lengths = np.empty(size, np.int64)
        self._sums = np.empty(size, np.float64)  # of the weights up to and including this episode's
        self._episodes: deque[tuple[Episode, float]] = deque()  # the same, with the sums, for taking the oldest out
        self._begin = 0  # the live part of the arrays is [begin, begin + len)
        self._low = 0.0  # the sum before the oldest episode
        self.transitions = 0

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def oldest(self) -> Episode:
        """The episode that leaves next."""
        return self._episodes[0][0]

    @property
    def total_weight(self) -> float:
        """The sum of the live weights."""
        return self._episodes[-1][1] - self._low if self._episodes else 0.0

    def append(self, episode: Episode, weight: float) -> None:
        """Add an episode with a weight above 0."""
        end = self._begin + len(self)
        if end == len(self._sums):
            # Twice the size where more than half is live, so that this happens once in many episodes.
            self._resize(2 if 2 * len(self) > end else 1)
            end = len(self)
        total = (self._episodes[-1][1] if self._episodes else self._low) + weight
        self._episodes.append((episode, total))
        self._starts[end], self._lengths[end], self._sums[end] = episode.start, episode.length, total
        self.transitions += episode.length
        if total > self._REBASE_AT:
            self._rebase()

    def drop_oldest(self) -> None:
        """Remove the oldest episode and its weight."""
        episode, total = self._episodes.popleft()
        self._low = total
        self._begin += 1
        self.transitions -= episode.length

    def draw(self, uniform: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Turn ``[B]`` uniform numbers in [0, 1) into the starts and lengths of B episodes."""
        position = uniform * self.total_weight + self._low
        live = slice(self._begin, self._begin + len(self._episodes))
        # Rounding may carry the last position an ulp beyond the last sum.
        index = np.minimum(self._sums[live].searchsorted(position), len(self._episodes) - 1)
        return self._starts[live].take(index), self._lengths[live].take(index)

    def state_dict(self) -> dict[str, Any]:
        """Return the episodes and their exact sums, so that draws after a restart are the same draws."""
        live = slice(self._begin, self._begin + len(self))
        first_rows = np.fromiter((episode.first_row for episode, _ in self._episodes), np.int64, len(self))
        return {
            "episodes": np.stack([self._starts[live], self._lengths[live], first_rows], axis=1),
            "sums": self._sums[live].copy(),
            "low": self._low,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        episodes = [Episode(*row) for row in state["episodes"].tolist()]
        self._episodes = deque(zip(episodes, state["sums"].tolist(), strict=True))
        self._begin, self._low = 0, float(state["low"])
        self.transitions = sum(episode.length for episode in episodes)
        while len(self._sums) <= len(episodes):
            self._resize(2)
        self._starts[: len(episodes)], self._lengths[: len(episodes)] = state["episodes"][:, 0], state["episodes"][:, 1]
        self._sums[: len(episodes)] = state["sums"]

    def _resize(self, factor: int) -> None:
        """Move the live part to the front of arrays ``factor`` times as long."""
        live = slice(self._begin, self._begin + len(self))
        for name in ("_starts", "_lengths", "_sums"):
            old = getattr(self, name)
            new = np.empty(factor * len(old), old.dtype)
            new[: len(self)] = old[live]
            setattr(self, name, new)
        self._begin = 0

    def _rebase(self) -> None:
        """Subtract what is no longer live from every sum."""
        self._episodes = deque((episode, total - self._low) for episode, total in self._episodes)
        self._sums[self._begin : self._begin + len(self)] -= self._low
        self._low = 0.0
