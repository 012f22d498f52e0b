"""Hindsight replay on an accelerator: the draw, the new goals and their rewards without the host."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from rl_training.data.device_sampling import DeviceSampler
from rl_training.data.episode_table import EpisodeTable
from rl_training.envs.distance_rule import DeviceRewards
from rl_training.types import Batch, SpaceSpec

_SIZES = 64
"""How many sizes of batches can be recorded at the same time."""


class HindsightSampler(DeviceSampler):
    """A copy of the rows and the episode table of a ``HERReplayBuffer``, which draws by the same rules.

    Attributes:
        offline: whether all rows are offline data.
    """

    rows: Tensor
    table: Tensor
    sums: Tensor
    coefficients: Tensor
    last: Tensor
    drawn: Tensor

    def __init__(
        self,
        spec: SpaceSpec,
        rows: Tensor,
        columns: dict[str, slice],
        rewards: DeviceRewards,
        *,
        strategy: str,
        redraws: int,
        trivial_share: float,
        threshold: float | None,
        offline: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__(generator)
        device = generator.device
        self.spec, self.columns, self.rewards = spec, columns, rewards
        self.strategy, self.threshold, self.offline = strategy, threshold, offline
        self.redraws, self.trivial_share = redraws, trivial_share
        # An episode takes two rows or more. The host's table may use twice as many entries as there are episodes.
        size = max(1024, 1 << len(rows).bit_length())
        self.register_buffer("rows", torch.zeros_like(rows, device=device))
        self.register_buffer("table", torch.ones(size, 2, dtype=torch.long, device=device))  # starts and lengths
        # The running sums of the weights and of the lengths; beyond the last episode they are infinite.
        self.register_buffer("sums", torch.full((2, size), math.inf, dtype=torch.float64, device=device))
        # For each batch size: how a row's number becomes a position in each of the sums, see ``follow``.
        self.register_buffer("coefficients", torch.zeros(_SIZES, 5, dtype=torch.float64, device=device))
        self.register_buffer("last", torch.zeros((), dtype=torch.long, device=device))  # the newest episode
        self.register_buffer("drawn", torch.zeros(2, dtype=torch.float64, device=device))  # relabelled; already met
        self.batch_sizes: dict[int, int] = {}
        self._limits, self._share, self._moves = (0.0, 1.0, 0.0, 1.0), 0.0, -1

    @torch.no_grad()
    def write_rows(self, slot: int, rows: Tensor) -> None:
        """Copy rows of the host, starting at a slot, without waiting for the device."""
        if self.rows.device.type == "cuda":
            rows = rows.pin_memory()
        self.rows[slot : slot + len(rows)].copy_(rows, non_blocking=True)

    @torch.no_grad()
    def follow(self, table: EpisodeTable, share: float) -> None:
        """Copy what has changed in the host's table: its newest episode, or all of them if they were moved."""
        live = table.live if table.moves != self._moves else slice(table.live.stop - 1, table.live.stop)
        starts, lengths, *sums = (column[live] for column in table.columns)
        self.table[live] = torch.from_numpy(np.stack([starts, lengths], axis=1)).to(self.table.device)
        self.sums[:, live] = torch.from_numpy(np.stack(sums)).to(self.sums.device)
        if table.moves != self._moves:
            self._moves = table.moves
            self.sums[:, live.stop :] = math.inf
            self.sums[:, : live.start] = -math.inf
        self.last.fill_(live.stop - 1)
        self._limits, self._share = table.limits, share
        for batch_size in self.batch_sizes:
            self._set_coefficients(batch_size)

    def prepare(self, batch_size: int) -> None:
        """Get ready for batches of this size, before the first of them is drawn."""
        if batch_size not in self.batch_sizes:
            if len(self.batch_sizes) == _SIZES:  # a schedule changes the size from batch to batch
                self.batch_sizes.pop(next(iter(self.batch_sizes)))
            free = set(range(_SIZES)) - set(self.batch_sizes.values())
            self.batch_sizes[batch_size] = min(free)
            self._set_coefficients(batch_size)

    def _set_coefficients(self, batch_size: int) -> None:
        """Set the number of relabelled rows, and offset and factor of the positions in both sums.

        The first ``count`` rows of a batch are drawn by weight, the others by length. Each group gets one position in
        each of its equal parts of the range, as on the host.
        """
        weight_low, weight_high, length_low, length_high = self._limits
        count = round(self._share * batch_size)
        by_weight = (weight_high - weight_low) / max(count, 1)
        by_length = (length_high - length_low) / max(batch_size - count, 1)
        values = [weight_low, length_low - count * by_length, by_weight, by_length, count]
        new = torch.tensor(values, dtype=torch.float64)
        self.coefficients[self.batch_sizes[batch_size]].copy_(new, non_blocking=True)

    def take_shares(self) -> tuple[float, float]:
        """Return how many rows got a new goal since the last call, and how many of these goals were met already."""
        relabelled, met = self.drawn.tolist()
        self.drawn.zero_()
        return relabelled, met

    def forward(self, batch_size: int, plan: Hashable = None) -> Batch:
        """Draw ``batch_size`` transitions and relabel the first of them; ``prepare`` this size first."""
        spec, columns, device = self.spec, self.columns, self.rows.device
        draws = torch.rand(
            (4 + 2 * self.redraws, batch_size), generator=self.generator, dtype=torch.float64, device=device
        )
        number = torch.arange(batch_size, dtype=torch.float64, device=device)  # [B]
        coefficients = self.coefficients[self.batch_sizes[batch_size]]  # [5]
        relabelled = number < coefficients[4]  # [B]
        positions = torch.addcmul(coefficients[:2, None], coefficients[2:4, None], number + draws[0])  # [2, B]
        found = torch.searchsorted(self.sums, positions)  # [2, B]
        episode = torch.minimum(torch.where(relabelled, found[0], found[1]), self.last)  # [B]
        start, length = self.table[episode].unbind(1)  # [B] each
        slots = self._slots(start, length, draws[2:].view(2, -1, batch_size), draws[1], relabelled)  # [3, B]
        now, after, later = self.rows[slots]  # [B, width] each
        own_goals, chosen = now[:, columns["desired_goal"]], relabelled[:, None]  # [B, G], [B, 1]
        goals = torch.where(chosen, later[:, columns["achieved_goal"]], own_goals)  # [B, G]
        achieved = after[:, columns["achieved_goal"]]  # [B, G]
        rewards, terminated = now[:, columns["reward"].start], now[:, columns["terminated"].start]  # [B] each
        rewards = torch.where(relabelled, self.rewards.rewards(achieved, goals), rewards)
        ends = self.rewards.terminated(achieved, goals)
        if ends is not None:
            terminated = torch.where(relabelled, ends, terminated)
        next_goals = torch.where(chosen, goals, after[:, columns["desired_goal"]])  # [B, G]
        return Batch(
            observations=torch.cat([now[:, : spec.observation_dim], goals], dim=1),  # [B, policy_dim]
            actions=now[:, columns["action"]],  # [B, action_dim]
            rewards=rewards,
            next_observations=torch.cat([after[:, : spec.observation_dim], next_goals], dim=1),  # [B, policy_dim]
            terminated=terminated,
            offline_rows=batch_size if self.offline else 0,
        )

    def _slots(self, start: Tensor, length: Tensor, draws: Tensor, keep: Tensor, relabelled: Tensor) -> Tensor:
        """Return the slots of a step, of the one after it, and of the new goal, ``[3, B]``.

        ``draws`` ``[2, tries, B]`` and ``keep`` ``[B]`` are uniform numbers. If more than ``trivial_share`` of the new
        goals are met before the step, some of these are drawn again: of several tries the first is taken whose goal is
        not met; or the very first, if all are met.
        """
        steps = (draws[0] * length).long()  # [tries, B]
        if self.strategy == "final":
            goal_steps = length.expand_as(steps)
        elif self.strategy == "episode":
            goal_steps = (draws[1] * length).long() + 1
        else:
            goal_steps = torch.addcmul(steps + 1.0, draws[1], (length - steps).double()).long()  # after the step
        slots = start + torch.stack([steps, goal_steps])  # [2, tries, B]
        if self.threshold is not None:
            place = self.columns["achieved_goal"]
            goal_columns = torch.arange(place.start, place.stop, device=slots.device)
            at_step, at_goal = self.rows[slots[..., None], goal_columns]  # [tries, B, G] each
            unmet = torch.linalg.vector_norm(at_step - at_goal, dim=-1) > self.threshold  # [tries, B]
            met = relabelled & ~unmet[0]  # [B]
            count = relabelled.sum()
            if self.redraws:
                some, chosen = unmet.to(torch.int8).max(dim=0)  # [B] each
                draw_again = met & (keep * met.sum() >= self.trivial_share * count)
                slots = slots.gather(1, (chosen * draw_again).expand(2, 1, -1))
                met = met & ~(draw_again & (some == 1))
            self.drawn += torch.stack([count, met.sum()])
        step, goal = slots[:, 0]
        return torch.stack([step, step + 1, goal])
