"""Bringing the columns of logged data to their types and shapes, or saying what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.goals import GOAL_KEYS
from rl_training.errors import DatasetError

Array = NDArray[Any]

FLAGS = ("terminated", "truncated", "usable")
MOST_ACTIONS = 2**20  # an index beyond is no action: a network would need an output for each up to it


def take_apart(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Split goal dictionaries into arrays of their own."""
    arrays: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(value, Mapping):
            arrays[key] = value
            continue
        if key not in ("observations", "next_observations") or not all(part in value for part in GOAL_KEYS):
            raise DatasetError(f"{where}: {key!r} is a group of {', '.join(value)}; expected {', '.join(GOAL_KEYS)}")
        prefix = "next_" if key == "next_observations" else ""
        arrays[f"{prefix}observations"] = value["observation"]
        arrays[f"{prefix}achieved_goals"] = value["achieved_goal"]
        arrays[f"{prefix}desired_goals"] = value["desired_goal"]
    return arrays


def convert(key: str, value: Any, length: int, where: str) -> Array:
    """Bring one array to its type and shape, or say what is wrong with it."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise DatasetError(f"{where}: {key} has dtype {array.dtype}; expected numbers")
    if array.ndim == 0 or len(array) != length:
        raise DatasetError(f"{where}: {key} has shape {array.shape}; expected {length} rows, as observations have")
    if key in ("rewards", *FLAGS):
        if array.size != length:
            raise DatasetError(f"{where}: {key} has shape {array.shape}; expected ({length},)")
        array = array.reshape(length)
    elif key == "actions" and array.dtype.kind in "iu" and array.size == length:
        array = array.reshape(length)
        if array.min() < 0:
            raise DatasetError(f"{where}: actions are whole numbers and {array.min()} is below 0")
        if array.max() >= MOST_ACTIONS:
            raise DatasetError(f"{where}: actions are whole numbers and {array.max()} is not below {MOST_ACTIONS:,}")
        return array.astype(np.int64, copy=False)
    elif array.ndim == 1:
        array = array[:, None]
    elif array.ndim != 2:
        raise DatasetError(f"{where}: {key} has shape {array.shape}; expected one vector a row (no images)")
    if key in FLAGS:
        return as_flags(array, f"{where}: {key}")
    if array.shape[-1] == 0:
        raise DatasetError(f"{where}: {key} has shape {array.shape}; expected at least one number a row")
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        array = array.astype(np.float32, copy=False)
    if not is_finite(array):
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise DatasetError(f"{where}: {key} is not finite, first at row {row}: {array[row]}")
    return array


def as_flags(array: Array, what: str) -> Array:
    """Return numbers as truth values, or say which is neither 0 nor 1."""
    if array.dtype != bool and not (fits := (array == 0) | (array == 1)).all():
        row = int(np.flatnonzero(~fits)[0])
        raise DatasetError(f"{what} is {array[row]} at row {row}; expected 0 or 1")
    return array.astype(bool, copy=False)


def is_finite(array: Array) -> bool:
    """Return whether all numbers are finite, in one pass that allocates nothing for almost all arrays."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum()
    # NaN and infinity survive a sum; so does the overflow of large numbers, which the exact check then clears.
    return bool(np.isfinite(total) or np.isfinite(array).all())
