"""RLPD from configuration to resumed run: pretraining, mixed batches, budgets, rewards, and wrong input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import StopAt
from rl_training import cli
from rl_training.config import TrainConfig
from rl_training.data import ReplayBuffer, TransitionDataset
from rl_training.data.dataset_loaders import write_transitions
from rl_training.data.mixture import Mixture
from rl_training.errors import ConfigError, DatasetError, EnvError, RLTrainingError
from rl_training.experiment.manager import evaluate_experiment, train_experiment
from rl_training.runtime import Callback, train_rlpd
from rl_training.runtime.checkpointing import find_checkpoint, read_checkpoint, resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run import resume, train
from rl_training.seeding import Stream, stream_generator
from rl_training.tools.datasets import collect_dataset

PENDULUM = "Pendulum-v1"
SHORT = {"max_episode_steps": 40}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five short random episodes of the pendulum."""
    dataset, _ = collect_dataset(PENDULUM, "random", episodes=5, env_kwargs=SHORT)
    return Path(write_transitions(dataset, tmp_path_factory.mktemp("data") / "pendulum.npz"))


@pytest.fixture
def rlpd(tiny_config, file):
    """Return a function that makes a small RLPD run with prior data."""

    def make(algo: str = "rlpd", **changes: Any) -> TrainConfig:
        kwargs = {
            "dataset_path": str(file),
            "num_critics": 4,
            "learning_starts": 20,
            "gradient_updates_per_step": 2,
            "eval_interval": 50,
            "checkpoint_interval": 50,
            "log_interval": 20,
            **changes.pop("algo_kwargs", {}),
        }
        kwargs = {key: value for key, value in kwargs.items() if value != "absent"}
        values = {"total_timesteps": 100, "eval_episodes": 1, "env_kwargs": SHORT, "algo_kwargs": kwargs}
        return tiny_config(algo, **values | changes)

    return make


def test_training_on_a_pt_file_equals_training_on_the_same_npz_file(rlpd, file, tmp_path):
    from rl_training.data import load_transition_dataset

    saved = write_transitions(load_transition_dataset(file), tmp_path / "pendulum.pt")
    results = [train_rlpd(rlpd(algo_kwargs={"dataset_path": str(path)})) for path in (file, saved)]
    assert results[0].metrics == results[1].metrics


class Watch(Callback):
    """Looks at what the loop put together, and at where it stands after every step."""

    def __init__(self) -> None:
        self.positions: list[tuple[int, int]] = []

    def on_step(self, trainer):
        self.positions.append((trainer.state.global_step, trainer.state.update_count))

    def on_training_end(self, trainer):
        self.learner, self.experience, self.replay = trainer.learner, trainer.experience, trainer.replay


def evaluations(run_dir: Path) -> list[tuple[int, int]]:
    rows = read_metrics(run_dir / "metrics.csv")
    return [(row["global_step"], row["update_count"]) for row in rows if "eval/mean_reward" in row]


def test_rlpd_trainer_smoke(rlpd):
    watch = Watch()
    config = rlpd(algo_kwargs={"offline_pretrain_updates": 30, "offline_batch_ratio": 0.25})
    result = train_experiment(config, callbacks=[watch])
    # 30 updates of pretraining, then two for every step from the 20th on.
    assert (result.status, result.stop_reason) == ("completed", "total_timesteps")
    assert (result.global_step, result.update_count) == (100, 30 + 2 * 80)
    assert isinstance(watch.experience, Mixture)
    assert isinstance(watch.experience.offline, TransitionDataset)
    assert isinstance(watch.experience.online, ReplayBuffer)
    assert (len(watch.experience.offline), len(watch.experience.online)) == (200, 100)
    assert watch.learner.settings.policy_delay == 2

    rows = read_metrics(result.run_dir / "metrics.csv")
    shares = {(row["global_step"], row["update_count"]): row.get("train/offline_share") for row in rows}
    assert shares[0, 20] == shares[0, 30] == 1.0  # nothing fresh yet
    assert shares[20, 30] is None  # nothing drawn while the first steps are collected
    assert {shares[step, 30 + 2 * (step - 20)] for step in (40, 60, 80, 100)} == {0.25}
    last = rows[-1]
    assert {"train/q_offline", "train/q_online", "train/q_mean", "train/critic_loss", "train/actor_loss"} <= last.keys()
    assert all(np.isfinite(value) for value in last.values())
    assert "train/q_online" not in rows[0]
    # The mean of all rows is that of both parts, by their share.
    assert last["train/q_mean"] == pytest.approx(
        0.25 * last["train/q_offline"] + 0.75 * last["train/q_online"], rel=1e-3, abs=1e-4
    )

    for name in ("config.yaml", "report.html", "checkpoints/latest", "checkpoints/best"):
        assert (result.run_dir / name).is_file()
    manifest, state = read_checkpoint(resolve_checkpoint(result.run_dir / "checkpoints"))
    assert (manifest["global_step"], manifest["update_count"]) == (100, 190)
    assert set(state["experience"]) >= {"prior", "fresh"}
    assert np.isfinite(evaluate_experiment(result.run_dir, episodes=1)["metrics"]["eval/mean_reward"])


def test_pretraining_counts_updates_only_and_ends_with_an_evaluation(rlpd):
    watch = Watch()
    config = rlpd(algo_kwargs={"offline_pretrain_updates": 33, "log_interval": 10, "eval_interval": 25})
    result = train_rlpd(config, callbacks=[watch])
    assert watch.positions[:33] == [(0, update) for update in range(1, 34)]
    assert watch.positions[33:36] == [(1, 33), (2, 33), (3, 33)]
    assert watch.positions[-1] == (100, 33 + 160)
    # Every 25 updates of pretraining, at the hand-over, and every 25 steps.
    assert evaluations(result.run_dir) == [(0, 25), (0, 33), (25, 43), (50, 93), (75, 143), (100, 193)]
    rows = read_metrics(result.run_dir / "metrics.csv")
    assert [row["update_count"] for row in rows if row["global_step"] == 0] == [10, 20, 25, 30, 33]


def test_a_pretrained_policy_collects_from_the_first_step(rlpd):
    class First(Callback):
        def on_step(self, trainer):
            if trainer.state.global_step == 1:
                self.random = trainer.collector.exploration.rng.bit_generator.state

    trained, untrained = First(), First()
    train_rlpd(rlpd(algo_kwargs={"offline_pretrain_updates": 5, "max_updates": 7}), callbacks=[trained])
    train_rlpd(rlpd(algo_kwargs={"max_updates": 2}), callbacks=[untrained])
    # SAC's own exploration draws from the learner's generator; only random actions draw from the collector's.
    fresh = stream_generator(0, Stream.EXPLORATION).bit_generator.state
    assert trained.random == fresh
    assert untrained.random != fresh


def test_pretraining_learns_from_prior_rows_alone(rlpd):
    class Rows(Callback):
        seen: tuple[int | None, ...] = ()

        def on_training_start(self, trainer):
            update = trainer.learner.update

            def watching(batch):
                Rows.seen = (*Rows.seen, batch.offline_rows)
                return update(batch)

            trainer.learner.update = watching

    train_rlpd(rlpd(algo_kwargs={"offline_pretrain_updates": 4, "max_updates": 7}), callbacks=[Rows()])
    assert Rows.seen == (16, 16, 16, 16, 8, 8, 8)


def test_a_scheduled_ratio_moves_the_share(rlpd):
    ratio = {"kind": "linear", "start": 1.0, "end": 0.0}
    result = train_rlpd(rlpd(algo_kwargs={"offline_batch_ratio": ratio, "log_interval": 10}))
    rows = read_metrics(result.run_dir / "metrics.csv")
    shares = [(row["global_step"], row["train/offline_share"]) for row in rows if "train/offline_share" in row]
    assert [step for step, _ in shares] == [30, 40, 50, 60, 70, 80, 90, 100]
    for step, share in shares:  # of the ten steps up to there
        assert share == pytest.approx(1.0 - (step - 4.5) / 100, abs=0.01)


@pytest.mark.parametrize("pretraining", [0, 10])
def test_a_budget_of_updates_counts_pretraining_too(rlpd, pretraining):
    result = train_rlpd(rlpd(algo_kwargs={"max_updates": 25, "offline_pretrain_updates": pretraining}))
    assert (result.stop_reason, result.update_count) == ("max_updates", 25)
    assert result.global_step == 20 + (8 if pretraining else 13)  # two updates a step, from the 20th on


def test_a_budget_may_end_within_pretraining(rlpd):
    result = train_rlpd(rlpd(algo_kwargs={"max_updates": 12, "offline_pretrain_updates": 50}))
    assert (result.stop_reason, result.global_step, result.update_count) == ("max_updates", 0, 12)


def test_without_prior_data_nothing_is_mixed(rlpd):
    watch = Watch()
    train_rlpd(rlpd(algo_kwargs={"dataset_path": "absent", "offline_batch_ratio": 0}), callbacks=[watch])
    assert isinstance(watch.experience, ReplayBuffer)


def test_any_online_learner_takes_prior_data(rlpd):
    watch = Watch()
    kwargs = {"num_critics": "absent", "gradient_updates_per_step": 1, "bc_weight": 1.0, "bc_q_filter": False}
    result = train(rlpd("sac", algo_kwargs=kwargs), callbacks=[watch])
    assert watch.experience.ratio == 0.5
    last = read_metrics(result.run_dir / "metrics.csv")[-1]
    assert last["train/offline_share"] == 0.5
    assert last["train/bc_loss"] > 0


# Resuming


def final_state(run_dir: Path) -> tuple[Any, ...]:
    checkpoint = resolve_checkpoint(run_dir / "checkpoints")
    manifest, _ = read_checkpoint(checkpoint)
    tensors = {
        f"{part}: {name}": tensor
        for part in manifest["files"]
        for name, tensor in load_file(checkpoint / f"{part}.safetensors").items()
    }
    segments = [load_file(run_dir / "replay" / segment["name"])["rows"] for segment in manifest["segments"]]
    rows = read_metrics(run_dir / "metrics.csv")
    log = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    return manifest["state"], tensors, torch.cat(segments), log


@pytest.mark.parametrize(
    ("stops", "changes"),
    [
        pytest.param([(0, 17)], {}, id="in-pretraining"),
        pytest.param([(0, 30)], {}, id="at-the-hand-over"),
        pytest.param([(47, 0)], {}, id="online"),
        pytest.param([(0, 9), (10, 0), (66, 0)], {}, id="three-times"),
        pytest.param([(0, 17), (47, 0)], {"algo_kwargs": {"normalize_observations": True}}, id="normalised"),
        pytest.param(
            [(0, 17), (47, 0)],
            {"algo_kwargs": {"offline_batch_ratio": {"kind": "linear", "start": 0.9, "end": 0.1}}, "num_envs": 3},
            id="scheduled-ratio",
        ),
    ],
)
def test_a_resumed_run_ends_exactly_where_an_uninterrupted_one_does(rlpd, stops, changes):
    kwargs = {"offline_pretrain_updates": 30, "offline_batch_ratio": 0.3, **changes.pop("algo_kwargs", {})}
    config = rlpd(algo_kwargs=kwargs, **changes)
    straight = train(config)
    broken = train(config, callbacks=[StopAt(*stops[0])])
    assert broken.status == "interrupted"
    for stop in stops[1:]:
        assert resume(broken.run_dir, callbacks=[StopAt(*stop)]).status == "interrupted"
    finished = resume(broken.run_dir)
    assert (finished.global_step, finished.update_count) == (straight.global_step, straight.update_count)
    assert finished.metrics == straight.metrics
    state, tensors, rows, log = final_state(straight.run_dir)
    other_state, other_tensors, other_rows, other_log = final_state(broken.run_dir)
    assert state == other_state
    assert tensors.keys() == other_tensors.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], other_tensors[name])] == []
    assert torch.equal(rows[-50:], other_rows[-50:])
    assert log == other_log


def test_resuming_on_other_prior_data_is_refused(rlpd, tmp_path, file):
    copy = tmp_path / "copy.npz"
    copy.write_bytes(file.read_bytes())
    config = rlpd(algo_kwargs={"dataset_path": str(copy)})
    broken = train(config, callbacks=[StopAt(30, 0)])
    with np.load(copy) as archive:
        arrays = dict(archive)
    np.savez(copy, **{**arrays, "rewards": arrays["rewards"] * 2})
    with pytest.raises(RLTrainingError, match="not the data the run was started with"):
        resume(broken.run_dir)


# Rewards


def test_reward_settings_reach_prior_and_fresh_rewards_alike(rlpd, file):
    watch, plain = Watch(), Watch()
    kwargs = {"reward_scale": 0.5, "reward_shift": 1.0, "reward_clip_min": -3.0, "max_updates": 5}
    result = train_rlpd(rlpd(algo_kwargs=kwargs), callbacks=[watch])
    train_rlpd(rlpd(algo_kwargs={"max_updates": 5}), callbacks=[plain])
    for source in ("offline", "online"):
        rewards, raw = (getattr(w.experience, source).sample(20).rewards for w in (watch, plain))
        torch.testing.assert_close(rewards, (raw * 0.5 + 1.0).clamp(min=-3.0))
        assert (raw < 0).all()
        assert (rewards != raw).all()
    assert result.metrics["eval/mean_reward"] < -3.0 * 40  # evaluation speaks of the task's own reward


def test_an_automatic_scale_is_that_of_the_prior_data(rlpd, file):
    watch, plain = Watch(), Watch()
    train_rlpd(rlpd(algo_kwargs={"reward_scale": "auto", "max_updates": 5}), callbacks=[watch])
    train_rlpd(rlpd(algo_kwargs={"max_updates": 5}), callbacks=[plain])
    returns = plain.experience.offline.episode_returns
    scale = 1000 / (returns.max() - returns.min())
    for source in ("offline", "online"):
        rewards, raw = (getattr(w.experience, source).sample(20).rewards for w in (watch, plain))
        torch.testing.assert_close(rewards, raw * scale, rtol=1e-4, atol=1e-4)


def test_the_environments_reward_wrapper_reaches_rewards_of_the_file(rlpd):
    watch, plain = Watch(), Watch()
    wrapped = {**SHORT, "wrappers": {"reward": {"scale": 2.0, "shift": 3.0}}}
    train_rlpd(rlpd(env_kwargs=wrapped, algo_kwargs={"max_updates": 5, "reward_scale": 10}), callbacks=[watch])
    train_rlpd(rlpd(algo_kwargs={"max_updates": 5}), callbacks=[plain])
    for source in ("offline", "online"):
        rewards, raw = (getattr(w.experience, source).sample(20).rewards for w in (watch, plain))
        torch.testing.assert_close(rewards, (raw * 2.0 + 3.0) * 10.0)


# Wrong input


class Pictures(gym.Env):
    """An environment whose observations are images."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)


@pytest.fixture
def pictures():
    gym.register("Pictures-v0", entry_point=Pictures)
    yield "Pictures-v0"
    gym.registry.pop("Pictures-v0")


NO_DATA = {"dataset_path": "absent"}
WRONG = [
    pytest.param(
        NO_DATA, ConfigError, r"offline_batch_ratio = 0\.5 needs offline data: expected dataset_path", id="no-data"
    ),
    pytest.param(
        {**NO_DATA, "offline_batch_ratio": 0, "offline_pretrain_updates": 9},
        ConfigError,
        "offline_pretrain_updates = 9 needs offline data",
        id="pretraining-without-data",
    ),
    pytest.param(
        {"offline_batch_ratio": 1.5}, ConfigError, r"offline_batch_ratio.*1\.5.*at most 1|equal to 1", id="1.5"
    ),
    pytest.param({"offline_batch_ratio": -0.1}, ConfigError, r"offline_batch_ratio", id="negative"),
    pytest.param(
        {"offline_batch_ratio": 0, "bc_weight": 2.0, "offline_pretrain_updates": 0},
        ConfigError,
        "bc_weight = 2 has no offline rows to imitate",
        id="nothing-to-imitate",
    ),
    pytest.param(
        {"offline_batch_ratio": {"kind": "linear", "start": 0.2, "end": 1.2}},
        ConfigError,
        r"offline_batch_ratio goes from 0\.2 to 1\.2: expected at most 1",
        id="schedule-above-1",
    ),
    pytest.param({"offline_pretrain_updates": -1}, ConfigError, "offline_pretrain_updates = -1", id="pretrain--1"),
    pytest.param(
        {"num_min_critics": 5}, ConfigError, "num_min_critics = 5 is above num_critics = 4", id="subset-too-large"
    ),
    pytest.param({"reward_scale": "big"}, ConfigError, r"reward_scale.*'big'", id="reward_scale"),
    pytest.param(
        {**NO_DATA, "offline_batch_ratio": 0, "reward_scale": "auto"},
        ConfigError,
        "reward_scale = 'auto' needs logged data",
        id="auto-scale-without-data",
    ),
    pytest.param({"dataset_path": "nowhere.npz"}, DatasetError, r"nowhere\.npz.*no such file", id="no-file"),
    pytest.param({"ofline_batch_ratio": 0.5}, ConfigError, "did you mean 'offline_batch_ratio'", id="misspelt"),
]


@pytest.mark.parametrize(("kwargs", "error", "message"), WRONG)
def test_wrong_settings_are_named_and_nothing_is_written(rlpd, tmp_path, kwargs, error, message):
    with pytest.raises(error, match=message):
        train_rlpd(rlpd(algo_kwargs=kwargs))
    assert not (tmp_path / "runs").exists()


def test_a_ratio_that_grows_from_nothing_needs_prior_data_as_well(rlpd):
    ratio = {"kind": "linear", "start": 0.0, "end": 0.5}
    with pytest.raises(ConfigError, match="needs offline data"):
        train_rlpd(rlpd(algo_kwargs={**NO_DATA, "offline_batch_ratio": ratio}))


def test_an_environment_that_does_not_suit_is_refused(rlpd, tmp_path, pictures):
    with pytest.raises(ConfigError, match="algo = 'rlpd' does not suit env_id = 'CartPole-v1'"):
        train_rlpd(rlpd(env_id="CartPole-v1"))
    with pytest.raises(EnvError, match="images are not supported"):
        train_rlpd(rlpd(env_id=pictures, env_kwargs={}))
    with pytest.raises(ConfigError, match="'env_id' is required"):
        train_rlpd(rlpd().model_copy(update={"env_id": None}))
    assert not (tmp_path / "runs").exists()


def test_prior_data_of_another_task_is_refused(rlpd, tmp_path, file):
    with np.load(file) as archive:
        arrays = dict(archive)
    wide = {key: np.repeat(arrays[key], 2, axis=1) for key in ("observations", "next_observations")}
    for changes, message in (
        (wide, "the data has observation_dim 6, the task 3"),
        ({"actions": np.repeat(arrays["actions"], 2, axis=1)}, "the data has action_dim 2, the task 1"),
        ({"actions": np.arange(len(arrays["rewards"])) % 3}, "the data has discrete actions, the task continuous"),
    ):
        np.savez(tmp_path / "other.npz", **{**arrays, **changes})
        with pytest.raises(DatasetError, match=message):
            train_rlpd(rlpd(algo_kwargs={"dataset_path": str(tmp_path / "other.npz")}))
    goals, _ = collect_dataset("rl_training/PointGoal1D-v0", "random", episodes=1)
    write_transitions(goals, tmp_path / "goals.npz")
    with pytest.raises(DatasetError, match=r"the data has (observation|goal)_dim"):
        train_rlpd(rlpd(algo_kwargs={"dataset_path": str(tmp_path / "goals.npz")}))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["algo_kwargs.offline_batch_ratio=1.5"], "offline_batch_ratio"),
        (["algo_kwargs.dataset_kind=null"], "offline_batch_ratio = 0.5 needs offline data"),
        (["algo_kwargs.num_min_critics=11"], "num_min_critics = 11 is above num_critics = 10"),
        (["env_id=CartPole-v1"], "algo = 'rlpd' does not suit"),
        (["algo_kwargs.dataset_kind=npz", "algo_kwargs.dataset_path=wide.npz"], "the data has observation_dim 6"),
        (["algo_kwargs.init_from=nowhere"], "algo_kwargs.init_from = 'nowhere'"),
    ],
)
def test_the_command_line_says_what_is_wrong(tmp_path, monkeypatch, capsys, file, sets, message):
    monkeypatch.chdir(tmp_path)
    with np.load(file) as archive:
        arrays = dict(archive)
    wide = {key: np.repeat(arrays[key], 2, axis=1) for key in ("observations", "next_observations")}
    np.savez("wide.npz", **{**arrays, **wide})
    overrides = [part for setting in ("algo_kwargs.dataset_size=300", *sets) for part in ("--set", setting)]
    monkeypatch.setattr(sys, "argv", ["rl-training", "train", "rlpd/pendulum", *overrides])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["wide.npz"]


def test_the_preset_trains_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sets = ("total_timesteps=40", "eval_episodes=1", "algo_kwargs.dataset_size=100", "algo_kwargs.learning_starts=20")
    overrides = [part for setting in sets for part in ("--set", setting)]
    monkeypatch.setattr(sys, "argv", ["rl-training", "train", "rlpd/pendulum", "--json", *overrides])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert '"update_count": 40' in capsys.readouterr().out
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert find_checkpoint(run_dir).is_dir()
    assert (run_dir / "report.html").is_file()
