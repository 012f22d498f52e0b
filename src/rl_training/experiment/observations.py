"""Observations from outside: one JSON value a line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.goals import GOAL_KEYS
from rl_training.errors import ConfigError
from rl_training.types import Observation, SpaceSpec


def parse_observation(text: str, spec: SpaceSpec, where: str) -> Observation:
    """Read one observation: a list of numbers, or for a goal task an object with ``observation`` and ``desired_goal``.

    A goal task also takes the flat list that its policy sees, the observation followed by the desired goal.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: not a JSON value") from None
    if isinstance(value, dict):
        if not spec.goal_dim:
            raise ConfigError(f"{where}: expected a list of {spec.observation_dim} numbers, found an object")
        missing = [key for key in ("observation", "desired_goal") if key not in value]
        unknown = [key for key in value if key not in GOAL_KEYS]
        if missing or unknown:
            problem = f"key {missing[0]!r} is missing" if missing else f"unknown key {unknown[0]!r}"
            raise ConfigError(f"{where}: {problem}; expected observation and desired_goal")
        return {
            "observation": _vector(value["observation"], spec.observation_dim, f"{where}: observation"),
            "desired_goal": _vector(value["desired_goal"], spec.goal_dim, f"{where}: desired_goal"),
        }
    return _vector(value, spec.policy_dim, where)


def _vector(value: Any, size: int, where: str) -> NDArray[np.float32]:
    if not isinstance(value, list) or not all(type(number) in (int, float) for number in value):
        raise ConfigError(f"{where}: expected a list of {size} numbers, found {json.dumps(value)[:60]}")
    if len(value) != size:
        raise ConfigError(f"{where}: expected a list of {size} numbers, found {len(value)}")
    try:
        with np.errstate(over="ignore"):
            vector = np.asarray(value, dtype=np.float32)
    except OverflowError:
        raise ConfigError(f"{where}: expected finite numbers") from None
    if not np.isfinite(vector).all():
        raise ConfigError(f"{where}: expected finite numbers")
    return vector
