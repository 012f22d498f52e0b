"""One loop plays all episodes: seeds in turn, a bound on their length, and an answer to requests to stop."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.factory import make_raw_env, space_spec
from rl_training.envs.play import play
from rl_training.errors import EnvError
from rl_training.interrupts import Interrupted, OutOfTimeError, TimeLimit, stop_on_signals
from rl_training.runtime.exploration import random_actions
from rl_training.runtime.random_play import play_at_random
from rl_training.seeding import stream_seed


class Endless(gym.Env):
    """Counts its steps and never ends; it reuses the array of its observation."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = np.zeros(1)
        return self.count, {}

    def step(self, action):
        self.count += 1
        return self.count, 1.0, False, False, {}


def test_every_seed_is_an_episode_and_every_step_is_yielded() -> None:
    env = gym.make("CartPole-v1")
    resets: list[int] = []
    steps = list(play(env, lambda _: 0, [5, 6, 7], on_reset=resets.append))
    assert resets == [0, 1, 2]
    assert [step.episode for step in steps if step.done] == [0, 1, 2]
    for episode, seed in enumerate((5, 6, 7)):
        observation, _ = env.reset(seed=seed)
        for step in [step for step in steps if step.episode == episode]:
            np.testing.assert_array_equal(step.observation, observation)
            observation, reward, terminated, truncated, _ = env.step(0)
            np.testing.assert_array_equal(step.next_observation, observation)
            assert (step.reward, step.terminated, step.truncated) == (reward, terminated, truncated)


def test_the_caller_may_stop_early_and_seeds_are_used_as_needed() -> None:
    seeds = itertools.count()
    assert len(list(itertools.islice(play(gym.make("CartPole-v1"), lambda _: 0, seeds), 15))) == 15
    assert next(seeds) == 2


def test_an_episode_without_an_end_is_given_up() -> None:
    with pytest.raises(EnvError, match=r"Endless: an episode did not end within 20 steps; set a time limit"):
        list(play(Endless(), lambda _: np.zeros(1), [0], max_episode_steps=20))
    with pytest.raises(EnvError, match="within 100,000 steps"):
        list(play(Endless(), lambda _: np.zeros(1), [0]))


def test_an_episode_may_get_as_long_as_its_own_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[play.__module__], "_LONGEST_EPISODE", 50)
    assert len(list(play(gym.make("Pendulum-v1"), lambda _: np.zeros(1), [0]))) == 200


def test_a_request_to_stop_ends_the_play() -> None:
    asked: list[str] = []
    with stop_on_signals(asked.append):
        steps = play(Endless(), lambda _: np.zeros(1), [0])
        next(steps)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"):
            next(steps)
    assert asked == ["SIGTERM"]
    assert len(list(itertools.islice(play(Endless(), lambda _: np.zeros(1), [0]), 3))) == 3


def reference(env_id: str, env_kwargs: dict[str, Any], transitions: int, seed: int) -> dict[str, list[Any]]:
    """Random play as it was written before there was one loop: runs made then must find the same data."""
    env = make_raw_env(env_id, env_kwargs)
    spec, rng = space_spec(env), np.random.default_rng(np.random.SeedSequence([seed, 2]))
    rows: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "terminated": [], "truncated": []}
    episode, done, observation = 0, True, None
    while len(rows["rewards"]) < transitions:
        if done:
            observation, _ = env.reset(seed=stream_seed(seed, 2**21, episode))
            episode += 1
        action = spec.to_env(random_actions(spec, rng, 1))[0]
        following, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(rows, (observation, action, reward, terminated, truncated), strict=True):
            rows[name].append(value)
        observation, done = following, terminated or truncated
    return rows


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [("Pendulum-v1", {"wrappers": {"reward": {"scale": 0.1}}}), ("CartPole-v1", {}), ("MountainCarContinuous-v0", {})],
)
def test_random_play_is_what_it_was(env_id: str, env_kwargs: dict[str, Any]) -> None:
    dataset = play_at_random(env_id, env_kwargs, 450, 3)
    expected = reference(env_id, env_kwargs, 450, 3)
    expected["truncated"][-1] = not expected["terminated"][-1]  # a dataset ends with the end of an episode
    for name, values in expected.items():
        found = dataset.arrays[name]
        np.testing.assert_array_equal(found, np.asarray(values, found.dtype), err_msg=name)


def test_random_play_copies_what_the_environment_reuses() -> None:
    gym.register("Endless-v0", entry_point=Endless)
    try:
        dataset = play_at_random("Endless-v0", {}, 50, 0)
    finally:
        gym.registry.pop("Endless-v0")
    observations = dataset.arrays["observations"][:, 0]
    assert len(np.unique(observations)) == 50


def test_a_time_limit_ends_what_takes_too_long_and_leaves_no_alarm() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(OutOfTimeError), TimeLimit(0.05):
        signal.pause()
    with TimeLimit(5.0):
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before
