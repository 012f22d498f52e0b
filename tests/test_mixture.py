"""Prior and fresh rows in one batch: how many of each, in which order, and the same again after a restart."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import ReplayBuffer, TransitionDataset
from rl_training.data.mixture import Mixture, join
from rl_training.types import SpaceSpec

SPEC = SpaceSpec(observation_dim=2, action_dim=1)

PRIOR, FRESH = 1.0, -1.0  # the reward tells where a row comes from


def prior_data(seed: int = 0, rows: int = 12) -> TransitionDataset:
    values = np.arange(rows, dtype=np.float32)
    arrays = {
        "observations": np.stack([values, values], axis=1),
        "actions": np.linspace(-1, 1, rows, dtype=np.float32)[:, None],
        "rewards": np.full(rows, PRIOR, np.float32),
        "next_observations": np.stack([values, values], axis=1) + 1,
        "terminated": np.arange(rows) % 4 == 3,
    }
    return TransitionDataset.from_dict(arrays).for_task(SPEC, seed=seed)


def fresh_buffer(rows: int = 7, seed: int = 1) -> ReplayBuffer:
    buffer = ReplayBuffer(SPEC, 32, seed=seed)
    for row in range(rows):
        observation = np.full((1, 2), 100.0 + row)
        flags = np.zeros(1, bool)
        buffer.add(observation, np.zeros((1, 1)), np.full(1, FRESH), observation + 1, flags, flags)
    return buffer


def mixture(ratio: float, fresh_rows: int = 7) -> Mixture:
    return Mixture(prior_data(), fresh_buffer(fresh_rows), ratio)


ratios = st.floats(0, 1, allow_nan=False)
sizes = st.integers(1, 40)


@settings(max_examples=60, deadline=None)
@given(ratio=ratios, size=sizes, batches=st.integers(1, 25))
def test_the_share_is_right_in_every_batch_and_over_all_of_them(ratio, size, batches):
    source, total = mixture(ratio), 0
    for number in range(1, batches + 1):
        batch = source.sample(size)
        count = batch.offline_rows
        assert len(batch.rewards) == size
        # Prior rows come first, and as many as the batch says.
        assert (batch.rewards[:count] == PRIOR).all()
        assert (batch.rewards[count:] == FRESH).all()
        assert (batch.observations[:count] < 50).all()
        assert (batch.observations[count:] > 50).all()
        if number == 1:
            assert count == round(ratio * size)
        assert count in (math.floor(ratio * size), math.ceil(ratio * size))
        total += count
        assert abs(total - ratio * size * number) <= 0.5 + 1e-9
    assert source.take_share() == pytest.approx(total / (size * batches))


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(st.tuples(ratios, sizes), min_size=1, max_size=20))
def test_ratio_and_batch_size_may_change_from_batch_to_batch(plan):
    source, carried, total, wanted = mixture(0.5), 0.0, 0, 0.0
    for ratio, size in plan:
        source.ratio = ratio
        count = source.sample(size).offline_rows
        assert count == min(size, max(0, round(ratio * size + carried)))
        carried += ratio * size - count
        total, wanted = total + count, wanted + ratio * size
        assert abs(total - wanted) <= 0.5 + 1e-9


@settings(max_examples=20, deadline=None)
@given(ratio=ratios, size=sizes)
def test_all_rows_are_prior_ones_until_there_is_something_fresh(ratio, size):
    source = mixture(ratio, fresh_rows=0)
    for _ in range(3):
        batch = source.sample(size)
        assert batch.offline_rows == size
        assert (batch.rewards == PRIOR).all()
    assert source.take_share() == 1.0
    source.online = fresh_buffer()
    # What came before leaves no debt: the first mixed batch is the one the ratio asks for.
    assert source.sample(size).offline_rows == round(ratio * size)


def test_sampling_without_any_rows_says_what_to_do():
    source = Mixture(fresh_buffer(0), fresh_buffer(0), 0.5)
    with pytest.raises(ValueError, match="Mixture is empty: give it offline data, or add online transitions"):
        source.sample(4)
    assert source.take_share() is None


def test_at_a_ratio_of_0_prior_rows_are_no_reason_to_begin():
    assert len(mixture(0.0, fresh_rows=0)) == 0
    assert len(mixture(0.0)) == len(mixture(0.0).online)
    assert len(mixture(0.1, fresh_rows=0)) == len(mixture(0.1).offline)


def test_one_third_takes_turns():
    source = mixture(1 / 3)
    assert [source.sample(4).offline_rows for _ in range(6)] == [1, 2, 1, 1, 2, 1]
    assert [mixture(0.5).sample(256).offline_rows, mixture(0.0).sample(9).offline_rows] == [128, 0]
    assert mixture(1.0).sample(9).offline_rows == 9


def test_the_share_is_counted_from_one_question_to_the_next():
    source = mixture(0.25)
    assert source.take_share() is None
    source.sample(8)
    source.sample(8)
    assert source.take_share() == 0.25
    assert source.take_share() is None
    source.ratio = 1.0
    source.sample(8)
    assert source.take_share() == 1.0


def test_its_length_is_that_of_both():
    assert len(mixture(0.5)) == 12 + 7
    assert len(mixture(0.5, fresh_rows=0)) == 12


@settings(max_examples=20, deadline=None)
@given(ratio=ratios, size=sizes, before=st.integers(0, 5), with_rows=st.booleans())
def test_a_restored_mixture_draws_the_same(ratio, size, before, with_rows):
    source = mixture(ratio)
    for _ in range(before):
        source.sample(size)
    state = copy.deepcopy(source.state_dict(with_rows=with_rows))
    expected = [source.sample(size) for _ in range(4)]
    share = source.take_share()

    # Other seeds, another past: all that decides the next draws is in the state.
    other = Mixture(prior_data(seed=5), fresh_buffer(7 if not with_rows else 3, seed=6), ratio)
    other.sample(3)
    other.load_state_dict(state)
    for batch in expected:
        again = other.sample(size)
        assert again.offline_rows == batch.offline_rows
        for name in ("observations", "actions", "rewards", "next_observations", "terminated"):
            assert torch.equal(getattr(again, name), getattr(batch, name)), name
    assert other.take_share() == share


def test_the_state_holds_no_prior_rows():
    state = mixture(0.5).state_dict()
    assert set(state["prior"]) == {"generator", "fingerprint"}
    assert len(state["fresh"]["rows"]) == 7
    assert "rows" not in mixture(0.5).state_dict(with_rows=False)["fresh"]


def test_returns_of_fresh_rows_bind_nothing():
    prior = prior_data()
    prior.returns = prior.returns_to_go(0.5)
    batch = Mixture(prior, fresh_buffer(), 0.5).sample(10)
    assert batch.returns.shape == (10,)
    rows = batch.observations[:5, 0].long()
    assert torch.equal(batch.returns[:5], torch.from_numpy(prior.returns)[rows])
    assert (batch.returns[5:] == -torch.inf).all()
    assert Mixture(prior, fresh_buffer(), 1.0).sample(6).returns.isfinite().all()
    assert Mixture(prior, fresh_buffer(), 0.0).sample(6).returns is None
    assert mixture(0.5).sample(10).returns is None


def test_joining_keeps_returns_that_are_known():
    prior, fresh = prior_data(), prior_data(seed=3)
    prior.returns, fresh.returns = prior.returns_to_go(0.9), fresh.returns_to_go(0.1)
    first, second = prior.sample(3), fresh.sample(2)
    batch = join(first, second)
    assert torch.equal(batch.returns, torch.cat([first.returns, second.returns]))
    assert batch.offline_rows == 3
    for name in ("observations", "actions", "rewards", "next_observations", "terminated"):
        assert torch.equal(getattr(batch, name), torch.cat([getattr(first, name), getattr(second, name)])), name
