"""Means of the metrics of updates, kept on the device until they are logged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.types import Metrics


class MetricsMean:
    """The mean of each metric over the updates since the last row of the log. Adding never waits for the device."""

    def __init__(self) -> None:
        self.last: Metrics = {}
        """The latest value of each metric."""
        self._sums: Metrics = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one update."""
        self.last.update(metrics)
        new = [name for name in metrics if name not in self._sums]
        for name in new:  # a copy: a recorded update writes its metrics into the same tensors each time
            self._sums[name], self._counts[name] = metrics[name].clone(), 1
        names = [name for name in metrics if name not in new]
        if names:
            torch._foreach_add_([self._sums[name] for name in names], [metrics[name] for name in names])
        for name in names:
            self._counts[name] += 1

    def take(self) -> dict[str, float]:
        """Return the means and start over. This waits for the device."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self.last, self._sums, self._counts = {}, {}, {}
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs."""
        return {"train_metrics": self._sums, "train_metric_counts": self._counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; version 0.1 stored only the last values."""
        sums: dict[str, Tensor] = dict(state["train_metrics"])
        self.last, self._sums = dict(sums), sums
        self._counts = dict(state.get("train_metric_counts", dict.fromkeys(sums, 1)))
