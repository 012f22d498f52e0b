"""What the report draws and says: every chart has its own metrics, on the right axis, with the values of the files."""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.config import TrainConfig, load_config, parse_config
from rl_training.errors import ConfigError
from rl_training.experiment.report import write_report
from rl_training.experiment.report.charts import Chart
from rl_training.experiment.report.compare import compare_charts, group_runs, scores
from rl_training.experiment.report.page import duration
from rl_training.experiment.report.run_charts import run_charts
from rl_training.experiment.report.run_data import find_runs, read_run
from rl_training.experiment.report.statistics import (
    bootstrap_interval,
    interquartile_mean,
    mean_interval,
    success_interval,
)
from rl_training.runtime.settings import complete_config

Row = dict[str, float]

ROWS: list[Row] = [
    {"rollout/ep_rew_mean": -9.0, "rollout/success_rate": 0.1, "train/critic_loss": 4.0, "train/q_mean": -3.0},
    {"eval/mean_reward": -5.0, "eval/success_rate": 0.6, "train/critic_loss": 3.0, "train/actor_loss": 2.5},
    {"rollout/ep_rew_mean": -7.0, "eval/mean_reward": -2.0, "eval/success_rate": 0.9, "rollout/success_rate": 0.3},
]


@pytest.fixture
def make_run(tmp_path: Path, tiny_config: Callable[..., TrainConfig]) -> Callable[..., Path]:
    """Return a function that writes what every run has: one row every 100 steps and 7 updates, and a configuration."""

    def make(name: str, rows: list[Row], config: TrainConfig | None = None, **changes: Any) -> Path:
        run = tmp_path / name
        run.mkdir(parents=True)
        columns = ["global_step", "update_count", *dict.fromkeys(key for row in rows for key in row)]
        with (run / "metrics.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, dict.fromkeys(columns))
            writer.writeheader()
            for number, row in enumerate(rows, start=1):
                writer.writerow({"global_step": 100 * number, "update_count": 7 * number, **row})
        (run / "config.yaml").write_text((config or tiny_config("sac", **{"seed": 17, **changes})).to_yaml())
        return run

    return make


def charts_of(run: Path) -> dict[str, Chart]:
    charts = run_charts(read_run(run))
    by_title = {chart.title: chart for chart in charts}
    assert len(by_title) == len({chart.key for chart in charts}) == len(charts)
    return by_title


def curves(chart: Chart) -> dict[str, tuple[list[float], list[float]]]:
    return {series.name: (series.x, series.y) for series in chart.series}


def page_of(*runs: Path) -> str:
    return write_report(list(runs), runs[0].parent / "out" / "page.html").read_text(encoding="utf-8")


def drawn(page: str) -> dict[str, Any]:
    """Return the data of a page's charts."""
    (text,) = re.findall(r'<script id="charts" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_every_chart_draws_its_own_metrics(make_run) -> None:
    charts = charts_of(make_run("run", ROWS))
    assert set(charts) == {"Return", "Success rate", "Critic loss", "Actor loss", "Q on the batches"}
    assert curves(charts["Return"]) == {
        "evaluation": ([200, 300], [-5.0, -2.0]),
        "exploration": ([100, 300], [-9.0, -7.0]),
    }
    assert curves(charts["Success rate"]) == {
        "evaluation": ([200, 300], [0.6, 0.9]),
        "exploration": ([100, 300], [0.1, 0.3]),
    }
    assert list(curves(charts["Critic loss"]).values()) == [([100, 200], [4.0, 3.0])]
    assert list(curves(charts["Actor loss"]).values()) == [([200], [2.5])]
    assert list(curves(charts["Q on the batches"]).values()) == [([100], [-3.0])]
    assert all(chart.x == "environment steps" and chart.title for chart in charts.values())


def test_the_page_holds_the_data_of_every_chart(make_run) -> None:
    run = make_run("run", ROWS)
    page = page_of(run)
    expected = {chart.key: chart for chart in charts_of(run).values()}
    found = drawn(page)
    assert list(found) == list(expected)
    for key, chart in expected.items():
        assert page.count(f'data-chart="{key}"') == 1
        assert [(one["x"], one["y"]) for one in found[key]["series"]] == [(one.x, one.y) for one in chart.series]
        assert [one.get("colour") for one in found[key]["series"]] == [one.colour for one in chart.series]


def test_evaluation_and_exploration_look_different(make_run) -> None:
    charts = charts_of(make_run("run", ROWS))
    for title in ("Return", "Success rate"):
        evaluation, exploration = charts[title].series
        assert (evaluation.marked, exploration.marked) == (True, False)
        assert evaluation.colour != exploration.colour


def test_evaluations_have_their_interval(make_run) -> None:
    rows = [{"eval/mean_reward": 10.0, "eval/std_reward": 2.0, "eval/success_rate": 0.95}]
    charts = charts_of(make_run("run", rows, eval_episodes=20))
    assert charts["Success rate"].series[0].low == [pytest.approx(0.764, abs=1e-3)]
    assert charts["Success rate"].series[0].high == [pytest.approx(0.991, abs=1e-3)]
    half = 2.0930 * 2.0 / np.sqrt(19)  # Student's t with 19 degrees of freedom
    assert charts["Return"].series[0].low == [pytest.approx(10 - half, abs=1e-3)]
    assert charts["Return"].series[0].high == [pytest.approx(10 + half, abs=1e-3)]
    assert "Std reward" not in charts  # it is the interval


def test_intervals_at_the_borders() -> None:
    assert success_interval(1.0, 20) == (pytest.approx(0.8389, abs=1e-4), 1.0)
    assert success_interval(0.0, 20) == (0.0, pytest.approx(0.1611, abs=1e-4))
    assert mean_interval(1.0, 1.0, 2) is None
    assert mean_interval(0.0, 1.0, 4) == (
        pytest.approx(-3.182 / np.sqrt(3), rel=2e-2),
        pytest.approx(3.182 / np.sqrt(3), rel=2e-2),
    )


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    assert interquartile_mean(np.array([8.0, 1.0, 3.0, 2.0, 7.0, 4.0, 6.0, 5.0])) == pytest.approx(4.5)
    assert interquartile_mean(np.array([100.0, 2.0, 3.0, 4.0, -50.0])) == pytest.approx(3.0)
    low, high = bootstrap_interval(np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]]))
    assert 1.0 <= low[0] < 2.5 < high[0] <= 4.0
    assert (low[1], high[1]) == (5.0, 5.0)


def test_only_shares_are_drawn_from_0_to_1(make_run) -> None:
    rows = [{**row, "train/offline_share": 0.5} for row in ROWS]
    charts = charts_of(make_run("run", rows))
    ranged = {title for title, chart in charts.items() if chart.y_range is not None}
    assert ranged == {"Success rate", "Offline rows"}
    assert all(charts[title].y_range == (0.0, 1.0) for title in ranged)


def test_metrics_of_callbacks_and_unknown_losses_have_charts_of_their_own(make_run) -> None:
    rows = [{"train/world_loss": 1.0, "custom/height": 3.0, "train/actor_lr": 1e-3, "train/critic_lr": 2e-3}]
    charts = charts_of(make_run("run", rows))
    assert set(charts) == {"World loss", "custom/height", "Learning rate"}
    assert (charts["World loss"].section, charts["custom/height"].section) == ("Losses", "Other metrics")
    assert curves(charts["Learning rate"]) == {"actor": ([100], [1e-3]), "critic": ([100], [2e-3])}


def test_a_length_that_never_changes_is_not_drawn(make_run) -> None:
    same = [{"eval/mean_ep_length": 50.0, "rollout/ep_len_mean": 50.0}] * 2
    assert "Episode length" not in charts_of(make_run("same", [*ROWS, *same]))
    assert "Episode length" in charts_of(make_run("other", [*ROWS, *same, {"rollout/ep_len_mean": 49.0}]))


def test_pretraining_has_an_axis_of_updates(make_run) -> None:
    pretraining = [
        {"global_step": 0, "update_count": 50 * number, "train/critic_loss": 9.0 - number, "eval/mean_reward": number}
        for number in (1, 2, 3)
    ]
    charts = charts_of(make_run("run", [*pretraining, *[{**row, "eval/change_since_offline": -2.0} for row in ROWS]]))
    before = charts["Critic loss in pretraining"]
    assert (before.x, before.section) == ("updates", "Pretraining")
    assert list(curves(before).values()) == [([50, 100, 150], [8.0, 7.0, 6.0])]
    assert list(curves(charts["Critic loss"]).values()) == [([400, 500], [4.0, 3.0])]
    # The evaluation of the pretrained policy is where the online curve starts.
    assert curves(charts["Return"])["evaluation"] == ([0, 500, 600], [3.0, -5.0, -2.0])
    assert charts["Change since going online"].section == "Data"


def test_offline_runs_count_updates(make_run) -> None:
    config = parse_config({"algo": "iql", "env_id": "Pendulum-v1", "total_timesteps": 500})
    rows = [{"train/value_loss": 1.0, "time/fps": 9.0, "time/updates_per_second": 9.0}]
    charts = charts_of(make_run("run", rows, config))
    assert charts["Value loss"].x == "updates"
    assert set(charts) == {"Value loss", "Updates"}  # there are no environment steps


def test_equal_curves_are_drawn_as_one(make_run) -> None:
    rows = [{"train/actor_lr": 1e-3, "train/critic_lr": 1e-3, "train/alpha_lr": 1e-4}] * 2
    chart = charts_of(make_run("run", rows))["Learning rate"]
    assert curves(chart) == {"actor, critic": ([100, 200], [1e-3, 1e-3]), "alpha": ([100, 200], [1e-4, 1e-4])}


def test_few_episodes_have_no_mean(make_run) -> None:
    run = make_run("run", ROWS)
    (run / "episodes.csv").write_text(EPISODES + "\n".join(f"{10 * n},{-n},50,,,0," for n in range(1, 6)) + "\n")
    (series,) = charts_of(run)["Return of each episode"].series
    assert (series.name, series.kind, series.marked, series.y) == ("exploration", "line", True, [-1, -2, -3, -4, -5])


def test_long_curves_are_averaged_not_cut(make_run) -> None:
    rows = [{"train/critic_loss": float(number % 2), "global_step": number} for number in range(1, 4001)]
    (series,) = charts_of(make_run("run", rows))["Critic loss"].series
    assert len(series.x) == 1000
    assert series.y == [0.5] * 1000
    assert (series.x[0], series.x[-1]) == (2.5, 3998.5)


EPISODES = "global_step,return,length,success,final_distance,environment,goal\n"


def test_episodes_goals_and_trajectories_are_drawn(make_run) -> None:
    run = make_run("run", ROWS)
    lines = [f"{10 * n},{-n},50,{n % 2},{0.1 * n},0,{0.1 * n} {0.2 * (n % 5)}" for n in range(1, 61)]
    (run / "episodes.csv").write_text(EPISODES + "\n".join(lines) + "\n610,-61,5")  # a kill cut the last row off
    evaluated = [
        {"return": -5.0, "length": 9, "success": success, "goal": [1.0, 2.0], "path": [[0.0, 0.0], [0.5, 1.0]]}
        for success in (True, False)
    ]
    (run / "evaluation.json").write_text(json.dumps({"global_step": 300, "update_count": 9, "episodes": evaluated}))
    charts = charts_of(run)
    dots, mean = charts["Return of each episode"].series
    assert (dots.x, dots.y) == ([10.0 * n for n in range(1, 61)], [-float(n) for n in range(1, 61)])
    assert (mean.name, mean.x[0], mean.y[0]) == ("mean of 12", 120.0, pytest.approx(-6.5))
    assert charts["Final distance to the goal"].series[0].y[:2] == pytest.approx([0.1, 0.2])
    cells, goals = charts["Success over goals"].series
    assert (goals.x, goals.y, goals.value) == ([1.0, 1.0], [2.0, 2.0], [1.0, 0.0])
    assert 0.0 <= min(cells.value) < max(cells.value) <= 1.0
    missed, reached = charts["Trajectories"].series
    assert (missed.value, reached.value, missed.goal) == ([0.0], [1.0], (1.0, 2.0))
    assert (reached.x, reached.y) == ([0.0, 0.5], [0.0, 1.0])


def test_goals_that_are_one_number_are_drawn_over_their_axis(make_run) -> None:
    run = make_run("run", ROWS)
    lines = [f"{n},-1,5,{int(n > 20)},0.5,0,{float(n)}" for n in range(1, 41)]
    (run / "episodes.csv").write_text(EPISODES + "\n".join(lines) + "\n")
    (bars,) = charts_of(run)["Success over goals"].series
    assert (bars.kind, len(bars.x), len(bars.y)) == ("bars", 13, 12)
    assert bars.y == [1.0] * 12  # the second half of the episodes, which all succeeded


def test_returns_of_offline_data_are_a_histogram(make_run) -> None:
    run = make_run("run", ROWS)
    (run / "data.json").write_text('{"source": "a.npz", "transitions": 900, "episodes": 4, "returns": [1, 1, 3, 25]}')
    chart = charts_of(run)["Returns of the data"]
    (bars,) = chart.series
    assert (len(bars.x), sum(bars.y), bars.y[0]) == (25, pytest.approx(1.0), 0.5)
    assert "900 transitions in 4 episodes" in chart.note


HOSTILE = [
    "",
    "[]",
    "{",
    "global_step,return\n1,2\n",
    f"{EPISODES}{'9' * 5000},1,1,1,1,0,1\n",
    f"{EPISODES}{'x' * 200_000}\n",
]


@pytest.mark.parametrize("text", [*HOSTILE, '{"episodes": [3]}', '{"episodes": [{"return": "x"}], "returns": 5}'])
def test_files_that_are_damaged_or_missing_cost_their_charts_only(make_run, text: str) -> None:
    run = make_run("run", ROWS)
    expected = set(charts_of(run))
    for name in ("episodes.csv", "evaluation.json", "data.json", "warnings.jsonl", "result.json"):
        (run / name).write_text(text)
    assert set(charts_of(run)) == expected
    assert "Not finished" in page_of(run)


def test_the_page_says_how_the_run_stands(make_run) -> None:
    run = make_run("run", ROWS, eval_episodes=20)
    result = {
        "run_dir": ".",
        "status": "completed",
        "stop_reason": "total_timesteps",
        "metrics": {"best/success_rate": 1},
    }
    (run / "result.json").write_text(json.dumps({**result, "global_step": 12345, "update_count": 678}))
    page = page_of(run)
    assert "Completed: total_timesteps after 12,345 steps and 678 updates" in page
    assert '<span class="value">0.90</span><span class="label">success rate</span>' in page
    assert "95% interval 0.70 to 0.97 · last evaluation, 20 episodes, step 300" in page
    last = {"eval/mean_reward": "-2", "rollout/ep_rew_mean": "-7", "train/critic_loss": "3", "train/actor_loss": "2.5"}
    for name, value in last.items():
        assert f"<tr><td>{name}</td><td>{value}</td></tr>" in page
    assert html.escape("seed: 17") in page
    assert "SAC" in page
    assert "Pendulum-v1" in page


def test_a_run_without_evaluations_says_so(make_run) -> None:
    assert "nothing was evaluated" in page_of(make_run("run", [{"train/critic_loss": 1.0}]))


def test_the_configuration_is_compared_with_its_preset(make_run) -> None:
    preset = load_config("her/point_reach")
    changed = complete_config(load_config("her/point_reach", ["algo_kwargs.gamma=0.9", "seed=5"]))
    page = page_of(make_run("changed", ROWS, changed))
    table = page[page.index("What differs from the preset") :].partition("</table>")[0]
    assert "<code>her/point_reach</code>" in table
    assert re.findall(r"<code>([\w.]+)</code></td><td><code>(.*?)</code></td><td><code>(.*?)</code>", table) == [
        ("algo_kwargs.gamma", str(preset.algo_kwargs["gamma"]), "0.9")
    ]
    assert "As in the preset <code>her/point_reach</code>, with seed 0" in page_of(make_run("same", ROWS, preset))
    assert "No preset has this algorithm" in page_of(make_run("own", ROWS, env_id="CartPole-v1"))


def test_warnings_versions_and_commands_are_shown(make_run) -> None:
    run = make_run("run", ROWS)
    (run / "warnings.jsonl").write_text('{"global_step": 1200, "message": "the <disk> is slow"}\n{"global_st')
    page = page_of(run)
    assert "the &lt;disk&gt; is slow (step 1,200)" in page
    for command in ("resume", "evaluate", "export"):
        assert f"rl-training {command} {run}" in page
    assert "Warnings" not in page_of(make_run("quiet", ROWS))


def test_transformed_rewards_are_said(make_run) -> None:
    charts = charts_of(make_run("run", ROWS, algo_kwargs={"reward_scale": 0.1, "reward_shift": 0.0}))
    assert charts["Return"].note == "Returns are raw; the learner sees rewards after scale 0.1."
    wrapped = make_run("wrapped", ROWS, env_kwargs={"wrappers": {"reward": {"clip_min": -2.0}}})
    assert "clip_min -2.0" in charts_of(wrapped)["Return"].note
    assert charts_of(make_run("raw", ROWS))["Return"].note == ""


def test_text_from_a_run_is_escaped(make_run) -> None:
    page = page_of(make_run("a<b>&c", [*ROWS, {"x/</script><b>": 1.0}]))
    assert "<title>a&lt;b&gt;&amp;c</title>" in page
    assert "a<b>" not in page
    assert page.count("</script>") == 2
    assert "x/</script><b>" in [chart["series"][0]["name"] for chart in drawn(page).values()]


def test_metrics_with_similar_names_keep_their_charts(make_run) -> None:
    charts = run_charts(read_run(make_run("run", [{"a/b": 1.0, "a-b": 2.0, "a b": 3.0}])))
    assert [(chart.key, chart.series[0].y) for chart in charts] == [("a-b", [1.0]), ("a-b-2", [2.0]), ("a-b-3", [3.0])]


def test_a_page_asks_for_nothing_from_outside_and_is_small(make_run) -> None:
    names = [f"train/metric_{number}" for number in range(12)]
    rows = [dict.fromkeys(names, step / 7) for step in range(300)]
    runs = [make_run(f"run-{seed}", rows, seed=seed) for seed in range(8)]
    page = page_of(*runs)
    assert len(page.encode()) < 3_000_000
    assert not re.search(r"<(script|img|iframe|link)[^>]*(src|href)=[\"'](?!data:)", page)
    assert "default-src 'none'" in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_a_run_without_metrics_is_refused(make_run, tmp_path) -> None:
    with pytest.raises(ConfigError, match="empty: not a run with metrics"):
        write_report([make_run("run", ROWS), make_run("empty", [])], tmp_path / "page.html")
    (tmp_path / "nothing" / "in it").mkdir(parents=True)
    with pytest.raises(ConfigError, match="nothing: not a run with metrics, and there is none"):
        write_report([tmp_path / "nothing"], tmp_path / "page.html")
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "page.html")


def test_a_folder_is_no_target(make_run, tmp_path) -> None:
    run = make_run("run", ROWS)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ConfigError, match="nothing: a folder; expected the path of an HTML file"):
        write_report([run], tmp_path / "nothing", png=True)
    assert not any((tmp_path / "nothing").iterdir())
    assert not (tmp_path / "nothing_png").exists()


def reached(*values: float) -> list[Row]:
    return [{"eval/success_rate": value, "eval/mean_reward": -10 * (1 - value)} for value in values]


@pytest.fixture
def sweep(make_run) -> Path:
    """Three seeds of one configuration and one of another, in a folder."""
    for seed, last in enumerate((0.4, 0.5, 0.9)):
        make_run(f"sweep/low-{seed}", reached(0.1, last), seed=seed)
    folder = make_run("sweep/deeper/high-0", reached(0.2, 1.0), algo_kwargs={"learning_rate": 0.01}).parents[1]
    (folder / "notes").mkdir()
    return folder


def test_a_folder_stands_for_the_runs_below_it(sweep: Path, tmp_path: Path) -> None:
    assert [run.name for run in find_runs(sweep)] == ["high-0", "low-0", "low-1", "low-2"]
    page = write_report([sweep], tmp_path / "page.html").read_text()
    assert "<title>4 runs</title>" in page
    assert all(name in page for name in ("high-0", "low-0", "low-1", "low-2"))


def test_runs_that_differ_in_their_seed_only_are_one_group(sweep: Path) -> None:
    groups = group_runs([read_run(run) for run in find_runs(sweep)])
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("learning_rate=0.01", 1),
        ("learning_rate=0.0003", 3),
    ]
    one, three = scores(groups, "eval/success_rate")
    assert (one.mean, one.interval, one.count) == (1.0, None, 1)
    assert three.mean == pytest.approx((0.25 * 0.4 + 0.5 + 0.25 * 0.9) / 1.5)
    assert three.interval is not None
    assert 0.399 < three.interval[0] < three.mean < three.interval[1] < 0.901


def test_groups_of_several_tasks_are_named_by_algorithm_and_task(make_run) -> None:
    runs = [
        make_run("a", ROWS),
        make_run("b", ROWS, algo_kwargs={"gamma": 0.9}),
        make_run("c", ROWS, env_id="Reacher-v5"),
    ]
    assert [group.label for group in group_runs([read_run(run) for run in runs])] == [
        "SAC on Pendulum-v1, gamma=0.99",
        "SAC on Pendulum-v1, gamma=0.9",
        "SAC on Reacher-v5",
    ]
    (group,) = group_runs([read_run(run) for run in (runs[0], runs[0])])
    assert (group.label, len(group.runs)) == ("SAC on Pendulum-v1", 2)


def test_groups_have_their_own_colour_and_mean(sweep: Path) -> None:
    charts = {c.title: c for c in compare_charts(group_runs([read_run(run) for run in find_runs(sweep)]))}
    assert set(charts) == {"Success rate", "Return"}
    high, *seeds, mean = charts["Success rate"].series
    assert (high.name, high.y, high.faint) == ("learning_rate=0.01", [0.2, 1.0], False)
    assert [one.y for one in seeds] == [[0.1, 0.4], [0.1, 0.5], [0.1, 0.9]]
    assert all(one.faint for one in seeds)
    assert mean.name == "learning_rate=0.0003, interquartile mean of 3 runs"
    assert mean.x == [100.0, 200.0]
    assert mean.y == [pytest.approx(0.1), pytest.approx(0.55)]
    assert {one.colour for one in (*seeds, mean)} == {1}
    assert high.colour == 0


def test_the_table_of_runs_can_be_sorted(sweep: Path, tmp_path: Path) -> None:
    page = write_report([sweep], tmp_path / "page.html").read_text()
    configurations, table = (part.partition("</table>")[0] for part in page.split('<table class="sortable">')[1:])
    means = re.findall(r'data-value="(.*?)">(.*?)</td>', configurations)
    assert means[1::2][0] == ("1.0", "1.00")  # the interquartile mean of the first configuration, which has one run
    heads = re.findall(r"<th[^>]*><button[^>]*>(.*?)</button>", table)
    assert heads == ["run", "seed", "state", "steps", "success rate", "mean return", "time", "learning_rate"]
    rows = [re.findall(r"<td.*?</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)[1:]]
    values = [[re.findall(r'data-value="(.*?)"', cell) for cell in row] for row in rows]
    assert [row[4] for row in values] == [["1.0"], ["0.4"], ["0.5"], ["0.9"]]
    assert [row[1] for row in values] == [["17"], ["0"], ["1"], ["2"]]


def test_the_table_names_the_tasks_only_if_they_differ(make_run) -> None:
    page = page_of(make_run("a", ROWS), make_run("b", ROWS, env_id="Reacher-v5"))
    runs = page.split('<table class="sortable">')[-1]
    assert re.findall(r"<th[^>]*><button[^>]*>(.*?)</button>", runs)[:3] == ["run", "task", "seed"]


def test_a_single_group_is_named_in_the_title_only(make_run) -> None:
    runs = [read_run(make_run(f"run-{seed}", reached(0.1, 0.5), seed=seed)) for seed in (0, 1)]
    chart = next(chart for chart in compare_charts(group_runs(runs)) if chart.title == "Success rate")
    assert [one.name for one in chart.series] == ["seed 0", "seed 1", "interquartile mean of 2 runs"]


def test_a_run_that_is_named_twice_counts_once(sweep: Path, tmp_path: Path) -> None:
    page = write_report([sweep, sweep / "low-0", sweep / ".." / "sweep" / "low-1"], tmp_path / "page.html").read_text()
    assert "<title>4 runs</title>" in page


CHANGES = [
    ([3.0, 5.0], ["cost nothing", "+5"]),
    ([-4.0, -1.0], ["cost 4", "step 100", "not made up for", "-1"]),
    ([-1.0, -6.0, 2.0], ["cost 6", "step 200", "by step 300", "+2"]),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGES)
def test_the_change_of_return_after_going_online_is_said(make_run, changes, expected) -> None:
    page = page_of(make_run("run", [{"eval/change_since_offline": change} for change in changes]))
    assert all(text in page for text in expected)
    assert "Going online" not in page_of(make_run("other", ROWS))


def test_a_small_video_is_embedded(make_run) -> None:
    run = make_run("run", ROWS)
    (run / "videos").mkdir()
    for name, content in (("episode-0.mp4", b"first"), ("best.gif", b"GIF"), ("large.mp4", b"x" * 1_600_000)):
        (run / "videos" / name).write_bytes(content)
    page = page_of(run)
    assert '<img alt="Best episode of an evaluation" src="data:image/gif;base64,R0lG">' in page
    assert "<video" not in page


def test_training_time_adds_up_the_rates(make_run) -> None:
    rows = [{"global_step": 0, "update_count": 50, "time/fps": 0.0, "time/updates_per_second": 10.0}]
    rows += [{"global_step": 100, "time/fps": 50.0}, {"global_step": 300, "time/fps": 20.0}]
    assert read_run(make_run("run", rows)).seconds == pytest.approx(5 + 2 + 10)
    assert [duration(s) for s in (3.21, 42, 200, 7300)] == ["3.2 s", "42 s", "3 min 20 s", "2 h 1 min"]


def test_progress_counts_the_runs_of_a_folder(make_run, tmp_path: Path) -> None:
    rows = [{"eval/mean_reward": 1.0}]
    first, second = make_run("runs/a", rows), make_run("runs/b", rows)
    assert first.parent == second.parent
    seen: list[tuple[int, int]] = []
    write_report([first.parent, first], tmp_path / "all.html", on_run=lambda *counts: seen.append(counts))
    assert seen == [(0, 2), (1, 2), (2, 2)]
