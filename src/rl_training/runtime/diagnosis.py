"""Signs that a goal task is not being learned, with what to try. Each is reported once, early."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

_LEAST_UPDATES = 2_000
"""Updates before anything is said."""
_ROWS = 3
"""Rows of the log in a row that must show a sign."""
_LEARNED = 0.1
"""A success rate while collecting from which on nothing is said."""

Row = Mapping[str, float]


class Sign(NamedTuple):
    """A sign: the metric that shows it, when it does, and the message."""

    metric: str
    shows: Callable[[float, tuple[float, float] | None], bool]
    message: str


SIGNS = (
    Sign(
        "train/motion_weight",
        lambda value, _: value < 0.01,
        "the achieved goal hardly moves (the mean weight of a stored step is {value:.3f}), and hindsight learns from"
        " motion. Try more exploration (random_action_prob, exploration_noise), demonstrations (dataset_path), or"
        " episodes that start closer to the object",
    ),
    Sign(
        "train/trivial_goal_share",
        lambda value, _: value > 0.9,
        "{value:.0%} of the replaced goals were met before their step, so they teach nothing. Try more exploration, or"
        " check that distance_threshold is smaller than what a successful episode moves",
    ),
    Sign(
        "train/q_mean",
        lambda value, bounds: bounds is not None and value < bounds[0] + 0.02 * (bounds[1] - bounds[0]),
        "the values are flat at their lower bound ({value:.3g}): no goal seems to be in reach. Try a larger gamma, a"
        " larger her_ratio, or a smaller learning rate",
    ),
    Sign(
        "rollout/saturated_actions",
        lambda value, _: value > 0.9,
        "{value:.0%} of the actions are at their bounds: the actor is saturated and gets little gradient. Try a smaller"
        " learning rate, a larger saturation_penalty (ddpg, td3), or a larger target_entropy (sac)",
    ),
)


class Diagnosis:
    """Looks at the rows of the log of a goal task."""

    def __init__(self) -> None:
        self._rows = dict.fromkeys((sign.metric for sign in SIGNS), 0)
        self._said: set[str] = set()

    def check(self, row: Row, updates: int, value_bounds: tuple[float, float] | None) -> list[str]:
        """Return a message for each sign that this row shows for the third time in a row."""
        if updates < _LEAST_UPDATES or row.get("rollout/success_rate", 0.0) >= _LEARNED:
            return []
        messages = []
        for sign in SIGNS:
            value = row.get(sign.metric)
            shown = value is not None and sign.shows(value, value_bounds)
            self._rows[sign.metric] = self._rows[sign.metric] + 1 if shown else 0
            if value is not None and self._rows[sign.metric] == _ROWS and sign.metric not in self._said:
                self._said.add(sign.metric)
                messages.append(f"this run does not learn yet: {sign.message.format(value=value)}")
        return messages
