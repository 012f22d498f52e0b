"""Intervals and means for evaluations and for several seeds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_Z = 1.959964
"""The 97.5% point of the normal distribution."""
_RESAMPLES = 1_000


def success_interval(rate: float, episodes: int) -> tuple[float, float]:
    """Return the 95% interval of a success rate (Wilson's, which is right near 0 and 1, too)."""
    share = _Z * _Z / episodes
    centre = (rate + share / 2) / (1 + share)
    half = _Z / (1 + share) * math.sqrt(max(0.0, rate * (1 - rate)) / episodes + share / (4 * episodes))
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))


def mean_interval(mean: float, std: float, episodes: int) -> tuple[float, float] | None:
    """Return the 95% interval of a mean (Student's t) from the population std; None for fewer than 3 episodes."""
    if episodes < 3:
        return None
    half = _student(episodes - 1) * std / math.sqrt(episodes - 1)
    return mean - half, mean + half


def interquartile_mean(values: Array) -> Array:
    """Return the mean of the middle half of ``[..., N]`` values; a value on the border counts in part."""
    count = values.shape[-1]
    covered = np.clip(np.arange(1, count + 1), count / 4, 3 * count / 4)  # how far the sorted values reach
    weights = np.diff(covered, prepend=count / 4) / (count / 2)  # [N]
    return np.asarray(np.sort(values, axis=-1) @ weights)


def bootstrap_interval(values: Array) -> tuple[Array, Array]:
    """Return the 95% bootstrap interval of the interquartile mean over N seeds; values: ``[T, N]``."""
    count = values.shape[-1]
    picks = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))  # the same report for the same runs
    means = interquartile_mean(values[:, picks])  # [T, resamples]
    low, high = np.quantile(means, [0.025, 0.975], axis=-1)
    return low, high


def _student(degrees: int) -> float:
    """Return the 97.5% point of Student's t, from its expansion around the normal one."""
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + float(sum(term / degrees**power for power, term in enumerate(terms, start=1)))
