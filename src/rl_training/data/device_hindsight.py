"""Hindsight replay on an accelerator: the draw, the new goals and their rewards without the host."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from rl_training.data.device_sampling import DeviceSampler, copy_without_waiting
from rl_training.data.episode_table import EpisodeTable
from rl_training.data.goal_cells import MOST_CELLS, PLAIN_WEIGHT, RESTING_WEIGHT, GoalCells, cell_factors
from rl_training.envs.distance_rule import DeviceRewards
from rl_training.envs.goals import GoalRewards
from rl_training.fusing import fused
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
    weight_sums: Tensor
    length_sums: Tensor
    coefficients: Tensor
    last: Tensor
    drawn: Tensor
    ends_when_met: Tensor
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
        for name in ("weight_sums", "length_sums"):
            self.register_buffer(name, torch.full((size,), math.inf, dtype=torch.float64, device=device))
        # For each batch size: how a row's number becomes a position in each of the sums, see ``follow``.
        self.register_buffer("coefficients", torch.zeros(_SIZES, 5, dtype=torch.float64, device=device))
        self.register_buffer("last", torch.zeros((), dtype=torch.long, device=device))  # the newest episode
        self.register_buffer("drawn", torch.zeros(2, dtype=torch.float64, device=device))  # relabelled; already met
        self.register_buffer("ends_when_met", torch.zeros((), dtype=torch.bool, device=device))  # if that is learned
        if cell_width is not None:
            self.register_buffer("cell_width", torch.tensor(cell_width, dtype=torch.float32, device=device))
            self.register_buffer("cell_keys", torch.full((MOST_CELLS,), _NO_KEY, dtype=torch.long, device=device))
            self.register_buffer("cell_weights", torch.full((MOST_CELLS,), PLAIN_WEIGHT, device=device))
            factors = torch.from_numpy(cell_factors(spec.goal_dim)).to(device)
            self.register_buffer("cell_factors", factors)
        self.batch_sizes: dict[int, int] = {}
        self._limits, self._share, self._moves = (0.0, 1.0, 0.0, 1.0), 0.0, -1
        self._ends_when_met = False  # as the tensor of this name

    @torch.no_grad()
    def write_rows(self, slot: int, rows: Tensor) -> None:
        """Copy rows of the host, starting at a slot, without waiting for the device."""
        copy_without_waiting(self.rows[slot : slot + len(rows)], rows)

    @torch.no_grad()
    def follow(self, table: EpisodeTable, share: float) -> None:
        """Copy what has changed in the host's table: its newest episode, or all of them if they were moved."""
        live = table.live if table.moves != self._moves else slice(table.live.stop - 1, table.live.stop)
        starts, lengths, *sums = (column[live] for column in table.columns)
        self.table[live] = torch.from_numpy(np.stack([starts, lengths], axis=1)).to(self.table.device)
        for own, new in zip((self.weight_sums, self.length_sums), sums, strict=True):
            own[live] = torch.from_numpy(new).to(own.device)
            if table.moves != self._moves:
                own[live.stop :] = math.inf
                own[: live.start] = -math.inf
        self._moves = table.moves
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

    def follow_ends(self, goals: GoalRewards) -> None:
        """Note whether play has shown that an episode ends when its goal is met."""
        if self.rewards.ends_are_learned and bool(goals.ends_when_met) != self._ends_when_met:
            self._ends_when_met = bool(goals.ends_when_met)
            self.ends_when_met.fill_(self._ends_when_met)

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
        copy_without_waiting(self.coefficients[self.batch_sizes[batch_size]], new)

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
        goal_columns = (columns["achieved_goal"].start, columns["achieved_goal"].stop)
        coefficients = self.coefficients[self.batch_sizes[batch_size]]  # [5]
        relabelled, episode = _draw_episodes(self.weight_sums, self.length_sums, self.last, coefficients, draws[0])
        wanted = None
        if self.prefers_pursued:
            size = (3 * CANDIDATES + 1, batch_size)
            candidates = torch.rand(size, generator=self.generator, dtype=torch.float64, device=device)
            episode, *wanted = _draw_pursued(
                [self.rows, self.table, self.weight_sums, self.last],
                [self.cell_keys, self.cell_weights, self.cell_factors, self.cell_width],
                coefficients,
                candidates,
                relabelled,
                episode,
                goal_columns,
                self.strategy,
            )
        slots, drawn = _draw_slots(
            self.rows,
            self.table,
            episode,
            relabelled,
            draws,
            wanted,
            goal_columns,
            self.strategy,
            self.threshold,
            self.redraws,
            self.trivial_share,
        )
        if drawn is not None:
            self.drawn += drawn
        sizes = (spec.observation_dim, *goal_columns, columns["desired_goal"].start, columns["desired_goal"].stop)
        now, observations, next_observations, achieved, goals = _read(self.rows, slots, relabelled, sizes)
        rewards, terminated = now[:, columns["reward"].start], now[:, columns["terminated"].start]  # [B] each
        rewards = torch.where(relabelled, self.rewards.rewards(achieved, goals), rewards)
        ends = self.rewards.terminated(achieved, goals)
        if ends is not None:
            known = relabelled & self.ends_when_met if self.rewards.ends_are_learned else relabelled
            terminated = torch.where(known, ends, terminated)
        return Batch(
            observations=observations,  # [B, policy_dim]
            actions=now[:, columns["action"]],  # [B, action_dim]
            rewards=rewards,
            next_observations=next_observations,  # [B, policy_dim]
            terminated=terminated,
            offline_rows=batch_size if self.offline else 0,
        )


@fused
def _draw_episodes(
    weight_sums: Tensor, length_sums: Tensor, last: Tensor, coefficients: Tensor, draws: Tensor
) -> tuple[Tensor, Tensor]:
    """Return which rows get a new goal, and the episode of every row, ``[B]`` each; ``draws`` ``[B]`` are uniform."""
    number = torch.arange(len(draws), dtype=torch.float64, device=draws.device)  # [B]
    relabelled = number < coefficients[4]  # [B]
    place = number + draws
    by_weight = torch.searchsorted(weight_sums, torch.addcmul(coefficients[0], coefficients[2], place))  # [B]
    by_length = torch.searchsorted(length_sums, torch.addcmul(coefficients[1], coefficients[3], place))  # [B]
    return relabelled, torch.minimum(torch.where(relabelled, by_weight, by_length), last)


@fused
def _draw_pursued(
    data: list[Tensor],
    cells: list[Tensor],
    coefficients: Tensor,
    draws: Tensor,
    relabelled: Tensor,
    episode: Tensor,
    goal_columns: tuple[int, int],
    strategy: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take one of several candidates for each relabelled row, in proportion to how much its goal is wanted.

    ``draws`` ``[3 * candidates + 1, B]`` are uniform numbers.

    Returns:
        Episodes, steps and the steps of the goals, ``[B]`` each. Rows with their own goal keep their ``episode``.
    """
    (rows, table, weight_sums, last), (cell_keys, cell_weights, cell_factors, cell_width) = data, cells
    size, device = len(episode), episode.device
    number = torch.arange(size, dtype=torch.float64, device=device)  # [B]
    places, steps, goals = draws[:-1].view(3, CANDIDATES, size)  # [candidates, B] each
    part = torch.arange(CANDIDATES, dtype=torch.float64, device=device)[:, None]
    positions = coefficients[0] + (part * coefficients[4] + number + places) * coefficients[2] / CANDIDATES
    found = torch.minimum(torch.searchsorted(weight_sums, positions), last)  # [candidates, B]
    start, length = table[found].unbind(-1)  # [candidates, B] each
    step = (steps * length).long()
    goal_step = _goal_steps(step, length, goals, strategy)
    columns = torch.arange(*goal_columns, device=device)
    first, achieved = rows[torch.stack([start, start + goal_step])[..., None], columns]  # [candidates, B, G] each
    moved = torch.linalg.vector_norm(achieved - first, dim=-1) > cell_width
    keys = (torch.floor(achieved / cell_width).long() * cell_factors).sum(-1)  # [candidates, B]
    cell = torch.searchsorted(cell_keys, keys).clamp(max=MOST_CELLS - 1)
    weights = torch.where(cell_keys[cell] == keys, cell_weights[cell], PLAIN_WEIGHT)
    sums = (weights * torch.where(moved, 1.0, RESTING_WEIGHT)).cumsum(0)
    chosen = (sums < draws[-1] * sums[-1]).sum(0, keepdim=True).clamp(max=CANDIDATES - 1)  # [1, B]
    episode = torch.where(relabelled, found.gather(0, chosen)[0], episode)
    return episode, step.gather(0, chosen)[0], goal_step.gather(0, chosen)[0]


def _goal_steps(steps: Tensor, length: Tensor, draws: Tensor, strategy: str) -> Tensor:
    """Return the steps of new goals, by the strategy; all of one shape."""
    if strategy == "final":
        return length.expand_as(steps)
    if strategy == "episode":
        return (draws * length).long() + 1
    return torch.addcmul(steps + 1.0, draws, (length - steps).double()).long()  # after the step


@fused
def _draw_slots(
    rows: Tensor,
    table: Tensor,
    episode: Tensor,
    relabelled: Tensor,
    draws: Tensor,
    wanted: list[Tensor] | None,
    goal_columns: tuple[int, int],
    strategy: str,
    threshold: float | None,
    redraws: int,
    trivial_share: float,
) -> tuple[Tensor, Tensor | None]:
    """Return the slots of a step, of the one after it, and of the new goal, ``[3, B]``; and two counts, ``[2]``.

    ``draws`` ``[2 + 2 * tries, B]`` are uniform numbers, the first of which chose the episodes. If more than
    ``trivial_share`` of the new goals are met before the step, some of these are drawn again: of several tries the
    first is taken whose goal is not met; or the very first, if all are met. Steps and goals that are ``wanted``,
    ``[B]`` each, are the first of them, and the goal stays. The counts are those of new goals and of goals that are met
    already.
    """
    start, length = table[episode].unbind(1)  # [B] each
    keep, (step_draws, goal_draws) = draws[1], draws[2:].view(2, -1, draws.shape[1])  # [B], [tries, B] each
    steps = (step_draws * length).long()  # [tries, B]
    goal_steps = _goal_steps(steps, length, goal_draws, strategy)
    if wanted is not None:
        first = torch.where(relabelled, wanted[0], steps[0])
        if strategy != "episode":
            steps = torch.where(relabelled, (step_draws * wanted[1]).long(), steps)
            goal_steps = torch.where(relabelled, wanted[1], goal_steps)
        else:
            goal_steps = torch.cat([torch.where(relabelled, wanted[1], goal_steps[0])[None], goal_steps[1:]])
        steps = torch.cat([first[None], steps[1:]])
    slots, drawn = start + torch.stack([steps, goal_steps]), None  # [2, tries, B]
    if threshold is not None:
        columns = torch.arange(*goal_columns, device=slots.device)
        at_step, at_goal = rows[slots[..., None], columns]  # [tries, B, G] each
        unmet = torch.linalg.vector_norm(at_step - at_goal, dim=-1) > threshold  # [tries, B]
        met = relabelled & ~unmet[0]  # [B]
        count = relabelled.sum()
        if redraws:
            tries = torch.arange(len(unmet), device=unmet.device)[:, None]
            chosen = torch.where(unmet, tries, len(unmet)).amin(dim=0)  # [B], the first try that is not met
            draw_again = met & (keep * met.sum() >= trivial_share * count) & (chosen < len(unmet))
            slots = slots.gather(1, (chosen * draw_again).expand(2, 1, -1))
            met = met & ~draw_again
        drawn = torch.stack([count, met.sum()])
    step, goal = slots[:, 0]
    return torch.stack([step, step + 1, goal]), drawn


@fused
def _read(
    rows: Tensor, slots: Tensor, relabelled: Tensor, sizes: tuple[int, int, int, int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the rows of a step ``[B, width]``, what the policy sees in it and after it, and two kinds of goals.

    The goals ``[B, G]`` are those achieved by the step, and those that it pursues. ``sizes`` are the width of the
    observation, and first and last column of achieved and of desired goals.
    """
    observation, *columns = sizes
    achieved_columns, desired_columns = slice(*columns[:2]), slice(*columns[2:])
    now, after, later = rows[slots]  # [B, width] each
    chosen = relabelled[:, None]  # [B, 1]
    goals = torch.where(chosen, later[:, achieved_columns], now[:, desired_columns])  # [B, G]
    next_goals = torch.where(chosen, goals, after[:, desired_columns])  # [B, G]
    observations = torch.cat([now[:, :observation], goals], dim=1)  # [B, policy_dim]
    next_observations = torch.cat([after[:, :observation], next_goals], dim=1)  # [B, policy_dim]
    return now, observations, next_observations, after[:, achieved_columns], goals
