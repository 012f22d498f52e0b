"""Finding the components of an action that have no effect, such as that of a gripper that is blocked."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.play import play
from rl_training.types import SpaceSpec, flatten_goal_observation

Array = NDArray[Any]

_EPISODES, _STEPS = 4, 15


def find_idle_actions(env: gym.Env[Any, Any], spec: SpaceSpec) -> tuple[int, ...] | None:
    """Return the components of a continuous action that change nothing an environment returns.

    The same short episodes are played again with other values in one component at a time. A component whose effect
    needs more than chance, such as a button in a far corner, also counts as idle. None if that cannot be found out,
    because an episode is not repeated by its seed and its actions.
    """
    if spec.is_discrete:
        return ()
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1.0, 1.0, (_EPISODES, _STEPS, spec.action_dim)).astype(np.float32)
    others = rng.uniform(-1.0, 1.0, actions.shape).astype(np.float32)
    known, components = _outcomes(env, spec, actions), np.arange(spec.action_dim)
    if _differ(known, _outcomes(env, spec, actions)):
        return None
    idle = [
        i
        for i in range(spec.action_dim)
        if not _differ(known, _outcomes(env, spec, np.where(components == i, others, actions)))
    ]
    return tuple(idle) if len(idle) < spec.action_dim else ()


def _outcomes(env: gym.Env[Any, Any], spec: SpaceSpec, actions: Array) -> list[Array]:
    """Return what every step returns if episodes are played with ``actions`` ``[episodes, steps, action_dim]``."""
    found = []
    for seed, episode in enumerate(actions):
        steps = iter(episode)
        for step in itertools.islice(play(env, lambda _: spec.to_env(next(steps)), [seed]), len(episode)):  # noqa: B023
            after = step.next_observation
            flat = flatten_goal_observation(after) if isinstance(after, dict) else np.asarray(after)
            found.append(np.append(np.ravel(flat), [step.reward, step.terminated, step.truncated]))
            if isinstance(after, dict):
                found.append(np.array(after["achieved_goal"]))
    return found


def _differ(these: list[Array], those: list[Array]) -> bool:
    return len(these) != len(those) or any(
        not np.array_equal(one, other, equal_nan=True) for one, other in zip(these, those, strict=True)
    )
