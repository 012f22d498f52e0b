"""Inspect logged transitions before training: facts about them, and their problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.column_checks import FLAGS, is_finite, terminations_at_limit
from rl_training.data.formats.columns import label_of
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.goals import GoalRewards
from rl_training.errors import DatasetError
from rl_training.runtime.progress import Progress
from rl_training.tools.dataset_report import DatasetReport, Finding
from rl_training.tools.episode_order import (
    OBSERVED,
    Order,
    Task,
    bad_rows,
    end_flags,
    examine_order,
    misplaced_goals,
    overlong_episodes,
    raw_arrays,
    starts_and_lengths,
    unmarked_ends,
)
from rl_training.types import SpaceSpec

Array = NDArray[Any]

_BINS = 10
_REWARD_ROWS = 20_000  # rows whose rewards are compared with the environment's, evenly spread


@np.errstate(over="ignore", invalid="ignore")
def inspect_transitions(
    source: TransitionDataset | Mapping[str, Any],
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
) -> DatasetReport:
    """Examine a dataset, or raw arrays under our names that training may refuse.

    With ``env_id`` the data is also compared with the environment: its spaces, bounds, time limit and goal rewards.
    ``progress`` shows which check is running.
    """
    progress = progress or Progress("data inspect", quiet=True)
    arrays = raw_arrays(source)
    task = Task.of(env_id, env_kwargs) if env_id is not None else None
    report = DatasetReport()
    labels = {name: label_of(source, name) for name in arrays} if isinstance(source, Mapping) else {}
    progress.start("checking", 7, "check")
    _facts(arrays, report)
    progress.advance()
    _check_finite(arrays, report, labels)
    progress.advance()
    order = examine_order(arrays)
    _check_order(arrays, report, order)
    if order is None or not order.is_shuffled:
        _check_ends(arrays, report, task.time_limit if task else None)
    progress.advance()
    _check_dimensions(arrays, report)
    progress.advance()
    _check_duplicates(arrays, report)
    progress.advance()
    if task is None or _check_spaces(arrays, report, task):
        _check_actions(arrays, report, task.spec if task else None)
        if task is not None and task.goals is not None:
            _check_rewards(arrays, report, task.goals)
    if task is not None:
        task.close()
    progress.advance()
    if not isinstance(source, TransitionDataset):
        _check_acceptance(source, report)
    progress.advance()
    return report


def _facts(arrays: dict[str, Array], report: DatasetReport) -> None:
    starts, lengths = starts_and_lengths(arrays)
    returns = np.add.reduceat(arrays["rewards"].astype(np.float64), starts)
    facts = report.facts
    facts["transitions"] = len(arrays["rewards"])
    facts["episodes"] = len(lengths)
    facts["episode_length"] = _spread(lengths)
    facts["terminated"] = int(arrays["terminated"].sum())
    facts["time_outs"] = int((arrays["truncated"] & ~arrays["terminated"]).sum())
    facts["shapes"] = {name: list(array.shape[1:]) for name, array in arrays.items() if name not in FLAGS}
    facts["discrete_actions"] = arrays["actions"].ndim == 1
    facts["reward"] = _spread(arrays["rewards"])
    facts["return"] = _spread(returns)
    if "usable" in arrays:
        facts["usable_rows"] = int(arrays["usable"].sum())
    if "fragment" in arrays:
        facts["fragments"] = int(np.logical_or.reduceat(arrays["fragment"], starts).sum())
    if "interventions" in arrays:
        facts["interventions"] = int(arrays["interventions"].sum())
    finite = returns[np.isfinite(returns)]
    if len(finite) and np.isfinite(np.ptp(finite)):
        rounding = 1e-9 * np.abs(finite).max()
        many = np.ptp(finite) > rounding
        bounds = (finite.min(), finite.max()) if many else (finite[0] - 0.5 - rounding, finite[0] + 0.5 + rounding)
        counts, edges = np.histogram(finite, bins=_BINS if many else 1, range=bounds)
        facts["return_histogram"] = {"counts": counts.tolist(), "edges": edges.tolist()}


def _check_finite(arrays: dict[str, Array], report: DatasetReport, labels: Mapping[str, str]) -> None:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not is_finite(array):
            bad = np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))
            message = f"{labels.get(name, name)} has NaN or infinity in {len(bad):,} rows, first at row {bad[0]:,}"
            report.errors.append(Finding("not-finite", message, len(bad), int(bad[0])))


def _check_order(arrays: dict[str, Array], report: DatasetReport, order: Order | None) -> None:
    rows = unmarked_ends(arrays, order)
    if len(rows):
        message = (
            f"after {len(rows):,} rows the observation changes far more than elsewhere, first after row {rows[0]:,}"
        )
        message += ": probably ends of episodes that are not marked"
        report.warnings.append(Finding("leaps", message, len(rows), int(rows[0])))
    for name, fault in misplaced_goals(arrays, order).items():
        instead = "the goal of the same row" if fault.are_own else "another goal"
        first, count = int(fault.rows[0]), len(fault.rows)
        message = f"next_{name} hold {instead}, not that of the following row, in {count:,} rows, first row {first:,}"
        report.errors.append(Finding("misaligned-goals", message, count, first))
    if order is None:
        if "next_observations" not in arrays:
            report.facts["next_observations"] = "absent: taken from the following row, within an episode"
        return
    if order.offset == 0:
        message = "next_observations are the observations of the same row"
        report.errors.append(Finding("misaligned", message, len(arrays["rewards"]), 0))
    elif order.is_shuffled:
        message = "rows are not in the order in which they were recorded: episodes and their returns mean nothing"
        report.warnings.append(Finding("shuffled", message, len(arrays["rewards"]), 0))
    elif order.offset != 1:
        message = f"next_observations are shifted: they are the observations of row + {order.offset}, expected row + 1"
        report.errors.append(Finding("misaligned", message, len(arrays["rewards"]), 0))
    if len(order.jumps):
        first = int(order.jumps[0])
        message = (
            f"{len(order.jumps):,} rows have a next observation that is not the following row's, first row {first:,}"
        )
        report.errors.append(
            Finding("jumps", f"{message}: the end of an episode is not marked there", len(order.jumps), first)
        )
    crossings = order.crossings
    if "achieved_goals" in arrays:  # hindsight reads the outcome of an episode from its last next observation
        crossings = np.union1d(crossings, order.terminal_crossings)
    elif len(order.terminal_crossings):
        report.facts["crossing_terminals"] = len(order.terminal_crossings)
    if len(crossings):
        first = int(crossings[0])
        message = f"{len(crossings):,} episodes have the first observation of the next episode as their last one,"
        message += f" first at row {first:,}: the environment was reset automatically"
        report.errors.append(Finding("crosses-episodes", message, len(crossings), first))


def _check_ends(arrays: dict[str, Array], report: DatasetReport, limit: int | None) -> None:
    if limit is not None:
        long, ends_are_missing = overlong_episodes(arrays, limit)
        if len(long):
            message = (
                f"{len(long):,} episodes are longer than the environment's time limit of {limit:,} steps, first at"
            )
            message += f" row {long[0]:,}: " + (
                "ends are missing" if ends_are_missing else "was it recorded with another limit?"
            )
            found = Finding("too-long", message, len(long), int(long[0]))
            (report.errors if ends_are_missing else report.warnings).append(found)
    if not (arrays["terminated"] | arrays["truncated"]).any():
        message = "no end of an episode is marked: all rows count as one episode"
        report.warnings.append(Finding("no-ends", message, 1))
        return
    rows = terminations_at_limit(arrays["terminated"], np.flatnonzero(end_flags(arrays)) + 1, limit)
    if not len(rows):
        return
    length = int(starts_and_lengths(arrays)[1].max()) if limit is None else limit
    message = f"{len(rows):,} episodes of {length:,} steps are marked as terminated"
    if limit is not None:
        message += f", and {length:,} is the environment's time limit: these are time-outs"
        report.errors.append(Finding("timeouts-as-terminals", message, len(rows), int(rows[0])))
    else:
        message += ": if that is a time limit, they are time-outs (--env compares with the environment's limit)"
        report.warnings.append(Finding("timeouts-as-terminals", message, len(rows), int(rows[0])))


def _check_dimensions(arrays: dict[str, Array], report: DatasetReport) -> None:
    """Find columns that never change, and observations that are at their largest or smallest value in most rows."""
    for name in (*OBSERVED[:2], "actions"):
        array = arrays.get(name)
        if array is None or array.ndim != 2 or array.dtype.kind == "b":
            continue
        low, high = array.min(axis=0), array.max(axis=0)
        constant = np.flatnonzero(low == high)
        if len(constant):
            report.warnings.append(
                Finding("constant", f"{name} never changes in dimensions {_short(constant)}", len(constant))
            )
        if name == "observations":
            at_bound = ((array == low) | (array == high)).mean(axis=0)
            # A share of 1.0 means a value with two states, such as a switch, and not a sensor at its limit.
            stuck = np.flatnonzero((at_bound > 0.5) & (at_bound < 1.0))
            if len(stuck):
                message = f"{name} are at their largest or smallest value in most rows, dimensions {_short(stuck)}"
                report.warnings.append(Finding("saturated", message, len(stuck)))


def _check_duplicates(arrays: dict[str, Array], report: DatasetReport) -> None:
    """Count rows whose observation, action, reward and next observation all equal those of an earlier row."""
    rng = np.random.default_rng(0)
    keys = np.zeros(len(arrays["rewards"]), np.uint64)
    for name in ("observations", "actions", "rewards", "next_observations", "desired_goals"):
        if name in arrays:
            columns = arrays[name].reshape(len(keys), -1)
            for index in range(columns.shape[1]):
                bits = (columns[:, index] + 0.0).astype(np.float64).view(np.uint64)
                keys = (keys ^ bits ^ (bits >> np.uint64(29))) * np.uint64(int(rng.integers(2**62)) * 2 + 1)
                keys ^= keys >> np.uint64(32)
    order = np.argsort(keys, kind="stable")
    repeats = order[1:][keys[order][1:] == keys[order][:-1]]
    if len(repeats):
        share, first = len(repeats) / len(keys), int(repeats.min())
        message = f"{len(repeats):,} rows ({share:.1%}) repeat an earlier one exactly, first at row {first:,}"
        report.warnings.append(Finding("duplicates", message, len(repeats), first))


def _check_spaces(arrays: dict[str, Array], report: DatasetReport, task: Task) -> bool:
    """Return whether the data's sizes are the environment's."""
    spec, actions = task.spec, arrays["actions"]
    goal = arrays["desired_goals"].shape[1] if "desired_goals" in arrays else 0
    pairs = {
        "observations": (arrays["observations"].shape[1], spec.observation_dim),
        "goals": (goal, spec.goal_dim),
        "actions": (_kind(actions.ndim == 1, actions.shape[-1]), _kind(spec.is_discrete, spec.action_dim)),
    }
    wrong = [f"{name} {found}, expected {expected}" for name, (found, expected) in pairs.items() if found != expected]
    if wrong:
        message = f"the data does not fit the environment: {'; '.join(wrong)}"
        report.errors.append(Finding("spaces", message, len(wrong)))
    return not wrong


def _check_actions(arrays: dict[str, Array], report: DatasetReport, spec: SpaceSpec | None) -> None:
    actions = arrays["actions"]
    if actions.ndim == 1:
        report.facts["action_counts"] = _action_counts(actions[actions >= 0])
        top = None if spec is None else spec.num_actions
        outside = np.asarray((actions < 0) | (actions >= (np.inf if top is None else top)))
        bounds = "0 and above" if top is None else f"0 to {top - 1}"
    else:
        low, high = (spec or SpaceSpec(1, actions.shape[1])).action_bounds
        margin = np.float32(1e-5) * (high - low)
        bounds = f"[{low.min():g}, {high.max():g}]"
        outside = np.asarray(((actions < low - margin) | (actions > high + margin)).any(axis=1))
        if spec is None:  # without an environment the extremes of the data serve as bounds
            low, high = np.fmin(low, actions.min(axis=0)), np.fmax(high, actions.max(axis=0))
        near = ((actions <= low + 100 * margin) | (actions >= high - 100 * margin)).mean(axis=0)
        report.facts["action_saturation"] = [round(float(share), 4) for share in near]
        if (near > 0.5).any():
            dims = np.flatnonzero(near > 0.5)
            message = f"actions are at their bounds in most rows, dimensions {_short(dims)}"
            report.warnings.append(Finding("saturated-actions", message, len(dims)))
    if outside.any():
        rows = np.flatnonzero(outside)
        message = (
            f"{len(rows):,} rows ({len(rows) / len(actions):.1%}) have actions outside {bounds}, first {rows[0]:,}"
        )
        found = Finding("actions-outside", message, len(rows), int(rows[0]))
        (report.warnings if spec is None else report.errors).append(found)


def _check_rewards(arrays: dict[str, Array], report: DatasetReport, goals: GoalRewards) -> None:
    """Compare rewards with those that the environment computes, in rows whose outcome is known."""
    goal = arrays["desired_goals"]
    if "achieved_goals" not in arrays or arrays["achieved_goals"].shape != goal.shape:
        return
    known = "next_achieved_goals" in arrays
    unknown = end_flags(arrays)
    if known:  # a last row whose next goal equals its own has no recorded outcome
        unknown &= (arrays["next_achieved_goals"] == arrays["achieved_goals"]).all(axis=1)
    if "usable" in arrays:
        unknown |= ~arrays["usable"]
    inside = np.flatnonzero(~unknown)
    rows = inside[:: max(1, len(inside) // _REWARD_ROWS)]
    rows = rows[~bad_rows({key: array[rows] for key, array in arrays.items() if array.dtype.kind == "f"})]
    if not len(rows):
        return
    achieved = arrays["next_achieved_goals"][rows] if known else arrays["achieved_goals"][rows + 1]
    expected = goals.rewards(achieved.astype(np.float32), goal[rows].astype(np.float32))
    gap = arrays["rewards"][rows].astype(np.float64) - expected
    wrong = np.abs(gap) > 1e-3 * (1 + np.abs(expected))
    if not wrong.any():
        return
    if np.ptp(gap) < 1e-3:
        message = f"rewards are those of compute_reward plus {gap.mean():.3g} in every row (reward_shift can undo that)"
        report.warnings.append(Finding("rewards-shifted", message, int(wrong.sum()), int(rows[0])))
        return
    first = int(rows[wrong][0])
    message = f"{wrong.mean():.1%} of {len(rows):,} rewards disagree with compute_reward, first at row {first:,}:"
    message += f" {arrays['rewards'][first]:g}, expected {expected[wrong][0]:g}"
    report.errors.append(Finding("rewards-disagree", message, int(wrong.sum()), first))


def _check_acceptance(source: Mapping[str, Any], report: DatasetReport) -> None:
    """Report why training would refuse the arrays, unless another finding has said so already."""
    known = {"not-finite": "is not finite", "actions-outside": "is below 0"}
    try:
        TransitionDataset.from_dict(source)
    except DatasetError as error:
        message = str(error).removeprefix("dataset: ")
        if not any(known.get(found.name, "\0") in message for found in report.errors):
            report.errors.append(Finding("refused", f"training refuses it: {message}", 1))


def _action_counts(actions: Array) -> list[int] | str:
    """Return how often each action from 0 on was taken, or a summary if there are many actions."""
    values, counts = np.unique(actions, return_counts=True)
    if len(values) and values[-1] >= 100:
        return f"{len(values):,} different actions up to {values[-1]:,}"
    table = np.zeros(int(values[-1]) + 1 if len(values) else 0, np.int64)
    table[values.astype(np.int64)] = counts
    return [int(count) for count in table]


def _kind(discrete: bool, size: int) -> str:
    return "discrete" if discrete else f"{size} continuous"


def _spread(values: Array) -> dict[str, float | None]:
    """Return smallest, mean and largest value; None for numbers that JSON cannot express."""
    found = {"min": values.min(), "mean": values.mean(dtype=np.float64), "max": values.max()}
    return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}


def _short(indices: Array) -> str:
    return ", ".join(map(str, indices[:12])) + (f" and {len(indices) - 12} more" if len(indices) > 12 else "")
