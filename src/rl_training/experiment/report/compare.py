"""Several runs side by side: groups of equal configurations, and curves over their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.experiment.report.charts import Chart, Panel, Series, line, panels_of, points, with_unique_keys
from rl_training.experiment.report.run_data import MAIN_METRICS, RunData, differing_keys, setting
from rl_training.experiment.report.statistics import bootstrap_interval, interquartile_mean
from rl_training.json_output import to_json

_GRID = 100
"""Points of a curve over several seeds."""
_ALL_POINTS = 120_000
"""Points of all curves of a page together, which keeps it small."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    colour: int
    runs: list[RunData]


@dataclass(frozen=True)
class Score:
    """The last value of a metric over the seeds of a group."""

    group: Group
    metric: str
    mean: float
    """The interquartile mean."""
    interval: tuple[float, float] | None
    """The 95% bootstrap interval; None for a single seed."""
    count: int


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Return the runs by configuration, in the order in which they were given."""
    keys = differing_keys(runs)
    found: dict[str, list[RunData]] = {}
    for run in runs:
        found.setdefault(to_json([setting(run.config, key) for key in keys]), []).append(run)
    labels = _labels(list(found.values()))
    return [Group(*group) for group in zip(labels, range(len(found)), found.values(), strict=True)]


def _labels(groups: list[list[RunData]]) -> list[str]:
    """Return what tells groups apart: algorithm and task if they differ, and the settings in which they differ."""
    tasks = [f"{members[0].algorithm} on {members[0].task}" for members in groups]
    labels = []
    for task, members in zip(tasks, groups, strict=True):
        alike = [other[0] for name, other in zip(tasks, groups, strict=True) if name == task]
        keys = differing_keys(alike)
        settings = ", ".join(f"{key.rpartition('.')[2]}={_short(setting(members[0].config, key))}" for key in keys[:3])
        parts = [task] if len(set(tasks)) > 1 or not settings else []
        labels.append(", ".join([*parts, *([settings] if settings else [])]))
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[:index].count(label) + 1})"
        for index, label in enumerate(labels)
    ]


def main_metric(runs: Sequence[RunData]) -> str | None:
    """Return the most telling metric that all runs have or, if there is none, that any of them has."""
    for wanted in (all, any):
        for metric in MAIN_METRICS:
            if wanted(run.last(metric) is not None for run in runs):
                return metric
    return None


def scores(groups: Sequence[Group], metric: str) -> list[Score]:
    """Return the last value of a metric for each group that has it."""
    found = []
    for group in groups:
        values = np.array([value for run in group.runs if (value := run.last(metric)) is not None])
        if len(values):
            interval = None
            if len(values) > 1:
                low, high = bootstrap_interval(values[None])
                interval = float(low[0]), float(high[0])
            found.append(Score(group, metric, float(interquartile_mean(values)), interval, len(values)))
    return found


def compare_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return a chart for each metric: the runs and, if a group has several seeds, their interquartile mean."""
    runs = [run for group in groups for run in group.runs]
    panels = panels_of(runs)
    curves = len(runs) * sum(len(panel.metrics) for panel in panels)
    limit = max(50, min(1_000, _ALL_POINTS // curves))
    charts = []
    for panel in panels:
        values = {metric: [value for run in runs for value in points(run, metric)[1]] for metric, _ in panel.metrics}
        drawn = [metric for metric, found in values.items() if found and not (panel.varies and len(set(found)) == 1)]
        for metric, label in panel.metrics:
            if metric in drawn:
                charts.append(_chart(groups, panel, metric, label if len(drawn) > 1 else "", limit))
    return with_unique_keys(charts)


def _chart(groups: Sequence[Group], panel: Panel, metric: str, label: str, limit: int) -> Chart:
    series: list[Series] = []
    for group in groups:
        prefix = f"{group.label}, " if len(groups) > 1 else ""  # the page's title has the label of a single group
        curves = [(run, *points(run, metric)) for run in group.runs]
        curves = [curve for curve in curves if curve[1]]
        several = len(curves) > 1
        for run, steps, values in curves:
            name = f"{prefix}seed {run.config.seed}" if several else group.label
            marked = metric.startswith("eval/") and not several
            series.append(line(name, steps, values, limit, colour=group.colour, faint=several, marked=marked))
        if several:
            series.append(_over_seeds(prefix, group.colour, [(steps, values) for _, steps, values in curves]))
    title = f"{panel.title}, {label}" if label else panel.title
    key = panel.key + (f"-{label.replace(' ', '-')}" if label else "")
    step_names = {run.step_name for group in groups for run in group.runs}
    x = step_names.pop() if len(step_names) == 1 else "steps"
    return Chart(key, title, series, x, panel.y, panel.section, panel.y_range, note=panel.note)


def _over_seeds(prefix: str, colour: int, curves: list[tuple[list[float], list[float]]]) -> Series:
    """Return the interquartile mean over the seeds, where all of them have values, with its bootstrap interval."""
    first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    grid = np.unique(np.concatenate([np.asarray(steps, float) for steps, _ in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    if not len(grid):
        grid = np.array([float(last)])
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, min(len(grid), _GRID)).round().astype(int))]
    values = np.stack([np.interp(grid, steps, values) for steps, values in curves], axis=1)  # [T, seeds]
    low, high = bootstrap_interval(values)
    name = f"{prefix}interquartile mean of {len(curves)} runs"
    mean = interquartile_mean(values)
    return Series(name, grid.tolist(), mean.tolist(), low=low.tolist(), high=high.tolist(), colour=colour)


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"{text[:21]}…"
