"""Updates as CUDA graphs: the hundreds of small kernels of one update are launched together.

An update never waits for the device and never branches on the values of a tensor, so it can be recorded once and
replayed. Small networks then train several times as fast, because most of the time was spent launching kernels. Where
the data is on the device as well, drawing the batch is part of the recording. Kernels are compiled first, so that there
are fewer of them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Learner
from rl_training.data.device_sampling import DeviceSampler
from rl_training.fusing import fused_kernels, keep_compiled_code_private, why_not_fused
from rl_training.runtime.compiled_updates import CompiledUpdates
from rl_training.runtime.cuda_graphs import record_graph
from rl_training.types import Batch, Metrics

_WARM_UP = 3  # updates before recording, in which libraries initialise themselves
_MOST_GRAPHS = 16  # a schedule of the offline share changes the shapes of batches; the oldest graph is dropped


class Updatable(Protocol):
    """A learner or a stack of learners."""

    device: torch.device
    generator: torch.Generator
    update_count: int

    @property
    def update_kind(self) -> Hashable:
        """The kind of the next update."""
        ...

    @property
    def fuses_kernels(self) -> bool:
        """Whether the kernels of updates are compiled."""
        ...

    def update(self, batch: Batch) -> Metrics:
        """Learn from one minibatch."""
        ...


class BatchSource(Protocol):
    """Where batches come from: the data of a run, or of a stack of runs."""

    def sample(self, batch_size: int) -> Batch:
        """Draw a minibatch."""
        ...

    def device_sampler(self) -> nn.Module | None:
        """Return what draws the batches on an accelerator; None if the host draws them."""
        ...

    def plan(self, batch_size: int) -> Hashable:
        """Decide what the next batch of ``device_sampler`` is made of."""
        ...


def accelerated_updates(learner: Updatable, source: BatchSource, batch_size: int) -> Callable[[], Metrics]:
    """Return a function that samples a batch and learns from it, in the fastest form for the learner's device."""
    if learner.device.type == "cuda":
        return UpdateGraphs(learner, source, batch_size).update
    update = CompiledUpdates(learner).update if isinstance(learner, Learner) else learner.update
    return lambda: update(source.sample(batch_size))


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Batch | None
    """The batch that the graph reads; None if it draws its own."""
    metrics: Metrics
    sampler: nn.Module | None


class UpdateGraphs:
    """Replays updates from graphs, one for each kind of update and each form of a batch."""

    def __init__(self, learner: Updatable, source: BatchSource, batch_size: int) -> None:
        self.learner, self.source, self.batch_size = learner, source, batch_size
        self._seen: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _Recorded] = {}
        self._stream: torch.cuda.Stream = cast(Any, torch.cuda.Stream)(learner.device)
        self._works = True
        why_not = why_not_fused(learner.device) if learner.fuses_kernels else None
        if why_not is not None:
            warnings.warn(f"kernels are not compiled and updates stay slower: {why_not}", stacklevel=3)
        self._fuses = learner.fuses_kernels and why_not is None
        if self._fuses:
            keep_compiled_code_private()

    def update(self) -> Metrics:
        """Sample a batch and learn from it. Later updates of the same form overwrite the returned metrics."""
        sampler, batch = self.source.device_sampler(), None
        form: Hashable
        if sampler is None:
            batch = self.source.sample(self.batch_size)
            form = batch.offline_rows, tuple(None if x is None else x.shape for x in _tensors(batch))
        else:
            form = self.source.plan(self.batch_size)
        if not self._works:
            return self._update(batch, sampler, form)
        key = (self.learner.update_kind, sampler is None, form)
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        if seen <= _WARM_UP:
            return self._update_on_side_stream(batch, sampler, form)
        recorded = self._graphs.get(key)
        if recorded is None or recorded.sampler is not sampler:
            recorded = self._record(batch, sampler, form)
            if recorded is None:
                return self._update(batch, sampler, form)
            if len(self._graphs) == _MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[key] = recorded
        if recorded.inputs is not None and batch is not None:
            for static, new in zip(_tensors(recorded.inputs), _tensors(batch), strict=True):
                if static is not None and new is not None:
                    static.copy_(new, non_blocking=True)
        recorded.graph.replay()
        self.learner.update_count += 1
        return recorded.metrics

    def _update(self, batch: Batch | None, sampler: nn.Module | None, plan: Hashable) -> Metrics:
        with fused_kernels() if self._fuses else contextlib.nullcontext():
            if batch is None and sampler is not None:
                batch = sampler(self.batch_size, plan)
            return self.learner.update(cast(Batch, batch))

    def _update_on_side_stream(self, batch: Batch | None, sampler: nn.Module | None, plan: Hashable) -> Metrics:
        """Update on a separate stream, which recording requires."""
        here = torch.cuda.current_stream(self.learner.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            metrics = self._update(batch, sampler, plan)
        here.wait_stream(self._stream)
        return metrics

    def _record(self, batch: Batch | None, sampler: nn.Module | None, plan: Hashable) -> _Recorded | None:
        """Record one update without executing it. If that fails, all later updates run without graphs."""
        inputs = None
        if batch is not None:
            inputs = Batch(*cast(Any, (value.clone() if isinstance(value, Tensor) else value for value in batch)))
        generators = {self.learner.generator, *_generators(sampler)}
        count = self.learner.update_count
        try:
            graph, metrics = record_graph(lambda: self._update(inputs, sampler, plan), generators, self.learner.device)
        except RuntimeError as error:
            self._works = False
            warnings.warn(f"updates are not recorded as CUDA graphs and stay slower: {error}", stacklevel=2)
            return None
        finally:
            self.learner.update_count = count  # the recording did not execute it
        return _Recorded(graph, inputs, metrics, sampler)


def _generators(sampler: nn.Module | None) -> set[torch.Generator]:
    modules = [] if sampler is None else sampler.modules()
    return {module.generator for module in modules if isinstance(module, DeviceSampler)}


def _tensors(batch: Batch) -> tuple[Tensor | None, ...]:
    return (*batch[:5], batch.returns)
