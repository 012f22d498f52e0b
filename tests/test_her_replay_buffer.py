"""Hindsight replay, against episodes whose every number says which episode and step it belongs to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ending_env import EndingEnv
from rl_training.config import parse_settings
from rl_training.data import HERReplayBuffer, HindsightSettings
from rl_training.data.episode_table import Episode, EpisodeTable
from rl_training.envs import GoalRewards, space_spec
from rl_training.errors import ConfigError
from rl_training.types import Batch, SpaceSpec

SPEC = SpaceSpec(observation_dim=2, action_dim=1, goal_dim=2)


class ExactMatch:
    """Reward 0 and termination where the goals are equal, -1 and none elsewhere; counts how often it is asked."""

    recomputes_termination = True
    distance_threshold: float | None = None
    reward_range: tuple[float, float] | None = (-1.0, 0.0)

    def __init__(self) -> None:
        self.calls = 0

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.where((achieved == desired).all(axis=-1), 0.0, -1.0).astype(np.float32)

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return (achieved == desired).all(axis=-1).astype(np.float32)

    def check_play(self, rewards: np.ndarray, achieved: np.ndarray, desired: np.ndarray) -> None:
        assert rewards.shape == achieved.shape[:1] == desired.shape[:1]

    def learn_ends(self, achieved: np.ndarray, desired: np.ndarray, terminated: np.ndarray) -> None:
        assert terminated.shape == achieved.shape[:1] == desired.shape[:1]

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {}


class PositionOnly(ExactMatch):
    """Keeps the termination that was recorded, as environments without compute_terminated do."""

    recomputes_termination = False


class Near(PositionOnly):
    """A goal is met within half a step of it."""

    distance_threshold = 0.5


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


def test_an_episode_of_which_one_row_is_overwritten_leaves():
    buffer = make(capacity=10, her_ratio=0.0)
    play(buffer, [1, 1, 1, 1, 1, 2])  # five episodes fill the ring; the three rows of the sixth reach into the second
    assert len(buffer) == 5
    assert set(buffer.sample(200).observations[:, 0].tolist()) == {2.0, 3.0, 4.0, 5.0}


def test_relabelling_is_one_call_per_batch():
    goals = ExactMatch()
    buffer = make(goals=goals)
    play(buffer, [10] * 5)
    buffer.sample(256)
    assert goals.calls == 1


@pytest.mark.parametrize("practises", [False, True])
def test_terminations_follow_new_goals_once_an_episode_has_ended_at_its_goal(practises):
    env = EndingEnv()
    goals = GoalRewards(env)
    buffer = HERReplayBuffer(
        space_spec(env, goals), 1_000, goals, settings=HindsightSettings(her_ratio=1.0, practice_goals=practises)
    )
    sampler = buffer.copy_to_device(torch.Generator().manual_seed(0))
    buffer._sampler = sampler

    def play(target):
        """Store a straight way of 4 steps to ``target``, whose goal is (0.5, 0)."""
        places = np.linspace([0.0, 0.0], target, 5).astype(np.float32)
        still = np.zeros((5, 2), np.float32)
        observations = {"observation": np.concatenate([places, still], axis=1), "achieved_goal": places}
        met = bool(np.linalg.norm(places[-1] - [0.5, 0.0]) <= 0.05)
        rewards = np.array([-1.0, -1.0, -1.0, 0.0 if met else -1.0])
        goal = np.tile(np.array([0.5, 0.0], np.float32), (5, 1))
        buffer.add_episode({**observations, "desired_goal": goal}, np.zeros((4, 2)), rewards, terminated=met)

    def draws():
        sampler.prepare(64)
        return buffer._host.sample(64, torch.device("cpu")), sampler(64)

    play([0.0, 0.5])
    assert not any(batch.terminated.any() for batch in draws())  # not known yet
    play([0.5, 0.0])
    if practises:  # Practice sees the goals that the environment gave
        assert goals.ends_when_met is None
        goals.learn_ends(*np.full((2, 1, 2), 0.5, np.float32), np.array([True]))
        buffer._sampler.follow_ends(goals)
    for batch in draws():
        assert (batch.rewards == 0).any()
        assert torch.equal(batch.terminated, (batch.rewards == 0).float())


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


def still_and_moving(**kwargs) -> HERReplayBuffer:
    """Return a buffer with 10 steps of episode 0, which stays where it is, and 10 of episode 1, which moves."""
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
    return buffer


def share_of_moving(rows: torch.Tensor) -> float:
    return (rows[:, 0] == 1).float().mean().item()


def test_motion_priority_prefers_episodes_that_moved_and_uniform_does_not():
    def share(**kwargs) -> float:
        return share_of_moving(still_and_moving(her_ratio=1.0, **kwargs).sample(20_000).observations)

    # The moving episode moves by more than the scale after 9 of its 10 steps, and the last one counts a quarter.
    assert share() == pytest.approx((9.25 * 0.995 + 0.05) / (9.25 * 0.995 + 0.1), abs=0.003)
    assert share(motion_priority=0.5) == pytest.approx((9.25 * 0.5 + 5) / (9.25 * 0.5 + 10), abs=0.01)
    assert share(episode_priority="uniform") == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.8])
def test_rows_that_keep_their_goal_are_uniform_over_transitions(ratio):
    buffer = still_and_moving(her_ratio=ratio)
    observations = buffer.sample(20_000).observations
    relabelled = round(buffer.relabelled_share * 20_000)
    if relabelled:
        assert share_of_moving(observations[:relabelled]) == pytest.approx(0.9945, abs=0.003)
    original = observations[relabelled:]
    assert share_of_moving(original) == pytest.approx(0.5, abs=0.01)
    np.testing.assert_allclose(np.bincount(original[:, 1].int()) / len(original), [0.1] * 10, atol=0.02)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("still", [0, 1, 19])
def test_a_step_before_motion_gets_new_goals_as_often_as_without_priority(ratio, still):
    def odds(**kwargs) -> float:
        """Return how often the one moving episode appears with a new goal, for once with its own."""
        buffer = make(capacity=500, motion_scale=1.0, her_ratio=ratio, **kwargs)
        for episode in range(still + 1):
            places, actions, rewards = episode_arrays(episode, 10)
            places["achieved_goal"] = places["achieved_goal"] * [0.0, float(episode == still)]
            buffer.add_episode(places, actions, rewards)
        moving = buffer.sample(200_000).observations[:, 0] == still
        relabelled = round(buffer.relabelled_share * 200_000)
        assert buffer.relabelled_share <= ratio
        return moving[:relabelled].sum().item() / max(1, moving[relabelled:].sum().item())

    plain = odds(episode_priority="uniform")
    if 0 < ratio < 1:
        assert plain == pytest.approx(ratio / (1 - ratio), rel=0.05)
        assert odds() == pytest.approx(0.925 * plain, rel=0.05)  # the last of its 10 steps has no goal further away
    else:
        assert make(her_ratio=ratio).relabelled_share == ratio


def test_an_outcome_of_chance_is_replayed_as_often_as_it_happened():
    # One action moves the goal once in ten times. Drawn by what came of it, it would seem to do so 4 times in 5.
    buffer = make(capacity=5000, motion_scale=1.0, her_ratio=0.0)
    for episode in range(1000):
        moved = float(episode % 10 == 0)
        now, after = (observation(np.array([episode]), np.array([t])) for t in (0, 1))
        now["achieved_goal"], after["achieved_goal"] = np.zeros((1, 2)), np.full((1, 2), moved)
        after["observation"] = np.full((1, 2), moved)
        buffer.add(now, np.zeros((1, 1)), np.array([-1.0]), after, np.array([False]), np.array([True]))
    assert buffer.episodes.total_weight == pytest.approx(100 + 900 * 0.005)
    assert buffer.sample(10_000).next_observations[:, 0].mean().item() == pytest.approx(0.1, abs=0.005)


def episode_arrays(episode: int, steps: int) -> tuple[dict, np.ndarray, np.ndarray]:
    places = observation(np.full(steps + 1, episode), np.arange(steps + 1))
    return places, np.arange(steps, dtype=np.float64)[:, None], np.full(steps, -1.0)


@pytest.mark.parametrize("form", ["T + 1", "next"])
def test_a_whole_episode_is_stored_as_if_it_had_been_played(form):
    played, added = make(num_envs=1), make(num_envs=1)
    play(played, [5, 1, 7], terminate=True)
    for episode, steps in enumerate([5, 1, 7]):
        places, actions, rewards = episode_arrays(episode, steps)
        if form == "T + 1":
            added.add_episode(places, actions, rewards, terminated=True)
        else:
            now, after = ({key: value[part] for key, value in places.items()} for part in (slice(-1), slice(1, None)))
            ends = np.arange(steps) == steps - 1
            added.add_episode(now, actions, rewards, after, ends, np.zeros(steps, bool))
    assert len(added) == 13
    for a, b in zip(played.sample(64)[:5], added.sample(64)[:5], strict=True):
        assert torch.equal(a, b)


def test_an_episode_leaves_the_open_ones_alone_and_takes_discrete_actions():
    buffer = HERReplayBuffer(SpaceSpec(2, 1, 2, num_actions=9), 100, ExactMatch(), settings=HindsightSettings())
    now, after = (observation(np.array([0]), np.array([t])) for t in (0, 1))
    buffer.add(now, np.zeros((1, 1)), np.array([-1.0]), after, np.array([False]), np.array([False]))
    places, actions, rewards = episode_arrays(3, 4)
    buffer.add_episode(places, actions[:, 0].astype(int), rewards, truncated=True)
    assert len(buffer) == 4
    batch = buffer.sample(50)
    assert batch.actions.shape == (50, 1)
    assert set(batch.observations[:, 0].tolist()) == {3.0}
    assert batch.terminated.sum() == (batch.rewards == 0).sum()  # a time-out is not a termination


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rewards": np.zeros(3)}, r"observations\['observation'\] has 6 rows: expected 4 with 3 rewards and no next"),
        ({"rewards": np.zeros(0)}, "rewards has no rows: expected an episode of at least 1 step"),
        ({"actions": np.zeros((4, 1))}, r"actions has shape \(4, 1\): expected \(5, 1\)"),
        ({"actions": np.zeros((5, 2))}, r"actions has shape \(5, 2\): expected \(5, 1\)"),
        ({"terminated": np.zeros(4, bool)}, r"terminated has shape \(4,\): expected \(5,\)"),
        ({"terminated": np.arange(5) == 2}, r"terminated\[2\] is set, but the episode has 5 steps"),
        ({"truncated": np.arange(5) >= 3}, r"truncated\[3\] is set, but the episode has 5 steps"),
    ],
)
def test_an_episode_whose_parts_do_not_fit_together_is_refused(change, words):
    places, actions, rewards = episode_arrays(0, 5)
    buffer = make()
    with pytest.raises(ValueError, match=words):
        buffer.add_episode(**{"observations": places, "actions": actions, "rewards": rewards, **change})
    with pytest.raises(ValueError, match=r"observations\['observation'\] has 6 rows: expected 5 with 5 rewards"):
        buffer.add_episode(places, actions, rewards, places)
    assert len(buffer) == 0


def test_sampling_before_an_episode_has_ended_says_what_to_do():
    buffer = make()
    now, after = (observation(np.array([0]), np.array([t])) for t in (0, 1))
    buffer.add(now, np.zeros((1, 1)), np.array([-1.0]), after, np.array([False]), np.array([False]))
    with pytest.raises(ValueError, match="HERReplayBuffer has no completed episode to sample: add transitions until"):
        buffer.sample(4)


def test_rewards_are_compared_with_what_relabelling_assumes_before_they_can_be_sampled():
    class Recording(ExactMatch):
        seen: list = []  # noqa: RUF012

        def check_play(self, rewards, achieved, desired):
            assert len(buffer) == 0
            self.seen.append((rewards.tolist(), achieved[:, 1].tolist(), desired[:, 1].tolist()))
            self.reward_range = (-10.0, 0.0)

    buffer = make(goals=Recording())
    assert buffer.reward_range == (-1.0, 0.0)
    for t in range(3):
        now, after = (observation(np.array([7]), np.array([t + i])) for i in (0, 1))
        buffer.add(now, np.zeros((1, 1)), np.array([-1.0 - t]), after, np.array([False]), np.array([t == 2]))
    assert Recording.seen == [([-1.0, -2.0, -3.0], [1.0, 2.0, 3.0], [7.0] * 3)]  # achieved after each step
    assert buffer.reward_range == (-10.0, 0.0)


def test_motion_counts_also_where_it_ends_where_it_began():
    buffer = make(capacity=100, motion_scale=1.0, her_ratio=1.0)
    for episode, places in enumerate([[0.0] * 5, [0.0, 3.0, 5.0, 2.0, 0.0]]):
        for t in range(4):
            now, after = (observation(np.array([episode]), np.array([step])) for step in (t, t + 1))
            now["achieved_goal"], after["achieved_goal"] = (np.array([[0.0, places[step]]]) for step in (t, t + 1))
            buffer.add(now, np.zeros((1, 1)), np.array([-1.0]), after, np.array([False]), np.array([t == 3]))
    assert buffer.episodes.total_weight == pytest.approx(8 * 0.005 + 4 * 0.995)  # all of its 4 steps come before motion


def steps_and_goals(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    return batch.observations[:, 1].numpy(), batch.observations[:, 3].numpy()


def trivial_goals(places: list[int], **kwargs) -> tuple[float, HERReplayBuffer]:
    """Return the share of new goals that are met before their step, in one episode that goes through these places."""
    buffer = make(capacity=100, goals=Near(), her_ratio=1.0, **kwargs)
    for t in range(len(places) - 1):
        now, after = (observation(np.array([0]), np.array([step])) for step in (t, t + 1))
        now["achieved_goal"], after["achieved_goal"] = (np.array([[0.0, places[step]]]) for step in (t, t + 1))
        ended = np.array([t == len(places) - 2])
        buffer.add(now, np.zeros((1, 1)), np.array([-1.0]), after, np.array([False]), ended)
    steps, goals = steps_and_goals(buffer.sample(20_000))
    return float((np.abs(np.take(places, steps.astype(int)) - goals) <= 0.5).mean()), buffer


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_where_most_new_goals_are_met_already_they_are_drawn_again(strategy):
    mostly_still = [0, 1, 2, 3, 4, *[5] * 16]
    plain, _ = trivial_goals(mostly_still, goal_selection_strategy=strategy, episode_priority="uniform")
    share, buffer = trivial_goals(mostly_still, goal_selection_strategy=strategy)
    assert plain > 0.55
    assert 0.25 <= share < 0.4  # a quarter, and those for which eight draws found nothing else
    assert buffer.take_metrics()["train/trivial_goal_share"] == pytest.approx(share)
    assert "train/trivial_goal_share" not in buffer.take_metrics()  # since the last call


def test_where_few_new_goals_are_met_already_nothing_is_drawn_again():
    always_moving = list(range(20))
    share, buffer = trivial_goals(always_moving, goal_selection_strategy="episode")
    plain, uniform = trivial_goals(always_moving, goal_selection_strategy="episode", episode_priority="uniform")
    assert 0 < share == plain < 0.1
    assert buffer.rng.bit_generator.state == uniform.rng.bit_generator.state


def test_an_episode_without_motion_keeps_goals_that_are_met():
    buffer = make(capacity=100, goals=Near(), her_ratio=1.0)
    for t in range(10):
        now, after = (observation(np.array([0]), np.array([step])) for step in (t, t + 1))
        now["achieved_goal"], after["achieved_goal"] = np.zeros((1, 2)), np.zeros((1, 2))
        buffer.add(now, np.zeros((1, 1)), np.array([-1.0]), after, np.array([False]), np.array([t == 9]))
    steps, _ = steps_and_goals(buffer.sample(1000))
    assert set(steps) == set(range(10))
    assert buffer.take_metrics() == {
        "train/relabelled_share": 1.0,
        "train/trivial_goal_share": 1.0,
        "train/motion_weight": pytest.approx(0.0, abs=1e-12),
    }


@pytest.mark.parametrize("num_envs", [1, 3])
def test_state_dict_round_trip_gives_the_same_draws(num_envs):
    original = make(capacity=60, num_envs=num_envs)
    play(original, [3, 7, 5, 2, 9, 4, 6, 8, 3, 5, 7, 2, 4], num_envs)
    original.sample(32)  # its generator is no longer that of a new buffer
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
    with pytest.raises(ConfigError, match="expected only one"):
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
    starts, lengths = table.draw(np.array(numbers), np.empty(0))
    edges = np.cumsum(weights[drops:]) / sum(weights[drops:])
    for number, start, length in zip(numbers, starts, lengths, strict=True):
        index = start // 10
        assert length == index + 1
        assert index >= drops
        low = edges[index - drops - 1] if index > drops else 0.0
        assert low - 1e-6 <= number <= edges[index - drops] + 1e-6
    assert table.total_weight == pytest.approx(sum(weights[drops:]))
    live = np.arange(drops, len(weights))
    assert table.transitions == (live + 1).sum()
    # By length, and both kinds at once.
    both, _ = table.draw(np.array(numbers), np.array(numbers))
    np.testing.assert_array_equal(both[: len(numbers)], starts)
    steps = np.repeat(live, live + 1)
    np.testing.assert_allclose(both[len(numbers) :] // 10, steps[(np.array(numbers) * len(steps)).astype(int)], atol=1)
    fine = (np.arange(10 * len(steps)) + 0.5) / (10 * len(steps))
    counts = np.bincount(table.draw(np.empty(0), fine)[0] // 10, minlength=len(weights))
    np.testing.assert_array_equal(counts[drops:], 10 * (live + 1))


def test_episode_table_keeps_its_precision_over_a_long_run(monkeypatch):
    monkeypatch.setattr(EpisodeTable, "_REBASE_AT", 1000.0)
    table = EpisodeTable(size=4)
    for index in range(5000):
        table.append(Episode(index, 1, index), 0.1 + index % 7)
        if len(table) > 10:
            table.drop_oldest()
    expected = sum(0.1 + index % 7 for index in range(4990, 5000))
    assert table.total_weight == pytest.approx(expected)
    numbers = np.linspace(0, 0.999, 500)
    for drawn in (table.draw(numbers, np.empty(0)), table.draw(np.empty(0), numbers)):
        assert set(drawn[0]) == set(range(4990, 5000))
    assert table.transitions == 10


def test_a_table_stored_before_lengths_were_summed_is_loaded():
    table, old = EpisodeTable(size=2), EpisodeTable()
    for index in range(9):
        table.append(Episode(10 * index, 1 + index, 10 * index), 0.5 + index)
        if index > 5:
            table.drop_oldest()
    state = table.state_dict()
    assert state.pop("length_low") == 6.0
    old.load_state_dict(state)
    numbers = (np.arange(1000) + 0.5) / 1000
    for a, b in zip(table.draw(numbers, numbers), old.draw(numbers, numbers), strict=True):
        np.testing.assert_array_equal(a, b)
    assert old.transitions == table.transitions
    for each in (table, old):
        each.append(Episode(900, 3, 900), 2.0)
        each.drop_oldest()
    assert old.transitions == table.transitions
