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
        return rows_to_batch(self.rows.index_select(0, (draws * self.count).long()), self.columns)


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
        if self.usable is not None:
            index = self.usable.index_select(0, index)  # [B]
        if self.has_next:
            next_observations = tensors["next_observations"].index_select(0, index)  # [B, D]
        else:
            following = index + tensors["has_follower"].index_select(0, index)  # [B]
            next_observations = tensors["observations"].index_select(0, following)  # [B, D]
        return Batch(
            observations=tensors["observations"].index_select(0, index),  # [B, D], with goals [B, D + G]
            actions=tensors["actions"].index_select(0, index),  # [B, A], discrete: [B, 1]
            rewards=tensors["rewards"].index_select(0, index),  # [B]
            next_observations=next_observations,
            terminated=tensors["terminated"].index_select(0, index),  # [B], 0.0 or 1.0
            returns=tensors["returns"].index_select(0, index) if self.has_returns else None,  # [B]
            offline_rows=batch_size,
        )
