"""The HTML of a report: complete in itself, with its style, its script and its data inside."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.report.change import change_since_offline
from rl_training.experiment.report.charts import SECTIONS, Chart
from rl_training.experiment.report.compare import Group, Score, compare_charts, group_runs, main_metric, scores
from rl_training.experiment.report.run_charts import run_charts
from rl_training.experiment.report.run_data import MAIN_METRICS, RunData, compared_with, differing_keys, setting
from rl_training.runtime.logging import STEP
from rl_training.runtime.machine import package_version

_VIDEO_BYTES = 1_500_000
_VIDEO_KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}
_SETTING_COLUMNS = 5
"""Settings that the table of several runs shows."""

escape = html.escape


def run_page(run: RunData, *, refresh: int = 0, home: str | None = None) -> str:
    """Return the page of one run; ``refresh`` is the number of seconds after which it loads itself again."""
    charts = run_charts(run)
    metric = run.main_metric
    main = _main_chart(charts, metric)
    others = [chart for chart in charts if chart is not main]
    hero = (
        f'<section class="hero"><div class="card summary"><p class="eyebrow">{escape(run.algorithm)}</p>'
        f'<h1>{escape(run.task)}</h1><p class="sub">{escape(run.name)}</p>'
        f'<p class="status {run.status}">{escape(run.outcome)}</p>{_number(run, metric)}</div>'
        f"{figure(main, main=True) if main is not None else ''}{_facts(run)}</section>"
    )
    body = hero + _sections(others, {"Data": _change(run)}) + _video(run) + _details(run)
    return document(run.name, body, charts, refresh, home)


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
    main = _main_chart(charts, metric)
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
    body = hero + _table(runs, groups, link) + listed + _sections(others, {})
    body += '<h2 id="details">Runs in detail</h2>' + "".join(
        f'<details class="card"><summary>{escape(run.name)}: {escape(run.outcome)}</summary>'
        f"{_details(run, heading=False)}</details>"
        for run in runs
    )
    return document(title, body, charts, refresh, None)


def message_page(title: str, text: str, *, refresh: int = 0) -> str:
    """Return a page with a heading and a sentence."""
    body = f'<section class="card"><h1>{escape(title)}</h1><p>{escape(text)}</p></section>'
    return document(title, body, [], refresh, None)


def document(title: str, body: str, charts: Sequence[Chart], refresh: int, home: str | None) -> str:
    """Put a page together. Its policy forbids every request, except to the server that refreshes it."""
    folder = Path(__file__).parent
    style, script = ((folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    data = json.dumps({chart.key: chart.to_json() for chart in charts}, separators=(",", ":"), allow_nan=False)
    data = data.replace("<", "\\u003c")  # a name such as </script> must not end the script
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:"
    policy += "; connect-src 'self'" if refresh else ""
    present = [section for section in SECTIONS if f'id="{_anchor(section)}"' in body]
    links = "".join(f'<a href="#{_anchor(section)}">{escape(section)}</a>' for section in present)
    links += '<a href="#details">Details</a>' if 'id="details"' in body else ""
    back = f'<a href="{escape(home)}">All runs</a>' if home is not None else ""
    return (
        f'<!doctype html><html lang="en" data-refresh="{refresh}"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{style}</style></head><body>'
        f'<header class="bar"><strong>rl_training</strong>{back}<nav>{links}</nav>'
        '<span class="end"><button id="theme" type="button" aria-label="Switch between light and dark">◐</button>'
        "</span>"
        f'</header><main id="page">{body}<footer>Made by rl_training {escape(package_version())}. Returns are raw on'
        " every curve. Training metrics are means over the interval since the row before.</footer></main>"
        "<noscript><p>The charts of this page need JavaScript.</p></noscript>"
        f'<script id="charts" type="application/json">{data}</script><script>{script}</script></body></html>'
    )


def _main_chart(charts: Sequence[Chart], metric: str | None) -> Chart | None:
    """Return the chart that shows a metric, or the first curve."""
    titles = {"success": "Success rate", "normalized": "Normalised score"}
    wanted = titles.get((metric or "").partition("/")[2].partition("_")[0], "Return") if metric else None
    return next((chart for chart in charts if chart.title.partition(",")[0] == wanted), charts[0] if charts else None)


def figure(chart: Chart, *, main: bool = False) -> str:
    """Return the place of a chart, which the script of the page draws."""
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure class="chart card{" main" if main else ""}" data-chart="{escape(chart.key)}">'
        f'<figcaption><h3>{escape(chart.title)}</h3><div class="legend"></div></figcaption>'
        f'<div class="plot"></div>{note}</figure>'
    )


def _sections(charts: Sequence[Chart], leads: dict[str, str]) -> str:
    """Return the charts under the headings of their sections; ``leads`` has a text for some of them."""
    parts = []
    for section in SECTIONS:
        figures = "".join(figure(chart) for chart in charts if chart.section == section)
        lead = leads.get(section, "")
        if figures or lead:
            parts.append(f'<h2 id="{_anchor(section)}">{escape(section)}</h2>{lead}<div class="grid">{figures}</div>')
    return "".join(parts)


def _anchor(section: str) -> str:
    return section.lower().replace(" ", "-")


def _number(run: RunData, metric: str | None) -> str:
    """Return the number that matters, with its 95% interval."""
    if metric is None:
        return '<div class="number"><span class="label">nothing was evaluated</span></div>'
    row = run.last_row(metric)
    interval = run.interval(metric, row)
    where = f"step {row[STEP]:,.0f}" if run.rows and row[STEP] > 0 else "before the first online step"
    if metric.startswith("eval/"):
        count = run.config.eval_episodes
        context = f"last evaluation, {count} episode{'s' if count > 1 else ''}, {where}"
    else:
        context = f"the last 100 episodes, {where}"
    if interval is not None:
        context = f"95% interval {_range(metric, interval)} · {context}"
    return _big_number(metric, row[metric], context)


def _big_number(metric: str, value: float, context: str) -> str:
    return (
        f'<div class="number"><span class="value">{shown_value(metric, value)}</span>'
        f'<span class="label">{MAIN_METRICS[metric]}</span><span class="interval">{context}</span></div>'
    )


def _facts(run: RunData) -> str:
    facts: dict[str, str] = {}
    for metric, label in (("eval/mean_reward", "Mean return"), ("eval/normalized_score", "Normalised score")):
        value = run.last(metric)
        if value is not None and metric != run.main_metric:
            interval = run.interval(metric, run.last_row(metric))
            facts[label] = shown_value(metric, value) + (f" ({_range(metric, interval)})" if interval else "")
    if run.result is not None:
        for metric, label in (("best/success_rate", "Best success rate"), ("best/mean_reward", "Best mean return")):
            if metric in run.result.metrics:
                facts[label] = shown_value(metric, run.result.metrics[metric])
    facts["Training time"] = duration(run.seconds)
    facts["Seed"] = str(run.config.seed)
    facts["Device"] = run.machine.get("device", run.config.device)
    return _fact_card(facts)


def _common_facts(runs: Sequence[RunData], groups: Sequence[Group], metric: str | None) -> str:
    facts = {"Configurations": str(len(groups)), "Seeds": str(len({run.config.seed for run in runs}))}
    facts["Training time, all runs"] = duration(sum(run.seconds for run in runs))
    scored = [(value, run) for run in runs if metric and (value := run.last(metric)) is not None]
    if metric and scored and len({run.task for run in runs}) == 1:
        value, best = max(scored, key=lambda pair: pair[0])
        facts["Best run"] = f"{best.name} ({shown_value(metric, value)})"
    return _fact_card(facts)


def _fact_card(facts: dict[str, str]) -> str:
    entries = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="card facts">{entries}</dl>'


def _change(run: RunData) -> str:
    text = change_since_offline([*run.pretraining, *run.rows])
    return f'<p class="sub">{escape(text)}</p>' if text else ""


def _video(run: RunData) -> str:
    """Return one recording of the run, the best one if the names say which, if it is small enough to be embedded."""
    try:
        files = [f for f in sorted((run.path / "videos").iterdir()) if f.suffix in _VIDEO_KINDS and not f.is_symlink()]
        files = [file for file in files if 0 < file.stat().st_size <= _VIDEO_BYTES]
        file = min(files, key=lambda file: "best" not in file.name)
        content = base64.b64encode(file.read_bytes()).decode()
    except (OSError, ValueError):
        return ""
    source = f'src="data:{_VIDEO_KINDS[file.suffix]};base64,{content}"'
    kinds = ("best", "worst", "random")
    name = f"{file.stem.capitalize()} episode of an evaluation" if file.stem in kinds else escape(file.stem)
    shown = (
        f'<img alt="{name}" {source}>'
        if file.suffix == ".gif"
        else f"<video controls loop muted playsinline {source}></video>"
    )
    return f'<h2 id="video">Video</h2><div class="grid"><div class="card video"><h3>{name}</h3>{shown}</div></div>'


def _details(run: RunData, *, heading: bool = True) -> str:
    """Return configuration, versions, warnings and commands of a run."""
    left = _card("Configuration", _configuration(run)) + (_card("Warnings", _warnings(run)) if run.warnings else "")
    machine = _two_columns({**run.machine, "num_threads": run.config.num_threads, "seed": run.config.seed})
    right = _card("Commands", _commands(run)) + _card("Versions and hardware", machine)
    title = '<h2 id="details">Details</h2>' if heading else ""
    return f'{title}<div class="grid"><div class="stack">{left}</div><div class="stack">{right}</div></div>'


def _card(title: str, content: str) -> str:
    return f'<div class="card"><h3>{title}</h3>{content}</div>'


def _configuration(run: RunData) -> str:
    preset, changes = compared_with(run.config)
    if preset is None:
        lead = '<p class="note">No preset has this algorithm and environment, so there is nothing to compare with.</p>'
    elif not changes:
        lead = f'<p class="note">As in the preset <code>{escape(preset)}</code>, with seed {run.config.seed}.</p>'
    else:
        rows = "".join(
            f"<tr><td><code>{escape(key)}</code></td><td>{_value(then)}</td><td>{_value(now)}</td></tr>"
            for key, then, now in changes
        )
        lead = (
            f'<p class="note">What differs from the preset <code>{escape(preset)}</code>, besides the seed'
            f' {run.config.seed}:</p><div class="scroll"><table><thead><tr><th>setting</th><th>preset</th>'
            f"<th>this run</th></tr></thead><tbody>{rows}</tbody></table></div>"
        )
    last = {name: f"{value:.6g}" for name in _metric_names(run) if (value := run.last(name)) is not None}
    return (
        f"{lead}<details><summary>Complete configuration</summary><pre>{escape(run.config.to_yaml())}</pre></details>"
        f"<details><summary>Last value of every metric</summary>{_two_columns(last)}</details>"
    )


def _metric_names(run: RunData) -> list[str]:
    return list(dict.fromkeys(name for row in [*run.pretraining, *run.rows] for name in row))


def _two_columns(values: dict[str, Any]) -> str:
    rows = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in values.items())
    return f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'


def _value(value: Any) -> str:
    return f"<code>{escape(json.dumps(value))}</code>" if value is not None else '<span class="sub">unset</span>'


def _warnings(run: RunData) -> str:
    entries = "".join(
        f"<li>{escape(message)}{f' (step {step:,})' if step else ''}</li>"
        for step, message in dict.fromkeys(run.warnings)
    )
    return f'<ul class="warnings">{entries}</ul>'


def _commands(run: RunData) -> str:
    path = run.command_path
    commands = {
        "Resume": f"rl-training resume {path}",
        "Evaluate": f"rl-training evaluate {path} --episodes 100",
        "Export": f"rl-training export {path} -o policy",
        "Repeat": f"rl-training train {path}/config.yaml --seed {run.config.seed + 1}",
    }
    if run.config.env_id is None:
        del commands["Evaluate"]
    return "".join(
        f'<div class="command"><span>{name}</span><code>{escape(command)}</code>'
        '<button type="button">Copy</button></div>'
        for name, command in commands.items()
    )


def _states(runs: Sequence[RunData]) -> str:
    counts = dict.fromkeys(run.status for run in runs)
    return ", ".join(f"{sum(run.status == state for run in runs)} {state}" for state in counts)


def _scores(found: Sequence[Score], metric: str) -> str:
    """Return the last value of each group: the interquartile mean over its seeds and the bootstrap interval."""
    if len(found) == 1:
        (score,) = found
        context = f"interquartile mean of {score.count} runs"
        if score.interval is not None:
            context = f"95% bootstrap interval {_range(metric, score.interval)} · {context}"
        return _big_number(metric, score.mean, context)
    rows = "".join(
        f'<tr><td class="name"><span class="swatch" style="background:var(--c{score.group.colour % 8})"></span>'
        f"{escape(score.group.label)}</td>{_cell(score.count)}{_cell(score.mean, shown_value(metric, score.mean))}"
        f"{_cell(score.interval[0], _range(metric, score.interval)) if score.interval else _cell(None, 'one run')}</tr>"
        for score in found
    )
    heads = (("configuration", ""), ("runs", "n"), ("mean", "n"), ("95% interval", "n"))
    head = "".join(f'<th class="{kind}"><button type="button">{name}</button></th>' for name, kind in heads)
    return (
        f'<p class="lead">Last {MAIN_METRICS[metric]}: interquartile mean over the runs</p>'
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def shown_value(metric: str, value: float) -> str:
    """Return a value as the page shows it: rates with two digits, all else with four."""
    return f"{value:.2f}" if metric.endswith("rate") else f"{value:#.4g}".removesuffix(".") if value else "0"


def _range(metric: str, interval: tuple[float, float]) -> str:
    return f"{shown_value(metric, interval[0])} to {shown_value(metric, interval[1])}"


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
        cells = [f'<td class="name">{swatch}{name}</td>', *(_cell(values[index]) for values in texts.values())]
        cells += [_cell(run.config.seed), _cell(run.status), _cell(steps, f"{steps:,}")]
        for column in columns:
            value = run.last(column)
            cells.append(_cell(value, "" if value is None else shown_value(column, value)))
        cells.append(_cell(round(run.seconds, 1), duration(run.seconds)))
        cells += [_cell(setting(run.config, key)) for key in keys]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f'<th class="{kind}"><button type="button">{escape(name)}</button></th>' for name, kind in heads)
    return (
        f'<h2 id="runs">Runs</h2><div class="card scroll"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(value: Any, text: str | None = None) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    shown = text if text is not None else "" if value is None else str(value)
    data = f' data-value="{value}"' if number else ""
    return f"<td{' class=n' if number or text is not None else ''}{data}>{escape(shown)}</td>"


def duration(seconds: float) -> str:
    """Return a time in words, such as ``3 min 20 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
