"""Uniform replay of single transitions."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from rl_training.config import Settings
from rl_training.data.device_sampling import DeviceSampler, RingSampler, rows_to_batch
from rl_training.data.row_ring import RowRing
from rl_training.envs.rewards import RewardTransform, RewardTransformConfig
from rl_training.types import Batch, Observation, SpaceSpec, flatten_goal_observation

Array = NDArray[Any]


class ReplaySettings(Settings):
    """Settings of a replay buffer."""

    buffer_capacity: int = Field(
        1_000_000,
        ge=1,
        le=2**40,
        description="transitions kept; the oldest are removed first; hindsight needs T + 1 rows for T steps",
    )


class ReplayBuffer:
    """The last ``capacity`` transitions of any number of environments, sampled uniformly with replacement."""

    def __init__(
        self,
        spec: SpaceSpec,
        capacity: int,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
        reward_transform: RewardTransform | RewardTransformConfig | None = None,
    ) -> None:
        self.spec, self.reward_transform = spec, reward_transform
        widths = {
            "observation": spec.policy_dim,
            "action": spec.action_dim,
            "reward": 1,
            "terminated": 1,
            "next_observation": spec.policy_dim,
        }
        self.ring = RowRing(capacity, widths, device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self._sampler: RingSampler | None = None
        if self.ring.device.type != "cpu":
            self._sampler = RingSampler(self.ring.rows, self.ring.columns, self.generator)

    def __len__(self) -> int:
        return min(self.ring.written, self.ring.capacity)

    @property
    def oldest_row(self) -> int:
        """The number of the oldest row that is still needed."""
        return self.ring.written - len(self)

    def add(
        self,
        observations: Observation,
        actions: Array,
        rewards: Array,
        next_observations: Observation,
        terminated: Array,
        truncated: Array,
    ) -> None:
        """Store one transition of each environment; every argument has the environments as its first axis.

        The flag ``truncated`` is not stored: after a time-out the value is bootstrapped from the next observation.
        """
        if isinstance(observations, dict):
            observations = flatten_goal_observation(observations)
        if isinstance(next_observations, dict):
            next_observations = flatten_goal_observation(next_observations)
        if self.reward_transform is not None:
            # Use float64, so that the result equals that of a reward wrapper.
            rewards = self.reward_transform.apply(np.asarray(rewards, np.float64))
        fields = [observations, actions, np.stack([rewards, terminated], axis=1), next_observations]
        self.ring.append(torch.from_numpy(np.concatenate(fields, axis=1, dtype=np.float32)).to(self.ring.device))
        if self._sampler is not None:
            self._sampler.count.fill_(len(self))

    def sample(self, batch_size: int) -> Batch:
        """Draw ``batch_size`` transitions."""
        if not len(self):
            raise ValueError(f"{type(self).__name__} is empty: add transitions before you sample")
        if self._sampler is not None:
            batch: Batch = self._sampler(batch_size)
            return batch
        slots = torch.randint(len(self), (batch_size,), generator=self.generator)  # [B]
        return rows_to_batch(self.ring.rows.index_select(0, slots), self.ring.columns)

    def device_sampler(self) -> DeviceSampler | None:
        """Return what draws the batches on an accelerator; None on the CPU."""
        return self._sampler

    def plan(self, batch_size: int) -> Hashable:
        """Return None: all batches are drawn in the same way."""
        return None

    def discard_open_episode(self, env_index: int) -> None:
        """Do nothing: the transitions of an unfinished episode can be sampled like all others."""

    def state_dict(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return everything ``load_state_dict`` needs; checkpoints leave the rows out and store them in segments."""
        ring = self.ring
        state: dict[str, Any] = {
            "written": ring.written,
            "capacity": ring.capacity,
            "generator": (self._sampler or self).generator.get_state(),
        }
        if with_rows:
            state["rows"] = self.ring.read(self.oldest_row, self.ring.written)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned into a buffer of the same capacity and spaces."""
        self.ring.set_written(int(state["written"]), int(state["capacity"]))
        (self._sampler or self).generator.set_state(state["generator"].cpu())
        if "rows" in state:
            self.ring.write(self.oldest_row, state["rows"])
        if self._sampler is not None:
            self._sampler.count.fill_(len(self))
