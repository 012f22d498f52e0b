"""Uniform replay, and the ring of rows below it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl_training.data import ReplayBuffer
from rl_training.data.row_ring import RowRing
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.types import SpaceSpec

SPEC = SpaceSpec(observation_dim=2, action_dim=1)


def fill(buffer: ReplayBuffer, steps: int, num_envs: int, first: int = 0) -> None:
    """Add transitions whose every number is the transition's own."""
    for number in range(first, first + steps * num_envs, num_envs):
        ids = np.arange(number, number + num_envs, dtype=np.float64)
        place = np.stack([ids, ids], axis=1)
        buffer.add(place, ids[:, None], ids, place + 0.5, ids % 3 == 0, ids % 3 == 1)


@settings(max_examples=50, deadline=None)
@given(capacity=st.integers(1, 40), steps=st.integers(1, 40), num_envs=st.integers(1, 4))
def test_samples_are_the_last_transitions_and_intact(capacity, steps, num_envs):
    assume(num_envs <= capacity)
    buffer = ReplayBuffer(SPEC, capacity)
    fill(buffer, steps, num_envs)
    total = steps * num_envs
    assert len(buffer) == min(capacity, total)
    batch = buffer.sample(64)
    ids = batch.rewards
    assert (ids >= total - len(buffer)).all()
    assert (ids < total).all()
    assert torch.equal(batch.observations, torch.stack([ids, ids], dim=1))
    assert torch.equal(batch.next_observations, batch.observations + 0.5)
    assert torch.equal(batch.actions[:, 0], ids)
    assert torch.equal(batch.terminated, (ids % 3 == 0).float())  # a time-out leaves no trace


def test_sampling_an_empty_buffer_says_what_to_do():
    with pytest.raises(ValueError, match="ReplayBuffer is empty: add transitions before you sample"):
        ReplayBuffer(SPEC, 10).sample(4)


def test_sampling_is_uniform():
    buffer = ReplayBuffer(SPEC, 10)
    fill(buffer, 25, 1)
    counts = torch.bincount(buffer.sample(50_000).rewards.long() - 15, minlength=10)
    assert ((counts / 5000 - 1).abs() < 0.1).all()


def test_goal_observations_are_flattened():
    buffer = ReplayBuffer(SpaceSpec(observation_dim=1, action_dim=1, goal_dim=1), 5)
    now = {"observation": np.array([[1.0]]), "achieved_goal": np.array([[2.0]]), "desired_goal": np.array([[3.0]])}
    buffer.add(now, np.zeros((1, 1)), np.zeros(1), now, np.zeros(1), np.zeros(1))
    assert buffer.sample(1).observations.tolist() == [[1.0, 3.0]]


def test_rewards_are_transformed_as_they_are_stored():
    transform = RewardTransformConfig(scale=2.0, shift=-1.0, clip_max=6.0)
    buffer = ReplayBuffer(SPEC, 10, reward_transform=transform)
    fill(buffer, 5, 1)
    batch = buffer.sample(200)
    assert torch.equal(batch.rewards, (2.0 * batch.observations[:, 0] - 1.0).clamp(max=6.0))
    assert batch.rewards.max() == 6.0


def test_state_dict_round_trip_gives_the_same_draws():
    original, restored = ReplayBuffer(SPEC, 17, seed=1), ReplayBuffer(SPEC, 17, seed=2)
    fill(original, 40, 1)
    restored.load_state_dict(original.state_dict())
    fill(original, 5, 1, first=40)
    fill(restored, 5, 1, first=40)
    for a, b in zip(original.sample(64)[:5], restored.sample(64)[:5], strict=True):
        assert torch.equal(a, b)


@settings(max_examples=50, deadline=None)
@given(capacity=st.integers(1, 20), parts=st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_ring_reads_back_what_was_written(capacity, parts):
    ring = RowRing(capacity, {"a": 1, "b": 2})
    everything = torch.arange(3 * sum(parts), dtype=torch.float32).reshape(-1, 3)
    done = 0
    for part in (min(part, capacity) for part in parts):
        ring.append(everything[done : done + part])
        done += part
    oldest = max(0, done - capacity)
    assert torch.equal(ring.read(oldest, done), everything[oldest:done])
    copy = RowRing(capacity, {"a": 1, "b": 2})
    copy.written = done
    copy.write(oldest, ring.read(oldest, done))
    assert torch.equal(copy.read(oldest, done), everything[oldest:done])
