"""Experiments from start to finish, as the command line and the managed classes run them."""

from __future__ import annotations

import pytest

from rl_training.algorithms.table import ALGORITHMS, find_algorithm
from rl_training.config import load_config
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.manager import (
    evaluate_experiment,
    load_policy,
    resume_experiment,
    train_experiment,
)
from rl_training.experiment.report import write_report
from rl_training.runtime.settings import parse_run, read_config


def test_an_experiment_trains_reports_and_evaluates(tiny_config):
    config = tiny_config("her")
    result = train_experiment(config, name="her/tiny")
    assert result.run_dir.name.startswith("her-tiny-s0-")
    page = (result.run_dir / "report.html").read_text()
    for panel in ("Return", "Success rate", "Losses", "Q on the batches"):
        assert panel in page
    assert "Completed: total_timesteps after 300 steps" in page
    assert "<script src=" not in page  # complete in itself: nothing is fetched when it is opened
    first = evaluate_experiment(result.run_dir, episodes=3, seed=5)
    assert first == evaluate_experiment(result.run_dir, episodes=3, seed=5)
    assert first["metrics"]["eval/mean_ep_length"] == 50.0
    assert "checkpoints" in first["checkpoint"]


def test_the_kept_configuration_is_complete_and_reads_back(tiny_config):
    config = tiny_config("her", algo_kwargs={"backend": "sac"})
    result = train_experiment(config)
    kept = load_config(result.run_dir / "config.yaml")
    assert kept.algo_kwargs["tau"] == 0.005  # a default that nobody wrote down
    assert kept.algo_kwargs["hidden_sizes"] == [16, 16]
    assert parse_run(kept) == parse_run(config)


def test_several_runs_share_one_report(tiny_config, tmp_path):
    runs = [train_experiment(tiny_config("her", seed=seed)).run_dir for seed in (0, 1)]
    page = write_report(runs, tmp_path / "both" / "report.html").read_text()
    assert all(run.name in page for run in runs)
    with pytest.raises(ConfigError, match="not a run with metrics"):
        write_report([tmp_path / "both"], tmp_path / "none.html")


def test_runs_started_in_the_same_second_get_folders_of_their_own(tiny_config):
    config = tiny_config("ddpg", total_timesteps=120)
    assert len({train_experiment(config).run_dir for _ in range(3)}) == 3


def test_resuming_what_is_not_a_run(tmp_path):
    with pytest.raises(CheckpointError, match="not a run"):
        resume_experiment(tmp_path)
    with pytest.raises(CheckpointError, match="neither a run nor a checkpoint"):
        load_policy(tmp_path)


def test_unknown_algorithm_and_preset_name_the_nearest():
    with pytest.raises(ConfigError, match=r"algo = 'herr': expected one of .* \(did you mean 'her'\?\)"):
        find_algorithm("herr")
    with pytest.raises(ConfigError, match="did you mean 'her/point_reach'"):
        read_config("her/point_reech")


def test_rows_of_the_table_are_found_by_their_own_name():
    assert all(name == row.name for name, row in ALGORITHMS.items())


def test_an_output_folder_that_cannot_be_made(tiny_config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output_dir = .* cannot be written to"):
        train_experiment(tiny_config("ddpg", output_dir=str(tmp_path / "file" / "runs")))
