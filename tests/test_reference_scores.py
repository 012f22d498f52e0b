"""Scores on one scale."""

from __future__ import annotations

import pytest

from rl_training.config import parse_config
from rl_training.envs.reference_scores import normalized_score, reference_scores
from rl_training.errors import ConfigError
from rl_training.experiment.manager import evaluate_experiment
from rl_training.runtime.run import train


def test_a_tasks_version_does_not_matter():
    assert reference_scores("Hopper-v5") == reference_scores("Hopper-v4") == (-20.27, 3234.3)
    assert reference_scores("AdroitHandDoor-v1") is not None
    assert reference_scores("Pendulum-v1") is None
    assert reference_scores("Hopper") is None


def test_random_play_is_0_and_an_expert_100():
    assert normalized_score(-20.27, (-20.27, 3234.3)) == 0
    assert normalized_score(3234.3, (-20.27, 3234.3)) == pytest.approx(100)
    assert normalized_score(50.0, (0.0, 200.0)) == 25


def run(tmp_path, **algo_kwargs):
    small = {"dataset_kind": "random", "dataset_size": 200, "hidden_sizes": [8], "batch_size": 8, **algo_kwargs}
    values = {"algo": "bc", "env_id": "Pendulum-v1", "total_timesteps": 5, "eval_episodes": 1}
    config = parse_config({**values, "output_dir": str(tmp_path), "algo_kwargs": small})
    return train(config).metrics


def test_scores_of_ones_own_are_used_in_evaluations(tmp_path):
    metrics = run(tmp_path, reference_scores=[-2000.0, 0.0])
    assert metrics["eval/normalized_score"] == pytest.approx(100 * (1 + metrics["eval/mean_reward"] / 2000))
    assert "eval/normalized_score" not in run(tmp_path)


def test_the_scores_of_a_run_are_used_when_it_is_evaluated_again(tmp_path):
    run(tmp_path, reference_scores=[-2000.0, 0.0])
    metrics = evaluate_experiment(next(tmp_path.glob("*/")), episodes=2)["metrics"]
    assert metrics["eval/normalized_score"] == pytest.approx(100 * (1 + metrics["eval/mean_reward"] / 2000))


def test_scores_in_the_wrong_order_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"reference_scores = \[1\.0, 0\.0\]: expected the lower one first"):
        run(tmp_path, reference_scores=[1, 0])
