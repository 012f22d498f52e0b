"""Hindsight Experience Replay (Andrychowicz et al., 2017, https://arxiv.org/abs/1707.01495).

The buffer stores whole episodes. When it samples transitions, a share ``her_ratio`` of them gets a new goal, one that
the same episode achieved later, and a new reward to match: an episode that failed at its own goal succeeds at another.

This file stores the episodes. ``host_hindsight.py`` draws steps and goals, and ``device_hindsight.py`` does the same
on an accelerator.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.device_hindsight import HindsightSampler
from rl_training.data.episode_table import Episode, EpisodeTable
from rl_training.data.goal_cells import GoalCells
from rl_training.data.hindsight_settings import HindsightSettings
from rl_training.data.host_hindsight import TRIVIAL_SHARE, HostHindsight
from rl_training.data.open_episode import OpenEpisode, flags_of_steps
from rl_training.data.row_ring import RowRing
from rl_training.envs.goals import GoalRewards
from rl_training.envs.rewards import RewardTransform, RewardTransformConfig
from rl_training.errors import ConfigError
from rl_training.types import Batch, GoalParts, SpaceSpec, extract_goal_parts

Array = NDArray[Any]


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
        self._desired, self._achieved = self.ring.columns["desired_goal"], self.ring.columns["achieved_goal"]
        self._reward = self.ring.columns["reward"].start  # the termination is the next column
        self.device = torch.device(device)
        self.episodes = EpisodeTable()
        self.rng = np.random.default_rng(seed)
        self._open = [OpenEpisode(self.ring.rows.shape[1]) for _ in range(num_envs)]
        self.cells = self._goal_cells()
        self._host = HostHindsight(spec, self.ring, self.episodes, goals, self.settings, self.cells, self.rng)
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
        """The share of a batch whose goal is replaced."""
        return self._host.relabelled_share

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
        """Draw B = ``batch_size`` transitions; the first n of them have their goal replaced."""
        if not len(self.episodes):
            raise ValueError(
                f"{type(self).__name__} has no completed episode to sample: add transitions until one is terminated or"
                " truncated, or call add_episode"
            )
        sampler = self.device_sampler()
        if sampler is not None:
            batch: Batch = sampler(batch_size, self.plan(batch_size))
            return batch
        return self._host.sample(batch_size, self.device)

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
            redraws=self._host.redraws,
            trivial_share=TRIVIAL_SHARE,
            threshold=self.goals.distance_threshold,
            cell_width=self.cells.width if self.cells is not None and self._host.prefers_pursued else None,
            offline=self._offline,
            generator=generator,
        )
        for first in range(0, min(self.ring.written, self.ring.capacity), 65_536):
            sampler.write_rows(first, self.ring.rows[first : first + 65_536])
        if len(self.episodes):
            sampler.follow(self.episodes, self.relabelled_share)
            sampler.follow_cells(self.cells)
        sampler.follow_ends(self.goals)
        sampler.drawn.copy_(torch.from_numpy(self._host.drawn))
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
        relabelled, met = self._host.drawn if self._sampler is None else self._sampler.take_shares()
        self._host.drawn = np.zeros(2)
        return self._host.metrics(relabelled, met)

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
        drawn = self._host.drawn if self._sampler is None else self._sampler.drawn.cpu().numpy()
        generator = {} if self.device.type == "cpu" else {"generator": self._device_generator.get_state()}
        return {"drawn": drawn.copy(), **generator}

    @property
    def _device_generator(self) -> torch.Generator:
        return self._generator if self._sampler is None else self._sampler.generator

    def _load_sampler_state(self, state: dict[str, Any]) -> None:
        """Restore them. The next draw copies all rows to the accelerator again."""
        if "generator" in state:
            self._device_generator.set_state(state["generator"].cpu())
        self._host.drawn = np.array(state.get("drawn", np.zeros(2)))  # states from before 0.3 have none
        self._sampler = None

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
        if not self.settings.replaces_pursued:  # else ``Practice`` sees the goals that the environment gave
            self._learn_ends(rows)
        self._store(rows)

    def _learn_ends(self, rows: Array) -> None:
        """Learn from an episode ``[T + 1, width]`` that pursued its own goal whether it ended because it met it.

        A last step without a termination says nothing: logged data may lack the flag.
        """
        terminated = rows[:-1, self._reward + 1]  # [T]
        known = len(terminated) if terminated[-1] else len(terminated) - 1
        after = rows[1 : known + 1]
        self.goals.learn_ends(after[:, self._achieved], after[:, self._desired], terminated[:known])

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
        self.episodes.append(Episode(slot, count - 1, first_row), self._host.weight(rows[:, self._achieved]))
        if self.cells is not None:
            self.cells.add(rows[:, self._achieved], rows[0, self._desired])
        if self._sampler is not None:
            achieved = rows[1:, self._achieved]
            self.goals.spot_check(achieved, achieved[::-1])
            self._sampler.write_rows(slot, torch.from_numpy(rows))
            self._sampler.follow(self.episodes, self.relabelled_share)
            self._sampler.follow_cells(self.cells)
            self._sampler.follow_ends(self.goals)

    def _goal_cells(self) -> GoalCells | None:
        """Return an empty count of goals; None if no setting needs one."""
        prefers_pursued = self.settings.goal_priority == "pursued"
        if not prefers_pursued and not self.settings.replaces_pursued:
            return None
        width = self.settings.motion_scale or self.goals.distance_threshold
        if width is None:
            key = "practice_goals" if self.settings.practice_goals else "next_goal_after"
            key = "goal_priority" if prefers_pursued else key
            raise ConfigError(
                f"algo_kwargs.{key}: the environment has no distance_threshold; expected motion_scale, the distance"
                " from which on goals count as different"
            )
        return GoalCells(self.spec.goal_dim, width)
