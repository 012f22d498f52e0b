"""The records behind the report: episodes, the latest evaluation, the data's returns, warnings, and their exactness."""

from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from conftest import StopAt
from rl_training.data import HERReplayBuffer
from rl_training.envs.factory import make_raw_env, space_spec
from rl_training.envs.goals import GoalRewards
from rl_training.runtime import Callback
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run import resume, train
from rl_training.runtime.run_lock import is_locked, lock_run
from rl_training.runtime.warning_log import read_warnings

SMALL = {"hidden_sizes": [16, 16], "batch_size": 16, "buffer_capacity": 2000, "learning_starts": 50, "log_interval": 50}
COLUMNS = ["global_step", "return", "length", "success", "final_distance", "environment", "goal"]


class Episodes(Callback):
    """Keeps what ``on_episode`` is told."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def on_episode(self, trainer, record) -> None:
        self.seen.append((trainer.state.global_step, record))


def rows_of(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "episodes.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        return list(reader)


def records_of(run_dir: Path) -> dict[str, str]:
    return {name: (run_dir / name).read_text() for name in ("episodes.csv", "evaluation.json")}


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple]]:
    """A run of two environments, and what ``on_episode`` was told."""
    episodes = Episodes()
    algo_kwargs = {
        **SMALL,
        "lr_schedule": {"kind": "linear", "start": 1.0, "end": 0.1},
        "actor_lr": 1e-3,
        "critic_lr": 2e-3,
        "episode_priority": "uniform",
    }
    config = {
        "algo": "her",
        "env_id": "rl_training/PointReach2D-v0",
        "num_envs": 2,
        "env_kwargs": {"max_steps": 10},
        "total_timesteps": 150,
        "eval_episodes": 14,
        "output_dir": str(tmp_path_factory.mktemp("runs")),
        "algo_kwargs": algo_kwargs,
    }
    return train(config, [episodes]).run_dir, episodes.seen


def test_every_episode_is_recorded_as_the_callback_saw_it(reach) -> None:
    run_dir, seen = reach
    rows = rows_of(run_dir)
    assert len(rows) == len(seen) == 14  # two environments, 75 steps each
    for row, (step, record) in zip(rows, seen, strict=True):
        numbers = int(row["global_step"]), int(row["length"]), int(row["environment"])
        assert numbers == (step, record.length, record.environment)
        assert float(row["return"]) == record.reward
        assert row["success"] == str(int(record.success))
        assert float(row["final_distance"]) == record.distance
        assert tuple(map(float, row["goal"].split())) == record.goal
    assert [int(row["global_step"]) for row in rows[:4]] == [20, 20, 40, 40]
    assert {row["environment"] for row in rows} == {"0", "1"}
    threshold = make_raw_env("rl_training/PointReach2D-v0").get_wrapper_attr("distance_threshold")
    assert all((record.distance <= threshold) == record.success for _, record in seen)


def test_the_latest_evaluation_is_recorded_with_goals_and_paths(reach) -> None:
    run_dir, _ = reach
    content = json.loads((run_dir / "evaluation.json").read_text())
    assert content["global_step"] == 150
    episodes = content["episodes"]
    row = read_metrics(run_dir / "metrics.csv")[-1]
    assert np.mean([one["return"] for one in episodes]) == pytest.approx(row["eval/mean_reward"])
    assert np.mean([one["success"] for one in episodes]) == pytest.approx(row["eval/success_rate"])
    assert ["path" in one for one in episodes] == [True] * 12 + [False] * 2
    for one in episodes:
        assert np.linalg.norm(np.subtract(one["goal"], one["end"])) == pytest.approx(one["final_distance"], abs=1e-6)
    first = episodes[0]
    assert (first["path"][0], first["path"][-1], len(first["path"])) == (first["start"], first["end"], 11)
    assert first["start"] != first["end"]


def test_the_log_has_learning_rates_and_the_shares_of_hindsight(reach) -> None:
    rows = read_metrics(reach[0] / "metrics.csv")
    assert rows[0]["train/actor_lr"] > rows[-1]["train/actor_lr"] == pytest.approx(1e-4)
    assert rows[-1]["train/critic_lr"] == pytest.approx(2 * rows[-1]["train/actor_lr"])
    assert 0.5 < rows[-1]["train/relabelled_share"] <= 0.8
    assert 0 <= rows[-1]["train/trivial_goal_share"] <= 1


def test_returns_are_raw_where_the_reward_is_transformed(tiny_config) -> None:
    plain = tiny_config("her", total_timesteps=120, algo_kwargs={"learning_starts": 119})
    wrappers = {"wrappers": {"reward": {"scale": 50.0}}}
    scaled = plain.model_copy(update={"env_kwargs": wrappers})
    returns = [[row["return"] for row in rows_of(train(config).run_dir)] for config in (plain, scaled)]
    assert returns[0] == returns[1]
    assert len(returns[0]) > 1


def test_a_task_without_goals_has_neither_distance_nor_goal(tiny_config) -> None:
    config = tiny_config("dqn", total_timesteps=200)
    (row, *_) = rows_of(train(config).run_dir)
    assert (row["success"], row["final_distance"], row["goal"]) == ("", "", "")
    assert float(row["return"]) == int(row["length"])  # CartPole


@pytest.fixture(scope="module")
def point(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """A configuration, and a run of it that never stopped."""
    algo_kwargs = {**SMALL, "eval_interval": 60, "checkpoint_interval": 50}
    config = {
        "algo": "her",
        "env_id": "rl_training/PointGoal1D-v0",
        "num_envs": 2,
        "total_timesteps": 240,
        "eval_episodes": 2,
        "output_dir": str(tmp_path_factory.mktemp("runs")),
        "algo_kwargs": algo_kwargs,
    }
    return config, train(config, run_name="straight").run_dir


def test_a_resumed_run_has_the_records_of_a_run_that_never_stopped(point) -> None:
    config, straight = point
    stopped = train(config, [StopAt(step=133)], run_name="stopped").run_dir
    assert 0 < len(rows_of(stopped)) < len(rows_of(straight))
    resume(stopped)
    assert records_of(stopped) == records_of(straight)


def test_records_after_the_checkpoint_are_removed(point) -> None:
    """As after a kill: episodes were written, and an evaluation made, that the latest checkpoint does not have."""
    config, straight = point
    killed = train(config, [StopAt(step=130)], run_name="killed").run_dir
    before = rows_of(killed)
    with (killed / "episodes.csv").open("a") as file:
        file.write("230,-1.0,10,0,0.5,0,0.1\n235,-1.")
    (killed / "evaluation.json").write_text('{"global_step": 180, "update_count": 180, "episodes": []}')
    resume(killed, [StopAt(step=132)])
    assert rows_of(killed)[: len(before)] == before
    assert all(int(row["global_step"]) <= 132 for row in rows_of(killed))
    assert not (killed / "evaluation.json").exists()
    resume(killed)
    assert records_of(killed) == records_of(straight)


def test_goals_of_many_numbers_are_not_recorded(tiny_config) -> None:
    config = tiny_config("her", "rl_training/BitFlipping-v0", total_timesteps=120, algo_kwargs={"backend": "dqn"})
    run_dir = train(config).run_dir
    row, *_ = rows_of(run_dir)
    assert row["goal"] == ""
    assert float(row["final_distance"]) >= 0
    assert "goal" not in json.loads((run_dir / "evaluation.json").read_text())["episodes"][0]


def test_an_offline_run_records_its_data_and_no_episodes(tiny_config) -> None:
    config = tiny_config(
        "her",
        total_timesteps=30,
        algo_kwargs={
            "online": False,
            "dataset_kind": "random",
            "dataset_size": 500,
            "buffer_capacity": 1000000,
            "learning_starts": None,
        },
    )
    run_dir = train(config).run_dir
    assert not (run_dir / "episodes.csv").exists()
    data = json.loads((run_dir / "data.json").read_text())
    assert data["transitions"] == 500
    assert len(data["returns"]) == data["episodes"] > 3
    assert data["returns"] == sorted(data["returns"])


def test_warnings_are_recorded_and_still_shown(tiny_config) -> None:
    class Warn(Callback):
        def on_step(self, trainer) -> None:
            if trainer.state.global_step in (3, 7):
                warnings.warn(f"something at {trainer.state.global_step}", stacklevel=1)

    config = tiny_config("ddpg", total_timesteps=120)
    with pytest.warns(UserWarning, match="something at 7"):
        run_dir = train(config, [Warn()]).run_dir
    assert read_warnings(run_dir) == [(3, "something at 3"), (7, "something at 7")]
    with (run_dir / "warnings.jsonl").open("a") as file:
        file.write('{"global_step": 500, "message": "after the checkpoint"}\n{"glo')
    resume(run_dir)
    assert read_warnings(run_dir) == [(3, "something at 3"), (7, "something at 7")]


def test_early_warnings_are_recorded_too(tmp_path: Path) -> None:
    config = {
        "algo": "bc",
        "total_timesteps": 5,
        "output_dir": str(tmp_path),
        "algo_kwargs": {"batch_size": 4, "hidden_sizes": [8]},
    }
    rng = np.random.default_rng(0)
    values = {
        "observations": rng.normal(size=(50, 3)),
        "actions": rng.uniform(-1, 1, (50, 2)),
        "rewards": np.zeros(50),
        "terminated": np.arange(50) % 10 == 9,
    }
    np.savez(tmp_path / "data.npz", **values)
    config["algo_kwargs"]["dataset_path"] = str(tmp_path / "data.npz")
    with pytest.warns(UserWarning, match="no env_id"):
        run_dir = train(config).run_dir
    assert any("no env_id" in message for _, message in read_warnings(run_dir))
    assert not (run_dir / "evaluation.json").exists()


@pytest.mark.parametrize(("distance", "share"), [(0.0, 1.0), (5.0, 0.0)])
def test_goals_that_were_met_before_the_step_are_trivial(distance: float, share: float) -> None:
    """Achieved goals that never move make every new goal trivial; big steps towards the end make none so."""
    env = make_raw_env("rl_training/PointReach2D-v0")
    goals = GoalRewards(env)
    buffer = HERReplayBuffer(space_spec(env, goals), 100, goals)
    assert buffer.take_metrics() == {}
    achieved = distance * np.arange(11.0)[:, None] * np.ones(2)
    observation = np.zeros((11, buffer.spec.observation_dim))
    observations = {"observation": observation, "achieved_goal": achieved, "desired_goal": np.full((11, 2), 999.0)}
    buffer.add_episode(observations, np.zeros((10, 2)), -np.ones(10), truncated=True)
    buffer.sample(64)
    assert buffer.take_metrics()["train/trivial_goal_share"] == share


def test_a_run_is_locked_while_it_is_trained(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with lock_run(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
