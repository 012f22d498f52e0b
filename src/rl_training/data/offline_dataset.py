"""Logged transitions, with the ``sample`` method of a replay buffer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.config import parse_settings
from rl_training.data.column_checks import check_column, is_finite, terminations_at_limit
from rl_training.data.device_sampling import DatasetSampler, DeviceSampler
from rl_training.data.fingerprint import fingerprint, same_data
from rl_training.data.formats.columns import Columns, canonical
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import DatasetError
from rl_training.types import Batch, SpaceSpec

Array = NDArray[Any]

FOLLOWED = {f"next_{key}": key for key in ("observations", "achieved_goals", "desired_goals")}
"""Columns of next values, and the columns they can be taken from."""


class TransitionDataset:
    """Transitions in the order they were recorded, episode after episode.

    Next observations are stored only if they were recorded. Otherwise they are found in the following row, and no
    second copy of the observations is made.

    Attributes:
        usable: which rows have a next observation (or need none), ``[N]``; None if all of them do.
        returns: the result of ``returns_to_go``, ``[N]``, if batches should contain it.
    """

    def __init__(self, arrays: dict[str, Array], usable: Array | None = None, *, seed: int = 0) -> None:
        self._recorded, self.usable = arrays, usable
        self._built: dict[str, Array] = {}
        self.device = torch.device("cpu")
        self.generator = torch.Generator().manual_seed(seed)
        self.returns: Array | None = None
        self._tensors: dict[str, Tensor] | None = None
        self._sampler: DatasetSampler | None = None
        self._fingerprint: str | None = None
        self._rows = None if usable is None else torch.from_numpy(np.flatnonzero(usable))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "dataset", seed: int = 0) -> TransitionDataset:
        """Check and complete arrays under the names that files may use; observations may be goal dictionaries.

        Missing ``next_observations`` are taken from the following row, never across an episode's end. The last row of
        an episode that timed out then has no next observation and is not sampled. ``usable`` may say which rows are
        sampled, and ``fragment`` which rows belong to episodes with missing rows.
        """
        columns = Columns(values, values.sources) if isinstance(values, Columns) else canonical(values, where)
        for key, other in {"achieved_goals": "desired_goals", **FOLLOWED}.items():
            if key in columns and other not in columns:
                raise DatasetError(f"{where}: key {other!r} is missing, which {columns.label(key)} needs")
        length = len(columns["observations"]) if np.ndim(columns["observations"]) else 0
        if length == 0:
            raise DatasetError(f"{where}: there are no transitions in it")
        columns.setdefault("truncated", np.zeros(length, bool))
        arrays = {key: check_column(key, value, length, where, columns.label(key)) for key, value in columns.items()}
        # The end of the data ends its last episode.
        if not (arrays["terminated"][-1] or arrays["truncated"][-1]):
            arrays["truncated"] = arrays["truncated"].copy()
            arrays["truncated"][-1] = True
        if "fragment" in arrays and not arrays["fragment"].any():
            del arrays["fragment"]
        usable = arrays.pop("usable", None)
        needed = ("next_observations", "next_achieved_goals")
        if any(target not in arrays and FOLLOWED[target] in arrays for target in needed):
            has_next = ~(arrays["truncated"] & ~arrays["terminated"])
            usable = has_next if usable is None else usable & has_next
        if usable is not None and (usable.all() or not usable.any()):
            if not usable.any():
                raise DatasetError(f"{where}: no row can be used: none has a next observation")
            usable = None
        for a, b in FOLLOWED.items():
            if a in arrays and arrays[a].shape != arrays[b].shape:
                raise DatasetError(
                    f"{where}: {columns.label(a)} has shape {arrays[a].shape}, expected {arrays[b].shape} as"
                    f" {columns.label(b)}"
                )
        goals = {columns.label(key): arrays[key].shape for key in ("achieved_goals", "desired_goals") if key in arrays}
        if len(set(goals.values())) > 1:
            raise DatasetError(f"{where}: achieved and desired goals differ in shape: {goals}")
        return cls(arrays, usable, seed=seed)

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self._recorded["rewards"])

    @property
    def arrays(self) -> dict[str, Array]:
        """All columns by name; next observations that were not recorded are built at the first call.

        ``observations [N, D]``, ``actions [N, A]`` (discrete: ``[N]``), ``rewards``, ``next_observations`` and the
        flags ``terminated`` and ``truncated`` ``[N]``; for goal tasks also ``achieved_goals``, ``desired_goals``
        ``[N, G]`` and the same with ``next_`` before them; repaired data may have ``fragment``, and data of people who
        correct a policy ``interventions``, ``[N]`` each. Actions are in the environment's units until ``for_task``.
        """
        missing = [key for key, source in FOLLOWED.items() if source in self._recorded and key not in self._recorded]
        if missing and not self._built:
            rows = np.arange(len(self)) + self._has_follower
            self._built = {key: self._recorded[FOLLOWED[key]][rows] for key in missing}
        return {**self._recorded, **self._built}

    @property
    def actions(self) -> Array:
        """Actions as they were recorded, ``[N, A]``, or ``[N]`` if they are indices."""
        return self._recorded["actions"]

    @property
    def _has_follower(self) -> Array:
        """Whether the next row belongs to the same episode, ``[N]``."""
        return ~(self._recorded["terminated"] | self._recorded["truncated"])

    @property
    def is_goal_conditioned(self) -> bool:
        """Whether achieved and desired goals were recorded."""
        return "desired_goals" in self._recorded

    @property
    def is_discrete(self) -> bool:
        """Whether actions are indices."""
        return self._recorded["actions"].ndim == 1

    @property
    def episode_ends(self) -> Array:
        """The row after the last one of each episode, ascending; the last is the length of the data."""
        return np.flatnonzero(self._recorded["terminated"] | self._recorded["truncated"]) + 1

    @property
    def episode_starts(self) -> Array:
        """The first row of each episode."""
        return np.concatenate([[0], self.episode_ends[:-1]])

    @property
    def episode_lengths(self) -> Array:
        """The number of transitions of each episode."""
        return self.episode_ends - self.episode_starts

    @property
    def episode_returns(self) -> Array:
        """The sum of rewards of each episode, in float64."""
        return np.add.reduceat(self._recorded["rewards"].astype(np.float64), self.episode_starts)

    @property
    def complete_episodes(self) -> Array:
        """Which episodes have all their rows, so that their returns can be compared; all, if none does.

        Repair marks the rest of an episode from which it dropped rows as a fragment. The return of a fragment is the
        sum of fewer rewards, and if rewards are negative it looks better than that of any complete episode.
        """
        if "fragment" not in self._recorded:
            return np.ones(len(self.episode_ends), bool)
        complete: Array = ~np.logical_or.reduceat(self._recorded["fragment"], self.episode_starts)
        return complete if complete.any() else ~complete

    def terminations_at_limit(self, time_limit: int | None = None) -> Array:
        """Return the rows of terminations that are probably time-outs, for a known or an unknown time limit."""
        return terminations_at_limit(self._recorded["terminated"], self.episode_ends, time_limit)

    @property
    def spec(self) -> SpaceSpec:
        """The sizes of the data; actions are assumed to be in [-1, 1]."""
        arrays = self._recorded
        goal_dim = arrays["desired_goals"].shape[1] if self.is_goal_conditioned else 0
        if self.is_discrete:
            return SpaceSpec(arrays["observations"].shape[1], 1, goal_dim, num_actions=int(arrays["actions"].max()) + 1)
        return SpaceSpec(arrays["observations"].shape[1], arrays["actions"].shape[1], goal_dim)

    def state_statistics(self) -> tuple[Array, Array]:
        """Return the mean and std of each dimension of the observations, in float64, ``[D]`` each."""
        observations = self._recorded["observations"]
        return observations.mean(axis=0, dtype=np.float64), observations.std(axis=0, dtype=np.float64)

    def with_reward_transform(
        self,
        transform: RewardTransformConfig | None = None,
        *,
        scale: float = 1.0,
        shift: float = 0.0,
        clip_min: float | None = None,
        clip_max: float | None = None,
    ) -> TransitionDataset:
        """Return a dataset with transformed rewards that shares the other arrays; itself, if nothing changes."""
        if transform is None:
            values = {"scale": scale, "shift": shift, "clip_min": clip_min, "clip_max": clip_max}
            transform = parse_settings(RewardTransformConfig, values, where="reward transform")
        if transform == RewardTransformConfig():
            return self
        with np.errstate(over="ignore", invalid="ignore"):  # rewards too large for float32 are refused below
            rewards = np.asarray(transform.apply(self._recorded["rewards"]), dtype=np.float32)
        if not is_finite(rewards):
            raise DatasetError(f"rewards times {transform.scale:g} plus {transform.shift:g} are not finite")
        return self._changed({**self._recorded, "rewards": rewards}, self.usable)

    def top_episodes(self, fraction: float) -> TransitionDataset:
        """Return the complete episodes with the highest returns, a share ``fraction`` of them and at least one."""
        returns, complete = self.episode_returns, self.complete_episodes
        returns[~complete] = -np.inf
        if self.usable is not None:  # an episode without rows that can be sampled is useless
            returns[~np.logical_or.reduceat(self.usable, self.episode_starts)] = -np.inf
        count = max(1, round(fraction * int(complete.sum())))
        chosen = np.zeros(len(returns), bool)
        chosen[np.argsort(-returns, kind="stable")[:count]] = True
        rows = np.repeat(chosen, self.episode_lengths)
        usable = None if self.usable is None else self.usable[rows]
        return self._changed({key: value[rows] for key, value in self._recorded.items()}, usable)

    def only_interventions(self, *, where: str = "dataset") -> TransitionDataset:
        """Return a dataset that samples only rows with the flag ``interventions``; all rows stay in their episodes."""
        flags = self._recorded.get("interventions")
        if flags is None:
            raise DatasetError(
                f"{where}: dataset_rows = 'interventions' needs a flag in each row: expected a column intervention,"
                " is_intervention or complementary_info.is_intervention"
            )
        usable = flags if self.usable is None else flags & self.usable
        if not usable.any():
            raise DatasetError(f"{where}: dataset_rows = 'interventions': no row that can be sampled has the flag")
        return self._changed(self._recorded, None if usable.all() else usable)

    def _changed(self, arrays: dict[str, Array], usable: Array | None) -> TransitionDataset:
        """Return a dataset of other arrays that draws on the same device, from a copy of the random state."""
        dataset = TransitionDataset(arrays, usable)
        dataset.device, dataset.generator = self.device, self.generator.clone_state()
        return dataset

    def for_task(self, spec: SpaceSpec, *, device: str | torch.device = "cpu", seed: int = 0) -> TransitionDataset:
        """Return the dataset for a learner of ``spec``: sizes checked, actions scaled to [-1, 1], on its device."""
        own = self.spec
        for name in ("observation_dim", "action_dim", "goal_dim"):
            if getattr(own, name) != getattr(spec, name):
                raise DatasetError(f"the data has {name} {getattr(own, name)}, the task {getattr(spec, name)}")
        if own.is_discrete != spec.is_discrete:
            kinds = ["continuous", "discrete"]
            raise DatasetError(
                f"the data has {kinds[own.is_discrete]} actions, the task {kinds[spec.is_discrete]} ones"
            )
        if own.num_actions is not None and spec.num_actions is not None and own.num_actions > spec.num_actions:
            raise DatasetError(f"the data has action {own.num_actions - 1}, the task only {spec.num_actions} actions")
        actions = self._recorded["actions"]
        standard = not spec.is_discrete and spec.action_low is None and np.abs(actions).max() <= 1.0
        arrays = {**self._recorded, "actions": actions if standard else spec.to_policy(actions)}
        dataset = TransitionDataset(arrays, self.usable)
        dataset.device = torch.device(device)
        dataset.generator = torch.Generator(device).manual_seed(seed)
        return dataset

    def returns_to_go(self, gamma: float, reward_range: tuple[float, float] | None = None) -> Array:
        """Return, for each row, a lower bound ``[N]`` on its discounted return.

        If the episode was terminated, this is the discounted sum of the rewards to its end. If it was cut off, the rest
        is unknown and counts as the worst case: the smallest reward at every later step (or once, if it is positive).
        The smallest reward is that of ``reward_range``, or else the smallest in the data.
        """
        returns = self._recorded["rewards"].astype(np.float64)
        worst = float(returns.min()) if reward_range is None else reward_range[0]
        last = self.episode_ends - 1
        cut_off = ~self._recorded["terminated"][last]
        returns[last[cut_off]] += gamma * min(worst, worst / (1.0 - gamma))
        starts, rows = self.episode_starts, last - 1
        while (live := rows >= starts).any():  # from the ends backwards, one step of all episodes at a time
            starts, rows = starts[live], rows[live]
            returns[rows] += gamma * returns[rows + 1]
            rows = rows - 1
        return returns.astype(np.float32)

    def sample(self, batch_size: int) -> Batch:
        """Draw ``batch_size`` transitions uniformly, with replacement."""
        batch: Batch = self._sampler_of_rows()(batch_size)
        return batch

    def device_sampler(self) -> DeviceSampler | None:
        """Return what draws the batches on an accelerator; None on the CPU."""
        return None if self.device.type == "cpu" else self._sampler_of_rows()

    def plan(self, batch_size: int) -> Hashable:
        """Return None: all batches are drawn in the same way."""
        return None

    def _sampler_of_rows(self) -> DatasetSampler:
        if self._sampler is None or self._sampler.has_returns != (self.returns is not None):
            self._sampler = DatasetSampler(self._tensors or self._make_tensors(), self._rows, self.generator)
        return self._sampler

    def policy_observations(self) -> Tensor:
        """Return the observations of all rows as a policy sees them, ``[N, policy_dim]``, on the device."""
        return (self._tensors or self._make_tensors())["observations"]

    def fingerprint(self) -> str:
        """Return a short text that identifies this data."""
        if self._fingerprint is None:
            # Earlier versions did not read interventions, which change no transition.
            columns = [self._recorded[key] for key in sorted(self._recorded) if key != "interventions"]
            self._fingerprint = fingerprint(columns)
        return self._fingerprint

    def state_dict(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return what a resumed run needs: the random state and the fingerprint of the data, not the data itself."""
        generator = (self._sampler or self).generator
        return {"generator": generator.get_state(), "fingerprint": self.fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, if the data is still the same."""
        if not same_data(state["fingerprint"], self.fingerprint()):
            raise DatasetError("this is not the data the run was started with: its content or order has changed")
        (self._sampler or self).generator.set_state(state["generator"].cpu())

    def _make_tensors(self) -> dict[str, Tensor]:
        """Put the sampled columns on the device; on the CPU the tensors share memory with the arrays."""
        follows = any(key in self._recorded for key in FOLLOWED)
        arrays = self.arrays if follows else self._recorded

        def seen(prefix: str) -> Array:
            observations = arrays[f"{prefix}observations"]
            if not self.is_goal_conditioned:
                return observations
            return np.concatenate([observations, arrays[f"{prefix}desired_goals"]], axis=1)

        chosen = {
            "observations": seen(""),
            "actions": arrays["actions"] if arrays["actions"].ndim == 2 else arrays["actions"][:, None],
            "rewards": arrays["rewards"],
            "terminated": arrays["terminated"],
            **({"next_observations": seen("next_")} if follows else {}),
            **({"returns": self.returns} if self.returns is not None else {}),
        }
        self._tensors = {
            key: torch.from_numpy(np.asarray(value, np.float32)).to(self.device) for key, value in chosen.items()
        }
        if not follows:
            self._tensors["has_follower"] = torch.from_numpy(self._has_follower).to(self.device)
        if self._rows is not None:
            self._rows = self._rows.to(self.device)
        return self._tensors
