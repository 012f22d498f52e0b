"""The names arrays have in files, and ours: one place that knows them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.column_checks import as_flags
from rl_training.data.offline_dataset import REQUIRED
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

_NOW = ("observations", "obs", "observation", "states", "state")
_NEXT = ("next_observations", "next_obs", "next_observation", "obs_next", "next_states", "next_state", "new_obs")


def _parts(groups: Iterable[str], part: str) -> tuple[str, ...]:
    """Return the names of one part of a goal dictionary: ``observations/achieved_goal`` and the like."""
    return tuple(f"{group}{separator}{part}" for group in groups for separator in "/.")


ALIASES: dict[str, tuple[str, ...]] = {
    "observations": (*_NOW[1:], "observation.state", *_parts(_NOW, "observation")),
    "achieved_goals": ("achieved_goal", *_parts(_NOW, "achieved_goal")),
    "desired_goals": ("desired_goal", *_parts(_NOW, "desired_goal")),
    "next_observations": (*_NEXT[1:], "next.observation.state", *_parts(_NEXT, "observation")),
    "next_achieved_goals": ("next_achieved_goal", *_parts(_NEXT, "achieved_goal")),
    "next_desired_goals": ("next_desired_goal", *_parts(_NEXT, "desired_goal")),
    "actions": ("act", "acts", "action"),
    "rewards": ("rew", "rews", "reward", "next.reward"),
    "terminated": ("terminals", "terminations", "terminal", "next.terminated"),
    "truncated": ("timeouts", "truncations", "timeout", "next.truncated"),
    "usable": (),
}
"""Our names, and those in use elsewhere."""

MERGED = ("dones", "done", "next.done")
"""Names of a flag that is set at every end of an episode, be it a termination or a time-out."""

SUCCESS = "next.success"

MARKS = ("episode_lengths", "episode_starts", "episode_ends", "episode_index")
"""What else tells where episodes end."""

_KNOWN = {*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases), *MERGED, *MARKS, SUCCESS}


def is_known(name: str) -> bool:
    """Return whether an array of this name is worth reading."""
    return name in _KNOWN


def canonical(values: Mapping[str, Any], where: str = "dataset", names: Iterable[str] | None = None) -> dict[str, Any]:
    """Rename arrays to our names, drop those we do not know, and tell terminations from time-outs.

    A merged flag counts as termination, except where time-outs (or, in LeRobot's files, successes) are known as well.
    Ends that are only marked, as by ``episode_lengths``, are time-outs.

    Args:
        values: the arrays under the file's names; goal dictionaries may be nested.
        where: what an error calls the data.
        names: all names in the file, for the error when one is missing.
    """
    flat = dict(_flatten(values))
    arrays: dict[str, Any] = {}
    for name, aliases in ALIASES.items():
        alias = next((alias for alias in (name, *aliases) if alias in flat), None)
        if alias is not None:
            arrays[name] = flat[alias]
    length = _row_count(arrays)
    merged = next((name for name in MERGED if name in flat), None)
    if merged is not None:
        _split_merged(arrays, _flags(flat[merged], length, merged, where), flat.get(SUCCESS), where)
    for mark in MARKS:
        if mark in flat:
            ends = _marked_ends(mark, np.asarray(flat[mark]), length, where)
            terminated = _flags(arrays.get("terminated", np.zeros(length, bool)), length, "terminated", where)
            truncated = _flags(arrays.get("truncated", np.zeros(length, bool)), length, "truncated", where)
            arrays["terminated"], arrays["truncated"] = terminated, truncated | (ends & ~terminated)
    if "truncated" in arrays:  # time-outs alone: nothing ever terminated
        arrays.setdefault("terminated", np.zeros(length, bool))
    for name in REQUIRED:
        if name not in arrays:
            others = [*ALIASES[name], *(MERGED if name == "terminated" else ())][:4]
            found = ", ".join(sorted(map(str, names if names is not None else flat))[:30]) or "nothing"
            raise DatasetError(f"{where}: key {name!r} (or {', '.join(others)}) is missing; found {found}")
    return arrays


def file_columns(dataset: TransitionDataset) -> dict[str, Array]:
    """Return a dataset's arrays under D4RL's names, with ``usable`` where some rows have no next observation."""
    renamed = {"terminated": "terminals", "truncated": "timeouts"}
    columns = {renamed.get(name, name): array for name, array in dataset.arrays.items()}
    if dataset.usable is not None:
        columns["usable"] = dataset.usable
    return columns


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _row_count(arrays: Mapping[str, Any]) -> int:
    for name in ("observations", "rewards", "actions"):
        if name in arrays and np.ndim(arrays[name]) > 0:
            return len(arrays[name])
    return 0


def _flags(values: Any, length: int, name: str, where: str) -> Array:
    """Return one bool a row."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.size != length:
        raise DatasetError(f"{where}: {name} has shape {array.shape} and dtype {array.dtype}; expected {length} flags")
    return as_flags(array.reshape(length), f"{where}: {name}")


def _split_merged(arrays: dict[str, Any], ends: Array, success: Any, where: str) -> None:
    """Divide ends of episodes into terminations and time-outs, by what else is known."""
    if "terminated" in arrays:
        if "truncated" not in arrays:
            arrays["truncated"] = ends & ~_flags(arrays["terminated"], len(ends), "terminated", where)
    elif "truncated" in arrays:
        arrays["terminated"] = ends & ~_flags(arrays["truncated"], len(ends), "truncated", where)
    elif success is not None:
        succeeded = _flags(success, len(ends), SUCCESS, where)
        arrays["terminated"], arrays["truncated"] = ends & succeeded, ends & ~succeeded
    else:
        arrays["terminated"] = ends


def _marked_ends(mark: str, values: Array, length: int, where: str) -> Array:
    """Return which rows are the last of their episode."""
    if values.dtype.kind not in "biuf" or values.ndim == 0 or not np.isfinite(values).all():
        raise DatasetError(f"{where}: {mark} has shape {values.shape} and dtype {values.dtype}; expected whole numbers")
    values = values.reshape(-1)
    ends = np.zeros(length, bool)
    if mark == "episode_index" or (mark == "episode_starts" and len(values) == length and values.max(initial=0) <= 1):
        if len(values) != length:
            raise DatasetError(f"{where}: {mark} has shape {values.shape}; expected ({length},)")
        ends[:-1] = values[1:] != values[:-1] if mark == "episode_index" else values[1:].astype(bool)
        ends[-1:] = True
        return ends
    with np.errstate(invalid="ignore"):  # beyond what an integer holds is outside the rows, too
        rows = values.astype(np.int64)
    if (rows != values).any():
        raise DatasetError(f"{where}: {mark} has {values[rows != values][0]:g}; expected whole numbers")
    if mark == "episode_lengths":
        if (rows < 0).any() or rows.sum() != length:
            raise DatasetError(f"{where}: {mark} adds up to {rows.sum():,} rows; expected {length:,}")
        rows = np.cumsum(rows[rows > 0])
    elif mark == "episode_starts":
        rows = np.append(rows[rows != 0], length)
    if (rows < 1).any() or (rows > length).any():
        raise DatasetError(f"{where}: {mark} names rows outside 0 to {length:,}")
    ends[rows - 1] = True
    return ends
