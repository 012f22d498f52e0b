"""Sampling on an accelerator: modules whose tensors are the data, so that a draw can be recorded and replayed.

A recording repeats the same operations. So everything that changes between draws, such as the number of rows, is a
tensor here, and a recorded draw also sees rows that are added later.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from rl_training.fusing import fused
from rl_training.types import Batch


@torch.no_grad()
def copy_without_waiting(target: Tensor, source: Tensor) -> None:
    """Copy a tensor of the host to a device, which may still be busy.

    The copy is made later, and from ordinary memory it may then find what the host has written there since. So it is
    made from pinned memory, which PyTorch keeps until the copy is done.
    """
    if target.device.type == "cuda":
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)


class DeviceSampler(nn.Module):
    """Draws batches from tensors on one device.

    Attributes:
        generator: where the random numbers come from.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, batch_size: int, plan: Hashable = None) -> Batch:
        """Draw a minibatch; ``plan`` is what the source decided about it on the host."""
        raise NotImplementedError

    def samplers(self) -> list[DeviceSampler]:
        """Return this sampler and those it is made of."""
        return [module for module in self.modules() if isinstance(module, DeviceSampler)]


class RingSampler(DeviceSampler):
    """Draws rows of a ring uniformly, with replacement."""

    rows: Tensor
    count: Tensor

    def __init__(self, rows: Tensor, columns: Mapping[str, slice], generator: torch.Generator) -> None:
        super().__init__(generator)
        self.columns = dict(columns)
        self.register_buffer("rows", rows)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64, device=rows.device))

    def forward(self, batch_size: int, plan: Hashable = None) -> Batch:
        """Draw ``batch_size`` of the first ``count`` rows."""
        draws = torch.rand(batch_size, generator=self.generator, dtype=torch.float64, device=self.rows.device)  # [B]
        return rows_to_batch(_draw_rows(self.rows, self.count, draws), self.columns)


def rows_to_batch(rows: Tensor, columns: Mapping[str, slice]) -> Batch:
    """Return the rows ``[B, width]`` of a ring of transitions as a batch."""
    return Batch(
        observations=rows[:, columns["observation"]],  # [B, policy_dim]
        actions=rows[:, columns["action"]],  # [B, action_dim]
        rewards=rows[:, columns["reward"].start],  # [B]
        next_observations=rows[:, columns["next_observation"]],  # [B, policy_dim]
        terminated=rows[:, columns["terminated"].start],  # [B]
    )


class DatasetSampler(DeviceSampler):
    """Draws logged transitions uniformly, with replacement."""

    usable: Tensor | None

    def __init__(self, tensors: Mapping[str, Tensor], rows: Tensor | None, generator: torch.Generator) -> None:
        super().__init__(generator)
        self.has_returns, self.has_next = "returns" in tensors, "next_observations" in tensors
        self.length = len(tensors["rewards"]) if rows is None else len(rows)
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
        self.register_buffer("usable", rows)

    def forward(self, batch_size: int, plan: Hashable = None) -> Batch:
        """Draw ``batch_size`` transitions; all of them are offline rows."""
        tensors = cast(dict[str, Tensor], self._buffers)
        device = tensors["rewards"].device
        index = torch.randint(self.length, (batch_size,), generator=self.generator, device=device)  # [B]
        names = ["observations", "actions", "rewards", "terminated", *(["returns"] if self.has_returns else [])]
        following = tensors["next_observations" if self.has_next else "has_follower"]
        columns = [tensors[name] for name in names]
        next_observations, *drawn = _draw_transitions(index, self.usable, columns, following, self.has_next)
        return Batch(
            **dict(zip(names, drawn, strict=True)), next_observations=next_observations, offline_rows=batch_size
        )


@fused
def _draw_rows(rows: Tensor, count: Tensor, draws: Tensor) -> Tensor:
    """Return one of the first ``count`` rows for each uniform number ``[B]``."""
    return rows.index_select(0, (draws * count).long())


@fused
def _draw_transitions(
    index: Tensor, usable: Tensor | None, columns: list[Tensor], following: Tensor, has_next: bool
) -> list[Tensor]:
    """Return the next observations ``[B, D]`` of some transitions, and their entries in all columns.

    ``index`` ``[B]`` counts the ``usable`` rows. The first column are the observations. ``following`` are the next
    observations, or else how many rows further the observations are that follow.
    """
    rows = index if usable is None else usable.index_select(0, index)  # [B]
    if has_next:
        after = following.index_select(0, rows)
    else:
        after = columns[0].index_select(0, rows + following.index_select(0, rows))
    return [after, *(column.index_select(0, rows) for column in columns)]
