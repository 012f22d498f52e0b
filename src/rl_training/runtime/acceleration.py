"""Updates as CUDA graphs: the hundreds of small kernels of one update are launched together.

An update never waits for the device and never branches on what a tensor holds, so it can be recorded once and played
again. Small networks then train several times as fast, since launching kernels is what took the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.types import Batch, Metrics

_WARM_UP = 3  # updates done one by one before recording: libraries set themselves up in the first ones
_MOST_GRAPHS = 16  # a schedule of the mixture changes the shape of batches now and then; the oldest graph leaves


def accelerated_update(learner: Learner) -> Callable[[Batch], Metrics]:
    """Return the quickest form of ``learner.update`` on its device; the updates themselves are the same."""
    return UpdateGraphs(learner).update if learner.device.type == "cuda" else learner.update


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Batch
    metrics: Metrics


class UpdateGraphs:
    """Plays ``learner.update`` back from graphs, one for each kind of update and each form of a batch."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._seen: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Recorded] = {}
        self._stream: torch.cuda.Stream = cast(Any, torch.cuda.Stream)(learner.device)
        self._works = True

    def update(self, batch: Batch) -> Metrics:
        """Learn from one minibatch. What is returned is overwritten by later updates of the same form."""
        if not self._works:
            return self.learner.update(batch)
        key = (
            self.learner.update_kind,
            batch.offline_rows,
            tuple(None if x is None else x.shape for x in _tensors(batch)),
        )
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if seen <= _WARM_UP:
            return self._update_beside(batch)
        recorded = self._graphs.get(key)
        if recorded is None:
            recorded = self._record(batch)
            if recorded is None:
                return self.learner.update(batch)
            if len(self._graphs) == _MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = recorded
        for static, fresh in zip(_tensors(recorded.inputs), _tensors(batch), strict=True):
            if static is not None and fresh is not None:
                static.copy_(fresh, non_blocking=True)
        recorded.graph.replay()
        self.learner.update_count += 1
        return recorded.metrics

    def _update_beside(self, batch: Batch) -> Metrics:
        """Update on a stream of its own, as recording asks for."""
        here = torch.cuda.current_stream(self.learner.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            metrics = self.learner.update(batch)
        here.wait_stream(self._stream)
        return metrics

    def _record(self, batch: Batch) -> _Recorded | None:
        """Record one update without doing it; where that fails, updates go on one by one for good."""
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
