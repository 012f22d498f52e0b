"""What steers the loop: budgets, frequencies, schedules, early stopping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.config import parse_settings
from rl_training.errors import ConfigError
from rl_training.runtime import EarlyStoppingConfig, TrainerState, train_ddpg, train_her, train_sac
from rl_training.runtime.controls import LoopSettings
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.schedules import Schedule


def test_the_first_reason_to_stop_stands():
    state = TrainerState()
    assert (state.should_stop, state.stop_reason) == (False, None)
    state.stop("first")
    state.stop("second")
    assert (state.should_stop, state.stop_reason) == (True, "first")


def test_both_counters_and_the_reason_are_in_the_result(tiny_config):
    result = train_ddpg(tiny_config("ddpg"))
    assert (result.status, result.stop_reason) == ("completed", "total_timesteps")
    assert (result.global_step, result.update_count) == (300, 200)  # one update per step after the first 100
    last = read_metrics(result.run_dir / "metrics.csv")[-1]
    assert (last["global_step"], last["update_count"]) == (300, 200)


def test_a_budget_of_updates_ends_the_run(tiny_config):
    result = train_ddpg(tiny_config("ddpg", algo_kwargs={"max_updates": 37}))
    assert (result.stop_reason, result.update_count, result.global_step) == ("max_updates", 37, 137)


@pytest.mark.parametrize(
    ("num_envs", "train_frequency", "ratio", "expected"),
    [(1, 1, 1.0, 200), (1, 50, 1.0, 200), (1, 1, 0.25, 50), (1, 30, 2.0, 400), (4, 1, 1.0, 200), (4, 7, 0.5, 97)],
)
def test_updates_per_transition(tiny_config, num_envs, train_frequency, ratio, expected):
    kwargs = {"train_frequency": train_frequency, "gradient_updates_per_step": ratio, "eval_interval": None}
    result = train_ddpg(tiny_config("ddpg", num_envs=num_envs, algo_kwargs=kwargs))
    assert (result.global_step, result.update_count) == (300, expected)


def test_evaluations_and_logs_come_at_their_intervals(tiny_config):
    result = train_her(tiny_config("her", algo_kwargs={"eval_interval": 120, "log_interval": 50}))
    rows = read_metrics(result.run_dir / "metrics.csv")
    assert [row["global_step"] for row in rows if "eval/mean_reward" in row] == [120, 240, 300]
    assert [row["global_step"] for row in rows] == [50, 100, 120, 150, 200, 240, 250, 300]
    assert {
        "rollout/ep_rew_mean",
        "rollout/success_rate",
        "train/critic_loss",
        "train/actor_loss",
        "train/q_mean",
    } <= set(rows[-1])
    assert {"time/fps", "time/updates_per_second", "eval/success_rate"} <= set(rows[-1])


def test_without_an_eval_interval_there_is_one_evaluation_at_the_end(tiny_config):
    result = train_her(tiny_config("her", algo_kwargs={"eval_interval": None}))
    rows = read_metrics(result.run_dir / "metrics.csv")
    assert [row["global_step"] for row in rows if "eval/mean_reward" in row] == [300]


def test_no_learning_before_learning_starts(tiny_config):
    result = train_sac(tiny_config("sac", algo_kwargs={"learning_starts": 250}))
    rows = read_metrics(result.run_dir / "metrics.csv")
    assert all(row["update_count"] == 0 for row in rows if row["global_step"] <= 250)
    assert result.update_count == 50


def test_early_stopping_on_a_threshold(tiny_config):
    kwargs = {"early_stopping": {"reward_threshold": -1e9}, "eval_interval": 150}
    result = train_ddpg(tiny_config("ddpg", algo_kwargs=kwargs))
    assert result.status == "stopped"
    assert result.global_step == 150
    assert result.stop_reason.startswith("early stopping: eval/mean_reward")


def test_early_stopping_without_improvement(tiny_config):
    # A learning rate of almost nothing: the second evaluation is the same as the first.
    kwargs = {"early_stopping": {"patience": 2}, "eval_interval": 40, "learning_rate": 1e-30}
    result = train_ddpg(tiny_config("ddpg", algo_kwargs=kwargs))
    assert result.stop_reason == "early stopping: no improvement in 2 evaluations"
    assert result.global_step == 120


def test_early_stopping_needs_a_condition():
    with pytest.raises(ConfigError, match="needs patience, reward_threshold or success_threshold"):
        parse_settings(LoopSettings, {"early_stopping": {}}, where="test")
    assert EarlyStoppingConfig(patience=3).patience == 3


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Schedule(kind="constant", start=0.5), {0.0: 0.5, 0.5: 0.5, 1.0: 0.5}),
        (Schedule(kind="linear"), {0.0: 1.0, 0.25: 0.75, 1.0: 0.0}),
        (Schedule(kind="linear", start=1.0, end=0.2, fraction=0.5), {0.25: 0.6, 0.5: 0.2, 1.0: 0.2}),
        (Schedule(kind="cosine"), {0.0: 1.0, 0.5: 0.5, 1.0: 0.0}),
        (Schedule(kind="linear", hold=0.6, end=0.1), {0.0: 1.0, 0.6: 1.0, 0.8: 0.55, 1.0: 0.1}),
        (Schedule(kind="cosine", warmup=0.1, hold=0.5), {0.05: 0.5, 0.5: 1.0, 0.75: 0.5, 1.0: 0.0}),
        (Schedule(kind="warmup"), {0.0: 0.0, 0.025: 0.5, 0.05: 1.0, 1.0: 1.0}),
        (Schedule(kind="cosine", warmup=0.1), {0.05: 0.5, 0.1: 1.0, 0.55: 0.5, 1.0: 0.0}),
    ],
)
def test_schedules(schedule, values):
    for progress, expected in values.items():
        assert schedule(progress) == pytest.approx(expected)


@given(
    kind=st.sampled_from(["constant", "linear", "cosine", "warmup"]),
    start=st.floats(0, 10),
    end=st.floats(0, 10),
    progress=st.floats(0, 1),
)
def test_schedules_stay_between_their_values(kind, start, end, progress):
    value = Schedule(kind=kind, start=start, end=end)(progress)
    lowest = 0.0 if kind == "warmup" else min(start, end)
    assert lowest - 1e-9 <= value <= max(start, end) + 1e-9


def test_a_schedule_may_be_named_by_its_kind():
    assert parse_settings(LoopSettings, {"lr_schedule": "cosine"}, where="test").lr_schedule == Schedule(kind="cosine")
    with pytest.raises(ConfigError, match="lr_schedule"):
        parse_settings(LoopSettings, {"lr_schedule": "cosin"}, where="test")
    with pytest.raises(ConfigError, match=r"warmup = 0\.5: expected less than fraction = 0\.4"):
        parse_settings(LoopSettings, {"lr_schedule": {"warmup": 0.5, "fraction": 0.4}}, where="test")
    with pytest.raises(ConfigError, match=r"hold = 0\.8: expected less than fraction = 0\.8"):
        parse_settings(LoopSettings, {"lr_schedule": {"kind": "linear", "hold": 0.8, "fraction": 0.8}}, where="test")


def test_the_learning_rate_follows_its_schedule(tiny_config):
    from rl_training.runtime import Callback

    rates = []

    class Watch(Callback):
        def on_step(self, trainer):
            rates.append(trainer.learner.actor_optimizer.param_groups[0]["lr"])

    train_ddpg(tiny_config("ddpg", algo_kwargs={"lr_schedule": "linear", "learning_rate": 1e-3}), callbacks=[Watch()])
    assert rates[0] == pytest.approx(1e-3)
    assert rates[199] == pytest.approx(1e-3 / 3)
    assert rates[-1] == pytest.approx(0.0, abs=1e-9)
