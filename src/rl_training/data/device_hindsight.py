"""Hindsight replay on an accelerator: the draw, the new goals and their rewards without the host."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from rl_training.data.device_sampling import DeviceSampler
from rl_training.data.episode_table import EpisodeTable
from rl_training.data.goal_cells import MOST_CELLS, PLAIN_WEIGHT, RESTING_WEIGHT, GoalCells, cell_factors
from rl_training.envs.distance_rule import DeviceRewards
from rl_training.types import Batch, SpaceSpec

CANDIDATES = 16
"""From how many steps and goals one is taken if pursued goals are preferred."""

_NO_KEY = torch.iinfo(torch.long).max
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
    cell_keys: Tensor
    cell_weights: Tensor
    cell_factors: Tensor
    cell_width: Tensor

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
        cell_width: float | None,
        offline: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__(generator)
        device = generator.device
        self.spec, self.columns, self.rewards = spec, columns, rewards
        self.strategy, self.threshold, self.offline = strategy, threshold, offline
        self.redraws, self.trivial_share = redraws, trivial_share
        self.prefers_pursued = cell_width is not None
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
        if cell_width is not None:
            self.register_buffer("cell_width", torch.tensor(cell_width, dtype=torch.float32, device=device))
            self.register_buffer("cell_keys", torch.full((MOST_CELLS,), _NO_KEY, dtype=torch.long, device=device))
            self.register_buffer("cell_weights", torch.full((MOST_CELLS,), PLAIN_WEIGHT, device=device))
            factors = torch.from_numpy(cell_factors(spec.goal_dim)).to(device)
            self.register_buffer("cell_factors", factors)
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

    @torch.no_grad()
    def follow_cells(self, cells: GoalCells | None) -> None:
        """Copy the host's weights of goals."""
        if cells is None or not self.prefers_pursued:
            return
        count, device = len(cells.keys), self.cell_keys.device
        self.cell_keys[:count] = torch.from_numpy(cells.keys).to(device)
        self.cell_weights[:count] = torch.from_numpy(cells.weights).to(device)

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
        wanted = None
        number = torch.arange(batch_size, dtype=torch.float64, device=device)  # [B]
        coefficients = self.coefficients[self.batch_sizes[batch_size]]  # [5]
        relabelled = number < coefficients[4]  # [B]
        positions = torch.addcmul(coefficients[:2, None], coefficients[2:4, None], number + draws[0])  # [2, B]
        found = torch.searchsorted(self.sums, positions)  # [2, B]
        episode = torch.minimum(torch.where(relabelled, found[0], found[1]), self.last)  # [B]
        if self.prefers_pursued:
            episode, *wanted = self._draw_pursued(number, coefficients, relabelled, episode)
        start, length = self.table[episode].unbind(1)  # [B] each
        slots = self._slots(start, length, draws[2:].view(2, -1, batch_size), draws[1], relabelled, wanted)  # [3, B]
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

    def _draw_pursued(
        self, number: Tensor, coefficients: Tensor, relabelled: Tensor, episode: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Take one of several candidates for each relabelled row, in proportion to how much its goal is wanted.

        Returns:
            Episodes, steps and the steps of the goals, ``[B]`` each. Rows with their own goal keep their ``episode``.
        """
        size, device = len(number), number.device
        draws = torch.rand((3 * CANDIDATES + 1, size), generator=self.generator, dtype=torch.float64, device=device)
        places, steps, goals = draws[:-1].view(3, CANDIDATES, size)  # [candidates, B] each
        part = torch.arange(CANDIDATES, dtype=torch.float64, device=device)[:, None]
        positions = coefficients[0] + (part * coefficients[4] + number + places) * coefficients[2] / CANDIDATES
        both = positions.reshape(1, -1).expand(2, -1).contiguous()  # one row of the sums alone would have to be copied
        found = torch.searchsorted(self.sums, both)[0].view(CANDIDATES, size)
        found = torch.minimum(found, self.last)  # [candidates, B]
        start, length = self.table[found].unbind(-1)  # [candidates, B] each
        step = (steps * length).long()
        goal_step = self._goal_steps(step, length, goals)
        place = self.columns["achieved_goal"]
        goal_columns = torch.arange(place.start, place.stop, device=device)
        first, achieved = self.rows[torch.stack([start, start + goal_step])[..., None], goal_columns]  # [.., B, G] each
        moved = torch.linalg.vector_norm(achieved - first, dim=-1) > self.cell_width
        keys = (torch.floor(achieved / self.cell_width).long() * self.cell_factors).sum(-1)  # [candidates, B]
        cell = torch.searchsorted(self.cell_keys, keys.reshape(-1)).view(CANDIDATES, size).clamp(max=MOST_CELLS - 1)
        weights = torch.where(self.cell_keys[cell] == keys, self.cell_weights[cell], PLAIN_WEIGHT)
        sums = (weights * torch.where(moved, 1.0, RESTING_WEIGHT)).cumsum(0)
        chosen = (sums < draws[-1] * sums[-1]).sum(0, keepdim=True).clamp(max=CANDIDATES - 1)  # [1, B]
        episode = torch.where(relabelled, found.gather(0, chosen)[0], episode)
        return episode, step.gather(0, chosen)[0], goal_step.gather(0, chosen)[0]

    def _goal_steps(self, steps: Tensor, length: Tensor, draws: Tensor) -> Tensor:
        """Return the steps of new goals, by the strategy; all of one shape."""
        if self.strategy == "final":
            return length.expand_as(steps)
        if self.strategy == "episode":
            return (draws * length).long() + 1
        return torch.addcmul(steps + 1.0, draws, (length - steps).double()).long()  # after the step

    def _slots(
        self,
        start: Tensor,
        length: Tensor,
        draws: Tensor,
        keep: Tensor,
        relabelled: Tensor,
        wanted: list[Tensor] | None,
    ) -> Tensor:
        """Return the slots of a step, of the one after it, and of the new goal, ``[3, B]``.

        ``draws`` ``[2, tries, B]`` and ``keep`` ``[B]`` are uniform numbers. If more than ``trivial_share`` of the new
        goals are met before the step, some of these are drawn again: of several tries the first is taken whose goal is
        not met; or the very first, if all are met. Steps and goals that are ``wanted``, ``[B]`` each, are the first of
        them, and the goal stays.
        """
        steps = (draws[0] * length).long()  # [tries, B]
        goal_steps = self._goal_steps(steps, length, draws[1])
        if wanted is not None:
            first = torch.where(relabelled, wanted[0], steps[0])
            if self.strategy != "episode":
                steps = torch.where(relabelled, (draws[0] * wanted[1]).long(), steps)
                goal_steps = torch.where(relabelled, wanted[1], goal_steps)
            else:
                goal_steps = torch.cat([torch.where(relabelled, wanted[1], goal_steps[0])[None], goal_steps[1:]])
            steps = torch.cat([first[None], steps[1:]])
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
