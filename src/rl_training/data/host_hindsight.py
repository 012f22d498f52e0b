"""Hindsight replay on the host: which steps are drawn, which goals they get, and the rewards that follow.

``device_hindsight.py`` draws by the same rules on an accelerator.

If an object has to be touched first, nine random episodes in ten leave it in place, and any goal taken from them is
met from the start. Such goals teach nothing about moving the object. So episodes are drawn for relabelled rows by the
number of steps after which the achieved goal moves (``episode_priority: motion``), and step and goal are drawn again if
too many goals are met before the step. The first part is related to energy-based prioritisation (Zhao and Tresp, 2018,
https://arxiv.org/abs/1810.01363). Rows that keep their own goal are always drawn uniformly over all transitions:
drawing them by what happened later would make lucky outcomes look common.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.device_hindsight import CANDIDATES
from rl_training.data.episode_table import EpisodeTable
from rl_training.data.goal_cells import RESTING_WEIGHT, GoalCells
from rl_training.data.hindsight_settings import HindsightSettings
from rl_training.data.open_episode import steps_before_motion
from rl_training.data.row_ring import RowRing
from rl_training.envs.goals import GoalRewards
from rl_training.types import Batch, SpaceSpec

Array = NDArray[Any]

REDRAWS = 8
"""How often step and goal are drawn again while the goal is met before the step."""

TRIVIAL_SHARE = 0.25
"""The share of new goals that may be met before their step: enough to learn to stay there, and not more."""


class HostHindsight:
    """Draws batches from the rows and the episodes of a ``HERReplayBuffer``, which it only reads.

    Attributes:
        redraws: how often step and goal are drawn again while the goal is met before the step.
        prefers_pursued: whether goals like those that are pursued are preferred.
        drawn: how many rows got a new goal, and how many of these goals were met before their step.
    """

    def __init__(
        self,
        spec: SpaceSpec,
        ring: RowRing,
        episodes: EpisodeTable,
        goals: GoalRewards,
        settings: HindsightSettings,
        cells: GoalCells | None,
        rng: np.random.Generator,
    ) -> None:
        self.episodes, self.goals, self.settings, self.cells, self.rng = episodes, goals, settings, cells, rng
        self._rows = ring.rows.numpy()  # [capacity, width], a view
        self._policy, self._action = slice(0, spec.policy_dim), ring.columns["action"]
        self._desired, self._achieved = ring.columns["desired_goal"], ring.columns["achieved_goal"]
        self._reward = ring.columns["reward"].start  # the termination is the next column
        self._strata: tuple[tuple[int, int], Array, Array] | None = None  # cached for the last batch, see _stratify
        motion = settings.episode_priority == "motion"
        self._motion_scale = (settings.motion_scale or goals.distance_threshold) if motion else None
        self.redraws = REDRAWS if motion and goals.distance_threshold is not None else 0
        self.prefers_pursued = settings.goal_priority == "pursued"
        self.drawn = np.zeros(2)

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
        if self._motion_scale is None or not len(self.episodes) or self.prefers_pursued:
            return ratio
        weighted = ratio * self.episodes.total_weight / self.episodes.transitions
        return min(1.0, weighted / (weighted + 1.0 - ratio))

    def weight(self, achieved: Array) -> float:
        """Return the weight of an episode by its achieved goals ``[T + 1, goal_dim]``: little if they never move.

        In an episode with motion, steps before motion count in full. Later ones count as much as goals that are met.
        """
        length = float(len(achieved) - 1)
        if self._motion_scale is None:
            return length
        moving = steps_before_motion(achieved, self._motion_scale)
        full = moving + TRIVIAL_SHARE * (length - moving) if moving else 0.0
        return (1.0 - self.settings.motion_priority) * length + self.settings.motion_priority * full

    def metrics(self, relabelled: float, met: float) -> dict[str, float]:
        """Return what the log says about hindsight, after ``relabelled`` rows of which ``met`` had trivial goals."""
        metrics = {"train/relabelled_share": self.relabelled_share}
        if relabelled:
            metrics["train/trivial_goal_share"] = float(met / relabelled)
        if self._motion_scale is not None and (p := self.settings.motion_priority) > 0:
            weight = self.episodes.total_weight / self.episodes.transitions
            metrics["train/motion_weight"] = max(0.0, (weight - (1.0 - p)) / p)
        return metrics

    def sample(self, batch_size: int, device: torch.device) -> Batch:
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
        n = round(self.relabelled_share * batch_size)
        uniform = self.rng.random((3, batch_size))
        positions = self._stratify(uniform[0], n)  # [B]
        start, length = self.episodes.draw(by_weight=positions[:n], by_length=positions[n:])  # [B], [B]
        step = (uniform[1] * length).astype(np.int64)  # [B]
        goal_step = self._goal_step(step[:n], length[:n], uniform[2, :n])  # [n]
        if self.prefers_pursued and n:
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
        now, after = transitions if device.type == "cpu" else torch.from_numpy(transitions).to(device)
        policy, reward = self._policy, self._reward
        # [B, policy_dim], [B, action_dim], [B], [B, policy_dim], [B]
        views = (now[:, policy], now[:, self._action], now[:, reward], after[:, policy], now[:, reward + 1])
        tensors = (torch.from_numpy(view) if isinstance(view, np.ndarray) else view for view in views)
        return Batch(*cast(Any, tensors))

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

    def _redraw_met(self, start: Array, length: Array, step: Array, goal_step: Array) -> None:
        """Draw step and goal again, in place, where too many goals are met before the step; all ``[n]``.

        Of several draws the first is taken whose goal is not met. If all are met, the first choice stays. A goal that
        was chosen because it is wanted stays, and only the step before it is drawn again.
        """
        rows = np.flatnonzero(self._met(start + step, start + goal_step))
        self.drawn += len(start), len(rows)
        allowed = TRIVIAL_SHARE * len(start)
        if not self.redraws or len(rows) <= allowed:
            return
        rows = rows[self.rng.random(len(rows)) * len(rows) >= allowed]
        draws = self.rng.random((2, self.redraws, len(rows)))
        if self.prefers_pursued and self.settings.goal_selection_strategy != "episode":
            steps = (draws[0] * goal_step[rows]).astype(np.int64)  # [redraws, rows]
            goal_steps = np.broadcast_to(goal_step[rows], steps.shape)
        else:
            steps = (draws[0] * length[rows]).astype(np.int64)  # [redraws, rows]
            goal_steps = self._goal_step(steps, np.broadcast_to(length[rows], steps.shape), draws[1])
        unmet = ~self._met(start[rows] + steps, start[rows] + goal_steps)  # [redraws, rows]
        found = np.flatnonzero(unmet.any(axis=0))
        chosen = unmet.argmax(axis=0)[found]
        step[rows[found]], goal_step[rows[found]] = steps[chosen, found], goal_steps[chosen, found]
        self.drawn[1] -= len(found)

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
