"""Mending what is wrong with logged transitions where that is safe, and saying what was done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.row_order import (
    OBSERVED,
    Task,
    action_bounds,
    bad_rows,
    ends_of,
    examine_order,
    fixed_terminals,
    raw_arrays,
)
from rl_training.errors import DatasetError

Array = NDArray[Any]


def repair_transitions(
    source: TransitionDataset | Mapping[str, Any],
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Array], list[str]]:
    """Return mended arrays, ready for ``TransitionDataset.from_dict``, and a line for each thing that was done.

    Rows that are not finite are dropped, and the episode ends before them. Next observations that are shifted, or those
    of the same row, are taken from the following row instead. Where the next row does not follow, the episode ends.
    Last rows that look into the next episode are not sampled. With ``env_id``, actions are clipped to its bounds, and
    episodes that terminate where its time limit is reached are time-outs. The arrays of ``source`` are left alone.
    """
    arrays = {name: array.copy() for name, array in raw_arrays(source).items()}
    notes: list[str] = []
    _mend_order(arrays, notes)
    if env_id is not None:
        task = Task.of(env_id, env_kwargs)
        _fit_to_task(arrays, task, notes)
        task.close()
    elif arrays["actions"].ndim == 2 and np.abs(arrays["actions"]).max() > 1:
        notes.append("actions outside [-1, 1] were left as they are: --env tells the bounds")
    # Last, for an episode that loses rows no longer has the length by which a time-out is known.
    return _drop_bad_rows(arrays, notes), notes


def _drop_bad_rows(arrays: dict[str, Array], notes: list[str]) -> dict[str, Array]:
    bad = bad_rows(arrays)
    if not bad.any():
        return arrays
    if bad.all():
        raise DatasetError("every row has a number that is not finite: nothing can be kept")
    # What ends is the row before a dropped one, unless its episode had ended there anyway.
    cut = np.flatnonzero(bad[1:] & ~bad[:-1] & ~ends_of(arrays)[:-1])
    arrays["truncated"][cut] = True
    notes.append(f"dropped {int(bad.sum()):,} rows that are not finite, which ended {len(cut):,} episodes early")
    return {name: array[~bad] for name, array in arrays.items()}


def _mend_order(arrays: dict[str, Array], notes: list[str]) -> None:
    order = examine_order(arrays)
    if order is None:
        return
    if order.offset in (0, 2, -1):
        for name in OBSERVED:
            arrays.pop(f"next_{name}", None)
        notes.append("took next observations from the following rows: those in the file were misaligned")
    if order.offset is None:
        notes.append("rows do not follow each other: their order was left as it is")
    if len(order.jumps):
        arrays["truncated"][order.jumps] = True
        notes.append(f"ended the episode at {len(order.jumps):,} rows that the next row does not follow")
    cut_off = order.crossings[~arrays["terminated"][order.crossings]]
    if len(cut_off):
        usable = arrays.setdefault("usable", np.ones(len(arrays["rewards"]), bool))
        usable[cut_off] = False
        notes.append(f"took {len(cut_off):,} last rows out of what is sampled: they look into the next episode")


def _fit_to_task(arrays: dict[str, Array], task: Task, notes: list[str]) -> None:
    actions = arrays["actions"]
    if actions.ndim == 2 and not task.spec.is_discrete and actions.shape[1] == task.spec.action_dim:
        low, high = action_bounds(task.spec)
        outside = ((actions < low) | (actions > high)).any(axis=1)
        if outside.any():
            arrays["actions"] = np.clip(actions, low, high)
            notes.append(f"clipped the actions of {int(outside.sum()):,} rows to [{low.min():g}, {high.max():g}]")
    rows = fixed_terminals(arrays, task.time_limit) if task.time_limit is not None else np.zeros(0, np.int64)
    if len(rows):
        arrays["terminated"][rows], arrays["truncated"][rows] = False, True
        notes.append(f"turned {len(rows):,} terminations at the time limit of {task.time_limit} steps into time-outs")
