"""Tuning: the checks of its file, the journal of a killed search, ASHA, the ranking, and the whole command."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.config import load_config
from rl_training.errors import ConfigError
from rl_training.experiment.manager import resume_experiment
from rl_training.experiment.run_folder import train_in_folder
from rl_training.runtime.outcome import read_result
from rl_training.runtime.settings import read_config
from rl_training.scale.ranking import Ranked, how_sure, probability_better, rank
from rl_training.scale.sweep_file import Sweep
from rl_training.scale.trials import Trial, trial_state
from rl_training.scale.tune_file import Search, read_search
from rl_training.scale.tune_report import parallel_coordinates, search_page
from rl_training.scale.tuner import Found
from test_sweep import TINY, command

RATE, TAU = "algo_kwargs.learning_rate", "algo_kwargs.tau"
SPACE = {RATE: {"loguniform": [1e-5, 1e-2]}, "algo_kwargs.backend": {"choice": ["ddpg", "sac"]}}


def tune_file(tmp_path: Path, **values: Any) -> Path:
    folder = {"folder": str(tmp_path / "runs"), "metric": "eval/mean_reward"}
    given = {"base": "her/point_goal", "set": TINY, "space": SPACE, **folder, **values}
    file = tmp_path / "tune.yaml"
    file.write_text(yaml.safe_dump(given, sort_keys=False))
    return file


@pytest.fixture
def search(tmp_path: Path) -> Search:
    found = read_search(tune_file(tmp_path, trials=4))
    found.folder.mkdir()
    return found


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"space": {"algo_kwargs.gama": {"uniform": [0.9, 0.99]}}}, r"unknown key 'algo_kwargs.gama' .*'gamma'"),
        ({"space": {"algo_kwargs.gamma": {"uniform": [0.9, 1.2]}}}, r"gamma = 1.2: expected less than 1"),
        ({"space": {"algo_kwargs.batch_size": {"uniform": [8, 64]}}}, r"batch_size = 25.8.*expected a valid integer"),
        ({"space": {"algo_kwargs.backend": {"choice": ["ddpg", "sad"]}}}, r"backend"),
        ({"space": {}}, r"space is empty: expected ranges such as"),
        ({"space": {"total_timesteps": {"int": [100, 200]}}}, r"trials must have the same total_timesteps"),
        ({"space": {"seed": {"int": [0, 9]}}}, r"'seed' cannot be set here"),
        ({"metric": "eval/sucess_rate"}, r"metric = 'eval/sucess_rate': expected 'eval/success_rate'"),
        ({"trials": 0}, r"trials = 0"),
        ({"repeat": {"seeds": 1}}, r"repeat.seeds = 1"),
        ({"asha": {"grace": 500}}, r"asha.grace = 500: expected at most total_timesteps = 120"),
        ({"asha": {"grace": 10}}, r"eval_interval = 40: ASHA decides after 10 steps"),
        ({"set": {**TINY, "algo_kwargs.eval_interval": None}}, r"eval_interval = None: ASHA decides after"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_written(tmp_path, values, message):
    file = tune_file(tmp_path, **values)
    with pytest.raises(ConfigError, match=message):
        read_search(file)
    assert os.listdir(tmp_path) == ["tune.yaml"]


def test_the_command_refuses_and_describes(tmp_path, capsys, monkeypatch):
    assert command("tune", tmp_path / "none.yaml")[0] == 2
    code, text = command("tune", tune_file(tmp_path), "--dry-run", "--json")
    assert (code, json.loads(text)["grace"]) == (0, 40)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert command("tune", tmp_path / "tune.yaml")[0] == 2
    assert "[scale]" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_killed_search_goes_on_from_its_journal(search, tmp_path):
    pytest.importorskip("ray.tune", reason="the extra 'scale' is not installed")
    from rl_training.scale.study import (
        changes_of,
        distributions,
        make_searcher,
        open_storage,
        open_study,
        requeue_killed,
        trials_left,
        tried,
    )

    study = open_study(search, open_storage(search))
    space = distributions(search.ranges)
    done, killed = study.ask(space), study.ask(space)
    study.tell(done, -3.0)
    (search.folder / "optuna.journal.lock").touch()  # left by the kill

    again = open_study(search, open_storage(search))
    requeue_killed(again)
    assert trials_left(again, 4) == 3
    next_one = again.ask(space)
    assert next_one.params == killed.params
    again.tell(next_one, -2.0)
    assert trials_left(again, 4) == 2
    fresh = [make_searcher(search, open_storage(search), number).suggest("new") for number in (0, 2)]
    assert fresh[0] != fresh[1]  # a sampler with the same seed would repeat the first trials
    assert tried(again, search.ranges) == [changes_of(one.params, search.ranges) for one in (done, killed)]
    assert search.trial(changes_of(killed.params, search.ranges)).name.endswith("-s0")

    other = read_search(tune_file(tmp_path, space={RATE: {"loguniform": [1e-4, 1e-2]}}))
    with pytest.raises(ConfigError, match=r"space = .* the search in .* has .*; expected another folder"):
        open_study(other, open_storage(other))


def test_parameters_become_short_settings_inside_their_ranges(search):
    pytest.importorskip("optuna", reason="the extra 'scale' is not installed")
    from rl_training.scale.study import changes_of

    parameters = {RATE: 0.00012345678, "algo_kwargs.backend": '"sac"'}
    assert changes_of(parameters, search.ranges) == {RATE: 0.0001235, "algo_kwargs.backend": "sac"}
    assert changes_of({**parameters, RATE: 9.99999e-3}, search.ranges)[RATE] == 0.01


@pytest.fixture
def trained(search) -> Trial:
    """A trial that has run to its end."""
    trial = search.trial({RATE: 1e-3, "algo_kwargs.backend": "ddpg"})
    train_in_folder(trial.config, trial.run_dir)
    return trial


def test_asha_knows_the_evaluations_of_earlier_trials(search, trained):
    pytest.importorskip("ray.tune", reason="the extra 'scale' is not installed")
    from types import SimpleNamespace

    from rl_training.scale.study import evaluations, make_scheduler

    rows = evaluations(trained, "eval/mean_reward")
    assert [row["global_step"] for row in rows] == [40, 80, 120]
    worse = {"global_step": 40, "eval/mean_reward": rows[0]["eval/mean_reward"] - 1}
    decisions = []
    for earlier in ([], [trained]):
        scheduler, new = make_scheduler(search, earlier), SimpleNamespace(trial_id="new")
        scheduler.on_trial_add(None, new)
        decisions.append(scheduler.on_trial_result(None, new, worse))
    assert decisions == ["CONTINUE", "STOP"]


def trainable_of(search: Search) -> Any:
    """Return a trial of Tune that needs no cluster."""
    from rl_training.scale.trainable import RunTrainable

    class Local(RunTrainable):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config, packed=pickle.dumps(search), threads=1, working_folder=os.getcwd())

    return Local(config={RATE: 1e-3, "algo_kwargs.backend": '"ddpg"'})


def test_a_trial_waits_at_each_evaluation_and_ends_as_a_stopped_run(search, tmp_path):
    pytest.importorskip("ray.tune", reason="the extra 'scale' is not installed")
    first = trainable_of(search)
    assert [first.train()["global_step"] for _ in range(2)] == [40, 80]
    first.stop()
    run = search.trial({RATE: 1e-3, "algo_kwargs.backend": "ddpg"}).run_dir
    result = read_result(run)
    assert (result.status, result.global_step) == ("stopped", 80)
    assert "ASHA" in result.stop_reason
    assert trial_state(search.trial({RATE: 1e-3, "algo_kwargs.backend": "ddpg"})).is_done

    (run / "result.json").unlink()  # as if the search had been killed at step 80
    second = trainable_of(search)
    results = [second.train() for _ in range(3)]
    assert [(one["global_step"], one["done"]) for one in results] == [(40, False), (80, False), (120, True)]
    second.stop()
    assert read_result(run).status == "completed"

    third = trainable_of(search)  # a finished run is only reported
    assert [third.train()["done"] for _ in range(4)] == [False, False, False, True]
    third.stop()
    assert resume_experiment(run, overrides=["total_timesteps=140"]).global_step == 140


def test_a_metric_that_the_run_does_not_have_is_named(tmp_path):
    pytest.importorskip("ray.tune", reason="the extra 'scale' is not installed")
    trainable = trainable_of(read_search(tune_file(tmp_path, metric="eval/normalized_score")))
    with pytest.raises(ConfigError, match="metric = eval/normalized_score: the evaluations of this run do not have it"):
        trainable.train()


def test_the_ranking_says_how_sure_it_is():
    good, same, bad = (
        Ranked({RATE: rate}, scores, rewards)
        for rate, scores, rewards in (
            (1e-3, [1.0, 0.95, 0.98], [-9.0, -9.0, -9.0]),
            (2e-3, [0.95, 1.0, 0.98], [-8.0, -8.0, -8.0]),
            (3e-3, [0.1, 0.2, 0.15], [-40.0, -40.0, -40.0]),
        )
    )
    assert rank([bad, good, same]) == [same, good, bad]  # equal means: the return decides
    assert probability_better(good, bad) > 0.99
    assert probability_better(bad, good) == pytest.approx(1 - probability_better(good, bad), abs=0.01)
    assert 0.4 < probability_better(good, same) < 0.6
    assert "the ranking is not sure" in how_sure([same, good, bad])
    assert "the ranking is sure" in how_sure([good, bad])
    two = Ranked({}, [0.9, 1.0], [0.0, 0.0]), Ranked({}, [0.7, 0.8], [0.0, 0.0])
    assert probability_better(*two) < 0.95  # two seeds cannot tell, though no score overlaps
    assert "nothing to compare" in how_sure([good])


def test_the_page_shows_ranking_importance_and_every_trial(search, trained):
    other = search.trial({RATE: 3e-4, "algo_kwargs.backend": "sac"})
    ranked = [
        Ranked(trained.changes, [-10.0, -12.0], [-10.0, -12.0]),
        Ranked(other.changes, [-30.0, -31.0], [0.0, 0.0]),
    ]
    states = {trial.name: trial_state(trial) for trial in (trained, other)}
    repeats = Sweep(search.path, search.folder / "repeats", search.source, search.settings, [])
    scores = {trained.name: -11.0, other.name: -30.0}
    found = Found(ranked, states, [trained, other], scores, {RATE: 0.8, "algo_kwargs.backend": 0.2}, repeats, {})
    page = search_page(search, found)
    for text in ("the ranking is", "PED-ANOVA", f'href="{trained.name}/report.html"', f"<td>{other.name}</td>", "0.80"):
        assert text in page
    drawing = parallel_coordinates(search, found)
    assert drawing.count("<polyline") == 2
    assert drawing.index(other.name) < drawing.index(trained.name)  # the best is drawn last
    assert ">learning_rate</text>" in drawing


@pytest.mark.slow
def test_tune_finds_ranks_and_writes_a_configuration(tmp_path, monkeypatch):
    """The runs on fresh seeds are made in this process: test_sweep.py has them on Ray."""
    pytest.importorskip("ray.tune", reason="the extra 'scale' is not installed")

    def here(sweep: Sweep, **options: Any) -> tuple[dict[str, Any], bool]:
        for trial in sweep.trials:
            train_in_folder(trial.config, trial.run_dir)
        return {trial.name: trial_state(trial) for trial in sweep.trials}, False

    monkeypatch.setattr("rl_training.scale.tuner.run_sweep", here)
    file = tune_file(tmp_path, trials=2, repeat={"best": 2, "seeds": 2})
    code, text = command("tune", file, "--json", "--workers", "1")
    answer = json.loads(text)
    assert code == 0
    assert [trial["status"] for trial in answer["trials"]] in (["completed"] * 2, ["completed", "stopped"])
    assert [len(one["scores"]) for one in answer["ranking"]] == [2, 2]
    assert answer["ranking"][0]["mean"] >= answer["ranking"][1]["mean"]
    best = read_config(answer["best"])
    assert {RATE: best.algo_kwargs["learning_rate"], "algo_kwargs.backend": best.algo_kwargs["backend"]} == answer[
        "ranking"
    ][0]["changes"]
    assert load_config(answer["best"]).output_dir == Path("runs")
    assert "Parallel coordinates" in Path(answer["report"]).read_text()
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json")}
    assert command("tune", file, "--json", "--workers", "1")[0] == 0  # nothing is left to do
    assert {path: path.stat().st_mtime_ns for path in written} == written
