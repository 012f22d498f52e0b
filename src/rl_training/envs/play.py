"""Playing episodes in one environment: the loop behind evaluation, collected datasets, random play and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym

from rl_training.errors import EnvError
from rl_training.interrupts import raise_if_asked_to_stop
from rl_training.types import Observation

Action: TypeAlias = Any
"""The argument of the environment's ``step``."""

_LONGEST_EPISODE = 100_000


class Step(NamedTuple):
    """One step of an episode. The environment may reuse the arrays: copy those that are kept beyond the next step."""

    episode: int
    """The number of the episode, from 0."""
    observation: Observation
    action: Action
    reward: float
    next_observation: Observation
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def done(self) -> bool:
        """Whether the episode ends with this step."""
        return self.terminated or self.truncated


def play(
    env: gym.Env[Any, Any],
    act: Callable[[Observation], Action],
    seeds: Iterable[int],
    *,
    on_reset: Callable[[int], None] | None = None,
    max_episode_steps: int | None = None,
) -> Iterator[Step]:
    """Play one episode for each seed and yield every step; the caller may stop early.

    A request to stop, as SIGTERM makes, raises ``Interrupted``.

    Args:
        env: the environment. It is not closed.
        act: chooses the action for an observation.
        seeds: the seed with which each episode's ``reset`` is called.
        on_reset: called with the episode's number after each reset.
        max_episode_steps: the greatest length of an episode; unset: 100,000, or the environment's own time limit if
            that is longer.
    """
    limit = max_episode_steps or _time_limit(env)
    for episode, seed in enumerate(seeds):
        raise_if_asked_to_stop()
        observation, _ = env.reset(seed=seed)
        if on_reset is not None:
            on_reset(episode)
        for _ in range(limit):
            raise_if_asked_to_stop()
            action = act(observation)
            following, reward, terminated, truncated, info = env.step(action)
            step = Step(episode, observation, action, float(reward), following, bool(terminated), bool(truncated), info)
            yield step
            if step.done:
                break
            observation = following
        else:
            name = f"env_id {env.spec.id!r}" if env.spec is not None else type(env.unwrapped).__name__
            raise EnvError(
                f"{name}: an episode did not end within {limit:,} steps; set a time limit, for example"
                " max_episode_steps in env_kwargs"
            )


def _time_limit(env: gym.Env[Any, Any]) -> int:
    own = env.spec.max_episode_steps if env.spec is not None else None
    return max(own or 0, _LONGEST_EPISODE)
