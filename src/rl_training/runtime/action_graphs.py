"""Acting on an accelerator: the small kernels that normalise and act are launched together, as a CUDA graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.device_sampling import copy_without_waiting
from rl_training.runtime.cuda_graphs import record_graph

Array = NDArray[Any]
ChooseActions = Callable[[Sequence[Array], bool, Array | None], Array | None]
"""Takes the parts of ``Collector.inputs``, whether to act at random, and the noise of the actions (None: drawn by the
policy). Returns actions, or None to act at random."""

_WARM_UP = 3  # calls before recording, in which libraries initialise themselves


class Policy(Protocol):
    """A learner or a stack of learners."""

    device: torch.device
    generator: torch.Generator

    def observe(self, observations: Tensor) -> None:
        """Add observations to the statistics of the normaliser."""
        ...

    def act(self, observations: Tensor, deterministic: bool = True, noise: Tensor | None = None) -> Tensor:
        """Return actions; ``noise`` is standard normal."""
        ...


def accelerated_actions(policy: Policy) -> ChooseActions:
    """Return a function that shows inputs to the normaliser and chooses actions, in the fastest form for the device."""
    return _ActionGraphs(policy) if policy.device.type == "cuda" else _Eager(policy)


class _Eager:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __call__(self, parts: Sequence[Array], random: bool, noise: Array | None = None) -> Array | None:
        actions = self._choose([self._tensor(part) for part in parts], random, self._tensor(noise))
        return None if actions is None else actions.cpu().numpy()

    def _tensor(self, array: Any) -> Any:
        return None if array is None else torch.from_numpy(array).to(self.policy.device)

    def _choose(self, parts: Sequence[Tensor], random: bool, noise: Tensor | None) -> Tensor | None:
        for part in parts:
            self.policy.observe(part)
        return None if random else self.policy.act(parts[0], False, noise)


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    actions: Tensor | None


class _ActionGraphs(_Eager):
    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._calls: dict[bool, int] = {}
        self._graphs: dict[bool, _Recorded] = {}
        self._stream: torch.cuda.Stream = cast(Any, torch.cuda.Stream)(policy.device)
        self._works = True

    def __call__(self, parts: Sequence[Array], random: bool, noise: Array | None = None) -> Array | None:
        calls = self._calls[random] = self._calls.get(random, 0) + 1
        if not self._works:
            return super().__call__(parts, random, noise)
        if calls <= _WARM_UP:
            here = torch.cuda.current_stream(self.policy.device)
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                actions = super().__call__(parts, random, noise)
            here.wait_stream(self._stream)
            return actions
        recorded = self._graphs.get(random) or self._record(parts, random, noise)
        if recorded is None:
            return super().__call__(parts, random, noise)
        for static, new in zip(recorded.inputs, [*parts, *([] if noise is None else [noise])], strict=True):
            copy_without_waiting(static, torch.from_numpy(new))
        recorded.graph.replay()
        return None if recorded.actions is None else recorded.actions.cpu().numpy()

    def _record(self, parts: Sequence[Array], random: bool, noise: Array | None) -> _Recorded | None:
        """Record a call without executing it. If that fails, all later calls run without graphs."""
        static, static_noise = [self._tensor(part) for part in parts], self._tensor(noise)
        try:
            with torch.no_grad():
                graph, actions = record_graph(
                    lambda: self._choose(static, random, static_noise), [self.policy.generator], self.policy.device
                )
        except RuntimeError as error:
            self._works = False
            warnings.warn(f"acting is not recorded as a CUDA graph and stays slower: {error}", stacklevel=3)
            return None
        inputs = [*static, *([] if static_noise is None else [static_noise])]
        self._graphs[random] = _Recorded(graph, inputs, actions)
        return self._graphs[random]
