"""Random play as a dataset, for runs that name no file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_raw_env, space_spec
from rl_training.envs.play import play
from rl_training.runtime.exploration import random_actions
from rl_training.seeding import Stream, episode_seeds, stream_generator
from rl_training.types import Observation


def play_at_random(env_id: str, env_kwargs: Mapping[str, Any], transitions: int, seed: int) -> TransitionDataset:
    """Return transitions of random play in an environment, with its raw rewards."""
    with closing(make_raw_env(env_id, env_kwargs)) as env:
        spec, rng = space_spec(env), stream_generator(seed, Stream.RANDOM_ACTIONS)
        seeds = episode_seeds(seed, Stream.RANDOM_PLAY)
        # An episode may be as long as the data.
        steps = play(env, lambda _: spec.to_env(random_actions(spec, rng, 1))[0], seeds, max_episode_steps=transitions)
        rows = [
            (_copy(step.observation), step.action, step.reward, _copy(step.next_observation), *step[5:7])
            for step in itertools.islice(steps, transitions)
        ]
    names = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    columns = {name: _stacked(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    return TransitionDataset.from_dict(columns, where=f"random play in {env_id}")


def _copy(observation: Observation) -> Observation:
    if isinstance(observation, dict):
        return {key: np.array(value) for key, value in observation.items()}
    return np.array(observation)


def _stacked(values: tuple[Any, ...]) -> Any:
    if isinstance(values[0], dict):
        return {key: np.stack([value[key] for value in values]) for key in values[0]}
    return np.stack(values)
