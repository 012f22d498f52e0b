"""Check the columns of logged data and convert them to their types and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import DatasetError

Array = NDArray[Any]

REQUIRED = ("observations", "actions", "rewards", "terminated")
FLAGS = ("terminated", "truncated", "usable", "fragment", "interventions")
MAX_ACTIONS = 2**20  # a network needs one output for each action index, so larger indices are a mistake


def check_column(key: str, value: Any, length: int, where: str, label: str | None = None) -> Array:
    """Return one column, converted to its type and shape, or raise an error.

    Args:
        key: our name of the column, which decides its type.
        value: the array, ``[length, ...]``.
        length: the number of rows that is expected.
        where: the name of the data in errors.
        label: the name of the column in errors; unset: ``key``.
    """
    array, what = np.asarray(value), f"{where}: {label or key}"
    if array.dtype.kind not in "biuf":
        raise DatasetError(f"{what} has dtype {array.dtype}; expected numbers")
    if array.ndim == 0 or len(array) != length:
        raise DatasetError(f"{what} has shape {array.shape}; expected {length} rows, as observations have")
    if key in ("rewards", *FLAGS):
        if array.size != length:
            raise DatasetError(f"{what} has shape {array.shape}; expected ({length},)")
        array = array.reshape(length)
    elif key == "actions" and array.dtype.kind in "iu" and array.size == length:
        array = array.reshape(length)
        if array.min() < 0:
            raise DatasetError(f"{what} are whole numbers and {array.min()} is below 0; expected action indices")
        if array.max() >= MAX_ACTIONS:
            raise DatasetError(f"{what} are whole numbers and {array.max()} is not below {MAX_ACTIONS:,}")
        return array.astype(np.int64, copy=False)
    elif array.ndim == 1:
        array = array[:, None]
    elif array.ndim != 2:
        raise DatasetError(f"{what} has shape {array.shape}; expected one vector per row (no images)")
    if key in FLAGS:
        return as_flags(array, what)
    if array.shape[-1] == 0:
        raise DatasetError(f"{what} has shape {array.shape}; expected at least one number per row")
    with np.errstate(over="ignore"):  # numbers too large for float32 become infinite and are refused below
        array = array.astype(np.float32, copy=False)
    if not is_finite(array):
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise DatasetError(f"{what} is not finite, first at row {row}: {array[row]}")
    return array


def as_flags(array: Array, what: str) -> Array:
    """Return numbers as booleans, or raise an error that names the first one that is neither 0 nor 1."""
    if array.dtype != bool and not (fits := (array == 0) | (array == 1)).all():
        row = int(np.flatnonzero(~fits)[0])
        raise DatasetError(f"{what} is {array[row]} at row {row}; expected 0 or 1")
    return array.astype(bool, copy=False)


def is_finite(array: Array) -> bool:
    """Return whether all numbers are finite; for almost all arrays one sum is enough, which needs no copy."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum()
    # A sum with NaN or infinity in it is not finite. A sum may also overflow, so the exact check decides.
    return bool(np.isfinite(total) or np.isfinite(array).all())


def terminations_at_limit(terminated: Array, ends: Array, time_limit: int | None) -> Array:
    """Return the rows that terminate at the time limit, if at least half of the episodes that reach it terminate.

    If the limit is unknown, the greatest episode length counts as the limit, provided that at least three episodes
    have it and at most one of them does not terminate.

    Args:
        terminated: the flags, ``[N]``.
        ends: the row after the last one of each episode, ascending, ``[episodes]``.
        time_limit: the greatest number of steps of an episode; None if it is unknown.
    """
    lengths = np.diff(ends, prepend=0)
    limit = int(lengths.max()) if time_limit is None else time_limit
    at_limit = ends[lengths == limit] - 1
    suspects = at_limit[terminated[at_limit]]
    least = max(3, len(at_limit) - 1) if time_limit is None else max(1, len(at_limit) / 2)
    return np.asarray(suspects if limit > 1 and len(suspects) >= least else suspects[:0])
