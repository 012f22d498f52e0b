"""A page of plots from the metrics of one run, or of several side by side."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from rl_training.config import load_config
from rl_training.errors import ConfigError
from rl_training.runtime.checkpoint_files import write_durably
from rl_training.runtime.logging import STEP, read_metrics

_STYLE = """
body {font: 15px system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em}
table {border-collapse: collapse}
td {padding: .2em .8em; border-bottom: 1px solid #ddd}
"""

_COLOURS = ("#1f6feb", "#d1242f", "#2da44e", "#8250df", "#bf8700", "#0a7ea4", "#bc4c00", "#57606a")

_PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Return", (("eval/mean_reward", "evaluation"), ("rollout/ep_rew_mean", "while exploring"))),
    ("Success rate", (("eval/success_rate", "evaluation"), ("rollout/success_rate", "while exploring"))),
    ("Losses", (("train/critic_loss", "critic"), ("train/actor_loss", "actor"))),
    ("Mean Q", (("train/q_mean", "Q on the batch"),)),
)
_OFFLINE_PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Share of offline data", (("train/offline_share", "share of the batches"),)),
    ("Q on offline and online data", (("train/q_offline", "offline"), ("train/q_online", "online"))),
)


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Write an HTML page, complete in itself, with return, success, losses and Q over the steps of each run."""
    from plotly.io import to_html
    from plotly.subplots import make_subplots

    metrics = {run: read_metrics(run / "metrics.csv") for run in runs}
    for run, rows in metrics.items():
        if not rows:
            raise ConfigError(f"{run}: not a run with metrics (there is no metrics.csv, or it is empty)")
    has_offline = any("train/offline_share" in row for rows in metrics.values() for row in rows)
    panels = _PANELS + _OFFLINE_PANELS if has_offline else _PANELS
    lines = (len(panels) + 1) // 2
    titles = [title for title, _ in panels]
    figure = make_subplots(rows=lines, cols=2, subplot_titles=titles, vertical_spacing=0.24 / lines)
    in_legend: set[str] = set()
    for index, (run, rows) in enumerate(metrics.items()):
        for panel, (_, series) in enumerate(panels):
            for order, (metric, label) in enumerate(series):
                points = [(row[STEP], row[metric]) for row in rows if metric in row]
                if not points:
                    continue
                steps, values = zip(*points, strict=True)
                name = f"{run.name}: {label}" if len(runs) > 1 else label
                colour = _COLOURS[(index if len(runs) > 1 else order) % len(_COLOURS)]
                figure.add_scatter(
                    x=steps,
                    y=values,
                    name=name,
                    line={"color": colour, "dash": "solid" if order == 0 else "dot"},
                    mode="lines+markers" if metric.startswith("eval/") else "lines",
                    legendgroup=name,
                    showlegend=name not in in_legend,
                    row=panel // 2 + 1,
                    col=panel % 2 + 1,
                )
                in_legend.add(name)
    figure.update_xaxes(title_text="steps", rangemode="tozero")
    success = titles.index("Success rate")
    figure.update_yaxes(range=[-0.03, 1.03], row=success // 2 + 1, col=success % 2 + 1)
    figure.update_layout(template="plotly_white", height=410 * lines, margin={"t": 60, "b": 50})
    plots = to_html(figure, full_html=False, include_plotlyjs=True)
    title = html.escape(runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    sections = "".join(_summary(run) for run in runs)
    page = f"<!doctype html><html><head><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style></head>"
    if output.is_symlink():
        raise ConfigError(f"{output}: a symbolic link; expected the report's own path")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_durably(output, f"{page}<body><h1>{title}</h1>{plots}{sections}</body></html>")
    except OSError as error:
        raise ConfigError(f"{output}: the report cannot be written: {error}") from None
    return output


def _summary(run: Path) -> str:
    """Return a table of how a run stands and the configuration behind it."""
    last: dict[str, float] = {}
    rows = read_metrics(run / "metrics.csv")
    for row in rows:
        last.update(row)
    cells = "".join(f"<tr><td>{html.escape(name)}</td><td>{value:.6g}</td></tr>" for name, value in last.items())
    config = html.escape(load_config(run / "config.yaml").to_yaml())
    return (
        f"<h2>{html.escape(run.name)}</h2><p>{html.escape(_outcome(run))}</p><p>{html.escape(change_since_offline(rows))}</p>"
        f"<table>{cells}</table>"
        f"<details><summary>Configuration</summary><pre>{config}</pre></details>"
    )


def change_since_offline(rows: Sequence[dict[str, float]]) -> str:
    """Return what happened to a trained policy's return when it went online, or nothing where none did."""
    changes = [(int(row[STEP]), row["eval/change_since_offline"]) for row in rows if "eval/change_since_offline" in row]
    if not changes:
        return ""
    now = f"now {changes[-1][1]:+.4g}"
    lowest_at, lowest = min(changes, key=lambda change: change[1])
    if lowest >= 0:
        return f"Going online cost nothing: the return never fell below what was handed over ({now})."
    recovered = next((step for step, change in changes if step > lowest_at and change >= 0), None)
    end = f"made up for by step {recovered:,}" if recovered is not None else "not made up for"
    return f"Going online cost {-lowest:.4g} of return at worst, at step {lowest_at:,}, {end} ({now})."


def _outcome(run: Path) -> str:
    """Return how a run ended, or that it has not."""
    try:
        result = json.loads((run / "result.json").read_text())
        return f"{result['status']}: {result['stop_reason']} after {result['global_step']:,} steps"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "not finished, or ended without a result.json"
