"""The names of arrays in files, and our names for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.column_checks import REQUIRED, as_flags
from rl_training.errors import ConfigError, DatasetError, did_you_mean, shown

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
    "fragment": (),
    "interventions": ("intervention", "is_intervention", "complementary_info.is_intervention"),
}
"""Our names, and the names that files use."""

MERGED = ("dones", "done", "next.done")
"""Names of a flag that is set at every end of an episode, whether it is a termination or a time-out."""

SUCCESS = "next.success"

MARKS = ("episode_lengths", "episode_starts", "episode_ends", "episode_index")
"""Names of arrays that only say where episodes end."""

_KNOWN = {*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases), *MERGED, *MARKS, SUCCESS}
_NAMES_IN_ERRORS = 30


def is_known(name: str) -> bool:
    """Return whether an array of this name is read."""
    return name in _KNOWN


class Columns(dict[str, Any]):
    """Arrays under our names. ``sources`` has the names that the file uses, for messages."""

    def __init__(self, arrays: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        super().__init__(arrays)
        self.sources = dict(sources)

    def label(self, name: str) -> str:
        """Return the name of a column for messages: the file's name, with ours if they differ."""
        source = self.sources.get(name, name)
        return name if source == name else f"{source} ({name})"


def label_of(columns: Mapping[str, Any], name: str) -> str:
    """Return the name, for messages, of a column of any mapping."""
    return columns.label(name) if isinstance(columns, Columns) else name


def check_rename(rename: Mapping[str, str]) -> None:
    """Refuse to rename a column to an unknown name."""
    for source, target in rename.items():
        if not is_known(target):
            raise ConfigError(
                f"rename {shown(source)}={shown(target)}: unknown name{did_you_mean(target, _KNOWN)};"
                f" expected one such as {', '.join(REQUIRED)}"
            )


def canonical(
    values: Mapping[str, Any],
    where: str = "dataset",
    names: Iterable[str] | None = None,
    rename: Mapping[str, str] | None = None,
) -> Columns:
    """Rename arrays to our names, drop those we do not know, and separate terminations from time-outs.

    A merged flag counts as a termination, unless time-outs (or, in LeRobot's files, successes) are known as well.
    Ends that are only marked, as by ``episode_lengths``, are time-outs.

    Args:
        values: the arrays under the file's names; goal dictionaries may be nested.
        where: the name of the data in errors.
        names: all names in the file, for the error when one is missing.
        rename: unknown names in the file and the known names to use for them.
    """
    flat = dict(_flatten(values))
    found = [str(name) for name in (flat if names is None else names)]
    sources = {name: name for name in flat}
    for source, target in (rename or {}).items():
        if source not in flat:
            raise DatasetError(f"{where}: there is no {source!r} to rename; found {_listed(found)}")
        flat[target], sources[target] = flat[source], source
    arrays: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for name, aliases in ALIASES.items():
        alias = next((alias for alias in (name, *aliases) if alias in flat), None)
        if alias is not None:
            arrays[name], labels[name] = flat[alias], sources[alias]
    columns = Columns(arrays, labels)
    length = _row_count(columns)
    merged = next((name for name in MERGED if name in flat), None)
    if merged is not None:
        columns.sources.setdefault("terminated", sources[merged])
        _split_merged(columns, _flags(flat[merged], length, sources[merged], where), flat.get(SUCCESS), where)
    for mark in MARKS:
        if mark in flat:
            ends = _marked_ends(mark, np.asarray(flat[mark]), length, f"{where}: {sources[mark]}")
            terminated = _column_flags(columns, "terminated", length, where)
            columns["truncated"] = _column_flags(columns, "truncated", length, where) | (ends & ~terminated)
            columns["terminated"] = terminated
    if "truncated" in columns:  # without a flag for terminations, no row terminates
        columns.setdefault("terminated", np.zeros(length, bool))
    for name in REQUIRED:
        if name not in columns:
            others = [*ALIASES[name], *(MERGED if name == "terminated" else ())][:4]
            raise DatasetError(
                f"{where}: key {name!r} (or {', '.join(others)}) is missing; found {_listed(found)}"
                f" (data convert --rename NAME={name} reads it from another name)"
            )
    return columns


def _listed(names: list[str]) -> str:
    more = ", …" if len(names) > _NAMES_IN_ERRORS else ""
    return ", ".join(name[:100] for name in sorted(names)[:_NAMES_IN_ERRORS]) + more or "nothing"


def file_columns(dataset: TransitionDataset) -> dict[str, Array]:
    """Return a dataset's arrays under D4RL's names, with ``usable`` if some rows have no next observation."""
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
    """Return one boolean per row."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.size != length:
        raise DatasetError(f"{where}: {name} has shape {array.shape} and dtype {array.dtype}; expected {length} flags")
    return as_flags(array.reshape(length), f"{where}: {name}")


def _column_flags(columns: Columns, name: str, length: int, where: str) -> Array:
    """Return the flags of a column, all false if there is no such column."""
    return _flags(columns.get(name, np.zeros(length, bool)), length, columns.label(name), where)


def _split_merged(columns: Columns, ends: Array, success: Any, where: str) -> None:
    """Divide ends of episodes into terminations and time-outs, by the other columns."""
    if "terminated" in columns:
        if "truncated" not in columns:
            columns["truncated"] = ends & ~_column_flags(columns, "terminated", len(ends), where)
    elif "truncated" in columns:
        columns["terminated"] = ends & ~_column_flags(columns, "truncated", len(ends), where)
    elif success is not None:
        succeeded = _flags(success, len(ends), SUCCESS, where)
        columns["terminated"], columns["truncated"] = ends & succeeded, ends & ~succeeded
    else:
        columns["terminated"] = ends


def _marked_ends(mark: str, values: Array, length: int, what: str) -> Array:
    """Return which rows are the last of their episode."""
    if values.dtype.kind not in "biuf" or values.ndim == 0 or not np.isfinite(values).all():
        raise DatasetError(f"{what} has shape {values.shape} and dtype {values.dtype}; expected whole numbers")
    values = values.reshape(-1)
    ends = np.zeros(length, bool)
    if mark == "episode_index" or (mark == "episode_starts" and len(values) == length and values.max(initial=0) <= 1):
        if len(values) != length:
            raise DatasetError(f"{what} has shape {values.shape}; expected ({length},)")
        ends[:-1] = values[1:] != values[:-1] if mark == "episode_index" else values[1:].astype(bool)
        ends[-1:] = True
        return ends
    with np.errstate(invalid="ignore"):  # numbers too large for an integer are outside the rows anyway
        rows = values.astype(np.int64)
    if (rows != values).any():
        raise DatasetError(f"{what} has {values[rows != values][0]:g}; expected whole numbers")
    if mark == "episode_lengths":
        if (rows < 0).any() or rows.sum() != length:
            raise DatasetError(f"{what} adds up to {rows.sum():,} rows; expected {length:,}")
        rows = np.cumsum(rows[rows > 0])
    elif mark == "episode_starts":
        rows = np.append(rows[rows != 0], length)
    if (rows < 1).any() or (rows > length).any():
        raise DatasetError(f"{what} names rows outside 0 to {length:,}")
    ends[rows - 1] = True
    return ends
