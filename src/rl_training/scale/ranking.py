"""Which configurations are best, and how sure that is: scores over seeds, and how often one beats another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.experiment.report.statistics import bootstrap_interval, interquartile_mean

SURE = 0.95
_DRAWS = 20_000


@dataclass(frozen=True)
class Ranked:
    """A configuration with its scores on fresh seeds."""

    changes: dict[str, Any]
    scores: list[float]
    tie_breaks: list[float]
    """Mean returns, which decide between equal success rates."""

    @property
    def mean(self) -> float:
        """The interquartile mean over the seeds."""
        return float(interquartile_mean(np.array(self.scores)))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% bootstrap interval of the mean."""
        low, high = bootstrap_interval(np.array(self.scores)[None])
        return float(low[0]), float(high[0])


def rank(found: Sequence[Ranked]) -> list[Ranked]:
    """Return configurations, the best first: by their mean, and if it is equal by their mean return."""
    return sorted(found, key=lambda one: (one.mean, float(np.mean(one.tie_breaks))), reverse=True)


def probability_better(one: Ranked, other: Ranked) -> float:
    """Return the probability that the mean of one over all seeds is higher than that of the other; a tie counts half.

    The means are drawn from Student's t around those of the seeds that were run: with few seeds it is wide, where a
    bootstrap would be too sure.
    """
    rng = np.random.default_rng(0)
    draws = []
    for part in (one, other):
        count = len(part.scores)
        spread = float(np.std(part.scores, ddof=1)) / np.sqrt(count) if count > 1 else 0.0
        draws.append((np.mean(part.scores) + spread * rng.standard_t(max(1, count - 1), _DRAWS)).round(9))
    return float(np.mean(draws[0] > draws[1]) + 0.5 * np.mean(draws[0] == draws[1]))


def how_sure(ranked: Sequence[Ranked]) -> str:
    """Return a sentence: how likely the first is better than each of the others."""
    if len(ranked) < 2:
        return "There is nothing to compare the best configuration with."
    chances = [probability_better(ranked[0], other) for other in ranked[1:]]
    parts = [f"number {place} with probability {chance:.2f}" for place, chance in enumerate(chances, start=2)]
    text = f"On {len(ranked[0].scores)} fresh seeds, number 1 is better than {' and '.join(parts)}"
    if min(chances) >= SURE:
        return f"{text}: the ranking is sure."
    return f"{text}: the ranking is not sure. More seeds (repeat.seeds) would tell them apart, if they differ."
