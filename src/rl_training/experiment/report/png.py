"""The charts of a report as PNG files, for papers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.report.charts import Chart, Series
from rl_training.experiment.report.compare import compare_charts, group_runs
from rl_training.experiment.report.run_charts import run_charts
from rl_training.experiment.report.run_data import RunData
from rl_training.runtime.checkpoint_files import open_without_following, temporary_path

_COLOURS = ("#2563eb", "#e07b00", "#0d9488", "#9333ea", "#dc2626", "#65a30d", "#0891b2", "#64748b")
_GOOD, _MID, _BAD, _MUTED = "#15803d", "#ecd06f", "#c2410c", "#6b7480"


def write_pngs(runs: Sequence[RunData], folder: Path) -> list[Path]:
    """Write every chart of a report into a folder, at 300 dots per inch, and return the files."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("report --png", "plots") from None
    charts = run_charts(runs[0]) if len(runs) == 1 else compare_charts(group_runs(runs))
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            figure = Figure(figsize=(4.2, 4.2) if chart.equal else (4.8, 3.0), dpi=300, layout="constrained")
            _draw(figure.subplots(), chart)
            file = folder / f"{chart.key}.png"
            temporary = temporary_path(file)
            temporary.unlink(missing_ok=True)
            with open(temporary, "wb", opener=open_without_following) as stream:
                figure.savefig(stream, format="png")
            os.replace(temporary, file)
            files.append(file)
    except OSError as error:
        raise ConfigError(f"{folder}: the curves cannot be written: {error}") from None
    return files


def _draw(axes: Any, chart: Chart) -> None:
    for index, series in enumerate(chart.series):
        _DRAW[series.kind](axes, series, index, len(chart.series))
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    axes.set_title(chart.title, fontsize=10)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.y_range is not None:
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, chart.y_range[0] - 0.02), max(high, chart.y_range[1] + 0.02))
    if chart.equal:
        axes.set_aspect("equal")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)


def _draw_line(axes: Any, series: Series, index: int, count: int) -> None:
    colour = _COLOURS[series.colour % len(_COLOURS)]
    if series.low is not None and series.high is not None:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0)
    style = {"linewidth": 0.6, "alpha": 0.4} if series.faint else {"linewidth": 1.5, "label": series.name}
    axes.plot(series.x, series.y, color=colour, marker="o" if series.marked else None, markersize=3, **style)


def _draw_dots(axes: Any, series: Series, index: int, count: int) -> None:
    if series.value is None:
        axes.plot(series.x, series.y, ".", color=_COLOURS[series.colour], alpha=0.3, markersize=2, label=series.name)
    else:
        axes.scatter(series.x, series.y, c=[_outcome(value) for value in series.value], s=16, zorder=3)


def _draw_bars(axes: Any, series: Series, index: int, count: int) -> None:
    widths = [(after - before) / count for before, after in zip(series.x[:-1], series.x[1:], strict=True)]
    left = [before + index * width for before, width in zip(series.x[:-1], widths, strict=True)]
    axes.bar(left, series.y, widths, align="edge", color=_COLOURS[series.colour], label=series.name)


def _draw_cells(axes: Any, series: Series, index: int, count: int) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    colours = LinearSegmentedColormap.from_list("success", [_BAD, _MID, _GOOD])
    width, height = series.size or (1.0, 1.0)
    for x, y, value in zip(series.x, series.y, series.value or [], strict=True):
        corner = x - width / 2, y - height / 2
        axes.add_patch(Rectangle(corner, width, height, color=colours(value), alpha=0.75))
    axes.autoscale_view()


def _draw_path(axes: Any, series: Series, index: int, count: int) -> None:
    colour = _outcome((series.value or [0.0])[0])
    axes.plot(series.x, series.y, color=colour, linewidth=1.2)
    axes.plot(series.x[:1], series.y[:1], "o", color=_MUTED, markersize=4, label=None if index else "start")
    if series.goal is not None:
        goal = ([series.goal[0]], [series.goal[1]])
        axes.plot(*goal, "o", color="black", fillstyle="none", markersize=8, label=None if index else "goal")
    axes.plot(series.x[-1:], series.y[-1:], "o", color=colour, markersize=4, label=None if index else "end")


def _outcome(value: float) -> str:
    return _GOOD if value >= 0.5 else _BAD


_DRAW = {"line": _draw_line, "dots": _draw_dots, "bars": _draw_bars, "cells": _draw_cells, "path": _draw_path}
