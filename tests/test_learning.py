"""Each algorithm learns a task in seconds, and fails it when the idea that makes it work is taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training.config import TrainConfig, parse_config
from rl_training.data.dataset_loaders import write_transitions
from rl_training.runtime.run import train
from rl_training.runtime.stack_runs import train_stack
from rl_training.tools.datasets import collect_dataset

pytestmark = pytest.mark.slow

SMALL = {"hidden_sizes": [64, 64], "batch_size": 128, "learning_rate": 1e-3, "eval_interval": None}


def small_run(folder: Path, algo: str, env_id: str, steps: int, **changes: Any) -> TrainConfig:
    """Return the configuration of a run with a small network."""
    values = {
        "algo": algo,
        "env_id": env_id,
        "total_timesteps": steps,
        "eval_episodes": 30,
        "output_dir": str(folder),
        **changes,
        "algo_kwargs": SMALL | changes.get("algo_kwargs", {}),
    }
    return parse_config(values)


def final_metrics(folder: Path, algo: str, env_id: str, steps: int, **changes: Any) -> dict[str, float]:
    """Train a small network and return its last evaluation."""
    return train(small_run(folder, algo, env_id, steps, **changes)).metrics


def bit_flipping(folder: Path, **algo_kwargs: Any) -> float:
    options = {"backend": "dqn", "gamma": 0.98, "tau": 0.05, "learning_starts": 500, "random_action_prob": 0.1}
    metrics = final_metrics(
        folder,
        "her",
        "rl_training/BitFlipping-v0",
        6000,
        env_kwargs={"n_bits": 12},
        algo_kwargs=options | {"gradient_updates_per_step": 0.5} | algo_kwargs,
    )
    return metrics["eval/success_rate"]


def test_hindsight_solves_bit_flipping(tmp_path):
    assert bit_flipping(tmp_path) >= 0.9


def test_without_hindsight_bit_flipping_is_not_solved(tmp_path):
    assert bit_flipping(tmp_path, her_ratio=0.0) <= 0.2


@pytest.mark.parametrize(("backend", "num_envs"), [("ddpg", 1), ("ddpg", 4), ("td3", 1), ("sac", 4)])
def test_hindsight_reaches_goals_on_a_line(tmp_path, backend, num_envs):
    options = {"backend": backend, "gamma": 0.95, "tau": 0.05, "learning_starts": 500, "random_action_prob": 0.3}
    metrics = final_metrics(tmp_path, "her", "rl_training/PointGoal1D-v0", 2500, num_envs=num_envs, algo_kwargs=options)
    assert metrics["eval/success_rate"] >= 0.9


@pytest.mark.parametrize(("ratio", "reached"), [(0.8, True), (0.0, False)])
def test_goals_in_the_plane_are_reached_with_hindsight_and_missed_without(tmp_path, ratio, reached):
    options = {"backend": "ddpg", "gamma": 0.95, "tau": 0.05, "learning_starts": 1000, "random_action_prob": 0.3}
    metrics = final_metrics(
        tmp_path, "her", "rl_training/PointReach2D-v0", 4500, algo_kwargs=options | {"her_ratio": ratio}
    )
    success = metrics["eval/success_rate"]
    assert success >= 0.9 if reached else success <= 0.3


@pytest.mark.parametrize(
    ("algo", "steps", "changes"),
    [
        ("ddpg", 5000, {}),
        # With less noise and smaller steps one seed in six does not find the way up, and rounding decides which one.
        ("td3", 8000, {"learning_rate": 1e-3, "exploration_noise": 0.3}),
        ("sac", 4000, {}),
    ],
)
def test_the_pendulum_is_swung_up(tmp_path, algo, steps, changes):
    options = {"gamma": 0.98, "tau": 0.01, "learning_starts": 500} | changes
    metrics = final_metrics(tmp_path, algo, "Pendulum-v1", steps, seed=1, algo_kwargs=options)
    assert metrics["eval/mean_reward"] >= -300  # random play gets about -1,200


def test_the_pole_is_balanced(tmp_path):
    options = {
        "gamma": 0.99,
        "tau": 0.01,
        "learning_starts": 500,
        "critic_layer_norm": True,
        "lr_schedule": "linear",
        "gradient_updates_per_step": 0.5,
        "random_action_prob": {"kind": "linear", "start": 1.0, "end": 0.05, "fraction": 0.3},
    }
    metrics = final_metrics(tmp_path, "dqn", "CartPole-v1", 15_000, algo_kwargs=options)
    assert metrics["eval/mean_reward"] >= 100  # random play gets about 20


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Twenty episodes of a hand-written controller on a line."""
    dataset, _ = collect_dataset("rl_training/PointGoal1D-v0", "scripted", episodes=20)
    return str(write_transitions(dataset, tmp_path_factory.mktemp("data") / "demonstrations.npz"))


def mean_success(folder: Path, algo: str, steps: int, seeds: int, **algo_kwargs: Any) -> float:
    """Return the success over a few seeds, some of which are easier than others; they are trained as one stack."""
    runs = [
        small_run(folder, algo, "rl_training/PointGoal1D-v0", steps, seed=seed, algo_kwargs=algo_kwargs)
        for seed in range(seeds)
    ]
    return sum(result.metrics["eval/success_rate"] for result in train_stack(runs)) / seeds


@pytest.mark.parametrize("with_prior", [True, False])
def test_demonstrations_give_hindsight_a_start(tmp_path, demonstrations, with_prior):
    options = {"backend": "td3", "gamma": 0.95, "tau": 0.05, "learning_starts": 100, "gradient_updates_per_step": 4}
    prior = {"dataset_path": demonstrations, "bc_weight": 1.0} if with_prior else {}
    success = mean_success(tmp_path, "her", 380, seeds=5, random_action_prob=0.2, **options, **prior)
    assert success >= 0.6 if with_prior else success <= 0.4  # 0.91 and 0.21 when this was written


@pytest.mark.parametrize("with_prior", [True, False])
def test_rlpd_finds_a_sparse_reward_that_its_prior_data_has_found(tmp_path, demonstrations, with_prior):
    options = {"num_critics": 4, "gamma": 0.95, "tau": 0.02, "learning_starts": 100, "gradient_updates_per_step": 4}
    options |= {"policy_delay": 1, "backup_entropy": False, "alpha": 0.02}
    prior = {"dataset_path": demonstrations} if with_prior else {"offline_batch_ratio": 0.0}
    success = mean_success(tmp_path, "rlpd", 600, seeds=5, **options, **prior)  # 0.64 and 0.07 when this was written
    assert success >= 0.35 if with_prior else success <= 0.2
