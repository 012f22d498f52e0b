"""The episodes in a buffer, which are drawn by weight or by length."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Episode(NamedTuple):
    """The position of an episode: its first slot, its number of transitions, and the number of its first row."""

    start: int
    length: int
    first_row: int


class EpisodeTable:
    """Episodes in the order they came, drawn in proportion to their weights or to their lengths.

    The oldest episode is always removed first, so two running sums are enough: one of the weights, one of the lengths.
    Dropping the oldest episode raises the lower end of the interval that is drawn from, and appending an episode raises
    the upper end. Both cost O(1), and drawing B of n episodes costs O(B log n).

    Attributes:
        moves: how often all episodes changed their positions or their sums, for a copy that follows this table.
    """

    # The sums restart from 0 beyond this value, long before float64 would lose the digits of a small weight.
    _REBASE_AT = 2.0**36

    def __init__(self, size: int = 1024) -> None:
        self._starts = np.empty(size, np.int64)
        self._lengths = np.empty(size, np.int64)
        # Running sums up to and including each episode. Lengths are whole numbers, so float64 holds their sums exactly.
        self._weight_sums = np.empty(size, np.float64)
        self._length_sums = np.empty(size, np.float64)
        self._episodes: deque[Episode] = deque()
        self._begin = 0  # the live part of the arrays is [begin, begin + len)
        self._weight_low, self._length_low = 0.0, 0.0  # the sums before the oldest episode
        self._weight_high, self._length_high = 0.0, 0.0  # the sums up to the newest episode
        self.moves = 0

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def oldest(self) -> Episode:
        """The episode that is removed next."""
        return self._episodes[0]

    @property
    def transitions(self) -> int:
        """The number of transitions of all live episodes."""
        return int(self._length_high - self._length_low)

    @property
    def total_weight(self) -> float:
        """The sum of the live weights."""
        return self._weight_high - self._weight_low

    def append(self, episode: Episode, weight: float) -> None:
        """Add an episode with a weight above 0."""
        end = self._begin + len(self)
        if end == len(self._starts):
            # Double the size if more than half is live, so that this happens rarely.
            self._resize(2 if 2 * len(self) > end else 1)
            end = len(self)
        self._weight_high += weight
        self._length_high += episode.length
        self._episodes.append(episode)
        self._starts[end], self._lengths[end] = episode.start, episode.length
        self._weight_sums[end], self._length_sums[end] = self._weight_high, self._length_high
        if max(self._weight_high, self._length_high) > self._REBASE_AT:
            self._rebase()

    def drop_oldest(self) -> None:
        """Remove the oldest episode with its weight and its length."""
        self._episodes.popleft()
        self._weight_low = float(self._weight_sums[self._begin])
        self._length_low = float(self._length_sums[self._begin])
        self._begin += 1

    def draw(
        self, by_weight: NDArray[np.float64], by_length: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Turn uniform numbers in [0, 1) into episodes: ``[n]`` drawn by weight, then ``[m]`` drawn by length.

        Returns:
            The starts and the lengths of the episodes, ``[n + m]`` each.
        """
        live = self.live
        weighted = by_weight * self.total_weight + self._weight_low  # [n] positions between the lowest and highest sum
        lengthwise = by_length * (self._length_high - self._length_low) + self._length_low  # [m]
        found = (self._weight_sums[live].searchsorted(weighted), self._length_sums[live].searchsorted(lengthwise))
        # [n + m]; rounding can put a position just beyond the last sum.
        index = np.minimum(np.concatenate(found), len(self._episodes) - 1)
        return self._starts[live].take(index), self._lengths[live].take(index)

    @property
    def live(self) -> slice:
        """Where the live episodes are in ``columns``."""
        return slice(self._begin, self._begin + len(self._episodes))

    @property
    def columns(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Starts, lengths, and the running sums of weights and of lengths; only the ``live`` part is defined."""
        return self._starts, self._lengths, self._weight_sums, self._length_sums

    @property
    def limits(self) -> tuple[float, float, float, float]:
        """The lower and upper end of the weights that are drawn from, and of the lengths."""
        return self._weight_low, self._weight_high, self._length_low, self._length_high

    def state_dict(self) -> dict[str, Any]:
        """Return the episodes and their exact sums, so that draws after a restart are the same."""
        live = self.live
        first_rows = np.fromiter((episode.first_row for episode in self._episodes), np.int64, len(self))
        return {
            "episodes": np.stack([self._starts[live], self._lengths[live], first_rows], axis=1),
            "sums": self._weight_sums[live].copy(),
            "low": self._weight_low,
            "length_low": self._length_low,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; states from before 0.2 have no ``length_low`` and start from 0."""
        self._episodes = deque(Episode(*row) for row in state["episodes"].tolist())
        count = len(self._episodes)
        self._begin = 0
        self.moves += 1
        while len(self._starts) <= count:
            self._resize(2)
        self._starts[:count], self._lengths[:count] = state["episodes"][:, 0], state["episodes"][:, 1]
        self._weight_low, self._length_low = float(state["low"]), float(state.get("length_low", 0.0))
        self._weight_sums[:count] = state["sums"]
        self._length_sums[:count] = self._length_low + np.cumsum(self._lengths[:count])
        self._weight_high = float(self._weight_sums[count - 1]) if count else self._weight_low
        self._length_high = float(self._length_sums[count - 1]) if count else self._length_low

    def _resize(self, factor: int) -> None:
        """Move the live part to the front of arrays ``factor`` times as long."""
        live = self.live
        for name in ("_starts", "_lengths", "_weight_sums", "_length_sums"):
            old = getattr(self, name)
            new = np.empty(factor * len(old), old.dtype)
            kept = old[live]
            new[: len(kept)] = kept
            setattr(self, name, new)
        self._begin = 0
        self.moves += 1

    def _rebase(self) -> None:
        """Subtract the sums before the oldest episode from every sum."""
        live = self.live
        self._weight_sums[live] -= self._weight_low
        self._length_sums[live] -= self._length_low
        self._weight_high, self._weight_low = self._weight_high - self._weight_low, 0.0
        self._length_high, self._length_low = self._length_high - self._length_low, 0.0
        self.moves += 1
