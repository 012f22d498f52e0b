"""What the report draws: every panel shows its own metrics, over the right steps, with the values of metrics.csv."""

from __future__ import annotations

import csv
import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.config import TrainConfig
from rl_training.errors import ConfigError
from rl_training.experiment import report
from rl_training.experiment.report import write_report

Series = dict[str, tuple[list[float], list[float]]]
"""Steps and values by name."""

ROWS: list[dict[str, float]] = [
    {"rollout/ep_rew_mean": -9.0, "rollout/success_rate": 0.1, "train/critic_loss": 4.0, "train/q_mean": -3.0},
    {"eval/mean_reward": -5.0, "eval/success_rate": 0.6, "train/critic_loss": 3.0, "train/actor_loss": 2.5},
    {"rollout/ep_rew_mean": -7.0, "eval/mean_reward": -2.0, "eval/success_rate": 0.9, "rollout/success_rate": 0.3},
]
PRIOR_ROWS = [{"train/offline_share": 0.5, "train/q_offline": 1.5, "train/q_online": -1.5}]


@pytest.fixture
def make_run(tmp_path: Path, tiny_config: Callable[..., TrainConfig]) -> Callable[..., Path]:
    """Return a function that writes what a report reads of a run: one row every 100 steps and 7 updates."""

    def make(name: str, rows: list[dict[str, float]]) -> Path:
        run = tmp_path / name
        run.mkdir()
        columns = ["global_step", "update_count", *dict.fromkeys(key for row in rows for key in row)]
        with (run / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            for number, row in enumerate(rows, start=1):
                writer.writerow({"global_step": 100 * number, "update_count": 7 * number, **row})
        (run / "config.yaml").write_text(tiny_config("sac", seed=17).to_yaml())
        return run

    return make


def draw(monkeypatch: pytest.MonkeyPatch, *runs: Path) -> tuple[Any, str]:
    """Write a report and return its figure and its page."""
    import plotly.io

    figures: list[Any] = []
    to_html = plotly.io.to_html

    def watch(figure: Any, *args: Any, **options: Any) -> str:
        figures.append(figure)
        return to_html(figure, *args, **options | {"include_plotlyjs": False})

    monkeypatch.setattr(plotly.io, "to_html", watch)
    output = write_report(list(runs), runs[0].parent / "out" / "page.html")
    (figure,) = figures
    return figure, output.read_text(encoding="utf-8")


def axis(figure: Any, title: str) -> str:
    """Return the number of the axes that lie under a title, as Plotly names them: nothing, 2, 3 …"""
    (note,) = [note for note in figure.layout.annotations if note.text == title]
    for name in (key for key in figure.layout.to_plotly_json() if key.startswith("xaxis")):
        number = name.removeprefix("xaxis")
        left, right = figure.layout[name].domain
        if left <= note.x <= right and note.y == pytest.approx(figure.layout[f"yaxis{number}"].domain[1]):
            return number
    raise AssertionError(f"no axes under {title!r}")


def series(figure: Any, title: str) -> Series:
    number = axis(figure, title)
    traces = [trace for trace in figure.data if (trace.xaxis or "x").removeprefix("x") == number]
    assert all((trace.yaxis or "y").removeprefix("y") == number for trace in traces)
    return {trace.name: (list(trace.x), list(trace.y)) for trace in traces}


def test_every_panel_draws_its_own_metrics(make_run, monkeypatch) -> None:
    figure, _ = draw(monkeypatch, make_run("run", ROWS))
    assert series(figure, "Return") == {
        "evaluation": ([200, 300], [-5.0, -2.0]),
        "while exploring": ([100, 300], [-9.0, -7.0]),
    }
    assert series(figure, "Success rate") == {
        "evaluation": ([200, 300], [0.6, 0.9]),
        "while exploring": ([100, 300], [0.1, 0.3]),
    }
    assert series(figure, "Losses") == {"critic": ([100, 200], [4.0, 3.0]), "actor": ([200], [2.5])}
    assert list(series(figure, "Mean Q").values()) == [([100], [-3.0])]
    assert len(figure.layout.annotations) == 4


def test_evaluation_and_exploration_look_different(make_run, monkeypatch) -> None:
    figure, _ = draw(monkeypatch, make_run("run", ROWS))
    for number in ("", "2"):
        evaluation, exploring = [t for t in figure.data if (t.xaxis or "x") == f"x{number}"]
        assert (evaluation.name, evaluation.line.dash, evaluation.mode) == ("evaluation", "solid", "lines+markers")
        assert (exploring.name, exploring.line.dash, exploring.mode) == ("while exploring", "dot", "lines")
        assert evaluation.line.color != exploring.line.color


def test_only_the_success_rate_is_drawn_from_0_to_1(make_run, monkeypatch) -> None:
    figure, _ = draw(monkeypatch, make_run("run", ROWS))
    success = axis(figure, "Success rate")
    low, high = figure.layout[f"yaxis{success}"].range
    assert -0.1 < low <= 0.0
    assert 1.0 <= high < 1.1
    others = [axis(figure, title) for title in ("Return", "Losses", "Mean Q")]
    assert [figure.layout[f"yaxis{number}"].range for number in others] == [None] * 3
    assert all(figure.layout[f"xaxis{number}"].title.text == "steps" for number in [success, *others])


def test_runs_are_told_apart_by_name_and_colour(make_run, monkeypatch) -> None:
    runs = [make_run("first", ROWS), make_run("second", [{"eval/mean_reward": 40.0, "rollout/ep_rew_mean": 30.0}])]
    figure, page = draw(monkeypatch, *runs)
    assert series(figure, "Return") == {
        "first: evaluation": ([200, 300], [-5.0, -2.0]),
        "first: while exploring": ([100, 300], [-9.0, -7.0]),
        "second: evaluation": ([100], [40.0]),
        "second: while exploring": ([100], [30.0]),
    }
    colours = {name: {t.line.color for t in figure.data if t.name.startswith(name)} for name in ("first", "second")}
    assert all(len(colour) == 1 for colour in colours.values())
    assert colours["first"] != colours["second"]
    legend = [trace.name for trace in figure.data if trace.showlegend]
    assert len(legend) == len(set(legend)) == len({trace.name for trace in figure.data})
    assert "<title>2 runs</title>" in page
    assert "<h2>first</h2>" in page
    assert "<h2>second</h2>" in page


def test_offline_data_has_panels_where_there_is_some(make_run, monkeypatch) -> None:
    figure, _ = draw(monkeypatch, make_run("mixed", ROWS + PRIOR_ROWS))
    titles = [note.text for note in figure.layout.annotations]
    assert len(titles) == 6
    assert list(series(figure, titles[4]).values()) == [([400], [0.5])]
    assert [values for _, values in series(figure, titles[5]).values()] == [[1.5], [-1.5]]
    assert series(figure, "Return").keys() == {"evaluation", "while exploring"}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_any_number_of_panels_can_be_drawn(make_run, monkeypatch, count: int) -> None:
    extra = (("Steps per second", (("time/fps", "speed"),)),)
    monkeypatch.setattr(report, "_PANELS", (report._PANELS + extra)[:count])
    figure, _ = draw(monkeypatch, make_run("run", [{**row, "time/fps": 50.0} for row in ROWS]))
    titles = [note.text for note in figure.layout.annotations]
    assert len(titles) == count
    assert len({axis(figure, title) for title in titles}) == count
    assert all(series(figure, title) for title in titles)
    if count == 5:
        assert series(figure, "Steps per second") == {"speed": ([100, 200, 300], [50.0] * 3)}


def test_the_page_says_how_the_run_stands(make_run, monkeypatch) -> None:
    run = make_run("run", ROWS)
    (run / "result.json").write_text('{"status": "completed", "stop_reason": "total_timesteps", "global_step": 12345}')
    _, page = draw(monkeypatch, run)
    assert "completed: total_timesteps after 12,345 steps" in page
    last = {"eval/mean_reward": "-2", "rollout/ep_rew_mean": "-7", "train/critic_loss": "3", "train/actor_loss": "2.5"}
    for name, value in last.items():
        assert f"<tr><td>{name}</td><td>{value}</td></tr>" in page
    assert html.escape("seed: 17") in page


def test_text_from_a_run_is_escaped(make_run, monkeypatch) -> None:
    _, page = draw(monkeypatch, make_run("a<b>&c", ROWS))
    assert "<title>a&lt;b&gt;&amp;c</title>" in page
    assert "<h2>a&lt;b&gt;&amp;c</h2>" in page


def test_a_run_without_metrics_is_refused(make_run, tmp_path) -> None:
    with pytest.raises(ConfigError, match="empty: not a run with metrics"):
        write_report([make_run("run", ROWS), make_run("empty", [])], tmp_path / "page.html")


CHANGES = [
    ([3.0, 5.0], ["cost nothing", "+5"]),
    ([-4.0, -1.0], ["cost 4", "step 100", "not made up for", "-1"]),
    ([-1.0, -6.0, 2.0], ["cost 6", "step 200", "by step 300", "+2"]),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGES)
def test_the_change_of_return_after_going_online_is_said(make_run, monkeypatch, changes, expected) -> None:
    _, page = draw(monkeypatch, make_run("run", [{"eval/change_since_offline": change} for change in changes]))
    assert all(text in page for text in expected)
    _, plain = draw(monkeypatch, make_run("other", ROWS))
    assert "Going online" not in plain
