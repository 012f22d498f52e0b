"""Logged episodes with hindsight: offline data is relabelled in the same way as online data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.fingerprint import same_data
from rl_training.data.her_replay_buffer import HERReplayBuffer
from rl_training.data.hindsight_settings import HindsightSettings
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.goals import GoalRewards
from rl_training.errors import DatasetError
from rl_training.types import Batch, GoalParts, SpaceSpec

Array = NDArray[Any]


class HindsightDataset(HERReplayBuffer):
    """A hindsight buffer that holds the episodes of a dataset.

    The environment computes the rewards of all rows, also of those that keep their goal. So offline and online rows
    have the same reward function, even if other rewards were recorded.
    """

    _offline = True

    def __init__(
        self,
        dataset: TransitionDataset,
        spec: SpaceSpec,
        goals: GoalRewards,
        *,
        settings: HindsightSettings | None = None,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        if not dataset.is_goal_conditioned:
            raise DatasetError(
                "the data has no goals, and hindsight needs them: expected achieved_goals and desired_goals,"
                " or observations with observation, achieved_goal and desired_goal"
            )
        dataset = dataset.for_task(spec)
        ends = _segment_ends(dataset)
        super().__init__(spec, len(dataset) + len(ends), goals, settings=settings, device=device, seed=seed)
        self._fingerprint = dataset.fingerprint()
        self._store_episodes(dataset, ends)
        if len(self) == 0:
            raise DatasetError("the data has no episode of two observations: there is nothing to relabel")

    def sample(self, batch_size: int) -> Batch:
        """Draw ``batch_size`` transitions, relabelled in the same way as online ones."""
        return super().sample(batch_size)._replace(offline_rows=batch_size)

    def state_dict(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return what a resumed run needs: the random state, and how to recognise the data, not the data itself."""
        return {
            "rng": self.rng.bit_generator.state,
            "goals": self.goals.state_dict(),
            "fingerprint": self._fingerprint,
            **self._sampler_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, if the data is still the same."""
        if not same_data(state["fingerprint"], self._fingerprint):
            raise DatasetError("this is not the data the run was started with: its content or order has changed")
        self.rng.bit_generator.state = state["rng"]
        self.goals.load_state_dict(state["goals"])
        self._load_sampler_state(state)

    def policy_observations(self) -> torch.Tensor:
        """Return what a policy sees, ``[2N, policy_dim]`` on the device: N rows with their own goals, then relabelled.

        The second half has achieved goals in place of the desired ones, because hindsight makes goals of them. A
        normaliser has to know their scale, also if all episodes had one desired goal.
        """
        rows = self.ring.rows[: self.ring.written]
        own = rows[:, : self.spec.policy_dim]  # [N, policy_dim]
        relabelled = torch.cat([rows[:, : self.spec.observation_dim], rows[:, self._achieved]], dim=1)
        return torch.cat([own, relabelled]).to(self.device)

    def _store_episodes(self, dataset: TransitionDataset, ends: Array) -> None:
        """Write the rows of each segment, and its final observation, into the ring."""
        arrays = dataset.arrays
        actions = arrays["actions"]
        now = GoalParts(arrays["observations"], arrays["achieved_goals"], arrays["desired_goals"])
        rewards = self.goals.rewards(arrays["next_achieved_goals"], arrays["desired_goals"])
        steps = self._pack(now, actions, rewards, arrays["terminated"])
        last = ends - 1
        after = GoalParts(*(arrays[f"next_{key}"][last] for key in ("observations", "achieved_goals", "desired_goals")))
        finals = self._pack(after, np.zeros_like(actions[last]), np.zeros(len(ends)), np.zeros(len(ends)))
        start, known = 0, _outcome_is_known(dataset, last)
        for index, end in enumerate(ends):
            if known[index]:
                rows = np.concatenate([steps[start:end], finals[index : index + 1]])
                self._learn_ends(rows)
                self._store(rows)
            elif end - start > 1:
                self._store(steps[start:end])  # the last outcome is unknown: the last row is the final observation
            start = end


def _outcome_is_known(dataset: TransitionDataset, rows: Array) -> Array:
    """Return which of these rows have a recorded next observation.

    A terminated row can be used without one, because nothing is bootstrapped from it. It then repeats its own
    observation, which is not the outcome of its action.
    """
    arrays = dataset.arrays
    repeats = arrays["terminated"][rows]
    for key in ("observations", "achieved_goals"):
        repeats = repeats & (arrays[key][rows] == arrays[f"next_{key}"][rows]).all(axis=1)
    known: Array = ~repeats if dataset.usable is None else ~repeats & dataset.usable[rows]
    return known


def _segment_ends(dataset: TransitionDataset) -> Array:
    """Return the end (exclusive) of each segment of consecutive rows; refuse data whose rows are out of order."""
    ends = dataset.episode_ends
    if dataset.usable is not None:
        ends = np.union1d(ends, np.flatnonzero(~dataset.usable) + 1)
    inside = np.ones(len(dataset) - 1, bool)
    inside[ends[:-1] - 1] = False
    for key in ("observations", "achieved_goals"):
        following, claimed = dataset.arrays[key][1:], dataset.arrays[f"next_{key}"][:-1]
        differs = ~np.isclose(following, claimed, rtol=1e-4, atol=1e-5).all(axis=1) & inside
        if differs.any():
            row = int(np.flatnonzero(differs)[0])
            raise DatasetError(
                f"next_{key} of row {row} differs from {key} of row {row + 1}, and hindsight needs whole episodes in"
                " order: rl-training data inspect shows more"
            )
    return ends
