"""The HTML that all pages of a report share: the document, the places of charts, numbers and cards.

A page is complete in itself, with its style, its script and its data inside.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.report.charts import SECTIONS, Chart
from rl_training.experiment.report.run_data import MAIN_METRICS
from rl_training.runtime.machine import package_version

escape = html.escape


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


def main_chart(charts: Sequence[Chart], metric: str | None) -> Chart | None:
    """Return the chart that shows a metric, or the first curve."""
    titles = {"success": "Success rate", "normalized": "Normalised score"}
    wanted = titles.get(metric.partition("/")[2].partition("_")[0], "Return") if metric else None
    return next((chart for chart in charts if chart.title.partition(",")[0] == wanted), charts[0] if charts else None)


def figure(chart: Chart, *, main: bool = False) -> str:
    """Return the place of a chart, which the script of the page draws."""
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure class="chart card{" main" if main else ""}" data-chart="{escape(chart.key)}">'
        f'<figcaption><h3>{escape(chart.title)}</h3><div class="legend"></div></figcaption>'
        f'<div class="plot"></div>{note}</figure>'
    )


def sections(charts: Sequence[Chart], leads: dict[str, str]) -> str:
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


def big_number(metric: str, value: float, context: str) -> str:
    """Return the number at the top of a page; ``context`` says what it was measured on."""
    return (
        f'<div class="number"><span class="value">{shown_value(metric, value)}</span>'
        f'<span class="label">{MAIN_METRICS[metric]}</span><span class="interval">{context}</span></div>'
    )


def fact_card(facts: dict[str, str]) -> str:
    """Return a card with a line for each fact."""
    entries = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="card facts">{entries}</dl>'


def shown_value(metric: str, value: float) -> str:
    """Return a value as the page shows it: rates with two digits, all else with four."""
    return f"{value:.2f}" if metric.endswith("rate") else f"{value:#.4g}".removesuffix(".") if value else "0"


def shown_range(metric: str, interval: tuple[float, float]) -> str:
    """Return an interval as the page shows it."""
    return f"{shown_value(metric, interval[0])} to {shown_value(metric, interval[1])}"


def cell(value: Any, text: str | None = None) -> str:
    """Return a cell of a table, which is sorted by ``value`` and shows ``text`` or else the value."""
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
