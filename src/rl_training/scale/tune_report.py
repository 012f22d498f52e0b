"""The page of a search: the ranking and how sure it is, which settings mattered, and every trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from rl_training.experiment.report.charts import Chart, Series
from rl_training.experiment.report.page import document, figure, shown_value
from rl_training.experiment.report.run_data import MAIN_METRICS
from rl_training.scale.ranges import Range
from rl_training.scale.ranking import Ranked, how_sure
from rl_training.scale.trials import Trial
from rl_training.scale.tune_file import Search
from rl_training.scale.tuner import REPEATS, Found

_WIDTH, _HEIGHT, _TOP, _BOTTOM, _SIDE = 900, 320, 34, 26, 70


def search_page(search: Search, found: Found) -> str:
    """Return the page as HTML."""
    metric = search.settings.metric
    chart = history_chart(found, metric)
    best = found.ranked[0]
    low, high = best.interval
    number = (
        f'<div class="number"><span class="value">{shown_value(metric, best.mean)}</span>'
        f'<span class="label">{MAIN_METRICS[metric]}</span><span class="interval">95% bootstrap interval'
        f" {shown_value(metric, low)} to {shown_value(metric, high)} over {len(best.scores)} fresh seeds</span></div>"
    )
    settings = "".join(f"<li><code>{escape(f'{key}: {value}')}</code></li>" for key, value in best.changes.items())
    hero = (
        f'<section class="hero"><div class="card summary"><p class="eyebrow">{escape(search.config.algo)} on'
        f" {escape(str(search.config.env_id))}</p><h1>{len(found.trials)} trials</h1>"
        f'<p class="sub">{escape(search.folder.name)}</p>{number}<ul>{settings}</ul></div>'
        f"{figure(chart, main=True)}</section>"
    )
    body = (
        f'{hero}<h2 id="ranking">Ranking</h2><div class="card"><p>{escape(how_sure(found.ranked))}</p>'
        f"{_ranking(found.ranked, search.ranges, metric)}</div>"
        f'<h2 id="importance">Importance</h2><div class="card">{_importances(found.importances)}</div>'
        f'<h2 id="coordinates">Parallel coordinates</h2><div class="card">{parallel_coordinates(search, found)}</div>'
        f'<h2 id="runs">Trials</h2>{_trials(search, found, metric)}'
    )
    return document(f"tune {search.folder.name}", body, [chart], 0, None)


def history_chart(found: Found, metric: str) -> Chart:
    """Return the score of every trial in its order, and the best so far."""
    names = {float(number): trial.name for number, trial in enumerate(found.trials, start=1)}
    numbers = [number for number, name in names.items() if name in found.scores]
    values = [found.scores[names[number]] for number in numbers]
    best = [max(values[: index + 1]) for index in range(len(values))]
    y_range = (0.0, 1.0) if metric == "eval/success_rate" else None
    series = [Series("trial", numbers, values, "dots"), Series("best so far", numbers, best, colour=1)]
    return Chart("history", "Trials", series, "trial", MAIN_METRICS[metric], "Learning", y_range)


def parallel_coordinates(search: Search, found: Found) -> str:
    """Return a drawing with an axis for each setting and one for the score, and a line for each trial."""
    trials = sorted((t for t in found.trials if t.name in found.scores), key=lambda trial: found.scores[trial.name])
    values = [found.scores[trial.name] for trial in trials]
    low, high = min(values), max(values)
    step = (_WIDTH - 2 * _SIDE) / len(search.ranges)
    lines = []
    for trial, value in zip(trials, values, strict=True):
        share = (value - low) / (high - low) if high > low else 1.0
        places = [*(_place(one, trial.changes[one.key]) for one in search.ranges), share]
        points = " ".join(f"{_SIDE + step * i:.1f},{_y(place):.1f}" for i, place in enumerate(places))
        colour = f"color-mix(in srgb, var(--c1) {round(100 * share)}%, var(--muted))"
        style = f"fill:none;stroke:{colour};stroke-width:{1 + 1.2 * share:.1f};opacity:{0.35 + 0.6 * share:.2f}"
        lines.append(f'<polyline points="{points}" style="{style}"><title>{escape(trial.name)}</title></polyline>')
    axes = [*((one.key.rpartition(".")[2], *_ends(one)) for one in search.ranges)]
    axes.append((MAIN_METRICS[search.settings.metric], f"{low:.3g}", f"{high:.3g}"))
    for index, (name, bottom, top) in enumerate(axes):
        x = _SIDE + step * index
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_y(0):.1f}" y2="{_y(1):.1f}" style="stroke:var(--muted)"/>')
        for text, y in ((name, 12), (top, _TOP - 8), (bottom, _HEIGHT - 8)):
            lines.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>')
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" style="min-width:600px;width:100%;'
        f'fill:var(--ink);font-size:12px">{"".join(lines)}</svg></div>'
        '<p class="note">Each line is a trial; the better its score, the stronger it is drawn.</p>'
    )


def _y(place: float) -> float:
    return _HEIGHT - _BOTTOM - place * (_HEIGHT - _TOP - _BOTTOM)


def _place(one: Range, value: Any) -> float:
    """Return where a value lies in its range, from 0 to 1."""
    if one.kind == "choice":
        return one.values.index(value) / max(1, len(one.values) - 1)
    low, high = one.values
    if one.kind == "loguniform":
        low, high, value = math.log(low), math.log(high), math.log(value)
    return float((value - low) / (high - low))


def _ends(one: Range) -> tuple[str, str]:
    ends = one.values[0], one.values[-1]
    texts = [f"{end:g}" if isinstance(end, float) else str(end) for end in ends]
    return texts[0], texts[1]


def _importances(found: dict[str, float]) -> str:
    if not found:
        return "<p>Too few trials differ to tell which settings matter.</p>"
    rows = "".join(
        f"<tr><td><code>{escape(key)}</code></td><td class=n>{share:.2f}</td><td style='width:60%'>"
        f"<div style='width:{100 * share:.1f}%;height:12px;border-radius:3px;background:var(--c0)'></div></td></tr>"
        for key, share in sorted(found.items(), key=lambda item: -item[1])
    )
    note = "Shares of PED-ANOVA, from all trials of the search."
    return f'<table><tbody>{rows}</tbody></table><p class="note">{note}</p>'


def _ranking(ranked: Sequence[Ranked], ranges: Sequence[Range], metric: str) -> str:
    rows = []
    for place, one in enumerate(ranked, start=1):
        interval = " to ".join(shown_value(metric, end) for end in one.interval)
        cells = [str(place), shown_value(metric, one.mean), interval]
        cells += [", ".join(shown_value(metric, score) for score in one.scores)]
        cells += [str(one.changes[part.key]) for part in ranges]
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    heads = ["place", "mean", "95% interval", "seeds", *(part.key.rpartition(".")[2] for part in ranges)]
    return _table(heads, rows, sortable=False)


def _trials(search: Search, found: Found, metric: str) -> str:
    repeated = [(trial, found.repeat_states[trial.name], f"{REPEATS}/") for trial in found.repeats.trials]
    rows = []
    for trial, state, folder in [*((t, found.states[t.name], "") for t in found.trials), *repeated]:
        value = state.metrics.get(metric, found.scores.get(trial.name)) if not folder else state.metrics.get(metric)
        cells = [_linked(trial, folder), str(trial.config.seed), state.status, f"{state.step:,}"]
        cells += ["" if value is None else shown_value(metric, value)]
        cells += [escape(str(trial.changes[part.key])) for part in search.ranges]
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    heads = ["run", "seed", "state", "steps", MAIN_METRICS[metric]]
    return f'<div class="card">{_table([*heads, *(part.key.rpartition(".")[2] for part in search.ranges)], rows)}</div>'


def _linked(trial: Trial, folder: str) -> str:
    name = escape(trial.name)
    if not (trial.run_dir / "report.html").is_file():
        return name
    return f'<a href="{escape(f"{folder}{trial.name}/report.html")}">{name}</a>'


def _table(heads: Sequence[str], rows: Sequence[str], *, sortable: bool = True) -> str:
    head = "".join(
        f'<th><button type="button">{escape(name)}</button></th>' if sortable else f"<th>{escape(name)}</th>"
        for name in heads
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    kind = ' class="sortable"' if sortable else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
