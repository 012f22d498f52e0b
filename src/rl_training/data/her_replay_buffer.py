"""Hindsight Experience Replay (Andrychowicz et al., 2017, https://arxiv.org/abs/1707.01495).

Whole episodes are stored. When transitions are sampled, a share ``her_ratio`` of them gets, in place of its goal, one
that the same episode achieved later, and its reward is computed again: what failed at one goal succeeds at another.

Episodes are drawn by how far their achieved goal moved (``episode_priority: motion``): where an object has to be
touched first, nine random episodes in ten leave it where it was, and any goal taken from them is met from the start.
The idea is that of energy-based prioritisation (Zhao and Tresp, 2018, https://arxiv.org/abs/1810.01363).
"""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rl_training.config import Settings
from rl_training.data.episode_table import Episode, EpisodeTable
from rl_training.data.row_ring import RowRing
from rl_training.envs.goals import GoalFunctions, GoalParts, extract_goal_parts
from rl_training.errors import ConfigError
from rl_training.types import Batch, SpaceSpec

Array = NDArray[Any]


class HindsightSettings(Settings):
    """What a run may say of hindsight."""

    her_ratio: float | None = Field(None, ge=0, le=1, description="share of a batch whose goal is replaced")
    n_sampled_goal: int | None = Field(
        None,
        ge=0,
        description="k replaced goals for each original one: a her_ratio of k/(k+1); 4 where neither is given",
    )
    goal_selection_strategy: Literal["future", "final", "episode"] = Field(
        "future", description="where the new goal comes from: later in the episode, its end, or anywhere in it"
    )
    episode_priority: Literal["motion", "uniform"] = Field(
        "motion", description="draw episodes by how far their achieved goal moved, or each transition alike"
    )
    motion_priority: float = Field(
        0.97, ge=0, lt=1, description="p of the weight (1-p) + p*min(1, motion/motion_scale) of an episode"
    )
    motion_scale: float | None = Field(
        None, gt=0, description="motion that counts in full; the environment's distance_threshold where none is given"
    )

    @model_validator(mode="after")
    def _one_ratio(self) -> HindsightSettings:
        if self.her_ratio is not None and self.n_sampled_goal is not None:
            raise ValueError(
                f"her_ratio = {self.her_ratio} and n_sampled_goal = {self.n_sampled_goal} say the same thing: give one"
            )
        return self

    @property
    def relabel_ratio(self) -> float:
        """The share of a batch whose goal is replaced."""
        if self.her_ratio is not None:
            return self.her_ratio
        k = 4 if self.n_sampled_goal is None else self.n_sampled_goal
        return k / (k + 1)


class HERReplayBuffer:
    """Whole episodes of any number of environments, relabelled as they are sampled.

    A row holds observation, desired goal, achieved goal, action, reward and termination of one step. An episode of T
    steps takes T + 1 rows, the last one for its final observation, so next observations are never stored twice. Open
    episodes wait outside the ring and enter it whole; only completed episodes are sampled.
    """

    def __init__(
        self,
        spec: SpaceSpec,
        capacity: int,
        goals: GoalFunctions,
        *,
        settings: HindsightSettings | None = None,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        self.spec, self.goals = spec, goals
        self.settings = settings or HindsightSettings()
        widths = {
            "observation": spec.observation_dim,
            "desired_goal": spec.goal_dim,  # beside the observation: together they are what the policy sees
            "achieved_goal": spec.goal_dim,
            "action": spec.action_dim,
            "reward": 1,
            "terminated": 1,
        }
        # On the host, because the environment's own code judges the goals there; a batch then travels in one piece.
        self.ring = RowRing(capacity, widths)
        self._rows = self.ring.rows.numpy()
        self._desired, self._achieved = self.ring.columns["desired_goal"], self.ring.columns["achieved_goal"]
        self._reward = self.ring.columns["reward"].start  # the termination stands beside it
        self._strata: dict[tuple[int, int], tuple[Array, Array]] = {}
        self.device = torch.device(device)
        self.episodes = EpisodeTable()
        self.rng = np.random.default_rng(seed)
        self._open = [_OpenEpisode(self.ring.rows.shape[1]) for _ in range(num_envs)]
        motion = self.settings.episode_priority == "motion"
        self._motion_scale = (self.settings.motion_scale or goals.distance_threshold) if motion else None

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self.episodes.transitions

    @property
    def oldest_row(self) -> int:
        """The number of the oldest row that is still needed."""
        return self.episodes.oldest.first_row if len(self.episodes) else self.ring.written

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
        steps = self._pack(now, actions, rewards, terminated)
        ended = terminated.astype(bool) | truncated.astype(bool)
        final = self._pack(after, np.zeros_like(actions), np.zeros_like(rewards), np.zeros_like(rewards))
        for index, episode in enumerate(self._open):
            episode.append(steps[index])
            if ended[index]:
                episode.append(final[index])
                self._store(episode.take())

    def sample(self, batch_size: int) -> Batch:
        """Draw ``batch_size`` transitions; the first ``relabel_ratio`` of them have their goal replaced."""
        n = round(self.settings.relabel_ratio * batch_size)
        uniform = self.rng.random((3, batch_size))
        start, length = self.episodes.draw(self._stratify(uniform[0], n))
        step = (uniform[1] * length).astype(np.int64)
        slot = start + step
        # The row after a step's own holds its next observation. All rows are gathered at once.
        goal_slot = start[:n] + self._goal_step(step[:n], length[:n], uniform[2, :n])
        rows = self._rows.take(np.concatenate([slot, slot + 1, goal_slot]), axis=0)
        transitions = rows[: 2 * batch_size].reshape(2, batch_size, -1)
        if n:
            self._relabel(transitions[:, :n], rows[2 * batch_size :, self._achieved])
        now, after = transitions if self.device.type == "cpu" else torch.from_numpy(transitions).to(self.device)
        policy_dim, action, outcome = self.spec.policy_dim, self.ring.columns["action"], self._reward
        views = (now[:, :policy_dim], now[:, action], now[:, outcome], after[:, :policy_dim], now[:, outcome + 1])
        tensors = (torch.from_numpy(view) if isinstance(view, np.ndarray) else view for view in views)
        return Batch(*cast(Any, tensors))

    def discard_open_episode(self, env_index: int) -> None:
        """Forget the unfinished episode of one environment."""
        self._open[env_index].take()

    def state_dict(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return everything a later ``load_state_dict`` needs; checkpoints store the rows apart, in segments."""
        state: dict[str, Any] = {
            "written": self.ring.written,
            "capacity": self.ring.capacity,
            "rng": self.rng.bit_generator.state,
            "table": self.episodes.state_dict(),
            "goals": self.goals.state_dict(),
            "open": {str(i): episode.rows.copy() for i, episode in enumerate(self._open)},
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
        if "rows" in state:
            self.ring.write(self.oldest_row, state["rows"])

    def _stratify(self, uniform: Array, relabelled: int) -> Array:
        """Spread uniform numbers, in place, over [0, 1): one in each of ``relabelled`` equal parts, the rest likewise.

        A batch covers the buffer more evenly than independent draws would, every transition keeps its probability, and
        the positions come out sorted, which is what makes finding their episodes cheap.
        """
        key = (len(uniform), relabelled)
        if key not in self._strata:
            parts = [relabelled, len(uniform) - relabelled]
            base = np.concatenate([np.arange(part) / max(part, 1) for part in parts])
            self._strata[key] = base, np.repeat([1 / max(part, 1) for part in parts], parts)
        base, width = self._strata[key]
        uniform *= width
        uniform += base
        return uniform

    def _pack(self, parts: GoalParts, actions: Array, rewards: Array, terminated: Array) -> Array:
        outcome = np.stack([rewards, terminated], axis=1)
        fields = [parts.observation, parts.desired_goal, parts.achieved_goal, actions, outcome]
        return np.concatenate(fields, axis=1, dtype=np.float32)

    def _store(self, rows: Array) -> None:
        """Write a completed episode without a break in the ring, over the oldest ones."""
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

    def _weight(self, rows: Array) -> float:
        """Return an episode's weight: its length, times its share of motion."""
        length = float(len(rows) - 1)
        if self._motion_scale is None:
            return length
        achieved = rows[:, self._achieved]
        motion = float(np.linalg.norm(achieved - achieved[0], axis=1).max())
        p = self.settings.motion_priority
        return length * ((1.0 - p) + p * min(1.0, motion / self._motion_scale))

    def _goal_step(self, step: Array, length: Array, uniform: Array) -> Array:
        """Choose, within each episode, the row whose achieved goal becomes the goal.

        The goal achieved *after* a step is in the row that follows it, so ``future`` draws from step + 1 (the
        transition's own outcome) to ``length`` (the episode's end), both included.
        """
        if self.settings.goal_selection_strategy == "final":
            return length
        if self.settings.goal_selection_strategy == "episode":
            step = np.zeros_like(step)
        return np.asarray(step + 1 + (uniform * (length - step)).astype(np.int64))

    def _relabel(self, transitions: Array, goals: Array) -> None:
        """Write new goals, and what follows from them, into rows gathered as ``[now and after, B, width]``."""
        now, after = transitions
        transitions[:, :, self._desired] = goals
        achieved = after[:, self._achieved]
        now[:, self._reward] = self.goals.rewards(achieved, goals)
        if self.goals.recomputes_termination:
            now[:, self._reward + 1] = self.goals.terminated(achieved, goals)


class _OpenEpisode:
    """The rows of an episode that is still being played, on the host."""

    def __init__(self, width: int) -> None:
        self._rows = np.empty((64, width), np.float32)
        self._count = 0

    @property
    def rows(self) -> Array:
        return self._rows[: self._count]

    def append(self, row: Array) -> None:
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._count] = row
        self._count += 1

    def take(self) -> Array:
        """Return the rows and start over."""
        rows: Array = self.rows.copy()
        self._count = 0
        return rows

    def restore(self, rows: Array) -> None:
        self._count = 0
        for row in rows:
            self.append(row)
