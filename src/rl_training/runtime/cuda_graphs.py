"""Recording CUDA graphs: operations of one call that are launched together from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def record_graph(
    function: Callable[[], Result], generators: Iterable[torch.Generator], device: torch.device
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Return a call of ``function`` as a graph, without executing it, and the result that every replay overwrites.

    ``generators`` are all those it draws from.

    Raises:
        RuntimeError: the call contains something that cannot be recorded.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = function()
    # PyTorch sets the generators' positions on the device, at the start of a recording in the stream that records, and
    # at each replay in the current one. On a busy GPU the first could otherwise come last, and undo the second.
    torch.cuda.synchronize(device)
    return graph, result
