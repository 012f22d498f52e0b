"""Means of the metrics of updates, kept on the device until they are logged."""

from __future__ import annotations

from collections.abc import Sequence
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
        self._loaded = False  # whether the sums come from a checkpoint, and may be on another device

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one update."""
        self.last.update(metrics)
        new = [name for name in metrics if name not in self._sums]
        for name in new:  # a copy: a recorded update writes its metrics into the same tensors each time
            self._sums[name], self._counts[name] = metrics[name].clone(), 1
        names = [name for name in metrics if name not in new]
        if self._loaded and names:
            self._sums.update({name: self._sums[name].to(metrics[name].device) for name in names})
            self._loaded = False
        if names:
            torch._foreach_add_([self._sums[name] for name in names], [metrics[name] for name in names])
        for name in names:
            self._counts[name] += 1

    def take(self) -> dict[str, float]:
        """Return the means and start over. This waits for the device."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self.last, self._sums, self._counts = {}, {}, {}
        return means

    def move_to_members(self, members: Sequence[MetricsMean]) -> None:
        """Add the sums of metrics that are ``[members]`` tensors to those of each member, and start over."""
        for index, member in enumerate(members):
            member.last.update({name: value[index] for name, value in self.last.items()})
            for name, total in self._sums.items():
                before = member._sums.get(name)
                member._sums[name] = total[index].clone() if before is None else before + total[index]
                member._counts[name] = member._counts.get(name, 0) + self._counts[name]
        self.last, self._sums, self._counts = {}, {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs."""
        return {"train_metrics": self._sums, "train_metric_counts": self._counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; version 0.1 stored only the last values."""
        sums: dict[str, Tensor] = dict(state["train_metrics"])
        self.last, self._sums, self._loaded = dict(sums), sums, True
        self._counts = dict(state.get("train_metric_counts", dict.fromkeys(sums, 1)))
