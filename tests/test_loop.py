"""The training loop: what it collects, stores, updates, logs and restores, step by step."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from conftest import StopAt
from rl_training import DDPG, RLPD, SAC, algorithms
from rl_training.data import TransitionDataset
from rl_training.runtime import Callback, train_ddpg, train_her, train_sac
from rl_training.runtime.collector import Collector
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.metrics_mean import MetricsMean
from scripted_env import ENV_ID

SLOWLY = {"gradient_updates_per_step": 1}  # RLPD's own 20 would take most of the time


class Watch(Callback):
    """Keeps the trainer and what it looked like after every step."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.rates: list[float] = []
        self.ratios: list[float] = []

    def on_training_start(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step(self, trainer: Any) -> None:
        self.steps.append((trainer.state.global_step, trainer.state.update_count))
        self.rates.append(trainer.learner.actor_optimizer.param_groups[0]["lr"])
        self.ratios.append(getattr(trainer.experience, "ratio", 0.0))


@pytest.fixture
def config(tiny_config):
    """Return a function that makes a configuration of few steps in the scripted environment."""

    def make(algo: str = "ddpg", **changes: Any) -> Any:
        intervals = {"eval_interval": None, "checkpoint_interval": 1000, "log_interval": 1000, "learning_starts": 10}
        kwargs = {**intervals, "hidden_sizes": [8], "batch_size": 8, **changes.pop("algo_kwargs", {})}
        values = {"env_id": ENV_ID, "total_timesteps": 40, "eval_episodes": 1, **changes}
        return tiny_config(algo, algo_kwargs=kwargs, **values)

    return make


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, bool]]:
    """The progress and the randomness that the loop asked the collector for."""
    asked: list[tuple[float, bool]] = []
    step = Collector.step

    def watched(self: Collector, progress: float, random: bool, *more: Any) -> Any:
        asked.append((progress, random))
        return step(self, progress, random, *more)

    monkeypatch.setattr(Collector, "step", watched)
    return asked


def offline_rows(count: int = 60, offset: float = 0.0) -> TransitionDataset:
    rng = np.random.default_rng(0)
    return TransitionDataset.from_dict(
        {
            "observations": rng.normal(offset, 1.0, (count, 3)),
            "next_observations": rng.normal(offset, 1.0, (count, 3)),
            "actions": rng.uniform([-2, 0], [2, 10], (count, 2)),
            "rewards": rng.normal(size=count),
            "terminated": np.arange(count) % 20 == 19,
        }
    )


@pytest.mark.parametrize("num_envs", [1, 2])
def test_actions_are_random_until_learning_starts(config, calls, num_envs: int) -> None:
    result = train_ddpg(config(num_envs=num_envs))
    assert result.global_step == 40
    assert [random for _, random in calls] == [True] * (10 // num_envs) + [False] * (30 // num_envs)
    np.testing.assert_allclose([progress for progress, _ in calls], np.arange(0, 40, num_envs) / 40)


def test_a_policy_that_was_trained_before_is_followed_from_the_first_step(config, calls) -> None:
    first = train_ddpg(config())
    calls.clear()
    DDPG(config(algo_kwargs={"init_from": str(first.run_dir)})).learn()
    assert [random for _, random in calls] == [False] * 40
    calls.clear()
    pretrained = config("rlpd", algo_kwargs={"offline_pretrain_updates": 5, "num_critics": 2, **SLOWLY})
    RLPD(pretrained).learn(dataset=offline_rows())
    assert [random for _, random in calls] == [False] * 40


def test_what_is_collected_is_what_is_learned_from(config) -> None:
    watch = Watch()
    train_ddpg(config(num_envs=2, total_timesteps=24), callbacks=[watch])
    assert len(watch.trainer.replay) == 24
    batch = watch.trainer.replay.sample(300)
    steps = batch.observations[:, 2]
    assert set(steps.tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert torch.equal(batch.next_observations[:, 2], steps + 1)
    assert torch.equal(batch.rewards, steps + 1)
    assert torch.equal(batch.terminated, (steps == 3).float())


def test_the_environments_reward_transform_comes_before_the_algorithms(config) -> None:
    watch = Watch()
    env_kwargs = {"wrappers": {"reward": {"clip_max": 2.0}}}
    train_sac(config("sac", env_kwargs=env_kwargs, algo_kwargs={"reward_scale": 10.0}), callbacks=[watch])
    assert set(watch.trainer.replay.sample(300).rewards.tolist()) == {10.0, 20.0}


def test_a_reward_outside_the_range_so_far_moves_the_bounds_of_values(tiny_config) -> None:
    bounds: list[tuple[float, float]] = []

    class Surprise(Callback):
        def on_step(self, trainer: Any) -> None:
            bounds.append(trainer.learner.value_bounds)
            if trainer.state.global_step == 150:
                goal = np.zeros((1, 1), np.float32)
                trainer.replay.goals.check_play(np.array([-10.0], np.float32), goal, goal)

    with pytest.warns(UserWarning, match="a reward of -10 is outside"):
        train_her(tiny_config("her", total_timesteps=160, algo_kwargs={"gamma": 0.5}), callbacks=[Surprise()])
    assert bounds == [(-2.0, 0.0)] * 150 + [(-20.0, 0.0)] * 10


def test_the_budget_of_updates_moves_the_schedules_as_well(config) -> None:
    watch = Watch()
    kwargs = {"max_updates": 20, "lr_schedule": "linear", "learning_rate": 1e-3, "learning_starts": 4}
    train_ddpg(config(algo_kwargs=kwargs), callbacks=[watch])
    rates = {updates: rate for (_, updates), rate in zip(watch.steps, watch.rates, strict=True)}
    assert rates[1] == pytest.approx(1e-3 * (1 - 5 / 40))  # five steps of 40, and no update of 20 yet
    assert rates[20] == pytest.approx(1e-3 * (1 - 19 / 20))


def test_pretraining_comes_on_top_of_the_updates_online(config) -> None:
    watch = Watch()
    kwargs = {"offline_pretrain_updates": 7, "num_critics": 2, **SLOWLY, "learning_starts": 0}
    RLPD(config("rlpd", algo_kwargs=kwargs)).learn(dataset=offline_rows(), callbacks=[watch])
    assert watch.steps[:7] == [(0, number) for number in range(1, 8)]
    assert watch.steps[7:] == [(step, 7 + step) for step in range(1, 41)]


def test_pretraining_runs_through_the_schedule_of_the_learning_rate_by_itself(config) -> None:
    watch = Watch()
    kwargs = {"offline_pretrain_updates": 5, "num_critics": 2, **SLOWLY, "learning_starts": 0}
    kwargs |= {"lr_schedule": "linear", "learning_rate": 1e-3}
    RLPD(config("rlpd", algo_kwargs=kwargs)).learn(dataset=offline_rows(), callbacks=[watch])
    np.testing.assert_allclose(watch.rates[:5], 1e-3 * (1 - np.arange(1, 6) / 5), atol=1e-9)
    np.testing.assert_allclose(watch.rates[5:], 1e-3 * (1 - np.arange(1, 41) / 40), atol=1e-9)


def test_the_share_of_offline_rows_follows_its_schedule(config) -> None:
    watch = Watch()
    kwargs = {"offline_batch_ratio": {"kind": "linear", "start": 1.0, "end": 0.0}, "num_critics": 2, **SLOWLY}
    RLPD(config("rlpd", algo_kwargs=kwargs)).learn(dataset=offline_rows(), callbacks=[watch])
    np.testing.assert_allclose(watch.ratios, 1 - np.arange(1, 41) / 40, atol=1e-9)


def test_offline_and_online_data_are_drawn_with_seeds_of_their_own(config) -> None:
    class Generators(Callback):
        def on_training_start(self, trainer: Any) -> None:
            mixture = trainer.experience
            self.states = [part.generator.get_state() for part in (mixture.offline, mixture.online, trainer.learner)]

    watch = Generators()
    RLPD(config("rlpd", algo_kwargs={"num_critics": 2, **SLOWLY})).learn(dataset=offline_rows(), callbacks=[watch])
    offline, online, _ = watch.states
    assert not torch.equal(offline, online)


def test_the_normaliser_has_seen_the_offline_data_before_the_first_step(config) -> None:
    class Statistics(Callback):
        def on_training_start(self, trainer: Any) -> None:
            self.mean, self.count = trainer.learner.normalizer.mean.clone(), trainer.learner.normalizer.count.item()

    watch, data = Statistics(), offline_rows(offset=5.0)
    kwargs = {"num_critics": 2, **SLOWLY, "normalize_observations": True}
    RLPD(config("rlpd", algo_kwargs=kwargs)).learn(dataset=data, callbacks=[watch])
    assert watch.count == 60
    np.testing.assert_allclose(watch.mean, data.arrays["observations"].mean(0), rtol=1e-5)


def test_metrics_are_means_over_the_updates_since_the_last_row() -> None:
    mean, value = MetricsMean(), torch.tensor(1.0)
    mean.add({"loss": value})
    value.fill_(5.0)  # a recorded update writes its metrics into the same tensors
    mean.add({"loss": value, "alpha": torch.tensor(2.0)})
    restored = MetricsMean()
    restored.load_state_dict(copy.deepcopy(mean.state_dict()))
    assert mean.take() == restored.take() == {"loss": 3.0, "alpha": 2.0}
    mean.add({"loss": torch.tensor(4.0)})
    assert mean.take() == {"loss": 4.0}
    assert mean.take() == {}


def test_a_row_of_metrics_speaks_of_the_time_since_the_one_before(config) -> None:
    kwargs = {"log_interval": 5, "learning_starts": 0, "gradient_updates_per_step": 0.1}
    rows = read_metrics(train_sac(config("sac", algo_kwargs=kwargs)).run_dir / "metrics.csv")
    assert [row["global_step"] for row in rows] == list(range(5, 41, 5))
    # An update every tenth step: every other row has none, and repeats no loss of an earlier one.
    assert ["train/critic_loss" in row for row in rows] == [False, True] * 4
    assert rows[0]["rollout/ep_rew_mean"] == 10.0
    assert [("eval/mean_reward" in row) for row in rows] == [False] * 7 + [True]


def test_a_resumed_run_cuts_the_log_back(config) -> None:
    model = DDPG(config(algo_kwargs={"log_interval": 4}))
    run_dir = model.learn(callbacks=[StopAt(17)]).run_dir
    path = run_dir / "metrics.csv"
    with path.open("a") as file:
        file.write("24,14\n")  # as a run that was killed later would have left it
    assert [row["global_step"] for row in read_metrics(path)] == [4, 8, 12, 16, 24]
    model.resume(run_dir)
    rows = read_metrics(path)
    assert [row["global_step"] for row in rows] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert "rollout/ep_rew_mean" in rows[5]


def test_a_resumed_run_restores_callbacks(config) -> None:
    """Early stopping goes on counting: two evaluations without improvement before the interruption, one after it."""
    kwargs = {"early_stopping": {"patience": 3}, "eval_interval": 5, "learning_rate": 1e-30}
    model = DDPG(config(algo_kwargs=kwargs))
    broken = model.learn(callbacks=[StopAt(17)])
    assert broken.status == "interrupted"
    resumed = model.resume(broken.run_dir)
    assert (resumed.status, resumed.global_step) == ("stopped", 20)


def test_interrupted_runs_go_on_to_the_same_weights(config) -> None:
    changed = config("sac", algo_kwargs={"normalize_observations": True})
    straight, broken = SAC(changed), SAC(changed)
    straight.learn()
    broken.resume(broken.learn(callbacks=[StopAt(23)]).run_dir)
    expected, found = straight.learner.state_dict(), broken.learner.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


@pytest.mark.parametrize("overlap", [False, True])
def test_updates_are_made_while_the_environments_step_if_asked_for(config, monkeypatch, overlap: bool) -> None:
    order: list[str] = []
    send, receive, update = Collector.send, Collector.receive, algorithms.DDPG.update

    def watch(owner: type, name: str, function: Any) -> None:
        def watched(self: Any, *inputs: Any) -> Any:
            order.append(name)
            return function(self, *inputs)

        monkeypatch.setattr(owner, name, watched)

    watch(Collector, "send", send)
    watch(Collector, "receive", receive)
    watch(algorithms.DDPG, "update", update)
    result = train_ddpg(config(algo_kwargs={"overlap_collection": overlap, "learning_starts": 38}))
    last = ["send", "update", "receive"] if overlap else ["send", "receive", "update"]
    assert order[-3:] == last
    assert result.update_count == 2 - overlap  # the updates of the last step would come with the next one
