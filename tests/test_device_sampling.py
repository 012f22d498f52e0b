"""Sampling with tensors alone, as an accelerator does it, follows the rules of the host. It runs on the CPU here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_training.data import HERReplayBuffer, HindsightSettings, ReplayBuffer
from rl_training.data.device_hindsight import HindsightSampler
from rl_training.data.device_sampling import RingSampler
from rl_training.data.mixture import Mixture
from rl_training.envs.distance_rule import DeviceRewards, DistanceRule
from rl_training.envs.rewards import RewardTransform, RewardTransformConfig
from rl_training.runtime.stack_data import _SamplerStack
from rl_training.types import Batch
from test_her_replay_buffer import SPEC, PositionOnly, play

RULE = DistanceRule(0.5, near=0.0, far=-1.0)


class Near(PositionOnly):
    """A goal is met within half a step of it; rewards are doubled."""

    distance_threshold = 0.5
    transform = RewardTransform(RewardTransformConfig(scale=2.0))

    def rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return self.transform.apply(RULE(achieved, desired))

    def on_device(self) -> DeviceRewards:
        return DeviceRewards(RULE.of_tensors, None, self.transform)

    def spot_check(self, achieved: np.ndarray, desired: np.ndarray) -> None:
        assert achieved.shape == desired.shape
        assert np.array_equal(achieved, desired[::-1])


class Ending(Near):
    """A goal that is met ends the episode."""

    recomputes_termination = True

    def terminated(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return DistanceRule(0.5, near=1.0, far=0.0)(achieved, desired)

    def on_device(self) -> DeviceRewards:
        return DeviceRewards(RULE.of_tensors, DistanceRule(0.5, near=1.0, far=0.0).of_tensors, self.transform)


def buffer_and_sampler(
    capacity: int = 400, goals: Near | None = None, **options
) -> tuple[HERReplayBuffer, HindsightSampler]:
    buffer = HERReplayBuffer(SPEC, capacity, goals or Near(), settings=HindsightSettings(**options))
    buffer._sampler = buffer.copy_to_device(torch.Generator().manual_seed(0))
    return buffer, buffer._sampler


def draw(sampler: HindsightSampler, size: int) -> Batch:
    sampler.prepare(size)
    return sampler(size)


def host_draw(buffer: HERReplayBuffer, size: int) -> Batch:
    assert buffer.device_sampler() is None  # on the CPU
    return buffer.sample(size)


def statistics(batch: Batch) -> np.ndarray:
    """Return how often each triple of episode, step and goal occurs."""
    episode, step, goal = (batch.observations[:, column].numpy().astype(int) for column in (0, 1, 3))
    counts = np.zeros((60, 20, 21))
    np.add.at(counts, (episode, step, goal), 1)
    return counts / len(step)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("priority", ["motion", "uniform"])
def test_draws_follow_the_distribution_of_the_host(strategy: str, priority: str) -> None:
    buffer, sampler = buffer_and_sampler(goal_selection_strategy=strategy, episode_priority=priority)
    play(buffer, [5, 1, 7, 12, 3])
    device, host = (
        statistics(function(200_000)) for function in (lambda n: draw(sampler, n), lambda n: host_draw(buffer, n))
    )
    np.testing.assert_allclose(device, host, atol=0.004)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_draws_of_pursued_goals_follow_the_distribution_of_the_host(strategy: str) -> None:
    buffer, sampler = buffer_and_sampler(goal_selection_strategy=strategy, goal_priority="pursued")
    play(buffer, [5, 1, 7, 12, 3])
    assert buffer.cells is not None
    for _ in range(4):  # goals like those of episode 2 are wanted
        buffer.cells.add(
            np.full((2, 2), 9.0, np.float32), np.array([2.0, 7.0 if strategy == "final" else 5.0], np.float32)
        )
    sampler.follow_cells(buffer.cells)
    device, host = (
        statistics(function(200_000)) for function in (lambda n: draw(sampler, n), lambda n: host_draw(buffer, n))
    )
    np.testing.assert_allclose(device, host, atol=0.004)
    wanted = host[2, :, 7 if strategy == "final" else 5].sum()
    assert wanted > 0.15


@pytest.mark.parametrize("goals", [Near, Ending])
def test_every_row_is_consistent_after_the_ring_has_wrapped(goals: type[Near]) -> None:
    buffer, sampler = buffer_and_sampler(capacity=60, goals=goals())
    rng = np.random.default_rng(0)
    for _ in range(40):
        play(buffer, rng.integers(1, 15, size=4).tolist())
        batch = draw(sampler, 256)
        now, after = batch.observations, batch.next_observations
        assert torch.equal(now[:, 0], after[:, 0])  # the episode
        assert torch.equal(now[:, 1] + 1, after[:, 1])  # the step
        assert torch.equal(now[:, 2:], after[:, 2:])  # the goal
        assert torch.equal(batch.actions[:, 0], now[:, 1])
        relabelled = now[:, 2] >= 0  # original goals have -1 here
        assert 0.6 < relabelled.float().mean() < 0.82
        assert (now[relabelled, 3] > now[relabelled, 1]).all()
        expected = buffer.goals.rewards(after[:, :2].numpy(), now[:, 2:].numpy())
        assert np.array_equal(batch.rewards[relabelled], expected[relabelled])
        assert (batch.rewards[~relabelled] == -1).all()
        ends = batch.terminated[relabelled]
        assert torch.equal(
            ends, (batch.rewards[relabelled] == 0).float() if goals is Ending else torch.zeros_like(ends)
        )
    kept = {(row.start, row.length) for row in buffer.episodes._episodes}
    assert {tuple(row) for row in sampler.table[buffer.episodes.live].tolist()} == kept


def test_a_table_that_moves_is_copied_again() -> None:
    buffer, sampler = buffer_and_sampler(capacity=3000)
    moves = buffer.episodes.moves
    play(buffer, [1] * 4000)
    assert buffer.episodes.moves > moves
    live = buffer.episodes.live
    assert int(sampler.last) == live.stop - 1
    sums = np.stack(buffer.episodes.columns[2:])
    found = torch.stack([sampler.weight_sums, sampler.length_sums])
    np.testing.assert_array_equal(found[:, live], sums[:, live])
    assert torch.isinf(found[:, live.stop :]).all()
    found = draw(sampler, 5000).observations[:, 0].numpy()
    newest = 3999
    assert found.max() == newest
    assert found.min() >= newest - 1500


def test_the_share_of_goals_that_were_met_already_is_counted() -> None:
    buffer, sampler = buffer_and_sampler(her_ratio=0.5)
    play(buffer, [8])
    sampler.prepare(100)
    sampler(100)
    relabelled, met = sampler.take_shares()
    assert relabelled == round(buffer.relabelled_share * 100)
    assert met == 0
    assert sampler.take_shares() == (0, 0)


def test_a_state_restores_the_random_numbers_and_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HERReplayBuffer, "device_sampler", lambda self: self._sampler)
    buffer, sampler = buffer_and_sampler()
    buffer.device = torch.device("meta")  # anything but the CPU
    play(buffer, [5, 1, 7])
    draw(sampler, 64)
    state = buffer.state_dict()
    expected = draw(sampler, 64)
    other = HERReplayBuffer(SPEC, 400, Near())
    other.load_state_dict(state)
    other._sampler = other.copy_to_device(other._generator)
    assert np.array_equal(state["drawn"], other._sampler.drawn)
    found = draw(other._sampler, 64)
    assert all(torch.equal(one, two) for one, two in zip(expected[:5], found[:5], strict=True))


def test_a_ring_is_drawn_uniformly_and_sees_new_rows() -> None:
    buffer = ReplayBuffer(SPEC, 10)
    sampler = RingSampler(buffer.ring.rows, buffer.ring.columns, torch.Generator().manual_seed(0))
    goal = np.zeros((1, 2))
    for number in range(12):
        place = {key: np.full((1, 2), float(number)) for key in ("observation", "achieved_goal")} | {
            "desired_goal": goal
        }
        buffer.add(place, np.array([[number]]), np.array([number]), place, np.array([False]), np.array([False]))
        sampler.count.fill_(len(buffer))
        seen = sampler(2000).rewards.numpy()
        first = max(0, number - 9)
        counts = np.bincount(seen.astype(int), minlength=12)[first : number + 1] / 2000
        np.testing.assert_allclose(counts, 1 / len(counts), atol=0.04)


def test_a_mixture_draws_its_offline_rows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HERReplayBuffer, "device_sampler", lambda self: self._sampler)
    (offline, _), (online, _) = buffer_and_sampler(), buffer_and_sampler()
    play(offline, [5])
    play(online, [5, 9, 9])
    offline._sampler.offline = True
    mixture = Mixture(offline, online, 0.25)
    sampler = mixture.device_sampler()
    for _ in range(4):
        batch = sampler(10, mixture.plan(10))
        assert batch.offline_rows in (2, 3)
        assert len(batch.rewards) == 10
        assert (batch.observations[: batch.offline_rows, 0] == 0).all()
    assert mixture.take_share() == pytest.approx(0.25)
    assert mixture.device_sampler() is sampler
    online._sampler = None
    assert mixture.device_sampler() is None


def test_a_distance_rule_is_the_same_for_arrays_and_tensors() -> None:
    rng = np.random.default_rng(0)
    achieved, desired = (rng.normal(size=(1000, 3)).astype(np.float32) for _ in range(2))
    rule = DistanceRule(1.5, near=0.0, far=-1.0)
    found = rule.of_tensors(torch.from_numpy(achieved), torch.from_numpy(desired))
    assert np.array_equal(found, rule(achieved, desired))
    clipped = RewardTransform(
        RewardTransformConfig(scale=3.0, shift=1.0, clip_min=-1.5), RewardTransformConfig(shift=1.0)
    )
    np.testing.assert_allclose(clipped.of_tensors(found), clipped.apply(rule(achieved, desired)), rtol=1e-6)


def test_the_host_draws_where_the_device_cannot_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strange(Near):
        why_not_on_device = "compute_reward of Strange is not a test of the distance of the goals"

        def on_device(self) -> None:
            return None

    buffer = HERReplayBuffer(SPEC, 400, Strange())
    buffer.device = torch.device("meta")  # anything but the CPU
    with pytest.warns(UserWarning, match="hindsight is computed on the CPU: compute_reward of Strange is not a test"):
        assert buffer.device_sampler() is None
    assert buffer.device_sampler() is None  # once is enough

    def no_memory(self: HERReplayBuffer, generator: torch.Generator) -> None:
        raise torch.cuda.OutOfMemoryError("no memory")

    monkeypatch.setattr(HERReplayBuffer, "copy_to_device", no_memory)
    buffer = HERReplayBuffer(SPEC, 400, Near())
    buffer.device = torch.device("meta")
    with pytest.warns(UserWarning, match="the device has no memory for buffer_capacity = 400 rows"):
        assert buffer.device_sampler() is None


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_where_most_new_goals_are_met_already_they_are_drawn_again_as_on_the_host(strategy: str) -> None:
    buffer, sampler = buffer_and_sampler(her_ratio=1.0, goal_selection_strategy=strategy)
    places = [0, 1, 2, 3, 4, *[5] * 16]
    parts = {
        "observation": np.stack([np.zeros(21), np.arange(21)], axis=1),
        "achieved_goal": np.stack([np.zeros(21), places], axis=1),
        "desired_goal": np.full((21, 2), -1.0),
    }
    buffer.add_episode(parts, np.zeros((20, 1)), -np.ones(20))

    def trivial(batch: Batch) -> float:
        step, goal = batch.observations[:, 1].numpy().astype(int), batch.observations[:, 3].numpy()
        return float((np.abs(np.take(places, step) - goal) <= 0.5).mean())

    share = trivial(draw(sampler, 20_000))
    assert 0.25 <= share < 0.4
    assert share == pytest.approx(trivial(host_draw(buffer, 20_000)), abs=0.02)
    assert sampler.take_shares()[1] / 20_000 == pytest.approx(share)


class LearnedEnds(Near):
    """A goal that is met ends the episode, which only play can show."""

    ends_when_met: bool | None = None

    def on_device(self) -> DeviceRewards:
        ends = DistanceRule(0.5, near=1.0, far=0.0).of_tensors
        return DeviceRewards(RULE.of_tensors, ends, self.transform, ends_are_learned=True)


def test_each_run_of_a_stack_learns_by_itself_what_ends_its_episodes() -> None:
    parts = [buffer_and_sampler(goals=LearnedEnds(), her_ratio=1.0) for _ in range(2)]
    for buffer, _ in parts:
        play(buffer, [5] * 10)
    stack = _SamplerStack([sampler for _, sampler in parts], lead=0)
    for learned in ([False, False], [True, False], [True, True]):
        for (buffer, sampler), known in zip(parts, learned, strict=True):
            buffer.goals.ends_when_met = known or None
            sampler.follow_ends(buffer.goals)
            sampler.prepare(32)
        batch = stack(32)
        met = batch.rewards == 0.0
        assert met.any(dim=1).all()
        assert torch.equal(batch.terminated.bool(), met & torch.tensor(learned)[:, None])
