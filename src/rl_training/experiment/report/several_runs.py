"""The page of several runs: their scores, a table of them, and their curves together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rl_training.experiment.report.compare import Group, Score, compare_charts, group_runs, main_metric, scores
from rl_training.experiment.report.one_run import details
from rl_training.experiment.report.page import (
    big_number,
    cell,
    document,
    duration,
    escape,
    fact_card,
    figure,
    main_chart,
    sections,
    shown_range,
    shown_value,
)
from rl_training.experiment.report.run_data import MAIN_METRICS, RunData, differing_keys, setting
from rl_training.runtime.logging import STEP

_SETTING_COLUMNS = 5
"""Settings that the table of several runs shows."""


def runs_page(
    runs: Sequence[RunData],
    *,
    refresh: int = 0,
    link: Callable[[RunData], str] | None = None,
    problems: Sequence[str] = (),
) -> str:
    """Return the page of several runs; ``link`` returns the address of a run's own page, or nothing."""
    groups = group_runs(runs)
    charts = compare_charts(groups)
    metric = main_metric(runs)
    main = main_chart(charts, metric)
    others = [chart for chart in charts if chart is not main]
    tasks = list(dict.fromkeys(f"{run.algorithm} on {run.task}" for run in runs))
    title = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    hero = (
        f'<section class="hero"><div class="card summary"><p class="eyebrow">{escape(", ".join(tasks[:3]))}'
        f"{f' and {len(tasks) - 3} more' if len(tasks) > 3 else ''}</p><h1>{title}</h1>"
        f'<p class="sub">{_states(runs)}</p>{_scores(scores(groups, metric), metric) if metric else ""}</div>'
        f"{figure(main, main=True) if main is not None else ''}{_common_facts(runs, groups, metric)}</section>"
    )
    listed = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    listed = f'<ul class="warnings">{listed}</ul>' if listed else ""
    body = hero + _table(runs, groups, link) + listed + sections(others, {})
    body += '<h2 id="details">Runs in detail</h2>' + "".join(
        f'<details class="card"><summary>{escape(run.name)}: {escape(run.outcome)}</summary>'
        f"{details(run, heading=False)}</details>"
        for run in runs
    )
    return document(title, body, charts, refresh, None)


def _common_facts(runs: Sequence[RunData], groups: Sequence[Group], metric: str | None) -> str:
    facts = {"Configurations": str(len(groups)), "Seeds": str(len({run.config.seed for run in runs}))}
    facts["Training time, all runs"] = duration(sum(run.seconds for run in runs))
    scored = [(value, run) for run in runs if metric and (value := run.last(metric)) is not None]
    if metric and scored and len({run.task for run in runs}) == 1:
        value, best = max(scored, key=lambda pair: pair[0])
        facts["Best run"] = f"{best.name} ({shown_value(metric, value)})"
    return fact_card(facts)


def _states(runs: Sequence[RunData]) -> str:
    counts = dict.fromkeys(run.status for run in runs)
    return ", ".join(f"{sum(run.status == state for run in runs)} {state}" for state in counts)


def _scores(found: Sequence[Score], metric: str) -> str:
    """Return the last value of each group: the interquartile mean over its seeds and the bootstrap interval."""
    if len(found) == 1:
        (score,) = found
        context = f"interquartile mean of {score.count} runs"
        if score.interval is not None:
            context = f"95% bootstrap interval {shown_range(metric, score.interval)} · {context}"
        return big_number(metric, score.mean, context)
    rows = "".join(_score_row(score, metric) for score in found)
    heads = (("configuration", ""), ("runs", "n"), ("mean", "n"), ("95% interval", "n"))
    head = "".join(f'<th class="{kind}"><button type="button">{name}</button></th>' for name, kind in heads)
    return (
        f'<p class="lead">Last {MAIN_METRICS[metric]}: interquartile mean over the runs</p>'
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _score_row(score: Score, metric: str) -> str:
    interval = score.interval
    cells = [
        f'<td class="name"><span class="swatch" style="background:var(--c{score.group.colour % 8})"></span>'
        f"{escape(score.group.label)}</td>",
        cell(score.count),
        cell(score.mean, shown_value(metric, score.mean)),
        cell(interval[0], shown_range(metric, interval)) if interval else cell(None, "one run"),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _table(runs: Sequence[RunData], groups: Sequence[Group], link: Callable[[RunData], str] | None) -> str:
    """Return the table of all runs, which a click on a heading sorts."""
    keys = [key for key in differing_keys(runs) if key not in ("algo", "env_id")][:_SETTING_COLUMNS]
    columns = [name for name in MAIN_METRICS if any(run.last(name) is not None for run in runs)]
    columns = [name for name in columns if name.startswith("eval/")] or columns
    colours = {id(run): group.colour for group in groups for run in group.runs}
    texts = {"algorithm": [run.algorithm for run in runs], "task": [run.task for run in runs]}
    texts = {name: values for name, values in texts.items() if len(set(values)) > 1}  # else the title has them
    heads = [("run", ""), *((name, "") for name in texts), ("seed", "n"), ("state", ""), ("steps", "n")]
    heads += [*((MAIN_METRICS[name], "n") for name in columns), ("time", "n")]
    heads += [(key.rpartition(".")[2], "") for key in keys]  # last: a narrow screen cuts these off
    rows = []
    for index, run in enumerate(runs):
        name, address = escape(run.name), link(run) if link is not None else ""
        name = f'<a href="{escape(address)}">{name}</a>' if address else name
        swatch = f'<span class="swatch" style="background:var(--c{colours[id(run)] % 8})"></span>'
        steps = max([int(row[STEP]) for row in run.rows], default=0)
        cells = [f'<td class="name">{swatch}{name}</td>', *(cell(values[index]) for values in texts.values())]
        cells += [cell(run.config.seed), cell(run.status), cell(steps, f"{steps:,}")]
        for column in columns:
            value = run.last(column)
            cells.append(cell(value, "" if value is None else shown_value(column, value)))
        cells.append(cell(round(run.seconds, 1), duration(run.seconds)))
        cells += [cell(setting(run.config, key)) for key in keys]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th class="{kind}"><button type="button">{escape(name)}</button></th>' for name, kind in heads)
    return (
        f'<h2 id="runs">Runs</h2><div class="card scroll"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
