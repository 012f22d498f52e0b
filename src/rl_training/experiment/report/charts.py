"""The charts of a report, as plain data: the page draws them with its script, and ``--png`` with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from rl_training.experiment.report.run_data import RunData
from rl_training.runtime.logging import STEP, UPDATES

EVALUATION, EXPLORATION = "evaluation", "exploration"

_POINTS = 1_000
"""Points of one curve; more are averaged."""


@dataclass(frozen=True)
class Series:
    """One layer of a chart. What ``x`` and ``y`` mean depends on the kind.

    ``line`` and ``dots``: points. ``bars``: ``x`` has the edges, one more than ``y``. ``cells``: ``x`` and ``y`` are
    centres, ``size`` is the width and height, ``value`` the share of successes. ``path``: points, with a ``goal``.
    """

    name: str
    x: list[float]
    y: list[float]
    kind: Literal["line", "dots", "bars", "cells", "path"] = "line"
    low: list[float] | None = None
    high: list[float] | None = None
    """The 95% interval of each point."""
    colour: int = 0
    marked: bool = False
    """Whether the points of a line are marked."""
    faint: bool = False
    """Whether a line is in the background."""
    value: list[float] | None = None
    """Success, from 0 to 1, of each dot, cell or path."""
    size: tuple[float, float] | None = None
    goal: tuple[float, float] | None = None


@dataclass(frozen=True)
class Chart:
    """A titled chart."""

    key: str
    title: str
    series: list[Series]
    x: str = ""
    y: str = ""
    section: str = ""
    y_range: tuple[float, float] | None = None
    equal: bool = False
    """Whether both axes have the same scale."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values without unset fields."""
        fields = {key: value for key, value in asdict(self).items() if _is_set(value)}
        fields["series"] = [
            {key: _rounded(value) for key, value in asdict(one).items() if _is_set(value)} for one in self.series
        ]
        return fields


@dataclass(frozen=True)
class Panel:
    """Metrics that share a chart."""

    section: str
    title: str
    metrics: tuple[tuple[str, str], ...]
    """Names in ``metrics.csv``, each with its name in the legend."""
    y: str = ""
    y_range: tuple[float, float] | None = None
    note: str = ""
    varies: bool = False
    """Whether the chart is left out if all values are the same."""

    @property
    def key(self) -> str:
        """The title as a file's name."""
        return "".join(char if char.isalnum() else "-" for char in self.title.lower())


PANELS: tuple[Panel, ...] = (
    Panel(
        "Learning",
        "Success rate",
        (("eval/success_rate", EVALUATION), ("rollout/success_rate", EXPLORATION)),
        "success rate",
        (0.0, 1.0),
    ),
    Panel("Learning", "Return", (("eval/mean_reward", EVALUATION), ("rollout/ep_rew_mean", EXPLORATION)), "raw return"),
    Panel("Learning", "Normalised score", (("eval/normalized_score", EVALUATION),), "0 random, 100 expert"),
    Panel(
        "Learning",
        "Episode length",
        (("eval/mean_ep_length", EVALUATION), ("rollout/ep_len_mean", EXPLORATION)),
        "steps",
        varies=True,
    ),
    Panel(
        "Goals",
        "Relabelled and trivial goals",
        (
            ("train/relabelled_share", "rows with a new goal"),
            ("train/trivial_goal_share", "new goals met before the step"),
        ),
        "share",
        (0.0, 1.0),
    ),
    Panel(
        "Goals",
        "Motion",
        (("train/motion_weight", "mean weight of the stored steps"),),
        "weight",
        (0.0, 1.0),
        note="1 before the achieved goal moves, a quarter after that, 0 in episodes without motion.",
    ),
    Panel("Data", "Offline rows", (("train/offline_share", "share of the batches"),), "share", (0.0, 1.0)),
    Panel(
        "Data", "Q on data and in play", (("train/q_offline", "offline rows"), ("train/q_online", "online rows")), "Q"
    ),
    Panel(
        "Data",
        "Change since going online",
        (("eval/change_since_offline", EVALUATION),),
        "raw return",
        note="Mean return minus that of the pretrained policy before its first online step.",
    ),
    Panel("Losses", "Critic loss", (("train/critic_loss", "mean over the interval"),), "loss"),
    Panel("Losses", "Actor loss", (("train/actor_loss", "mean over the interval"),), "loss"),
    Panel("Losses", "Value loss", (("train/value_loss", "mean over the interval"),), "loss"),
    Panel("Losses", "Cloning loss", (("train/bc_loss", "mean over the interval"),), "loss"),
    Panel("Values and policy", "Q on the batches", (("train/q_mean", "mean"),), "Q"),
    Panel("Values and policy", "Advantage", (("train/advantage", "mean"),), "advantage"),
    Panel("Values and policy", "CQL gap", (("train/cql_gap", "mean"),), "Q"),
    Panel("Values and policy", "Temperature", (("train/alpha", "temperature"),), "alpha"),
    Panel("Values and policy", "Entropy", (("train/entropy", "entropy"),), "nats"),
    Panel(
        "Values and policy",
        "Saturated actions",
        (("rollout/saturated_actions", EXPLORATION),),
        "share",
        (0.0, 1.0),
        note="Actions of the policy, before noise, that are at a bound.",
    ),
    Panel(
        "Values and policy",
        "Learning rate",
        tuple((f"train/{name}_lr", name) for name in ("actor", "critic", "value", "alpha", "cql_alpha")),
        "learning rate",
    ),
    Panel("Speed", "Throughput", (("time/fps", "environment steps"),), "per second"),
    Panel("Speed", "Updates", (("time/updates_per_second", "updates"),), "per second"),
)
"""The curves over the steps, in the order of the page."""

SECTIONS = ("Learning", "Goals", "Data", "Pretraining", "Losses", "Values and policy", "Speed", "Other metrics")

_IN_BANDS = {"eval/std_reward"}
"""Metrics that are shown as the interval of another one."""


def points(run: RunData, metric: str) -> tuple[list[float], list[float]]:
    """Return the steps and values of a metric.

    The evaluation of a pretrained policy before its first step is at step 0; the rest of pretraining has its own axis.
    """
    if metric == "time/fps" and run.step_name == "updates":
        return [], []  # offline every update is a step, so the chart of updates shows the same
    rows = [*run.pretraining[-1:], *run.rows] if metric.startswith("eval/") else run.rows
    found = [(row[STEP], row[metric]) for row in rows if metric in row]
    return [step for step, _ in found], [value for _, value in found]


def panels_of(runs: Sequence[RunData]) -> list[Panel]:
    """Return the panels, and one more for each metric that belongs to none, such as those of a callback."""
    known = {metric for panel in PANELS for metric, _ in panel.metrics} | _IN_BANDS | {STEP, UPDATES}
    others = dict.fromkeys(name for run in runs for row in run.rows for name in row if name not in known)
    return [*PANELS, *(other_panel(name) for name in others)]


def other_panel(metric: str) -> Panel:
    """Return the panel of a metric that no other panel has."""
    if metric.startswith("train/") and "loss" in metric:
        title = metric.removeprefix("train/").replace("_", " ").capitalize()
        return Panel("Losses", title, ((metric, "mean over the interval"),), "loss")
    return Panel("Other metrics", metric, ((metric, metric),))


def with_unique_keys(charts: Sequence[Chart]) -> list[Chart]:
    """Return the charts, with a number in the key of a chart whose key an earlier one has."""
    unique: dict[str, Chart] = {}
    for chart in charts:
        key, number = chart.key, 2
        while key in unique:
            key, number = f"{chart.key}-{number}", number + 1
        unique[key] = replace(chart, key=key)
    return list(unique.values())


def curve_charts(run: RunData) -> list[Chart]:
    """Return a chart for each panel of which the run has a metric."""
    charts = []
    for panel in panels_of([run]):
        series: list[Series] = []
        for metric, label in panel.metrics:
            steps, values = points(run, metric)
            same = [one for one in series if (one.x, one.y) == (steps, values)]
            if same and not metric.startswith("eval/"):  # the later curve would hide the earlier one
                series[series.index(same[0])] = replace(same[0], name=f"{same[0].name}, {label}")
            elif steps:
                series.append(_curve(run, metric, label, steps, values, len(series)))
        if series and not (panel.varies and len({value for one in series for value in one.y}) == 1):
            note = run.reward_note if panel.title == "Return" else panel.note
            place = run.step_name, panel.y, panel.section, panel.y_range
            charts.append(Chart(panel.key, panel.title, series, *place, note=note))
    return charts


def pretraining_charts(run: RunData) -> list[Chart]:
    """Return a chart over the updates for each metric of pretraining."""
    titles = {metric: panel for panel in panels_of([run]) for metric, _ in panel.metrics}
    charts = []
    for metric in dict.fromkeys(name for row in run.pretraining for name in row):
        if metric in (STEP, UPDATES) or metric in _IN_BANDS or metric.startswith(("time/", "rollout/")):
            continue
        found = [(row[UPDATES], row[metric]) for row in run.pretraining if metric in row]
        panel = titles.get(metric) or other_panel(metric)
        if panel.title in ("Offline rows", "Learning rate") or len(found) < 2:
            continue
        updates, values = [update for update, _ in found], [value for _, value in found]
        if panel.varies and len(set(values)) == 1:
            continue
        label = EVALUATION if metric.startswith("eval/") else dict(panel.metrics)[metric]
        title = f"{panel.title} in pretraining"
        if len([name for name, _ in panel.metrics if not name.startswith("rollout/")]) > 1:
            title = f"{panel.title}, {label}, in pretraining"
        series = line(label, updates, values, marked=metric.startswith("eval/"))
        key = f"pretraining-{metric.replace('/', '-')}"
        charts.append(Chart(key, title, [series], "updates", panel.y, "Pretraining", panel.y_range))
    return charts


def _curve(run: RunData, metric: str, label: str, steps: list[float], values: list[float], colour: int) -> Series:
    if not metric.startswith("eval/"):
        return line(label, steps, values, colour=colour)
    rows = [row for row in [*run.pretraining[-1:], *run.rows] if metric in row]
    intervals = [run.interval(metric, row) for row in rows]
    known = [interval for interval in intervals if interval is not None]
    if len(known) != len(rows):
        return line(label, steps, values, colour=colour, marked=True)
    low, high = [low for low, _ in known], [high for _, high in known]
    return Series(label, steps, values, low=low, high=high, colour=colour, marked=len(steps) <= 60)


def line(name: str, x: Sequence[float], y: Sequence[float], limit: int = _POINTS, **options: Any) -> Series:
    """Return a curve; one with many points is averaged over groups of them."""
    if len(x) > limit:
        groups = np.array_split(np.arange(len(x)), limit)
        x, y = ([float(np.mean(np.asarray(values)[group])) for group in groups] for values in (x, y))
    return Series(name, list(x), list(y), **{**options, "marked": options.get("marked", False) and len(x) <= 60})


def _is_set(value: Any) -> bool:
    return value is not None and value is not False and value != ""


def _rounded(value: Any) -> Any:
    """Return numbers with six digits, which is more than a screen shows, and null for what is not finite."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value
