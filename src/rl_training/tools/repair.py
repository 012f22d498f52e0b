"""Repair logged transitions if that is safe, and report the changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.column_checks import FLAGS, as_flags, terminations_at_limit
from rl_training.data.formats.columns import label_of
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.tools.episode_order import (
    OBSERVED,
    Task,
    bad_rows,
    end_flags,
    examine_order,
    misplaced_goals,
    raw_arrays,
    starts_and_lengths,
)
from rl_training.tools.inspection import inspect_transitions

Array = NDArray[Any]


@np.errstate(over="ignore", invalid="ignore")
def repair_transitions(
    source: TransitionDataset | Mapping[str, Any],
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Array], list[str]]:
    """Return repaired arrays for ``TransitionDataset.from_dict``, and a line for each change and each remaining error.

    - Rows that are not finite are dropped, and the episode ends before them. The rest of such an episode is marked as
      ``fragment``, so that its return is not compared with those of complete episodes.
    - Next observations that are shifted, or those of the same row, are taken from the following row instead. So are
      next goals, if the observations are in order.
    - An episode ends where its next observation is not the following row's.
    - Last rows with the next episode's first observation are not sampled. In goal tasks those that terminate are, with
      their own observation as the next.
    - With ``env_id``, actions are clipped to its bounds, and terminations at its time limit become time-outs.

    The arrays of ``source`` are not changed.
    """
    for key in FLAGS:  # below, any number but 0 would count as true
        if isinstance(source, Mapping) and key in source:
            as_flags(np.asarray(source[key]).reshape(-1), label_of(source, key))
    arrays = {name: array.copy() for name, array in raw_arrays(source).items()}
    notes: list[str] = []
    is_shuffled = _repair_order(arrays, notes)
    if env_id is not None:
        task = Task.of(env_id, env_kwargs)
        _clip_actions(arrays, task, notes)
        if not is_shuffled:
            _correct_time_outs(arrays, task, notes)
        task.close()
    elif arrays["actions"].ndim == 2 and np.abs(arrays["actions"]).max() > 1:
        notes.append("actions outside [-1, 1] were left as they are: --env gives the bounds to clip them to")
    _repair_crossings(
        arrays, notes
    )  # after the time-outs, because values are bootstrapped only from their next observation
    # Drop rows last: time-outs are recognised by episode length.
    arrays = _drop_bad_rows(arrays, notes)
    report = inspect_transitions(arrays, env_id, env_kwargs)
    left = [*report.errors, *(found for found in report.warnings if found.name == "leaps")]
    return arrays, [*notes, *(f"left as it is: {found.name}: {found.message}" for found in left)]


def _drop_bad_rows(arrays: dict[str, Array], notes: list[str]) -> dict[str, Array]:
    bad = bad_rows(arrays)
    if not bad.any():
        return arrays
    if bad.all():
        raise DatasetError("every row has a number that is not finite: nothing can be kept")
    # An episode ends at the row before a dropped one, unless it ends there anyway.
    cut = np.flatnonzero(bad[1:] & ~bad[:-1] & ~end_flags(arrays)[:-1])
    starts, lengths = starts_and_lengths(arrays)
    damaged = np.logical_or.reduceat(bad, starts)
    arrays["fragment"] = arrays.get("fragment", np.zeros(len(bad), bool)) | np.repeat(damaged, lengths)
    arrays["truncated"][cut] = True
    notes.append(
        f"dropped {int(bad.sum()):,} rows that are not finite; the rest of {int(damaged.sum()):,} episodes is marked as"
        " fragments, which dataset_top_fraction leaves out"
    )
    return {name: array[~bad] for name, array in arrays.items()}


def _repair_order(arrays: dict[str, Array], notes: list[str]) -> bool:
    """Repair next observations, next goals and missing ends; return whether the rows are in no order."""
    order = examine_order(arrays)
    for name, fault in misplaced_goals(arrays, order).items():
        if fault.are_most:  # the dataset then takes them from the following rows; last rows have none
            del arrays[f"next_{name}"]
        else:
            arrays[f"next_{name}"][fault.rows] = arrays[name][fault.rows + 1]
        what = f"next {name.replace('_', ' ')}"
        notes.append(f"took {what} from the following rows: {len(fault.rows):,} in the file were misplaced")
    if order is None:
        return False
    if order.offset in (0, 2, -1):
        for name in OBSERVED:
            arrays.pop(f"next_{name}", None)
        notes.append("took next observations from the following rows: those in the file were misaligned")
    if order.is_shuffled:
        notes.append("rows are not in the order in which they were recorded: their order was left as it is")
    if len(order.jumps):
        arrays["truncated"][order.jumps] = True
        notes.append(
            f"ended the episode at {len(order.jumps):,} rows whose next observation is not the following row's"
        )
    return order.is_shuffled


def _repair_crossings(arrays: dict[str, Array], notes: list[str]) -> None:
    order = examine_order(arrays)
    if order is None:
        return
    if len(order.crossings):
        usable = arrays.setdefault("usable", np.ones(len(arrays["rewards"]), bool))
        usable[order.crossings] = False
        notes.append(
            f"excluded {len(order.crossings):,} last rows from sampling: they have the next episode's first observation"
        )
    if len(order.terminal_crossings) and "achieved_goals" in arrays:
        rows = order.terminal_crossings
        for name in OBSERVED:
            if f"next_{name}" in arrays:  # hindsight knows that such a row has no recorded outcome
                arrays[f"next_{name}"][rows] = arrays[name][rows]
        notes.append(f"gave {len(rows):,} terminations their own observation as the next: they had the next episode's")


def _clip_actions(arrays: dict[str, Array], task: Task, notes: list[str]) -> None:
    actions = arrays["actions"]
    if actions.ndim == 2 and not task.spec.is_discrete and actions.shape[1] == task.spec.action_dim:
        low, high = task.spec.action_bounds
        outside = ((actions < low) | (actions > high)).any(axis=1)
        if outside.any():
            arrays["actions"] = np.clip(actions, low, high)
            notes.append(f"clipped the actions of {int(outside.sum()):,} rows to [{low.min():g}, {high.max():g}]")


def _correct_time_outs(arrays: dict[str, Array], task: Task, notes: list[str]) -> None:
    if task.time_limit is None:
        return
    rows = terminations_at_limit(arrays["terminated"], np.flatnonzero(end_flags(arrays)) + 1, task.time_limit)
    if len(rows):
        arrays["terminated"][rows], arrays["truncated"][rows] = False, True
        notes.append(f"turned {len(rows):,} terminations at the time limit of {task.time_limit} steps into time-outs")
