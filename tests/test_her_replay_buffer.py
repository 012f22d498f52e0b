"""Hindsight replay, against episodes whose every number says which episode and step it belongs to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.config import parse_settings
from rl_training.data import HERReplayBuffer, HindsightSettings
from rl_training.data.episode_table import Episode, EpisodeTable
from rl_training.errors import ConfigError
from rl_training.types import SpaceSpec

SPEC = SpaceSpec(observation_dim=2, action_dim=1, goal_dim=2)


class ExactMatch:
    """Reward 0 and termination where the goals are equal, -1 and none elsewhere; counts how often it is asked."""

    recomputes_termination = True
    distance_threshold: float | None = None

    def __init__(self) -> None:
        self.calls = 0

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.where((achieved == desired).all(axis=-1), 0.0, -1.0).astype(np.float32)

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return (achieved == desired).all(axis=-1).astype(np.float32)

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {}


class PositionOnly(ExactMatch):
    """Keeps the termination that was recorded, as environments without compute_terminated do."""

    recomputes_termination = False


def observation(episodes: np.ndarray, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Return goal observations that carry (episode, step); the desired goal (-1, episode) is never achieved."""
    place = np.stack([episodes, steps], axis=1).astype(np.float32)
    return {
        "observation": place,
        "achieved_goal": place.copy(),
        "desired_goal": np.stack([np.full(len(episodes), -1.0), episodes], axis=1).astype(np.float32),
    }


def play(buffer: HERReplayBuffer, lengths: list[int], num_envs: int = 1, terminate: bool = False) -> dict[int, int]:
    """Play episodes of the given lengths and return {episode: length} in the order they ended."""
    waiting = list(enumerate(lengths))
    current = [waiting.pop(0) if waiting else None for _ in range(num_envs)]
    steps = np.zeros(num_envs, np.int64)
    finished = {}
    while all(entry is not None for entry in current):
        episodes = np.array([entry[0] for entry in current])
        ended = np.array([steps[i] + 1 == entry[1] for i, entry in enumerate(current)])
        buffer.add(
            observation(episodes, steps),
            steps[:, None].astype(np.float32),
            np.full(num_envs, -1.0),
            observation(episodes, steps + 1),
            ended & terminate,
            ended & (not terminate),
        )
        steps += 1
        for i in np.flatnonzero(ended):
            finished[current[i][0]] = current[i][1]
            current[i] = waiting.pop(0) if waiting else None
            steps[i] = 0
    return finished


def make(capacity: int = 1000, goals: ExactMatch | None = None, num_envs: int = 1, **kwargs) -> HERReplayBuffer:
    return HERReplayBuffer(
        SPEC, capacity, goals or ExactMatch(), settings=HindsightSettings(**kwargs), num_envs=num_envs
    )


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    capacity=st.integers(13, 80),
    num_envs=st.integers(1, 3),
    strategy=st.sampled_from(["future", "final", "episode"]),
    ratio=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
)
def test_every_sample_is_a_real_transition_with_an_allowed_goal(lengths, capacity, num_envs, strategy, ratio):
    buffer = make(capacity, num_envs=num_envs, her_ratio=ratio, goal_selection_strategy=strategy)
    finished = play(buffer, lengths, num_envs)
    if not finished:
        assert len(buffer) == 0
        return
    batch = buffer.sample(64)
    now, goal = batch.observations[:, :2].numpy(), batch.observations[:, 2:].numpy()
    after = batch.next_observations[:, :2].numpy()
    episode, step = now[:, 0], now[:, 1]
    length = np.array([finished[int(e)] for e in episode])

    np.testing.assert_array_equal(after, np.stack([episode, step + 1], axis=1))  # never across an episode's end
    np.testing.assert_array_equal(batch.next_observations[:, 2:].numpy(), goal)
    np.testing.assert_array_equal(batch.actions[:, 0].numpy(), step)
    assert (step < length).all()
    relabelled = goal[:, 0] >= 0
    assert relabelled.sum() == round(ratio * 64)
    np.testing.assert_array_equal(goal[relabelled, 0], episode[relabelled])
    first = {"future": step + 1, "final": length, "episode": np.ones_like(step)}[strategy]
    assert (goal[relabelled, 1] >= first[relabelled]).all()
    assert (goal[relabelled, 1] <= length[relabelled]).all()
    met = (after == goal).all(axis=1)
    np.testing.assert_array_equal(batch.rewards.numpy(), np.where(met, 0.0, -1.0))
    np.testing.assert_array_equal(batch.terminated.numpy(), met.astype(np.float32))


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=5, max_size=60), capacity=st.integers(10, 60))
def test_overwriting_drops_whole_episodes_oldest_first(lengths, capacity):
    buffer = make(capacity, her_ratio=0.0)
    finished = play(buffer, lengths)
    seen = set(buffer.sample(512).observations[:, 0].int().tolist())
    kept = len(buffer.episodes)
    newest = list(finished)[-kept:]
    assert seen <= set(newest)
    assert len(buffer) == sum(finished[e] for e in newest)
    assert sum(finished[e] + 1 for e in newest) <= capacity  # T + 1 rows each
    assert buffer.episodes.total_weight == pytest.approx(len(buffer))


def test_relabelling_is_one_call_per_batch():
    goals = ExactMatch()
    buffer = make(goals=goals)
    play(buffer, [10] * 5)
    buffer.sample(256)
    assert goals.calls == 1


def test_without_compute_terminated_the_recorded_termination_stays():
    buffer = make(goals=PositionOnly(), her_ratio=1.0)
    play(buffer, [5] * 8, terminate=True)
    batch = buffer.sample(200)
    last = batch.observations[:, 1].numpy() == 4
    np.testing.assert_array_equal(batch.terminated.numpy(), last.astype(np.float32))


def test_a_time_out_is_not_stored_as_termination():
    buffer = make(her_ratio=0.0)
    play(buffer, [5] * 8, terminate=False)
    assert buffer.sample(200).terminated.sum() == 0


def test_future_goals_cover_the_rest_of_the_episode_evenly():
    buffer = make(her_ratio=1.0)
    play(buffer, [4])
    batch = buffer.sample(40_000)
    step, goal = batch.observations[:, 1].numpy(), batch.observations[:, 3].numpy()
    np.testing.assert_allclose(np.bincount(step.astype(int)) / 40_000, [0.25] * 4, atol=0.015)
    from_start = goal[step == 0].astype(int)
    np.testing.assert_allclose(np.bincount(from_start, minlength=5)[1:] / len(from_start), [0.25] * 4, atol=0.03)


def test_long_episodes_are_drawn_in_proportion_to_their_length():
    buffer = make(her_ratio=0.5, episode_priority="uniform")
    play(buffer, [30, 10])
    share = (buffer.sample(20_000).observations[:, 0] == 0).float().mean().item()
    assert share == pytest.approx(0.75, abs=0.01)


def test_motion_priority_prefers_episodes_that_moved_and_uniform_does_not():
    def still_and_moving(**kwargs) -> float:
        buffer = make(capacity=100, motion_scale=1.0, **kwargs)
        for episode, speed in enumerate([0.0, 1.0]):
            for t in range(10):
                now, after = (
                    observation(np.array([episode]), np.array([t])),
                    observation(np.array([episode]), np.array([t + 1])),
                )
                now["achieved_goal"] = np.array([[0.0, t * speed]])
                after["achieved_goal"] = np.array([[0.0, (t + 1) * speed]])
                buffer.add(now, np.zeros((1, 1)), np.array([-1.0]), after, np.array([False]), np.array([t == 9]))
        return (buffer.sample(20_000).observations[:, 0] == 1).float().mean().item()

    assert still_and_moving() == pytest.approx(1 / 1.03, abs=0.01)
    assert still_and_moving(motion_priority=0.5) == pytest.approx(1 / 1.5, abs=0.01)
    assert still_and_moving(episode_priority="uniform") == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_state_dict_round_trip_gives_the_same_draws(num_envs):
    original = make(capacity=60, num_envs=num_envs)
    play(original, [3, 7, 5, 2, 9, 4, 6, 8, 3, 5, 7, 2, 4], num_envs)
    restored = make(capacity=60, num_envs=num_envs)
    restored.load_state_dict(original.state_dict())
    for _ in range(3):
        for a, b in zip(original.sample(32)[:5], restored.sample(32)[:5], strict=True):
            assert torch.equal(a, b)
    for buffer in (original, restored):  # the open episodes go on as well
        play(buffer, [4] * 6, num_envs)
    for a, b in zip(original.sample(32)[:5], restored.sample(32)[:5], strict=True):
        assert torch.equal(a, b)


def test_an_episode_that_does_not_fit_is_refused_by_name():
    with pytest.raises(ConfigError, match="buffer_capacity = 10 cannot hold an episode of 20 steps"):
        play(make(capacity=10), [20])


def test_ratio_from_number_of_goals():
    assert HindsightSettings().relabel_ratio == pytest.approx(0.8)
    assert HindsightSettings(n_sampled_goal=3).relabel_ratio == pytest.approx(0.75)
    assert HindsightSettings(her_ratio=0.1).relabel_ratio == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="give one"):
        parse_settings(HindsightSettings, {"her_ratio": 0.5, "n_sampled_goal": 4}, where="test")


@settings(max_examples=50, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=50),
    drops=st.integers(0, 49),
    numbers=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_episode_table_draws_by_weight_and_forgets_what_left(weights, drops, numbers):
    table = EpisodeTable(size=2)
    for index, weight in enumerate(weights):
        table.append(Episode(start=10 * index, length=1 + index, first_row=10 * index), weight)
    drops = min(drops, len(weights) - 1)
    for _ in range(drops):
        table.drop_oldest()
    starts, lengths = table.draw(np.array(numbers))
    edges = np.cumsum(weights[drops:]) / sum(weights[drops:])
    for number, start, length in zip(numbers, starts, lengths, strict=True):
        index = start // 10
        assert length == index + 1
        assert index >= drops
        low = edges[index - drops - 1] if index > drops else 0.0
        assert low - 1e-6 <= number <= edges[index - drops] + 1e-6
    assert table.total_weight == pytest.approx(sum(weights[drops:]))
    assert table.transitions == sum(1 + index for index in range(drops, len(weights)))


def test_episode_table_keeps_its_precision_over_a_long_run(monkeypatch):
    monkeypatch.setattr(EpisodeTable, "_REBASE_AT", 1000.0)
    table = EpisodeTable(size=4)
    for index in range(5000):
        table.append(Episode(index, 1, index), 0.1 + index % 7)
        if len(table) > 10:
            table.drop_oldest()
    expected = sum(0.1 + index % 7 for index in range(4990, 5000))
    assert table.total_weight == pytest.approx(expected)
    assert set(table.draw(np.linspace(0, 0.999, 500))[0]) == set(range(4990, 5000))
