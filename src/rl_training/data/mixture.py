"""Offline data and online experience in one batch."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol, cast

import torch

from rl_training.data.device_sampling import DeviceSampler
from rl_training.types import Batch


class Source(Protocol):
    """Anything with ``sample``: a dataset, a buffer, or a mixture of both."""

    def __len__(self) -> int: ...

    def sample(self, batch_size: int) -> Batch:
        """Draw a minibatch."""
        ...

    def device_sampler(self) -> DeviceSampler | None:
        """Return what draws the batches on an accelerator; None if the host draws them."""
        ...

    def plan(self, batch_size: int) -> Hashable:
        """Decide what the next batch of ``device_sampler`` is made of; equal plans run the same operations."""
        ...

    def state_dict(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs, with or without the rows of a replay buffer."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        ...


class Mixture:
    """Batches of offline rows, which come first, and online rows.

    A batch gets ``round(ratio * batch_size)`` offline rows. The rounding error is carried over to the next batches, so
    that over any number of batches the share is right to within half a row. While there are no online rows, all rows
    are offline rows.

    Attributes:
        ratio: the share of offline rows, from 0 to 1; it may be changed between batches.
    """

    def __init__(self, offline: Source, online: Source, ratio: float = 0.5) -> None:
        self.offline, self.online, self.ratio = offline, online, ratio
        self._carried = 0.0
        self._offline_drawn, self._drawn = 0, 0
        self._sampler: MixtureSampler | None = None

    def __len__(self) -> int:
        """Return how many rows can be sampled; at a ratio of 0 the offline rows do not count."""
        return len(self.online) + (len(self.offline) if self.ratio > 0 else 0)

    def sample(self, batch_size: int) -> Batch:
        """Draw a minibatch; its first ``offline_rows`` rows are offline data."""
        count = self._count(batch_size)
        if count in (0, batch_size):
            return (self.offline if count else self.online).sample(batch_size)
        return join(self.offline.sample(count), self.online.sample(batch_size - count))

    def plan(self, batch_size: int) -> int:
        """Return how many offline rows the next batch gets, after telling its sources what they will draw."""
        count = self._count(batch_size)
        for source, rows in ((self.offline, count), (self.online, batch_size - count)):
            if rows:
                source.plan(rows)
        return count

    def _count(self, batch_size: int) -> int:
        """Return how many offline rows the next batch gets, and count them."""
        if not len(self.offline) and not len(self.online):
            raise ValueError("Mixture is empty: give it offline data, or add online transitions, before you sample")
        count = self._offline_rows(batch_size)
        self._offline_drawn += count
        self._drawn += batch_size
        return count

    def device_sampler(self) -> MixtureSampler | None:
        """Return what draws the batches on an accelerator; None if the host draws a part of them."""
        parts = self.offline.device_sampler(), self.online.device_sampler()
        if parts[0] is None or parts[1] is None:
            self._sampler = None
        elif self._sampler is None:
            self._sampler = MixtureSampler(parts[0], parts[1])
        return self._sampler

    def take_share(self) -> float | None:
        """Return the share of offline rows since the last call; None if nothing was drawn since."""
        share = self._offline_drawn / self._drawn if self._drawn else None
        self._offline_drawn, self._drawn = 0, 0
        return share

    def state_dict(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs; offline data is not stored, a resumed run reads it again."""
        return {  # the keys are those of earlier versions
            "prior": self.offline.state_dict(with_rows=False),
            "fresh": self.online.state_dict(with_rows=with_rows),
            "carried": self._carried,
            "drawn": [self._offline_drawn, self._drawn],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.offline.load_state_dict(state["prior"])
        self.online.load_state_dict(state["fresh"])
        self._carried = float(state["carried"])
        self._offline_drawn, self._drawn = state["drawn"]

    def _offline_rows(self, batch_size: int) -> int:
        if len(self.online) == 0:
            return batch_size
        wanted = self.ratio * batch_size + self._carried
        count = min(batch_size, max(0, round(wanted)))
        self._carried = wanted - count
        return count


class MixtureSampler(DeviceSampler):
    """Draws offline and online rows on an accelerator; the plan of a batch is its number of offline rows."""

    def __init__(self, offline: DeviceSampler, online: DeviceSampler) -> None:
        super().__init__(online.generator)
        self.offline, self.online = offline, online

    def forward(self, batch_size: int, plan: Hashable = None) -> Batch:
        """Draw a minibatch; its first rows are offline data."""
        count = cast(int, plan)
        if count in (0, batch_size):
            batch: Batch = (self.offline if count else self.online)(batch_size)
            return batch
        return join(self.offline(count), self.online(batch_size - count))


def join(offline: Batch, online: Batch) -> Batch:
    """Concatenate an offline and an online batch; a row without a return gets -inf, a bound without effect."""
    returns = None
    if offline.returns is not None:
        unknown = torch.full_like(online.rewards, -torch.inf) if online.returns is None else online.returns
        returns = torch.cat([offline.returns, unknown])  # [B]
    return Batch(
        observations=torch.cat([offline.observations, online.observations]),  # [B, policy_dim]
        actions=torch.cat([offline.actions, online.actions]),  # [B, action_dim]
        rewards=torch.cat([offline.rewards, online.rewards]),  # [B]
        next_observations=torch.cat([offline.next_observations, online.next_observations]),  # [B, policy_dim]
        terminated=torch.cat([offline.terminated, online.terminated]),  # [B]
        returns=returns,
        offline_rows=len(offline.rewards),
    )
