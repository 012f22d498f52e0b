"""The ends of episodes in raw rows, and the order of rows. Inspection and repair both use this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.data.column_checks import FLAGS, REQUIRED, is_finite
from rl_training.data.formats.columns import label_of
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_raw_env, space_spec
from rl_training.envs.goals import GoalRewards
from rl_training.errors import DatasetError
from rl_training.types import SpaceSpec

Array = NDArray[Any]

OBSERVED = ("observations", "achieved_goals", "desired_goals")

_SAMPLE = 20_000  # rows from which a quantile is estimated


@dataclass(frozen=True)
class Task:
    """The environment that the data is compared with."""

    spec: SpaceSpec
    time_limit: int | None
    goals: GoalRewards | None
    env: gym.Env[Any, Any]

    @classmethod
    def of(cls, env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> Task:
        """Make an environment and read the properties that are compared with data; ``close`` it afterwards."""
        env = make_raw_env(env_id, env_kwargs)
        spec = space_spec(env)
        limits = [env.spec.max_episode_steps if env.spec is not None else None]
        limits += [
            env.get_wrapper_attr(name) for name in ("max_episode_steps", "max_steps") if env.has_wrapper_attr(name)
        ]
        can_ask = spec.goal_dim and env.has_wrapper_attr("compute_reward")
        limit = next((limit for limit in limits if isinstance(limit, int)), None)
        return cls(spec, limit, GoalRewards(env) if can_ask else None, env)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def raw_arrays(source: TransitionDataset | Mapping[str, Any]) -> dict[str, Array]:
    """Return arrays of equal lengths with one vector or number per row; their values are not checked."""
    values = source.arrays if isinstance(source, TransitionDataset) else source
    usable = {} if not isinstance(source, TransitionDataset) or source.usable is None else {"usable": source.usable}
    for key in REQUIRED:
        if key not in values:
            raise DatasetError(f"key {key!r} is missing; found {', '.join(sorted(values))}")
    length = len(values["observations"]) if np.ndim(values["observations"]) else 0
    if not length:
        raise DatasetError("there are no transitions in it")
    arrays: dict[str, Array] = {"truncated": np.zeros(length, bool)}
    for key, value in {**values, **usable}.items():
        array, label = np.asarray(value), label_of(values, key)
        if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or len(array) != length:
            found = f"{label} has shape {array.shape} and dtype {array.dtype}"
            raise DatasetError(f"{found}; expected {length} rows of numbers, as observations have")
        if not array.size:
            raise DatasetError(f"{label} has shape {array.shape}; expected at least one number per row")
        if key in ("rewards", *FLAGS) or (key == "actions" and array.dtype.kind in "iu" and array.size == length):
            if array.size != length:
                raise DatasetError(f"{label} has shape {array.shape}; expected ({length},)")
            arrays[key] = array.reshape(length).astype(bool) if key in FLAGS else array.reshape(length)
        else:
            arrays[key] = array.reshape(length, -1)
    for name in OBSERVED:
        if f"next_{name}" in arrays and (name not in arrays or arrays[f"next_{name}"].shape != arrays[name].shape):
            expected = arrays[name].shape if name in arrays else f"{name} as well"
            label = label_of(values, f"next_{name}")
            raise DatasetError(f"{label} has shape {arrays[f'next_{name}'].shape}; expected {expected}")
    return arrays


def end_flags(arrays: Mapping[str, Array]) -> Array:
    """Return which rows are the last of their episode; the last row of the data always is."""
    ends = arrays["terminated"] | arrays["truncated"]
    ends[-1] = True
    return ends


def starts_and_lengths(arrays: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the first row of each episode and its number of rows."""
    ends = np.flatnonzero(end_flags(arrays)) + 1
    starts = np.concatenate([[0], ends[:-1]])
    return starts, ends - starts


def bad_rows(arrays: Mapping[str, Array]) -> Array:
    """Return which rows have a number that is not finite."""
    bad = np.zeros(len(arrays["rewards"]), bool)
    for array in arrays.values():
        if array.dtype.kind == "f" and not is_finite(array):
            bad |= ~np.isfinite(array).reshape(len(bad), -1).all(axis=1)
    return bad


@dataclass(frozen=True)
class Order:
    """The rows that next observations come from, and the rows that are exceptions."""

    offset: int | None
    """Next observations are the observations of row + ``offset``, which should be 1; None if no offset fits."""
    jumps: Array
    """Rows inside an episode whose next observation is not the following row's (with ``offset`` 1)."""
    crossings: Array
    """Last rows with the first observation of the next episode as next observation, if it is used to bootstrap."""
    terminal_crossings: Array
    """The same for rows that terminate: only hindsight uses the observation after a termination."""

    @property
    def is_shuffled(self) -> bool:
        """Whether rows are in no order, so that the lengths of episodes mean nothing."""
        return self.offset is None


def examine_order(arrays: Mapping[str, Array]) -> Order | None:
    """Compare next observations with the observations of nearby rows; None if there are none to compare."""
    none = np.zeros(0, np.int64)
    if "next_observations" not in arrays or len(arrays["rewards"]) < 2:
        return None
    observations, following = _numbers(arrays["observations"]), _numbers(arrays["next_observations"])
    ends = end_flags(arrays)
    finite = ~bad_rows({"rewards": arrays["rewards"], "a": observations, "b": following})
    inside = np.flatnonzero(~ends[:-1] & finite[:-1] & finite[1:])
    if not len(inside):
        return None
    scale = _scale(observations if finite.all() else observations[finite])

    def follows(rows: Array, offset: int) -> Array:
        return _same(following[rows], observations[rows + offset], scale)

    fits = follows(inside, 1)
    if fits.mean() < 0.5:
        for offset in (0, 2, -1):
            rows = inside[(inside + offset >= 0) & (inside + offset < len(ends))]
            if len(rows) and follows(rows, offset).mean() > 0.5:
                return Order(offset, none, none, none)
        return Order(None, none, none, none)
    last = np.flatnonzero(ends[:-1] & finite[:-1] & finite[1:])
    crossing = last[follows(last, 1)]
    if len(crossing):
        is_reset = _is_reset(observations, crossing, inside[fits], np.where(scale > 0, scale, 1.0))
        # If most episode ends carry the next reset's observation, treat all of them that way.
        # Some resets just land close by.
        if not (2 * len(crossing) > len(last) and 2 * is_reset.sum() > len(crossing)):
            crossing = crossing[is_reset]
    if "usable" in arrays:
        crossing = crossing[arrays["usable"][crossing]]
    terminal = arrays["terminated"][crossing]
    return Order(1, inside[~fits], crossing[~terminal], crossing[terminal])


@dataclass(frozen=True)
class MisplacedGoals:
    """Next goals that are not those of the following row, in rows whose next observation is."""

    rows: Array
    are_own: bool
    """Whether they are the goals of the same row instead."""
    are_most: bool
    """Whether most goals that change are misplaced; then those of the last rows are probably wrong, too."""


def misplaced_goals(arrays: Mapping[str, Array], order: Order | None) -> dict[str, MisplacedGoals]:
    """Compare next goals with the goals of the following row, in rows whose next observation is that row's."""
    if not _is_in_order(arrays, order):
        return {}
    inside = ~end_flags(arrays)
    if order is not None:
        inside[order.jumps] = False
    found = {}
    for name in OBSERVED[1:]:
        if f"next_{name}" not in arrays:
            continue
        goals, following = _numbers(arrays[name]), _numbers(arrays[f"next_{name}"])
        finite = ~bad_rows({"rewards": arrays["rewards"], "a": goals, "b": following})
        rows = np.flatnonzero(inside[:-1] & finite[:-1] & finite[1:])
        scale = _scale(goals[finite])
        wrong = rows[~_same(following[rows], goals[rows + 1], scale)]
        if len(wrong):
            changes = ~_same(goals[rows], goals[rows + 1], scale)
            are_own = bool(_same(following[wrong], goals[wrong], scale).all())
            found[name] = MisplacedGoals(wrong, are_own, 2 * len(wrong) > int(changes.sum()))
    return found


def _is_in_order(arrays: Mapping[str, Array], order: Order | None) -> bool:
    """Return whether rows follow each other; without next observations it is assumed."""
    return "next_observations" not in arrays if order is None else order.offset == 1


def _numbers(array: Array) -> Array:
    """Return numbers that can be subtracted: booleans cannot, and unsigned integers wrap around."""
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _scale(values: Array) -> Array:
    return np.asarray(np.nan_to_num(values.std(axis=0, dtype=np.float64), posinf=0.0))


def _same(values: Array, others: Array, scale: Array) -> Array:
    """Return which rows are equal up to rounding."""
    tolerance = (1e-4 * scale + 1e-7).astype(values.dtype)
    return np.asarray((np.abs(values - others) <= tolerance).all(axis=1))


def _is_reset(observations: Array, rows: Array, inside: Array, scale: Array) -> Array:
    """Return which rows are followed by a reset, and not by the rest of an episode that was cut in two.

    A reset changes the observation far more than a step does, or always gives about the same state.
    """

    def steps(chosen: Array) -> Array:
        return np.asarray(np.linalg.norm((observations[chosen + 1] - observations[chosen]) / scale, axis=1))

    starts = observations[rows + 1]
    if len(rows) >= 3 and float((starts.std(axis=0) / scale).mean()) < 0.5:
        return np.ones(len(rows), bool)
    usual = np.quantile(steps(inside[:: max(1, len(inside) // _SAMPLE)]), 0.99)
    return np.asarray(steps(rows) > 2 * usual + 1e-6)


def unmarked_ends(arrays: Mapping[str, Array], order: Order | None) -> Array:
    """Return rows inside an episode after which the observation changes far more than elsewhere: likely unmarked ends.

    This is for data without next observations, and for data in which they are always the following row's. Rows whose
    next observation is not the following row's are left out: ``order`` lists them as jumps.
    """
    if not _is_in_order(arrays, order):
        return np.zeros(0, np.int64)
    observations = _numbers(arrays["observations"])
    inside = np.flatnonzero(~end_flags(arrays)[:-1])
    if order is not None:
        inside = np.setdiff1d(inside, order.jumps, assume_unique=True)
    if len(inside) < 100 or not is_finite(observations):
        return inside[:0]
    scale = _scale(observations)
    steps = np.linalg.norm((observations[inside + 1] - observations[inside]) / np.where(scale > 0, scale, 1.0), axis=1)
    return np.asarray(inside[steps > 3 * np.quantile(steps, 0.99) + 1e-6])


def overlong_episodes(arrays: Mapping[str, Array], time_limit: int) -> tuple[Array, bool]:
    """Return the first rows of episodes longer than the time limit, and whether ends must be missing in them.

    Ends must be missing if most episodes are within the limit, or if one has at least twice its length. Otherwise the
    data may have been recorded with another limit.
    """
    starts, lengths = starts_and_lengths(arrays)
    long = lengths > time_limit
    return starts[long], bool(2 * long.sum() < len(long) or lengths.max() >= 2 * time_limit)
