"""Statistics of the episodes that a run has collected lately, for its log."""

from __future__ import annotations

from collections import deque

import numpy as np

from rl_training.runtime.run_records import EpisodeRecord


class RolloutStatistics:
    """The episodes of a run that ended lately, and how many of its actions were at their bounds.

    Attributes:
        finished: the last 100 episodes.
        ended: the episodes that the last step ended.
        saturation: actions of the policy at their bounds, and all of them, since the last row of the log.
    """

    def __init__(self) -> None:
        self.finished: deque[EpisodeRecord] = deque(maxlen=100)
        self.ended: list[EpisodeRecord] = []
        self.saturation = [0, 0]

    def rollout_metrics(self) -> dict[str, float]:
        """Return the mean return, length and success rate of the last 100 finished episodes."""
        if not self.finished:
            return {}
        metrics = {
            "rollout/ep_rew_mean": float(np.mean([record.reward for record in self.finished])),
            "rollout/ep_len_mean": float(np.mean([record.length for record in self.finished])),
        }
        successes = [record.success for record in self.finished if record.success is not None]
        if successes:
            metrics["rollout/success_rate"] = float(np.mean(successes))
        return metrics

    def take_saturation(self) -> dict[str, float]:
        """Return the share of the policy's actions at their bounds since the last call."""
        saturated, count = self.saturation
        self.saturation = [0, 0]
        return {"rollout/saturated_actions": saturated / count} if count else {}
