"""A time-out is never stored as a termination, so that its value is bootstrapped wherever it is sampled from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_training.data import ReplayBuffer, TransitionDataset
from rl_training.types import SpaceSpec
from test_her_replay_buffer import ExactMatch, PositionOnly, make, play

SPEC = SpaceSpec(observation_dim=2, action_dim=1)


@pytest.mark.parametrize("terminate", [False, True])
def test_in_a_replay_buffer(terminate: bool) -> None:
    buffer = ReplayBuffer(SPEC, 100)
    for step in range(20):
        now, ended = np.full((1, 2), float(step)), np.array([step % 5 == 4])
        buffer.add(now, np.zeros((1, 1)), np.zeros(1), now + 1, ended & terminate, ended & (not terminate))
    batch = buffer.sample(500)
    assert torch.equal(batch.terminated, (batch.observations[:, 0] % 5 == 4).float() * terminate)
    assert torch.equal(batch.next_observations, batch.observations + 1)  # the true final observation, too


@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize("terminate", [False, True])
def test_in_a_hindsight_buffer_that_keeps_what_was_recorded(ratio: float, terminate: bool) -> None:
    buffer = make(goals=PositionOnly(), her_ratio=ratio)
    play(buffer, [5] * 8, terminate=terminate)
    batch = buffer.sample(500)
    last = (batch.observations[:, 1] == 4).float()
    assert last.any()
    assert torch.equal(batch.terminated, last * terminate)


def test_in_a_hindsight_buffer_that_recomputes_terminations() -> None:
    buffer = make(goals=ExactMatch(), her_ratio=1.0, goal_selection_strategy="final")
    play(buffer, [5] * 8, terminate=False)
    batch = buffer.sample(500)
    assert torch.equal(batch.terminated, (batch.observations[:, 1] == 4).float())  # there the new goal is reached


@pytest.mark.parametrize("terminate", [False, True])
def test_in_a_dataset(terminate: bool) -> None:
    rows = np.arange(20)
    ended = rows % 5 == 4
    observations = np.stack([rows, rows], axis=1).astype(np.float32)
    dataset = TransitionDataset.from_dict(
        {
            "observations": observations,
            "next_observations": observations + 1,
            "actions": np.zeros((20, 1), np.float32),
            "rewards": np.zeros(20, np.float32),
            "terminated": ended & terminate,
            "truncated": ended & (not terminate),
        }
    )
    batch = dataset.sample(500)
    assert torch.equal(batch.terminated, (batch.observations[:, 0] % 5 == 4).float() * terminate)
    assert dataset.episode_lengths.tolist() == [5] * 4
