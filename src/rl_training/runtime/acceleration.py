"""Updates as CUDA graphs: the hundreds of small kernels of one update are launched together.

An update never waits for the device and never branches on the values of a tensor, so it can be recorded once and
replayed. Small networks then train several times as fast, because most of the time was spent launching kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.types import Batch, Metrics

_WARM_UP = 3  # updates before recording, in which libraries initialise themselves
_MOST_GRAPHS = 16  # a schedule of the offline share changes the shapes of batches; the oldest graph is dropped


def accelerated_update(learner: Learner) -> Callable[[Batch], Metrics]:
    """Return the fastest form of ``learner.update`` on its device; the results are the same."""
    return UpdateGraphs(learner).update if learner.device.type == "cuda" else learner.update


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Batch
    metrics: Metrics


class UpdateGraphs:
    """Replays ``learner.update`` from graphs, one for each kind of update and each form of a batch."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._seen: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Recorded] = {}
        self._stream: torch.cuda.Stream = cast(Any, torch.cuda.Stream)(learner.device)
        self._works = True

    def update(self, batch: Batch) -> Metrics:
        """Learn from one minibatch. Later updates of the same form overwrite the returned metrics."""
        if not self._works:
            return self.learner.update(batch)
        key = (
            self.learner.update_kind,
            batch.offline_rows,
            tuple(None if x is None else x.shape for x in _tensors(batch)),
        )
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if seen <= _WARM_UP:
            return self._update_on_side_stream(batch)
        recorded = self._graphs.get(key)
        if recorded is None:
            recorded = self._record(batch)
            if recorded is None:
                return self.learner.update(batch)
            if len(self._graphs) == _MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = recorded
        for static, new in zip(_tensors(recorded.inputs), _tensors(batch), strict=True):
            if static is not None and new is not None:
                static.copy_(new, non_blocking=True)
        recorded.graph.replay()
        self.learner.update_count += 1
        return recorded.metrics

    def _update_on_side_stream(self, batch: Batch) -> Metrics:
        """Update on a separate stream, which recording requires."""
        here = torch.cuda.current_stream(self.learner.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            metrics = self.learner.update(batch)
        here.wait_stream(self._stream)
        return metrics

    def _record(self, batch: Batch) -> _Recorded | None:
        """Record one update without executing it. If that fails, all later updates run without graphs."""
        inputs = Batch(*cast(Any, (value.clone() if isinstance(value, Tensor) else value for value in batch)))
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.learner.generator)
        count = self.learner.update_count
        try:
            with torch.cuda.graph(graph):
                metrics = self.learner.update(inputs)
        except RuntimeError as error:
            self._works = False
            warnings.warn(f"updates are not recorded as CUDA graphs and stay slower: {error}", stacklevel=2)
            return None
        finally:
            self.learner.update_count = count
        return _Recorded(graph, inputs, metrics)


def _tensors(batch: Batch) -> tuple[Tensor | None, ...]:
    return (*batch[:5], batch.returns)
