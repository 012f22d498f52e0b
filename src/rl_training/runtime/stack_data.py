"""The data of a stack of runs: each draws its own minibatch, and they are joined along a member axis."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rl_training.data.device_hindsight import HindsightSampler
from rl_training.data.device_sampling import DeviceSampler
from rl_training.data.mixture import Source
from rl_training.member_axis import MemberStack
from rl_training.types import Batch


class DataStack:
    """The data of several runs: batches with a member axis, ``[runs, B, ...]``."""

    def __init__(self, sources: Sequence[Source], lead: int = 0) -> None:
        self.sources, self._lead = list(sources), lead
        self._sampler: _SamplerStack | None = None

    def sample(self, batch_size: int) -> Batch:
        """Draw a minibatch for each run."""
        batches = [source.sample(batch_size) for source in self.sources]
        columns = zip(*batches, strict=True)
        tensors = (torch.stack(list(values)) if isinstance(values[0], Tensor) else values[0] for values in columns)
        return Batch(*cast(Any, tensors))

    def device_sampler(self) -> nn.Module | None:
        """Return what draws the batches of all runs on an accelerator; None if the host draws those of a run."""
        samplers = [source.device_sampler() for source in self.sources]
        if any(sampler is None for sampler in samplers):
            self._sampler = None
        elif self._sampler is None or self._sampler.members != samplers:
            self._sampler = _SamplerStack([sampler for sampler in samplers if sampler is not None], self._lead)
        return self._sampler

    def plan(self, batch_size: int) -> Hashable:
        """Decide what the next batch of every run is made of."""
        return [source.plan(batch_size) for source in self.sources][self._lead]


class _SamplerStack(nn.Module):
    """The samplers of several runs as one; they share one generator of random numbers."""

    def __init__(self, members: Sequence[DeviceSampler], lead: int) -> None:
        super().__init__()
        self.members = list(members)
        self._stack = MemberStack(self.members)
        self.pattern = self._stack.pattern
        parts = zip(self.pattern.samplers(), *(member.samplers() for member in self.members), strict=True)
        for whole, *own in parts:
            whole.generator = own[lead].generator
            if isinstance(whole, HindsightSampler):
                whole.batch_sizes = cast(HindsightSampler, own[0]).batch_sizes  # the members prepare them
            for sampler in own:
                sampler.generator = whole.generator

    def forward(self, batch_size: int, plan: Hashable = None) -> Batch:
        """Draw a minibatch for each run."""
        offline_rows: list[int] = []

        def draw(sampler: DeviceSampler) -> dict[str, Tensor]:
            batch: Batch = sampler(batch_size, plan)
            offline_rows.append(batch.offline_rows)
            return {name: value for name, value in batch._asdict().items() if isinstance(value, Tensor)}

        return Batch(**self._stack.call(draw), offline_rows=offline_rows[0])
