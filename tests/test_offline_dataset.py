"""TransitionDataset: what it checks and completes, its episodes and statistics, and what it gives to a learner."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import fingerprint, load_transition_dataset
from rl_training.data.column_checks import is_finite
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import ConfigError, DatasetError
from rl_training.types import SpaceSpec


def make(lengths: tuple[int, ...] = (3, 2, 4), terminal: bool = True, **changes: np.ndarray) -> TransitionDataset:
    """Return a dataset whose observation is the row's number, and whose reward is that too."""
    total = sum(lengths)
    numbers = np.arange(total, dtype=np.float32)
    ends = np.zeros(total, bool)
    ends[np.cumsum(lengths) - 1] = True
    values = {
        "observations": np.stack([numbers, -numbers], axis=1),
        "next_observations": np.stack([numbers + 1, -numbers - 1], axis=1),
        "actions": np.tanh(numbers)[:, None],
        "rewards": numbers,
        "terminated": ends if terminal else np.zeros(total, bool),
        "truncated": np.zeros(total, bool) if terminal else ends,
        **changes,
    }
    return TransitionDataset.from_dict({key: value for key, value in values.items() if value is not None})


def test_episodes_lengths_and_returns() -> None:
    dataset = make()
    assert len(dataset) == 9
    assert dataset.episode_starts.tolist() == [0, 3, 5]
    assert dataset.episode_ends.tolist() == [3, 5, 9]
    assert dataset.episode_lengths.tolist() == [3, 2, 4]
    assert dataset.episode_returns.tolist() == [3, 7, 26]
    assert dataset.spec == SpaceSpec(2, 1)
    assert not dataset.is_discrete
    assert not dataset.is_goal_conditioned


def test_the_end_of_the_data_ends_the_last_episode_without_changing_what_was_given() -> None:
    truncated = np.zeros(9, bool)
    dataset = make(terminated=np.zeros(9, bool), truncated=truncated)
    assert dataset.episode_lengths.tolist() == [9]
    assert dataset.arrays["truncated"][-1]
    assert not truncated.any()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    kinds=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_built_next_observations_never_cross_an_episode(lengths: list[int], kinds: list[bool]) -> None:
    total = sum(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths) - 1
    terminated, truncated = np.zeros(total, bool), np.zeros(total, bool)
    terminated[ends] = kinds[: len(lengths)]
    truncated[ends] = ~terminated[ends]
    observations = np.stack([episode, np.arange(total)], axis=1).astype(np.float32)
    values = {"observations": observations, "actions": observations, "rewards": observations[:, 0]}
    if truncated.sum() == total:  # then no row has a successor
        with pytest.raises(DatasetError, match="no row can be used"):
            TransitionDataset.from_dict({**values, "terminated": terminated, "truncated": truncated})
        return
    dataset = TransitionDataset.from_dict({**values, "terminated": terminated, "truncated": truncated})
    batch = dataset.sample(200)
    rows, following = batch.observations[:, 1].int().numpy(), batch.next_observations.numpy()
    np.testing.assert_array_equal(following, dataset.arrays["next_observations"][rows])
    following = dataset.arrays["next_observations"]
    np.testing.assert_array_equal(following[:, 0], episode)
    inner = ~(terminated | truncated)
    np.testing.assert_array_equal(following[inner, 1], np.flatnonzero(inner) + 1)
    usable = np.ones(total, bool) if dataset.usable is None else dataset.usable
    np.testing.assert_array_equal(usable, ~truncated)
    assert set(rows.tolist()) <= set(np.flatnonzero(usable).tolist())


def test_a_file_without_next_observations_needs_no_second_copy_of_its_observations(tmp_path: Path) -> None:
    count = 100_000
    values = {
        "observations": np.random.default_rng(0).normal(size=(count, 17)).astype(np.float32),
        "actions": np.zeros((count, 6), np.float32),
        "rewards": np.ones(count, np.float32),
        "terminals": np.zeros(count, bool),
        "timeouts": np.arange(count) % 1000 == 999,
    }
    np.savez(tmp_path / "log.npz", **values)
    tracemalloc.start()
    try:
        dataset = load_transition_dataset(tmp_path / "log.npz").with_reward_transform(scale=0.5)
        dataset.for_task(dataset.spec).sample(256)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * sum(array.nbytes for array in values.values())


def test_goal_dictionaries_are_split_and_sampled_with_their_goal() -> None:
    numbers = np.arange(4, dtype=np.float32)[:, None]
    observations = {"observation": numbers, "achieved_goal": numbers + 10, "desired_goal": numbers * 0 + 7}
    dataset = TransitionDataset.from_dict(
        {"observations": observations, "actions": numbers, "rewards": numbers, "terminated": [0, 0, 0, 1]}
    )
    assert dataset.is_goal_conditioned
    assert dataset.spec.goal_dim == 1
    assert dataset.arrays["next_achieved_goals"][:, 0].tolist() == [11, 12, 13, 13]
    batch = dataset.sample(5)
    assert batch.observations.shape == (5, 2)
    assert (batch.observations[:, 1] == 7).all()
    with pytest.raises(DatasetError, match=r"key 'observations' \(or .*\) is missing; found .*observations/camera"):
        TransitionDataset.from_dict(
            {"observations": {"camera": numbers}, "actions": numbers, "rewards": numbers, "terminated": numbers}
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": None}, r"key 'rewards' \(or rew, .*\) is missing"),
        ({"actions": np.zeros((8, 1))}, r"actions has shape \(8, 1\); expected 9 rows"),
        ({"actions": np.arange(-1, 8)}, "-1 is below 0"),
        ({"desired_goals": np.zeros((9, 2)), "achieved_goals": np.zeros((9, 3))}, "goals differ in shape"),
        ({"next_achieved_goals": np.zeros((9, 2))}, "key 'achieved_goals' is missing"),
        ({"next_observations": np.zeros((9, 3))}, r"expected \(9, 2\) as observations"),
        ({"usable": np.zeros(9, bool)}, "no row can be used"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        make(**changes)


def test_arrays_may_have_the_names_that_files_use() -> None:
    dataset = make()
    arrays = dataset.arrays
    names = {"observations": "obs", "next_observations": "next_obs", "actions": "act", "rewards": "rew"}
    ends = {"terminals": arrays["terminated"], "timeouts": arrays["truncated"]}
    for flags in (ends, {"dones": arrays["terminated"]}, {"terminated": arrays["terminated"], "infos": ["ignored"]}):
        again = TransitionDataset.from_dict({**{names[key]: arrays[key] for key in names}, **flags})
        assert again.arrays.keys() == arrays.keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(again.arrays[key], array)
    others = {key: array for key, array in arrays.items() if key != "rewards"}
    with pytest.raises(DatasetError, match=r"dataset: rew \(rewards\) has shape \(8,\); expected 9 rows"):
        TransitionDataset.from_dict({**others, "rew": arrays["rewards"][:-1]})


def test_reward_transforms_leave_the_original_alone_and_share_the_rest() -> None:
    dataset = make()
    before = dataset.arrays["rewards"].copy()
    changed = dataset.with_reward_transform(scale=2.0, shift=-1.0, clip_max=9.0)
    np.testing.assert_array_equal(dataset.arrays["rewards"], before)
    np.testing.assert_array_equal(changed.arrays["rewards"], np.minimum(2 * before - 1, 9))
    assert changed.arrays["rewards"].dtype == np.float32
    assert changed.arrays["observations"] is dataset.arrays["observations"]
    same = dataset.with_reward_transform(RewardTransformConfig(scale=2.0, shift=-1.0, clip_max=9.0))
    np.testing.assert_array_equal(same.arrays["rewards"], changed.arrays["rewards"])
    assert changed.sample(64).rewards.max() <= 9
    assert dataset.with_reward_transform() is dataset


def test_state_statistics_are_means_and_deviations_in_float64() -> None:
    mean, deviation = make().state_statistics()
    np.testing.assert_allclose(mean, [4, -4])
    np.testing.assert_allclose(deviation, [np.arange(9).std()] * 2)
    assert mean.dtype == np.float64


def test_samples_are_whole_rows_with_time_outs_not_terminated() -> None:
    dataset = make(terminal=False)
    batch = dataset.sample(500)
    rows = batch.rewards
    torch.testing.assert_close(batch.observations[:, 0], rows)
    torch.testing.assert_close(batch.next_observations[:, 0], rows + 1)
    torch.testing.assert_close(batch.actions[:, 0], torch.tanh(rows))
    assert batch.terminated.sum() == 0
    assert set(rows.tolist()) == set(range(9))  # every row, by 500 draws
    assert make().sample(500).terminated.sum() > 0


def test_discrete_actions_stay_indices() -> None:
    dataset = make(actions=np.arange(9)[:, None] % 3)
    assert dataset.is_discrete
    assert dataset.spec.num_actions == 3
    batch = dataset.for_task(SpaceSpec(2, 1, num_actions=5)).sample(50)
    assert batch.actions.shape == (50, 1)
    torch.testing.assert_close(batch.actions[:, 0], batch.rewards % 3)
    with pytest.raises(DatasetError, match="action 2, the task only 2"):
        dataset.for_task(SpaceSpec(2, 1, num_actions=2))
    with pytest.raises(DatasetError, match="discrete actions, the task continuous"):
        dataset.for_task(SpaceSpec(2, 1))


def test_for_task_scales_actions_to_the_task_and_checks_sizes() -> None:
    dataset = make(actions=np.linspace(-2, 2, 9)[:, None])
    own = dataset.for_task(SpaceSpec(2, 1, action_low=(-2.0,), action_high=(2.0,)))
    np.testing.assert_allclose(own.arrays["actions"][:, 0], np.linspace(-1, 1, 9), atol=1e-6)
    np.testing.assert_allclose(dataset.arrays["actions"][:, 0], np.linspace(-2, 2, 9), atol=1e-6)
    assert dataset.for_task(SpaceSpec(2, 1)).arrays["actions"].max() == 1  # clipped
    for spec, name in (
        (SpaceSpec(3, 1), "observation_dim"),
        (SpaceSpec(2, 2), "action_dim"),
        (SpaceSpec(2, 1, 1), "goal_dim"),
    ):
        with pytest.raises(DatasetError, match=f"the data has {name}"):
            dataset.for_task(spec)


def test_the_best_episodes_are_kept_whole() -> None:
    dataset = make(next_observations=None, terminal=False)
    best = dataset.top_episodes(0.4)
    assert best.episode_lengths.tolist() == [4]
    assert best.arrays["rewards"].tolist() == [5, 6, 7, 8]
    assert best.usable is not None
    assert best.usable.tolist() == [True, True, True, False]
    assert len(dataset.top_episodes(1.0)) == 9
    assert dataset.top_episodes(1e-9).episode_returns.tolist() == [26]


def test_an_episode_of_which_nothing_can_be_sampled_is_never_among_the_best() -> None:
    rewards = np.array([0, 1, 2, 9], np.float32)  # the best episode is one row that has no next observation
    dataset = make((3, 1), next_observations=None, terminal=False, rewards=rewards)
    assert dataset.top_episodes(0.5).episode_returns.tolist() == [3]
    assert dataset.top_episodes(0.5).sample(8).rewards.max() <= 1


def test_fragments_are_not_preferred_for_their_short_sum_of_negative_rewards() -> None:
    rewards, fragment = np.full(9, -1, np.float32), np.isin(np.arange(9), [3, 4])
    dataset = make((3, 2, 4), rewards=rewards, fragment=fragment)  # the second episode lacks rows
    assert dataset.complete_episodes.tolist() == [True, False, True]
    assert dataset.top_episodes(0.5).episode_returns.tolist() == [-3]
    assert dataset.top_episodes(1.0).episode_returns.tolist() == [-3, -4]
    plain = make((3, 2, 4), rewards=rewards)
    assert plain.top_episodes(0.3).episode_returns.tolist() == [-2]
    assert "fragment" not in make(fragment=np.zeros(9, bool)).arrays
    assert make(fragment=np.ones(9, bool)).top_episodes(0.4).episode_returns.tolist() == [26]


def test_changed_datasets_draw_as_the_original_does() -> None:
    rows = [make().for_task(SpaceSpec(2, 1), seed=5) for _ in range(3)]
    drawn = [rows[0], rows[1].with_reward_transform(scale=2.0), rows[2].top_episodes(1.0)]
    observations = [dataset.sample(50).observations for dataset in drawn]
    assert torch.equal(observations[0], observations[1])
    assert torch.equal(observations[0], observations[2])


@pytest.mark.parametrize("values", [{"clip_min": 1.0, "clip_max": -1.0}, {"scale": float("nan")}])
def test_reward_transforms_that_make_no_sense_are_refused(values: dict) -> None:
    with pytest.raises(ConfigError, match="reward transform: "):
        make().with_reward_transform(**values)
    with pytest.raises(DatasetError, match=r"rewards times 1e\+300 plus 0 are not finite"):
        make().with_reward_transform(scale=1e300)


@pytest.mark.parametrize("key", ["actions", "next_observations", "terminated", "rewards", "observations"])
def test_data_with_another_number_anywhere_is_other_data(key: str) -> None:
    lengths = (3, 20_000)
    state = make(lengths).for_task(SpaceSpec(2, 1)).state_dict()
    arrays = {name: array.copy() for name, array in make(lengths).arrays.items()}
    make(lengths).for_task(SpaceSpec(2, 1)).load_state_dict(state)
    arrays[key][10_001] = arrays[key][10_001] - 0.5 if key != "terminated" else True
    with pytest.raises(DatasetError, match="not the data"):
        TransitionDataset.from_dict(arrays).for_task(SpaceSpec(2, 1)).load_state_dict(state)


def test_all_rows_of_large_data_are_part_of_its_fingerprint_and_older_runs_still_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = make((3, 20_000)).fingerprint()
    monkeypatch.setattr(fingerprint, "_SAMPLED_BYTES", 2**17)  # stands for 1 GiB
    dataset = make((3, 20_000))
    assert dataset.fingerprint() != small
    sampled, _, _ = dataset.fingerprint().rpartition("-")
    arrays = {name: array.copy() for name, array in dataset.arrays.items()}
    arrays["rewards"][10_001] += 1  # a row that the sample does not contain
    other = TransitionDataset.from_dict(arrays)
    assert other.fingerprint().startswith(sampled)
    state = {"generator": dataset.generator.get_state()}
    with pytest.raises(DatasetError, match="not the data the run was started with"):
        other.load_state_dict({**state, "fingerprint": dataset.fingerprint()})
    dataset.load_state_dict({**state, "fingerprint": dataset.fingerprint()})
    dataset.load_state_dict({**state, "fingerprint": sampled})  # as runs before 0.2 stored it
    with pytest.raises(DatasetError, match="not the data the run was started with"):
        dataset.load_state_dict({**state, "fingerprint": sampled[:-1]})


def test_data_is_recognised_whether_or_not_its_next_observations_were_built() -> None:
    dataset = make(next_observations=None).for_task(SpaceSpec(2, 1))
    built = make(next_observations=None)
    assert "next_observations" in built.arrays
    dataset.load_state_dict(built.for_task(SpaceSpec(2, 1)).state_dict())


def test_samples_go_on_where_the_state_was_saved_and_only_with_the_same_data() -> None:
    dataset = make().for_task(SpaceSpec(2, 1), seed=3)
    dataset.sample(7)
    state = dataset.state_dict()
    expected = dataset.sample(20)
    again = make().for_task(SpaceSpec(2, 1), seed=99)
    again.load_state_dict(state)
    for left, right in zip(expected, again.sample(20), strict=True):
        torch.testing.assert_close(left, right)
    with pytest.raises(DatasetError, match="not the data the run was started with"):
        make((3, 2, 5)).load_state_dict(state)
    with pytest.raises(DatasetError, match="not the data"):
        make().with_reward_transform(scale=2.0).load_state_dict(state)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_finiteness_is_exact_also_where_sums_overflow(numbers: list[float]) -> None:
    array = np.array(numbers, np.float32)
    assert is_finite(array) == bool(np.isfinite(array).all())
    assert is_finite(np.full(10, 3e38, np.float32))
