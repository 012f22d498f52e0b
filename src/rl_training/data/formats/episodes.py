"""Data stored episode by episode, with T+1 observations for T actions, as Minari does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.column_checks import as_flags
from rl_training.data.formats.storage import storage_dtype
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

OBSERVED = {"observation": "observations", "achieved_goal": "achieved_goals", "desired_goal": "desired_goals"}
"""The parts of a goal dictionary, and our names for them."""

EXTRAS = ("next_observations", "next_achieved_goals", "next_desired_goals", "usable", "fragment", "interventions")
"""Columns that T+1 observations cannot express; ``infos`` hold them."""

_PER_STEP = {"actions": "actions", "rewards": "rewards", "terminations": "terminated", "truncations": "truncated"}


def join(episodes: Iterable[tuple[str, Mapping[str, Any]]], where: str) -> dict[str, Array]:
    """Join named episodes, each a mapping with Minari's keys, into rows under our names.

    If an episode does not say how it ended, its end is a time-out.
    """
    parts: dict[str, list[Array]] = {}
    for name, episode in episodes:
        place = f"{where}: {name}"
        for key in ("observations", *_PER_STEP):
            if key not in episode:
                raise DatasetError(f"{place} has no {key}; found {', '.join(sorted(episode))}")
        rows = {ours: _array(episode[key], f"{place}: {key}") for key, ours in _PER_STEP.items()}
        steps = len(rows["rewards"])
        rows.update(_observed(episode["observations"], steps, place))
        if steps == 0:
            continue
        for key, array in rows.items():
            if len(array) != steps:
                raise DatasetError(f"{place}: {key} has shape {array.shape}; expected {steps} rows, as rewards have")
        for key in ("terminated", "truncated"):
            rows[key] = as_flags(rows[key].reshape(steps), f"{place}: {key}").copy()  # the last one may be set below
        rows["truncated"][-1] |= not rows["terminated"][-1]
        infos = episode.get("infos") or {}
        rows.update({key: _array(infos[key], f"{place}: infos/{key}") for key in EXTRAS if key in infos})
        for key, array in rows.items():
            parts.setdefault(key, []).append(array)
    counts = {key: len(arrays) for key, arrays in parts.items()}
    if not counts:
        raise DatasetError(f"{where}: there are no transitions in it")
    for key, count in counts.items():
        if count != counts["rewards"]:
            raise DatasetError(f"{where}: {key} is in {count} episodes; expected all {counts['rewards']}")
    joined = {}
    for key in list(parts):
        shapes = {array.shape[1:] for array in parts[key]}
        if len(shapes) > 1:
            raise DatasetError(f"{where}: {key} has different shapes in different episodes: {sorted(shapes)}")
        joined[key] = np.concatenate(parts.pop(key))
    return joined


def split(dataset: TransitionDataset) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a dataset with Minari's keys; observations of goal tasks are dictionaries."""
    arrays = dataset.arrays
    observed = {part: name for part, name in OBSERVED.items() if name in arrays}
    inside = ~(arrays["terminated"] | arrays["truncated"])[:-1]
    # Next observations that are not the following row's cannot be expressed by T+1 observations.
    broken = [
        f"next_{name}"
        for name in observed.values()
        if not np.array_equal(arrays[f"next_{name}"][:-1][inside], arrays[name][1:][inside])
    ]
    for start, end in zip(dataset.episode_starts, dataset.episode_ends, strict=True):
        rows = slice(int(start), int(end))
        observations = {
            part: np.concatenate([arrays[name][rows], arrays[f"next_{name}"][end - 1 : end]])
            for part, name in observed.items()
        }
        infos = {name: arrays[name][rows] for name in (*broken, "fragment", "interventions") if name in arrays}
        if dataset.usable is not None:
            infos["usable"] = dataset.usable[rows]
        yield {
            "observations": observations if dataset.is_goal_conditioned else observations["observation"],
            **{key: arrays[name][rows] for key, name in _PER_STEP.items()},
            "infos": infos,
        }


def _array(value: Any, what: str) -> Array:
    if isinstance(value, (Mapping, tuple)):
        raise DatasetError(f"{what} is a group; expected an array")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise DatasetError(f"{what} has shape {array.shape} and dtype {array.dtype}; expected rows of numbers")
    with np.errstate(over="ignore"):
        return array.astype(storage_dtype(array.dtype), copy=False)


def _observed(value: Any, steps: int, place: str) -> dict[str, Array]:
    """Return the observations before and after each step, ``[steps, ...]`` each."""
    parts = value if isinstance(value, Mapping) else {"observation": value}
    if not all(part in parts for part in (OBSERVED if isinstance(value, Mapping) else ())):
        raise DatasetError(f"{place}: observations are {', '.join(sorted(parts))}; expected {', '.join(OBSERVED)}")
    rows: dict[str, Array] = {}
    for part, name in OBSERVED.items():
        if part in parts:
            array = _array(parts[part], f"{place}: observations/{part}")
            if len(array) != steps + 1:
                raise DatasetError(
                    f"{place}: observations have shape {array.shape}; expected {steps + 1} rows, one more than rewards"
                )
            rows[name], rows[f"next_{name}"] = array[:-1], array[1:]
    return rows
