"""Hindsight over logged episodes: which goals, which rewards, which rows, and runs with and without fresh play."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import StopAt
from rl_training.config import TrainConfig, parse_config
from rl_training.data import HERReplayBuffer, TransitionDataset
from rl_training.data.dataset_loaders import write_transitions
from rl_training.data.hindsight_dataset import HindsightDataset
from rl_training.data.hindsight_settings import HindsightSettings
from rl_training.data.mixture import Mixture
from rl_training.envs.factory import make_env, space_spec
from rl_training.envs.goals import GoalFunctions
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import ConfigError, DatasetError, RLTrainingError
from rl_training.runtime import Callback, train_her
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run import resume, train
from rl_training.tools.datasets import collect_dataset
from rl_training.types import Batch

POINT = "rl_training/PointGoal1D-v0"
EPISODES, LENGTH = 6, 25
ENV = {"max_steps": LENGTH, "threshold": 0.2}  # wide enough for some recorded steps to succeed


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    """Random episodes, row by row; do not change it."""
    dataset, _ = collect_dataset(POINT, "random", episodes=EPISODES, env_kwargs=ENV)
    assert dataset.episode_lengths.tolist() == [LENGTH] * EPISODES
    return dataset.arrays


def goal_functions(**transform: float) -> GoalFunctions:
    return GoalFunctions(make_env(POINT, ENV), RewardTransformConfig(**transform))


def hindsight(values: Any, seed: int = 0, transform: dict[str, float] | None = None, **settings: Any):
    goals = goal_functions(**(transform or {}))
    spec = space_spec(make_env(POINT, ENV), goals)
    dataset = TransitionDataset.from_dict(values)
    return HindsightDataset(dataset, spec, goals, settings=HindsightSettings(**settings), seed=seed)


def rows_of(batch: Batch, arrays: dict[str, np.ndarray], scale: float = 1.0) -> np.ndarray:
    """Return which recorded row each sampled one is: random actions do not repeat."""
    same = np.abs(batch.actions.numpy() * scale - arrays["actions"].T) < 2e-6
    assert (same.sum(axis=1) == 1).all()
    rows: np.ndarray = same.argmax(axis=1)
    np.testing.assert_array_equal(batch.observations[:, :2], arrays["observations"][rows])
    return rows


def reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    return np.where(np.abs(achieved - desired)[:, 0] <= 0.2, 0.0, -1.0)


def test_logged_episodes_show_that_a_met_goal_ends_them():
    wide = {"max_steps": LENGTH, "threshold": 0.4}
    env = make_env("ending_env:tests/Ending-v0", wide)
    goals = GoalFunctions(env)
    dataset, _ = collect_dataset("ending_env:tests/Ending-v0", "random", episodes=20, env_kwargs=wide)
    data = HindsightDataset(dataset, space_spec(env, goals), goals, settings=HindsightSettings(her_ratio=1.0))
    assert goals.ends_when_met
    batch = data.sample(100)
    assert (batch.rewards == 0).any()
    assert torch.equal(batch.terminated, (batch.rewards == 0).float())


def test_logged_episodes_without_flags_do_not_show_that_a_met_goal_ends_nothing():
    wide = {"max_steps": LENGTH, "threshold": 0.4}
    env = make_env("ending_env:tests/Ending-v0", wide)
    goals = GoalFunctions(env)
    dataset, _ = collect_dataset("ending_env:tests/Ending-v0", "random", episodes=20, env_kwargs=wide)
    arrays = dict(dataset.arrays)
    assert arrays["terminated"].any()
    arrays["truncated"] = arrays["truncated"].astype(bool) | arrays["terminated"].astype(bool)
    arrays["terminated"] = np.zeros_like(arrays["terminated"])
    HindsightDataset(TransitionDataset.from_dict(arrays), space_spec(env, goals), goals)
    assert goals.ends_when_met is None


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_what_the_same_episode_achieved(recorded, strategy):
    batch = hindsight(recorded, her_ratio=1.0, goal_selection_strategy=strategy).sample(300)
    rows = rows_of(batch, recorded)
    goals = batch.observations[:, 2:].numpy()
    achieved = recorded["next_achieved_goals"]
    steps, later = rows % LENGTH, 0
    for row, step, goal in zip(rows, steps, goals, strict=True):
        begin = row - step
        first = {"future": row, "final": begin + LENGTH - 1, "episode": begin}[strategy]
        places = first + np.flatnonzero((achieved[first : begin + LENGTH] == goal).all(axis=1))
        assert len(places) >= 1, "no goal of this episode, from there on"
        later += places[0] > row
    assert later > 100
    assert len(np.unique(rows)) > 80  # rows of all episodes are drawn
    assert set(rows // LENGTH) == set(range(EPISODES))
    # What follows is the recorded successor, under the same new goal.
    np.testing.assert_array_equal(batch.next_observations[:, :2], recorded["next_observations"][rows])
    np.testing.assert_array_equal(batch.next_observations[:, 2:], goals)
    np.testing.assert_array_equal(batch.rewards, reward(achieved[rows], goals))
    assert (batch.rewards == 0).any()
    assert (batch.rewards == -1).any()


def test_only_the_asked_share_gets_new_goals(recorded):
    batch = hindsight(recorded, her_ratio=0.5, episode_priority="uniform").sample(200)
    rows = rows_of(batch, recorded)
    kept = (batch.observations[:, 2:].numpy() == recorded["desired_goals"][rows]).all(axis=1)
    assert not kept[:100].any()
    assert kept[100:].all()
    assert batch.offline_rows == 200


def test_rewards_are_the_environments_whatever_was_recorded(recorded):
    values = {**recorded, "rewards": np.full(len(recorded["rewards"]), 123.0)}
    for ratio in (0.0, 0.5):
        batch = hindsight(values, her_ratio=ratio).sample(200)
        rows = rows_of(batch, recorded)
        expected = reward(recorded["next_achieved_goals"][rows], batch.observations[:, 2:].numpy())
        np.testing.assert_array_equal(batch.rewards, expected)
        assert set(batch.rewards.tolist()) == {-1.0, 0.0}


def test_the_reward_wrapper_applies_to_every_row_once(recorded):
    for ratio in (0.0, 1.0):
        batch = hindsight(recorded, transform={"scale": 10.0, "shift": 3.0}, her_ratio=ratio).sample(100)
        assert set(batch.rewards.tolist()) == {-7.0, 3.0}


def test_recorded_terminations_stay_where_goals_do(recorded):
    ends = recorded["truncated"]
    values = {**recorded, "terminated": ends, "truncated": np.zeros_like(ends)}
    source = hindsight(values, her_ratio=0.0)
    batch = source.sample(600)
    rows = rows_of(batch, recorded)
    np.testing.assert_array_equal(batch.terminated.numpy().astype(bool), ends[rows])
    assert batch.terminated.sum() > 0
    # This task never ends at a goal, and says so of new goals; one that says nothing leaves what was recorded.
    relabelled = hindsight(values, her_ratio=1.0)
    assert relabelled.sample(600).terminated.sum() == 0
    relabelled.goals._terminated = None
    batch = relabelled.sample(600)
    rows = rows_of(batch, recorded)
    np.testing.assert_array_equal(batch.terminated.numpy().astype(bool), ends[rows])
    assert batch.terminated.sum() > 0


def test_time_outs_are_no_terminations(recorded):
    assert hindsight(recorded, her_ratio=0.0).sample(600).terminated.sum() == 0


def test_it_draws_what_a_buffer_with_the_same_episodes_draws(recorded):
    goals = goal_functions()
    spec = space_spec(make_env(POINT, ENV), goals)
    buffer = HERReplayBuffer(spec, 1000, goals, settings=HindsightSettings(), seed=4)
    for row in range(len(recorded["rewards"])):
        now, after = (
            {
                key: recorded[f"{prefix}{key}s"][row : row + 1]
                for key in ("observation", "achieved_goal", "desired_goal")
            }
            for prefix in ("", "next_")
        )
        columns = (recorded[key][row : row + 1] for key in ("terminated", "truncated"))
        buffer.add(now, recorded["actions"][row : row + 1], recorded["rewards"][row : row + 1], after, *columns)
    source = hindsight(recorded, seed=4)
    assert len(source) == len(buffer) == EPISODES * LENGTH
    for size in (1, 64, 33):
        expected, found = buffer.sample(size), source.sample(size)
        for name in ("observations", "actions", "rewards", "next_observations", "terminated"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), msg=name)


def without_next(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key: value for key, value in values.items() if not key.startswith("next_")}


def assert_rows_lead_to_their_successors(batch, arrays: dict[str, np.ndarray], length: int = LENGTH) -> np.ndarray:
    rows = rows_of(batch, arrays)
    assert (rows % length < length - 1).all(), "the outcome of an episode's last row is not in the file"
    np.testing.assert_array_equal(batch.next_observations[:, :2], arrays["observations"][rows + 1])
    return rows


def test_files_without_next_observations_end_one_row_earlier(recorded):
    source = hindsight(without_next(recorded), her_ratio=0.5, episode_priority="uniform")
    assert len(source) == EPISODES * (LENGTH - 1)
    batch = source.sample(400)
    rows = assert_rows_lead_to_their_successors(batch, recorded)
    assert set(rows % LENGTH) == set(range(LENGTH - 1))
    goals = batch.observations[:200, 2:].numpy()
    for row, goal in zip(rows[:200], goals, strict=True):
        end = row - row % LENGTH + LENGTH
        assert (recorded["achieved_goals"][row + 1 : end] == goal).all(axis=1).any()
    np.testing.assert_array_equal(
        batch.rewards, reward(recorded["achieved_goals"][rows + 1], batch.observations[:, 2:].numpy())
    )


def test_a_final_outcome_that_is_not_in_the_file_is_not_made_up(recorded):
    """Where a task ended, plain learning needs no next observation; hindsight does, for its goals and rewards."""
    values = without_next(recorded)
    values["terminated"], values["truncated"] = values["truncated"], values["terminated"]
    assert_rows_lead_to_their_successors(hindsight(values, her_ratio=0.5).sample(600), recorded)


def test_rows_that_cannot_be_used_split_episodes(recorded):
    usable = np.ones(EPISODES * LENGTH, bool)
    usable[[10, 11, LENGTH * 2 - 1]] = False
    source = hindsight({**recorded, "usable": usable}, her_ratio=1.0, episode_priority="uniform")
    assert len(source) == usable.sum()
    batch = source.sample(2000)
    rows = rows_of(batch, recorded)
    assert usable[rows].all()
    assert set(rows) == set(np.flatnonzero(usable))
    np.testing.assert_array_equal(batch.next_observations[:, :2], recorded["next_observations"][rows])
    achieved = recorded["next_achieved_goals"]
    for row, goal in zip(rows, batch.observations[:, 2:].numpy(), strict=True):
        if row < LENGTH:  # goals of the first part come from it alone, and likewise those of the second
            last = 10 if row < 10 else LENGTH
            assert (achieved[row:last] == goal).all(axis=1).any()


def test_rows_that_jump_are_refused(recorded):
    order = np.random.default_rng(0).permutation(LENGTH)
    shuffled = {key: value[:LENGTH][order] for key, value in recorded.items()}
    with pytest.raises(DatasetError, match=r"of row \d+ differs from \w+ of row \d+, .*whole episodes"):
        hindsight(shuffled)
    values = copy.deepcopy(recorded)
    values["next_achieved_goals"][37] += 0.5
    with pytest.raises(DatasetError, match=r"next_achieved_goals of row 37 differs from achieved_goals of row 38"):
        hindsight(values)
    values = copy.deepcopy(recorded)
    values["next_observations"][LENGTH - 1] += 0.5  # across an episode's end rows may differ, as they always do
    assert len(hindsight(values)) == EPISODES * LENGTH


def test_data_without_goals_is_refused(recorded):
    flat = {key: value for key, value in recorded.items() if "goals" not in key}
    with pytest.raises(DatasetError, match="the data has no goals, and hindsight needs them: expected achieved_goals"):
        hindsight(flat)


def test_data_of_another_task_or_without_an_episode_is_refused(recorded):
    wide = {key: np.repeat(value, 2, axis=1) if "goals" in key else value for key, value in recorded.items()}
    with pytest.raises(DatasetError, match="the data has goal_dim 2, the task 1"):
        hindsight(wide)
    single = without_next(recorded)
    single = {key: value[[0, LENGTH]] for key, value in single.items()}
    with pytest.raises(DatasetError, match=r"no episode of two observations|no row can be used"):
        hindsight({**single, "truncated": np.ones(2, bool)})
    one = {key: value[:1] for key, value in recorded.items()}
    assert len(hindsight(one)) == 1  # with its next observation one row is an episode


def test_actions_come_in_the_policys_units(recorded):
    goals = goal_functions()
    spec = space_spec(make_env(POINT, ENV), goals)
    scaled = type(spec)(**{**spec.to_json(), "action_low": (-2.0,), "action_high": (2.0,)})
    source = HindsightDataset(TransitionDataset.from_dict(recorded), scaled, goals)
    batch = source.sample(100)
    rows = rows_of(batch, recorded, scale=2.0)
    np.testing.assert_allclose(batch.actions, recorded["actions"][rows] / 2, atol=1e-6)


def test_the_state_brings_the_draws_back_and_knows_the_data(recorded):
    source = hindsight(recorded)
    source.sample(10)
    state = copy.deepcopy(source.state_dict())
    assert "rows" not in state
    expected = source.sample(50)
    other = hindsight(recorded, seed=9)
    other.load_state_dict(state)
    again = other.sample(50)
    assert torch.equal(again.observations, expected.observations)
    assert torch.equal(again.rewards, expected.rewards)
    different = hindsight({**recorded, "rewards": recorded["rewards"] + 1})
    with pytest.raises(DatasetError, match="not the data the run was started with"):
        different.load_state_dict(state)


def test_policy_observations_have_the_recorded_goals_and_then_the_achieved_ones(recorded):
    found = hindsight(recorded).policy_observations().numpy()
    rows = EPISODES * (LENGTH + 1)
    assert found.shape == (2 * rows, 3)
    np.testing.assert_array_equal(found[:rows, :2], found[rows:, :2])
    for goals, part in (("desired_goals", found[:rows]), ("achieved_goals", found[rows:])):
        expected = {tuple(row) for row in np.concatenate([recorded["observations"], recorded[goals]], axis=1)}
        assert expected <= {tuple(row) for row in part}
    assert (found[rows:, 2] == found[rows:, 0]).all()  # this task achieves its position


# Runs


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, recorded) -> Path:
    path = tmp_path_factory.mktemp("data") / "point.npz"
    return Path(write_transitions(TransitionDataset.from_dict(recorded), path))


@pytest.fixture
def her(tmp_path, file):
    """Return a function that makes the configuration of a small run of HER with logged episodes."""

    def make(online: bool = True, **changes: Any) -> TrainConfig:
        kwargs = {
            "dataset_path": str(file),
            "hidden_sizes": [16, 16],
            "batch_size": 16,
            "eval_interval": 40,
            "checkpoint_interval": 30,
            "log_interval": 20,
        }
        kwargs |= {"learning_starts": 10, "buffer_capacity": 60} if online else {"online": False}
        kwargs |= changes.pop("algo_kwargs", {})
        values = {"algo": "her", "env_id": POINT, "env_kwargs": ENV, "total_timesteps": 100, "eval_episodes": 1}
        return parse_config({**values, "output_dir": str(tmp_path / "runs"), **changes, "algo_kwargs": kwargs})

    return make


class Watch(Callback):
    """Looks at what the loop put together."""

    def on_training_end(self, trainer):
        self.experience, self.learner, self.replay = trainer.experience, trainer.learner, trainer.replay


def test_online_prior_and_fresh_episodes_are_both_relabelled(her):
    watch = Watch()
    kwargs = {"backend": "td3", "offline_batch_ratio": 0.25, "bc_weight": 1.0, "offline_pretrain_updates": 10}
    wrapped = {**ENV, "wrappers": {"reward": {"shift": 1.0}}}
    result = train_her(her(algo_kwargs=kwargs, env_kwargs=wrapped), callbacks=[watch])
    # No waiting for a first episode: prior data is there from the start.
    assert (result.global_step, result.update_count) == (100, 10 + 90)
    assert isinstance(watch.experience, Mixture)
    assert isinstance(watch.experience.offline, HindsightDataset)
    assert isinstance(watch.experience.online, HERReplayBuffer)
    assert not isinstance(watch.experience.online, HindsightDataset)
    batch = watch.experience.sample(160)
    assert batch.offline_rows == 40
    for part in (batch.rewards[:40], batch.rewards[40:]):
        assert set(part.tolist()) == {0.0, 1.0}  # the shifted reward, in both parts, and successes in both
    assert watch.learner.value_bounds == pytest.approx((0.0, 100.0))
    rows = read_metrics(result.run_dir / "metrics.csv")
    assert rows[0]["train/offline_share"] == 1.0
    assert rows[-1]["train/offline_share"] == 0.25
    assert {"train/q_offline", "train/q_online", "train/bc_loss", "eval/success_rate"} <= rows[-1].keys()


def test_the_normaliser_knows_the_goals_that_hindsight_makes_of_demonstrations_with_one_goal(her, recorded, tmp_path):
    one_goal = {**recorded, "desired_goals": np.full_like(recorded["desired_goals"], 0.9)}
    one_goal.pop("next_desired_goals")
    path = write_transitions(TransitionDataset.from_dict(one_goal), tmp_path / "one_goal.npz")
    watch = Watch()
    kwargs = {"backend": "iql", "dataset_path": str(path), "normalize_observations": True, "her_ratio": 1.0}
    train_her(her(False, algo_kwargs=kwargs, total_timesteps=5), callbacks=[watch])
    goals = watch.learner.normalizer(watch.experience.sample(500).observations)[:, 2]
    assert (goals.abs() < watch.learner.normalizer.clip).all()  # by the recorded goal alone 99% of them are clamped
    assert 0.2 < goals.std() < 5


@pytest.mark.parametrize("backend", ["iql", "td3_bc"])
def test_offline_nothing_is_collected(her, backend):
    watch = Watch()
    result = train_her(her(False, algo_kwargs={"backend": backend}, total_timesteps=40), callbacks=[watch])
    assert (result.global_step, result.update_count) == (40, 40)
    assert watch.replay is None
    assert type(watch.experience) is HindsightDataset
    assert watch.learner.value_bounds == pytest.approx((-100.0, 0.0))
    batch = watch.experience.sample(100)
    assert (batch.rewards == 0).any()
    assert "eval/success_rate" in result.metrics


@pytest.mark.parametrize(
    ("online", "kwargs", "stop"),
    [
        pytest.param(True, {"backend": "sac", "normalize_observations": True}, 44, id="online-sac"),
        pytest.param(True, {"backend": "td3", "offline_pretrain_updates": 20}, 13, id="online-td3-pretraining"),
        pytest.param(False, {"backend": "iql"}, 44, id="offline-iql"),
        pytest.param(False, {"backend": "td3_bc", "normalize_observations": True}, 44, id="offline-td3_bc"),
    ],
)
def test_a_resumed_run_ends_exactly_where_an_uninterrupted_one_does(her, online, kwargs, stop):
    config = her(online, algo_kwargs=kwargs)
    straight = train(config)
    broken = train(config, callbacks=[StopAt(update=stop)])
    assert broken.status == "interrupted"
    assert broken.update_count == stop
    finished = resume(broken.run_dir)
    assert finished.metrics == straight.metrics
    assert (finished.global_step, finished.update_count) == (straight.global_step, straight.update_count)
    first, second = (resolve_checkpoint(run.run_dir / "checkpoints") for run in (straight, broken))
    parts = sorted(path.name for path in first.glob("*.safetensors"))
    assert parts == sorted(path.name for path in second.glob("*.safetensors"))
    for part in parts:
        tensors, others = load_file(first / part), load_file(second / part)
        assert tensors.keys() == others.keys()
        assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == []

    def log(run_dir: Path) -> list[dict[str, float]]:
        rows = read_metrics(run_dir / "metrics.csv")
        return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]

    assert log(straight.run_dir) == log(broken.run_dir)


def test_resuming_on_other_episodes_is_refused(her, file, tmp_path):
    copied = tmp_path / "copy.npz"
    copied.write_bytes(file.read_bytes())
    config = her(False, algo_kwargs={"backend": "iql", "dataset_path": str(copied)})
    broken = train(config, callbacks=[StopAt(update=20)])
    with np.load(copied) as archive:
        arrays = dict(archive)
    np.savez(copied, **{**arrays, "rewards": arrays["rewards"] + 1})
    with pytest.raises(RLTrainingError, match="not the data the run was started with"):
        resume(broken.run_dir)


def test_settings_that_have_no_place_with_hindsight(her, tmp_path):
    for key, value in (("reward_scale", 2.0), ("reward_shift", 1.0), ("reward_clip_min", -1.0)):
        with pytest.raises(ConfigError, match=rf"unknown key 'algo_kwargs\.{key}'"):
            train_her(her(algo_kwargs={key: value}))
    for key, value in (("learning_starts", 10), ("offline_batch_ratio", 0.5), ("exploration_noise", 0.3)):
        with pytest.raises(ConfigError, match=rf"unknown key 'algo_kwargs\.{key}' offline: it needs online: true"):
            train_her(her(False, algo_kwargs={key: value}))
    with pytest.raises(ConfigError, match=r"algo_kwargs\.online = 'maybe': expected true or false"):
        train_her(her(algo_kwargs={"online": "maybe"}))
    with pytest.raises(ConfigError, match="'env_id' is required"):
        train_her(her(False).model_copy(update={"env_id": None}))
    assert not (tmp_path / "runs").exists()


def test_data_that_does_not_suit_hindsight_is_refused_before_anything_is_written(her, recorded, tmp_path):
    flat = {key: value for key, value in recorded.items() if "goals" not in key}
    np.savez(tmp_path / "flat.npz", **flat)
    for online in (True, False):
        with pytest.raises(DatasetError, match="the data has no goals"):
            train_her(her(online, algo_kwargs={"dataset_path": str(tmp_path / "flat.npz")}))
    with pytest.raises(DatasetError, match="dataset_path"):
        train_her(her(False, algo_kwargs={"dataset_path": None}))
    assert not (tmp_path / "runs").exists()
