"""The charts of one run: its curves, its episodes, its goals and its data."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.report.charts import (
    EXPLORATION,
    SECTIONS,
    Chart,
    Series,
    curve_charts,
    line,
    pretraining_charts,
    with_unique_keys,
)
from rl_training.experiment.report.run_data import EvaluatedEpisode, RunData

Array = NDArray[np.float64]

_DOTS = 1_200
"""Single episodes that are drawn; more are left out evenly."""
_RECENT, _FEWEST = 500, 20
"""Episodes behind the map of goals, at most and at least."""
_TRAJECTORIES = 6
"""Episodes that are drawn."""


class Outcome(NamedTuple):
    """A goal, and whether it was reached."""

    goal: tuple[float, ...]
    success: bool


def episode_charts(run: RunData) -> list[Chart]:
    """Return the charts of single episodes: their returns and, in goal tasks, their final distances."""
    charts = []
    wanted = {
        ("Return of each episode", "raw return", "Learning"): [(one.step, one.reward) for one in run.episodes],
        ("Final distance to the goal", "distance", "Goals"): [(one.step, one.distance) for one in run.episodes],
    }
    for (title, label, section), everything in wanted.items():
        found = [(step, value) for step, value in everything if math.isfinite(value)]
        if len(found) < 2:
            continue
        steps, values = np.array(found, float).T
        picked = np.unique(np.linspace(0, len(found) - 1, min(len(found), _DOTS)).round().astype(int))
        window = max(1, min(50, len(found) // 5))
        sums = np.cumsum(np.insert(values, 0, 0.0))
        smooth = (sums[window:] - sums[:-window]) / window
        series = [
            Series(EXPLORATION, steps[picked].tolist(), values[picked].tolist(), "dots", colour=1, faint=True),
            line(f"mean of {window}", steps[window - 1 :].tolist(), smooth.tolist(), colour=1),
        ]
        if window == 1:  # too few episodes for a mean
            series = [line(EXPLORATION, steps.tolist(), values.tolist(), colour=1, marked=True)]
        key = "episode-returns" if section == "Learning" else "final-distance"
        charts.append(Chart(key, title, series, run.step_name, label, section))
    return charts


def goal_charts(run: RunData) -> list[Chart]:
    """Return the map of success over goal space and a few drawn episodes, if goals were recorded."""
    played = [Outcome(one.goal, one.success) for one in run.episodes if one.goal and one.success is not None]
    played = played[-min(_RECENT, max(_FEWEST, len(played) // 2)) :]  # the first half shows a policy that is gone
    evaluated = [Outcome(one.goal, one.success) for one in run.evaluation if one.goal and one.success is not None]
    known = [*played, *evaluated]
    if not known or len({len(one.goal) for one in known}) != 1:
        return []
    axes = _widest(np.array([one.goal for one in known]))
    charts = [_line_map(played or evaluated)] if len(axes) == 1 else [_plane_map(played, evaluated, axes)]
    size = len(known[0].goal)
    paths = [one for one in run.evaluation if one.goal and len(one.path) > 1 and {len(at) for at in one.path} == {size}]
    missed, reached = [one for one in paths if not one.success], [one for one in paths if one.success]
    drawn = missed[:3] + reached[: _TRAJECTORIES - len(missed[:3])]
    return [*charts, _trajectories(drawn, axes)] if drawn else charts


def data_charts(run: RunData) -> list[Chart]:
    """Return the histogram of the returns of offline data, beside those of the latest evaluation and of play."""
    if run.data is None or not run.data.returns:
        return []
    sources = {
        "offline data": run.data.returns,
        EXPLORATION: [episode.reward for episode in run.episodes],
        "last evaluation": [episode.reward for episode in run.evaluation],
    }
    everything = np.concatenate([values for values in sources.values() if values])
    edges = _edges(everything, 24)
    series = [
        Series(name, edges.tolist(), (np.histogram(values, edges)[0] / len(values)).tolist(), "bars", colour=colour)
        for colour, (name, values) in zip((2, 1, 0), sources.items(), strict=True)
        if values
    ]
    note = f"{run.data.transitions:,} transitions in {run.data.episodes:,} episodes of offline data."
    place = "raw return", "share of episodes", "Data"
    return [Chart("returns-of-data", "Returns of the data", series, *place, note=note)]


def run_charts(run: RunData) -> list[Chart]:
    """Return all charts of one run, section by section."""
    charts = [*goal_charts(run), *data_charts(run), *curve_charts(run), *episode_charts(run), *pretraining_charts(run)]
    return with_unique_keys(sorted(charts, key=lambda chart: SECTIONS.index(chart.section)))


def _widest(goals: Array) -> list[int]:
    """Return the one or two coordinates in which the goals ``[N, D]`` differ most, in order."""
    order: list[int] = np.argsort(-np.ptp(goals, axis=0), kind="stable")[:2].tolist()
    return sorted(order)


def _line_map(outcomes: list[Outcome]) -> Chart:
    """Return the share of successes in intervals of a goal that is one number."""
    goals, success = np.array([one.goal[0] for one in outcomes]), np.array([float(one.success) for one in outcomes])
    edges = _edges(goals, 12)
    counts, hits = np.histogram(goals, edges)[0], np.histogram(goals, edges, weights=success)[0]
    shares = np.divide(hits, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    series = [Series("success rate", edges.tolist(), shares.tolist(), "bars")]
    place = "goal", "success rate", "Goals", (0.0, 1.0)
    return Chart("goal-map", "Success over goals", series, *place, note=f"The last {len(outcomes)} episodes.")


def _plane_map(played: list[Outcome], evaluated: list[Outcome], axes: list[int]) -> Chart:
    """Return the share of successes in cells of the plane of goals, with the goals of the latest evaluation."""
    series, shown = [], []
    if len(played) >= _FEWEST:
        goals = np.array([one.goal for one in played])[:, axes]  # [N, 2]
        edges = [
            _edges(goals[:, axis], 10 if len(played) >= 300 else 6 if len(played) >= 100 else 4) for axis in (0, 1)
        ]
        place = [np.clip(np.digitize(goals[:, axis], edges[axis]) - 1, 0, len(edges[axis]) - 2) for axis in (0, 1)]
        counts = np.zeros((len(edges[0]) - 1, len(edges[1]) - 1))
        hits = np.zeros_like(counts)
        np.add.at(counts, tuple(place), 1.0)
        np.add.at(hits, tuple(place), [float(one.success) for one in played])
        filled = np.nonzero(counts)
        x, y = ((edge[1:] + edge[:-1]) / 2 for edge in edges)
        value = (hits[filled] / counts[filled]).tolist()
        size = float(edges[0][1] - edges[0][0]), float(edges[1][1] - edges[1][0])
        cells = x[filled[0]].tolist(), y[filled[1]].tolist()
        series.append(Series(EXPLORATION, *cells, "cells", value=value, size=size))
        shown.append(f"squares: share of successes in the last {len(played)} episodes of exploration")
    if evaluated:
        dots = [one.goal[axes[0]] for one in evaluated], [one.goal[axes[1]] for one in evaluated]
        series.append(Series("last evaluation", *dots, "dots", value=[float(one.success) for one in evaluated]))
        shown.append(f"dots: the {len(evaluated)} goals of the last evaluation")
    note = "; ".join(shown)
    return Chart(
        "goal-map",
        "Success over goals",
        series,
        *_names(axes),
        "Goals",
        equal=True,
        note=f"{note[:1].upper()}{note[1:]}.",
    )


def _edges(values: Array, count: int) -> Array:
    low, high = float(values.min()), float(values.max())
    return np.linspace(low, high, count + 1) if high > low else np.array([low - 0.5, low + 0.5])


def _trajectories(episodes: list[EvaluatedEpisode], axes: list[int]) -> Chart:
    """Return the paths of the achieved goal: in the plane or, if the goal is one number, over the steps."""
    series = []
    for number, one in enumerate(episodes, start=1):
        assert one.goal is not None
        if len(axes) == 1:
            x = np.linspace(0, one.length, len(one.path)).tolist()
            y, goal = [at[0] for at in one.path], (float(one.length), one.goal[0])
        else:
            x, y = [at[axes[0]] for at in one.path], [at[axes[1]] for at in one.path]
            goal = one.goal[axes[0]], one.goal[axes[1]]
        series.append(Series(f"episode {number}", x, y, "path", value=[float(bool(one.success))], goal=goal))
    note = "The achieved goal in episodes of the last evaluation, from start to end, and the desired goal."
    place = _names(axes) if len(axes) == 2 else ("step", "achieved goal")
    return Chart("trajectories", "Trajectories", series, *place, "Goals", equal=len(axes) == 2, note=note)


def _names(axes: list[int]) -> tuple[str, str]:
    return f"goal coordinate {axes[0] + 1}", f"goal coordinate {axes[1] + 1}"
