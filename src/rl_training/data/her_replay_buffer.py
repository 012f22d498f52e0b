"""Hindsight Experience Replay (Andrychowicz et al., 2017, https://arxiv.org/abs/1707.01495).

The buffer stores whole episodes. When it samples transitions, a share ``her_ratio`` of them gets a new goal, one that
the same episode achieved later, and a new reward to match: an episode that failed at its own goal succeeds at another.

If an object has to be touched first, nine random episodes in ten leave it in place, and any goal taken from them is
met from the start. Such goals teach nothing about moving the object. So episodes are drawn for relabelled rows by the
number of steps after which the achieved goal moves (``episode_priority: motion``), and step and goal are drawn again if
too many goals are met before the step. The first part is related to energy-based prioritisation (Zhao and Tresp, 2018,
https://arxiv.org/abs/1810.01363). Rows that keep their own goal are always drawn uniformly over all transitions:
drawing them by what happened later would make lucky outcomes look common.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.device_hindsight import CANDIDATES, HindsightSampler
from rl_training.data.episode_table import Episode, EpisodeTable
from rl_training.data.goal_cells import RESTING_WEIGHT, GoalCells
from rl_training.data.hindsight_settings import HindsightSettings
from rl_training.data.open_episode import OpenEpisode, flags_of_steps, steps_before_motion
from rl_training.data.row_ring import RowRing
from rl_training.envs.goals import GoalRewards
from rl_training.envs.rewards import RewardTransform, RewardTransformConfig
from rl_training.errors import ConfigError
from rl_training.types import Batch, GoalParts, SpaceSpec, extract_goal_parts

Array = NDArray[Any]

REDRAWS = 8
"""How often step and goal are drawn again while the goal is met before the step."""

TRIVIAL_SHARE = 0.25
"""The share of new goals that may be met before their step: enough to learn to stay there, and not more."""


class HERReplayBuffer:
    """Whole episodes of any number of environments, relabelled when they are sampled.

    A row holds observation, desired goal, achieved goal, action, reward and termination of one step. An episode of T
    steps takes T + 1 rows; the last row holds its final observation, so no next observation is stored twice. An episode
    that is still being played is kept apart and written to the ring when it ends: only completed episodes are sampled.

    ``add`` stores rewards as it receives them, or passes them through ``reward_transform`` if there is one. ``goals``
    must use the same transform, because relabelled rewards come from there.
    """

    _offline = False  # whether all rows are offline data
    _why_on_host: str | None = None  # why the host draws the batches of an accelerator

    def __init__(
        self,
        spec: SpaceSpec,
        capacity: int,
        goals: GoalRewards,
        *,
        settings: HindsightSettings | None = None,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        seed: int = 0,
        reward_transform: RewardTransform | RewardTransformConfig | None = None,
    ) -> None:
        self.spec, self.goals, self.reward_transform = spec, goals, reward_transform
        self.settings = settings or HindsightSettings()
        widths = {
            "observation": spec.observation_dim,
            "desired_goal": spec.goal_dim,  # next to the observation: the policy sees both
            "achieved_goal": spec.goal_dim,
            "action": spec.action_dim,
            "reward": 1,
            "terminated": 1,
        }
        # The ring is on the host, where the environment's code computes rewards. A batch is moved in one piece.
        self.ring = RowRing(capacity, widths)
        self._rows = self.ring.rows.numpy()  # [capacity, width], a view
        self._desired, self._achieved = self.ring.columns["desired_goal"], self.ring.columns["achieved_goal"]
        self._reward = self.ring.columns["reward"].start  # the termination is the next column
        self._strata: tuple[tuple[int, int], Array, Array] | None = None  # cached for the last batch, see _stratify
        self.device = torch.device(device)
        self.episodes = EpisodeTable()
        self.rng = np.random.default_rng(seed)
        self._open = [OpenEpisode(self.ring.rows.shape[1]) for _ in range(num_envs)]
        motion = self.settings.episode_priority == "motion"
        self._motion_scale = (self.settings.motion_scale or goals.distance_threshold) if motion else None
        self._redraws = REDRAWS if motion and goals.distance_threshold is not None else 0
        self._drawn = np.zeros(2)  # relabelled rows, and those whose goal was met already
        self._prefers_pursued = self.settings.goal_priority == "pursued"
        self.cells = self._goal_cells() if self._prefers_pursued or self.settings.practice_goals else None
        self._sampler: HindsightSampler | None = None
        self._generator = torch.Generator(self.device).manual_seed(seed)  # of the sampler

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self.episodes.transitions

    @property
    def oldest_row(self) -> int:
        """The number of the oldest row that is still needed."""
        return self.episodes.oldest.first_row if len(self.episodes) else self.ring.written

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """The smallest and largest reward a batch can hold, if known; a new tuple whenever the range was widened."""
        return self.goals.reward_range

    @property
    def relabelled_share(self) -> float:
        """The share of a batch whose goal is replaced: ``relabel_ratio``, or less if few episodes moved.

        Without motion priority, a step appears r / (1 - r) times as often with a new goal as with its own, where r is
        the ratio. At a fixed share, motion priority would multiply that by w / (mean weight), where w is the weight per
        step of the episode, at most 1. So the fewer episodes move, the more their lucky outcomes would outnumber the
        failures, which only rows with their own goal show. The share shrinks to keep the factor at w: motion priority
        takes relabelled rows of episodes without motion out of the batch, and adds no weight to any other.

        ``goal_priority: pursued`` is for tasks without chance, and keeps the ratio.
        """
        ratio = self.settings.relabel_ratio
        if self._motion_scale is None or not len(self.episodes) or self._prefers_pursued:
            return ratio
        weighted = ratio * self.episodes.total_weight / self.episodes.transitions
        return min(1.0, weighted / (weighted + 1.0 - ratio))

    def add(
        self,
        observations: dict[str, Array],
        actions: Array,
        rewards: Array,
        next_observations: dict[str, Array],
        terminated: Array,
        truncated: Array,
    ) -> None:
        """Store one transition of each environment; every argument has the environments as its first axis."""
        now, after = extract_goal_parts(observations), extract_goal_parts(next_observations)
        steps = self._pack(now, actions, self._transformed(rewards), terminated)  # [E, width]
        ended = terminated.astype(bool) | truncated.astype(bool)
        nothing = np.zeros(len(steps))
        final = self._pack(after, np.zeros_like(actions), nothing, nothing)  # [E, width]
        for index, episode in enumerate(self._open):
            episode.append(steps[index])
            if ended[index]:
                episode.append(final[index])
                self._finish(episode.take())

    def add_episode(
        self,
        observations: dict[str, Array],
        actions: Array,
        rewards: Array,
        next_observations: dict[str, Array] | None = None,
        terminated: Array | bool = False,
        truncated: Array | bool = False,
    ) -> None:
        """Store one complete episode of T transitions.

        Args:
            observations: goal observations whose arrays have T + 1 rows, the last one being the final observation; or
                T rows, if ``next_observations`` are given.
            actions: ``[T, action_dim]`` in [-1, 1]; discrete actions are indices, ``[T]`` or ``[T, 1]``.
            rewards: ``[T]``
            next_observations: goal observations of T rows; row t must equal row t + 1 of ``observations``.
            terminated: ``[T]`` flags, or whether the last step ended the task.
            truncated: ``[T]`` flags, or whether the last step was a time-out. It is only checked: an episode that is
                stored whole ends with its last step in any case.

        Raises:
            ValueError: if the lengths do not fit together, or a flag ends the episode before its last step.
        """
        rewards = np.asarray(rewards).reshape(-1)
        steps = len(rewards)
        if steps == 0:
            raise ValueError("rewards has no rows: expected an episode of at least 1 step")
        parts = extract_goal_parts(observations)
        sources = [("observations", parts, steps + (next_observations is None))]
        after = None
        if next_observations is not None:
            after = extract_goal_parts(next_observations)
            sources.append(("next_observations", after, steps))
        for name, source, expected in sources:
            for key, values in source._asdict().items():
                if len(values) != expected:
                    raise ValueError(
                        f"{name}[{key!r}] has {len(values)} rows: expected {expected} with {steps} rewards"
                        f"{' and no next_observations' if next_observations is None else ''}"
                    )
        actions = np.asarray(actions)
        if len(actions) != steps or actions.size != steps * self.spec.action_dim:
            raise ValueError(f"actions has shape {actions.shape}: expected ({steps}, {self.spec.action_dim})")
        flags = {"terminated": terminated, "truncated": truncated}
        ends = {name: flags_of_steps(name, value, steps) for name, value in flags.items()}
        final = GoalParts(*(part[-1:] for part in (parts if after is None else after)))
        now = GoalParts(*(part[:steps] for part in parts))
        actions = actions.reshape(steps, self.spec.action_dim)
        rows = self._pack(now, actions, self._transformed(rewards), ends["terminated"])  # [T, width]
        last = self._pack(final, np.zeros_like(actions[:1]), np.zeros(1), np.zeros(1))  # [1, width]
        self._finish(np.concatenate([rows, last]))

    def sample(self, batch_size: int) -> Batch:
        """Draw B = ``batch_size`` transitions; the first n of them have their goal replaced.

        A worked example with B = 4 and n = 2. The ring holds episode 0 (3 steps) in slots 0 to 3 and episode 1
        (2 steps) in slots 4 to 6; the last slot of each holds the final observation::

            episode      0  1  0  1    rows 0 and 1 are drawn by weight, rows 2 and 3 by length
            start        0  4  0  4    the first slot of the episode
            length       3  2  3  2    its number of steps
            step         1  0  2  1    uniform in [0, length)
            slot         1  4  2  5    start + step: observation, action, reward
            slot + 1     2  5  3  6    next observation
            goal step    3  1          future: uniform in [step + 1, length], the step's own outcome included
            goal slot    3  5          start + goal step: its achieved goal becomes the desired goal
        """
        if not len(self.episodes):
            raise ValueError(
                f"{type(self).__name__} has no completed episode to sample: add transitions until one is terminated or"
                " truncated, or call add_episode"
            )
        sampler = self.device_sampler()
        if sampler is not None:
            batch: Batch = sampler(batch_size, self.plan(batch_size))
            return batch
        n = round(self.relabelled_share * batch_size)
        uniform = self.rng.random((3, batch_size))
        positions = self._stratify(uniform[0], n)  # [B]
        start, length = self.episodes.draw(by_weight=positions[:n], by_length=positions[n:])  # [B], [B]
        step = (uniform[1] * length).astype(np.int64)  # [B]
        goal_step = self._goal_step(step[:n], length[:n], uniform[2, :n])  # [n]
        if self._prefers_pursued and n:
            start[:n], length[:n], step[:n], goal_step = self._draw_pursued(n)
        if self.goals.distance_threshold is not None and n:
            self._redraw_met(start[:n], length[:n], step[:n], goal_step)
        slot = start + step  # [B]
        goal_slot = start[:n] + goal_step  # [n]
        # One gather for all rows: [2B + n, width].
        rows = self._rows.take(np.concatenate([slot, slot + 1, goal_slot]), axis=0)
        transitions = rows[: 2 * batch_size].reshape(2, batch_size, -1)  # [now and after, B, width]
        if n:
            self._relabel(transitions[:, :n], rows[2 * batch_size :, self._achieved])
        now, after = transitions if self.device.type == "cpu" else torch.from_numpy(transitions).to(self.device)
        policy_dim, action, reward = self.spec.policy_dim, self.ring.columns["action"], self._reward
        # [B, policy_dim], [B, action_dim], [B], [B, policy_dim], [B]
        views = (now[:, :policy_dim], now[:, action], now[:, reward], after[:, :policy_dim], now[:, reward + 1])
        tensors = (torch.from_numpy(view) if isinstance(view, np.ndarray) else view for view in views)
        return Batch(*cast(Any, tensors))

    def device_sampler(self) -> HindsightSampler | None:
        """Return what draws the batches on an accelerator; None if the host draws them.

        The host draws on the CPU, and where only the environment can compute rewards.
        """
        if self.device.type == "cpu":
            return None
        if self.goals.on_device() is None:
            self._stay_on_host(self.goals.why_not_on_device)
        elif self._sampler is None and self._why_on_host is None:
            try:
                self._sampler = self.copy_to_device(self._generator)
            except torch.cuda.OutOfMemoryError:
                self._stay_on_host(f"the device has no memory for buffer_capacity = {self.ring.capacity} rows")
        return self._sampler

    def _stay_on_host(self, reason: str) -> None:
        """Draw batches on the host from now on, and say why."""
        self._sampler = None
        if reason != self._why_on_host:
            self._why_on_host = reason
            warnings.warn(f"hindsight is computed on the CPU: {reason}", stacklevel=3)

    def copy_to_device(self, generator: torch.Generator) -> HindsightSampler:
        """Return a sampler with a copy of all rows and episodes on the device of ``generator``."""
        rewards = self.goals.on_device()
        if rewards is None:
            raise ValueError(self.goals.why_not_on_device)
        sampler = HindsightSampler(
            self.spec,
            self.ring.rows,
            self.ring.columns,
            rewards,
            strategy=self.settings.goal_selection_strategy,
            redraws=self._redraws,
            trivial_share=TRIVIAL_SHARE,
            threshold=self.goals.distance_threshold,
            cell_width=self.cells.width if self.cells is not None and self._prefers_pursued else None,
            offline=self._offline,
            generator=generator,
        )
        for first in range(0, min(self.ring.written, self.ring.capacity), 65_536):
            sampler.write_rows(first, self.ring.rows[first : first + 65_536])
        if len(self.episodes):
            sampler.follow(self.episodes, self.relabelled_share)
            sampler.follow_cells(self.cells)
        sampler.drawn.copy_(torch.from_numpy(self._drawn))
        return sampler

    def plan(self, batch_size: int) -> Hashable:
        """Prepare the sampler for a batch of this size; all of them are drawn in the same way."""
        if self._sampler is not None:
            self._sampler.prepare(batch_size)
        return None

    def take_metrics(self) -> dict[str, float]:
        """Return what the log says about hindsight: how many rows get a new goal, and how many of these are trivial.

        Trivial goals are met before their step. They are counted over the rows drawn since the last call.
        """
        if not len(self.episodes):
            return {}
        metrics = {"train/relabelled_share": self.relabelled_share}
        relabelled, met = self._drawn if self._sampler is None else self._sampler.take_shares()
        self._drawn = np.zeros(2)
        if relabelled:
            metrics["train/trivial_goal_share"] = float(met / relabelled)
        if self._motion_scale is not None and (p := self.settings.motion_priority) > 0:
            weight = self.episodes.total_weight / self.episodes.transitions
            metrics["train/motion_weight"] = max(0.0, (weight - (1.0 - p)) / p)
        return metrics

    def discard_open_episode(self, env_index: int) -> None:
        """Discard the unfinished episode of one environment."""
        self._open[env_index].take()

    def state_dict(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return everything ``load_state_dict`` needs; checkpoints leave the rows out and store them in segments."""
        state: dict[str, Any] = {
            "written": self.ring.written,
            "capacity": self.ring.capacity,
            "rng": self.rng.bit_generator.state,
            "table": self.episodes.state_dict(),
            "goals": self.goals.state_dict(),
            "open": {str(i): episode.rows.copy() for i, episode in enumerate(self._open)},
            **({} if self.cells is None else {"cells": self.cells.state_dict()}),
            **self._sampler_state(),
        }
        if with_rows:
            state["rows"] = self.ring.read(self.oldest_row, self.ring.written)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned into a buffer of the same capacity, spaces and environments."""
        self.ring.set_written(int(state["written"]), int(state["capacity"]))
        self.rng.bit_generator.state = state["rng"]
        self.episodes.load_state_dict(state["table"])
        self.goals.load_state_dict(state["goals"])
        for index, episode in enumerate(self._open):
            episode.restore(state["open"][str(index)])
        if self.cells is not None:
            self.cells.load_state_dict(state["cells"])
        if "rows" in state:
            self.ring.write(self.oldest_row, state["rows"])
        self._load_sampler_state(state)

    def _sampler_state(self) -> dict[str, Any]:
        """Return the counts for ``take_metrics`` and, on an accelerator, the random state there."""
        drawn = self._drawn if self._sampler is None else self._sampler.drawn.cpu().numpy()
        generator = {} if self.device.type == "cpu" else {"generator": self._device_generator.get_state()}
        return {"drawn": drawn.copy(), **generator}

    @property
    def _device_generator(self) -> torch.Generator:
        return self._generator if self._sampler is None else self._sampler.generator

    def _load_sampler_state(self, state: dict[str, Any]) -> None:
        """Restore them. The next draw copies all rows to the accelerator again."""
        if "generator" in state:
            self._device_generator.set_state(state["generator"].cpu())
        self._drawn = np.array(state.get("drawn", np.zeros(2)))  # states from before 0.3 have none
        self._sampler = None

    def _stratify(self, uniform: Array, relabelled: int) -> Array:
        """Spread ``[B]`` uniform numbers, in place, over [0, 1): the first ``relabelled`` evenly, and the rest evenly.

        Each group of m numbers gets one number in each of m equal parts of [0, 1). A batch then covers the buffer more
        evenly than independent draws, every transition keeps its probability, and the numbers come out sorted, which
        makes the search for their episodes fast.
        """
        key = (len(uniform), relabelled)
        if self._strata is None or self._strata[0] != key:
            parts = [relabelled, len(uniform) - relabelled]
            base = np.concatenate([np.arange(part) / max(part, 1) for part in parts])
            self._strata = key, base, np.repeat([1 / max(part, 1) for part in parts], parts)
        _, base, width = self._strata
        uniform *= width
        uniform += base
        return uniform

    def _transformed(self, rewards: Array) -> Array:
        if self.reward_transform is None:
            return rewards
        # Use float64, so that the result equals that of a reward wrapper.
        return self.reward_transform.apply(np.asarray(rewards, np.float64))

    def _pack(self, parts: GoalParts, actions: Array, rewards: Array, terminated: Array) -> Array:
        """Put the fields of N steps side by side: ``[N, width]`` float32 in the order of the ring's columns."""
        outcome = np.stack([rewards, terminated], axis=1)
        fields = [parts.observation, parts.desired_goal, parts.achieved_goal, actions, outcome]
        return np.concatenate(fields, axis=1, dtype=np.float32)

    def _finish(self, rows: Array) -> None:
        """Store a played episode ``[T + 1, width]`` after comparing its rewards with what relabelling assumes."""
        self.goals.check_play(rows[:-1, self._reward], rows[1:, self._achieved], rows[1:, self._desired])
        self._store(rows)

    def _store(self, rows: Array) -> None:
        """Write a completed episode ``[T + 1, width]`` into consecutive slots, over the oldest episodes."""
        ring, count = self.ring, len(rows)
        if count > ring.capacity:
            raise ConfigError(
                f"algo_kwargs.buffer_capacity = {ring.capacity} cannot hold an episode of {count - 1} steps:"
                f" expected at least {count}"
            )
        if ring.written % ring.capacity + count > ring.capacity:
            ring.skip_to_start()
        first_row = ring.written
        while len(self.episodes) and self.episodes.oldest.first_row < first_row + count - ring.capacity:
            self.episodes.drop_oldest()
        slot = ring.append(torch.from_numpy(rows))
        self.episodes.append(Episode(slot, count - 1, first_row), self._weight(rows))
        if self.cells is not None:
            self.cells.add(rows[:, self._achieved], rows[0, self._desired])
        if self._sampler is not None:
            achieved = rows[1:, self._achieved]
            self.goals.spot_check(achieved, achieved[::-1])
            self._sampler.write_rows(slot, torch.from_numpy(rows))
            self._sampler.follow(self.episodes, self.relabelled_share)
            self._sampler.follow_cells(self.cells)

    def _weight(self, rows: Array) -> float:
        """Return the weight of an episode ``[T + 1, width]``: little of its length if its achieved goal never moves.

        In an episode with motion, steps before motion count in full. Later ones count as much as goals that are met.
        """
        length = float(len(rows) - 1)
        if self._motion_scale is None:
            return length
        moving = steps_before_motion(rows[:, self._achieved], self._motion_scale)
        full = moving + TRIVIAL_SHARE * (length - moving) if moving else 0.0
        return (1.0 - self.settings.motion_priority) * length + self.settings.motion_priority * full

    def _goal_cells(self) -> GoalCells:
        """Return an empty count of goals."""
        width = self.settings.motion_scale or self.goals.distance_threshold
        if width is None:
            key = "goal_priority" if self._prefers_pursued else "practice_goals"
            raise ConfigError(
                f"algo_kwargs.{key}: the environment has no distance_threshold; expected motion_scale, the distance"
                " from which on goals count as different"
            )
        return GoalCells(self.spec.goal_dim, width)

    def _draw_pursued(self, n: int) -> tuple[Array, Array, Array, Array]:
        """Draw n steps and goals: of several candidates one is taken in proportion to how much its goal is wanted.

        Returns:
            The start and length of the episodes, the steps, and the steps of the goals, ``[n]`` each.
        """
        assert self.cells is not None
        uniform = self.rng.random((4, CANDIDATES * n))
        positions = (np.arange(CANDIDATES * n) + uniform[0]) / (CANDIDATES * n)  # ascending: the search is fast
        start, length = self.episodes.draw(by_weight=positions, by_length=positions[:0])
        step = (uniform[1] * length).astype(np.int64)
        goal_step = self._goal_step(step, length, uniform[2])
        goals, first = self._rows[start + goal_step, self._achieved], self._rows[start, self._achieved]
        moved = np.linalg.norm(goals - first, axis=1) > self.cells.width
        weights = self.cells.wanted(goals) * np.where(moved, 1.0, RESTING_WEIGHT)
        sums = weights.reshape(CANDIDATES, n).cumsum(axis=0)
        chosen = (sums < uniform[3, :n] * sums[-1]).sum(axis=0) * n + np.arange(n)  # [n]
        return start[chosen], length[chosen], step[chosen], goal_step[chosen]

    def _goal_step(self, step: Array, length: Array, uniform: Array) -> Array:
        """Choose within each of n episodes the row whose achieved goal becomes the desired goal; all ``[n]``.

        The goal achieved *after* a step is in the row that follows it. So ``future`` draws from step + 1, the
        transition's own outcome, to ``length``, the end of the episode; both are included.
        """
        if self.settings.goal_selection_strategy == "final":
            return np.array(length)
        if self.settings.goal_selection_strategy == "episode":
            step = np.zeros_like(step)
        return np.asarray(step + 1 + (uniform * (length - step)).astype(np.int64))

    def _redraw_met(self, start: Array, length: Array, step: Array, goal_step: Array) -> None:
        """Draw step and goal again, in place, where too many goals are met before the step; all ``[n]``.

        Of several draws the first is taken whose goal is not met. If all are met, the first choice stays. A goal that
        was chosen because it is wanted stays, and only the step before it is drawn again.
        """
        rows = np.flatnonzero(self._met(start + step, start + goal_step))
        self._drawn += len(start), len(rows)
        allowed = TRIVIAL_SHARE * len(start)
        if not self._redraws or len(rows) <= allowed:
            return
        rows = rows[self.rng.random(len(rows)) * len(rows) >= allowed]
        draws = self.rng.random((2, self._redraws, len(rows)))
        if self._prefers_pursued and self.settings.goal_selection_strategy != "episode":
            steps = (draws[0] * goal_step[rows]).astype(np.int64)  # [redraws, rows]
            goal_steps = np.broadcast_to(goal_step[rows], steps.shape)
        else:
            steps = (draws[0] * length[rows]).astype(np.int64)  # [redraws, rows]
            goal_steps = self._goal_step(steps, np.broadcast_to(length[rows], steps.shape), draws[1])
        unmet = ~self._met(start[rows] + steps, start[rows] + goal_steps)  # [redraws, rows]
        found = np.flatnonzero(unmet.any(axis=0))
        chosen = unmet.argmax(axis=0)[found]
        step[rows[found]], goal_step[rows[found]] = steps[chosen, found], goal_steps[chosen, found]
        self._drawn[1] -= len(found)

    def _met(self, slots: Array, goal_slots: Array) -> Array:
        """Return whether the goal achieved in one slot is met in another; all of one shape."""
        numbers = self._rows.reshape(-1)  # a view; taking single numbers is faster than taking parts of rows
        width = self._rows.shape[1]
        here, there = slots * width, goal_slots * width
        squares = np.zeros(slots.shape, np.float32)
        for column in range(self._achieved.start, self._achieved.stop):
            offset = numbers.take(here + column) - numbers.take(there + column)
            squares += offset * offset
        threshold = self.goals.distance_threshold or 0.0
        return squares <= threshold * threshold

    def _relabel(self, transitions: Array, goals: Array) -> None:
        """Replace the goals of n transitions, and the rewards and terminations that follow from them, in place.

        Args:
            transitions: ``[now and after, n, width]`` rows of the batch.
            goals: ``[n, goal_dim]`` new desired goals.
        """
        now, after = transitions  # [n, width] each
        transitions[:, :, self._desired] = goals
        achieved = after[:, self._achieved]  # [n, goal_dim]: the reward depends on what the step achieved
        now[:, self._reward] = self.goals.rewards(achieved, goals)
        if self.goals.recomputes_termination:
            now[:, self._reward + 1] = self.goals.terminated(achieved, goals)
