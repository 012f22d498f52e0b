"""Random play as a dataset: something to learn from where there is no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_env, space_spec
from rl_training.runtime.collector import random_actions
from rl_training.seeding import Stream, stream_seed


def play_at_random(env_id: str, env_kwargs: Mapping[str, Any], transitions: int, seed: int) -> TransitionDataset:
    """Return transitions of random play in an environment."""
    env = make_env(env_id, env_kwargs)
    spec, rng = space_spec(env), np.random.default_rng(np.random.SeedSequence([seed, 2]))
    names = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    steps: list[tuple[Any, ...]] = []
    episode, done, observation = 0, True, None
    while len(steps) < transitions:
        if done:
            observation, _ = env.reset(seed=stream_seed(seed, Stream.RANDOM_PLAY, episode))
            episode += 1
        action = spec.to_env(random_actions(spec, rng, 1))[0]
        following, reward, terminated, truncated, _ = env.step(action)
        steps.append((observation, action, reward, following, terminated, truncated))
        observation, done = following, terminated or truncated
    env.close()
    columns: dict[str, Any] = dict(zip(names, zip(*steps, strict=True), strict=True))
    for name in ("observations", "next_observations"):
        if isinstance(columns[name][0], dict):
            columns[name] = {key: np.stack([row[key] for row in columns[name]]) for key in columns[name][0]}
    return TransitionDataset.from_dict(
        {name: value if isinstance(value, dict) else np.stack(value) for name, value in columns.items()},
        where=f"random play in {env_id}",
    )
