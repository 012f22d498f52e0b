"""The page of one run: its result, its charts, a video, its configuration and commands."""

from __future__ import annotations

import base64
import json
from typing import Any

from rl_training.experiment.report.change import change_since_offline
from rl_training.experiment.report.page import (
    big_number,
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
from rl_training.experiment.report.run_charts import run_charts
from rl_training.experiment.report.run_data import RunData, compared_with
from rl_training.runtime.logging import STEP

_VIDEO_BYTES = 1_500_000
_VIDEO_KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}


def run_page(run: RunData, *, refresh: int = 0, home: str | None = None) -> str:
    """Return the page of one run; ``refresh`` is the number of seconds after which it loads itself again."""
    charts = run_charts(run)
    metric = run.main_metric
    main = main_chart(charts, metric)
    others = [chart for chart in charts if chart is not main]
    hero = (
        f'<section class="hero"><div class="card summary"><p class="eyebrow">{escape(run.algorithm)}</p>'
        f'<h1>{escape(run.task)}</h1><p class="sub">{escape(run.name)}</p>'
        f'<p class="status {run.status}">{escape(run.outcome)}</p>{_number(run, metric)}</div>'
        f"{figure(main, main=True) if main is not None else ''}{_facts(run)}</section>"
    )
    body = hero + sections(others, {"Data": _change(run)}) + _video(run) + details(run)
    return document(run.name, body, charts, refresh, home)


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
        context = f"95% interval {shown_range(metric, interval)} · {context}"
    return big_number(metric, row[metric], context)


def _facts(run: RunData) -> str:
    facts: dict[str, str] = {}
    for metric, label in (("eval/mean_reward", "Mean return"), ("eval/normalized_score", "Normalised score")):
        value = run.last(metric)
        if value is not None and metric != run.main_metric:
            interval = run.interval(metric, run.last_row(metric))
            facts[label] = shown_value(metric, value) + (f" ({shown_range(metric, interval)})" if interval else "")
    if run.result is not None:
        for metric, label in (("best/success_rate", "Best success rate"), ("best/mean_reward", "Best mean return")):
            if metric in run.result.metrics:
                facts[label] = shown_value(metric, run.result.metrics[metric])
    facts["Training time"] = duration(run.seconds)
    facts["Seed"] = str(run.config.seed)
    facts["Device"] = run.machine.get("device", run.config.device)
    return fact_card(facts)


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


def details(run: RunData, *, heading: bool = True) -> str:
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
