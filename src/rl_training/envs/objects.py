"""Environments given as objects: an environment, or a function that builds one, becomes an ``env_id``.

A run needs several equal environments: to collect, to evaluate, to compute rewards. Each is built from the object, and
the id is known only in this process. A run of such an environment can be resumed if the object is given again.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rl_training.errors import EnvError

NAMESPACE = "rl_training_objects"

EnvSource = str | gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]]
"""What managed classes take as an environment: an id, an environment, or a function that builds one."""


def register_env(env: EnvSource) -> str:
    """Return an ``env_id`` for an environment; an object is registered under a new name."""
    if isinstance(env, str):
        return env
    build, name = _builder(env)
    env_id = f"{NAMESPACE}/{re.sub(r'[^A-Za-z0-9_]', '_', name)}-v0"
    gym.registry.pop(env_id, None)
    # The object has its own wrappers: none are added around it.
    gym.register(env_id, entry_point=build, order_enforce=False, disable_env_checker=True)
    return env_id


def is_object_id(env_id: str | None) -> bool:
    """Return whether an id names an environment that was given as an object."""
    return env_id is not None and env_id.startswith(f"{NAMESPACE}/")


def _builder(env: gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]]) -> tuple[Callable[..., Any], str]:
    """Return a function that builds equal environments, and a name for it."""
    if not isinstance(env, gym.Env):
        if not callable(env):
            raise EnvError(f"env = {env!r}: expected an id, an environment, or a function that builds one")
        factory = env
        return lambda **kwargs: factory(**kwargs), getattr(env, "__name__", type(env).__name__)
    spec, name = env.spec, type(env.unwrapped).__name__
    if spec is not None:
        return lambda **kwargs: gym.make(spec, **kwargs), name
    try:
        copy.deepcopy(env)
    except Exception as error:  # an environment may hold anything
        raise EnvError(
            f"env = {name}: it was not made by gym.make and cannot be copied ({error}): expected a function that"
            " builds it, such as env=lambda: MyEnv()"
        ) from None

    def build(**kwargs: Any) -> gym.Env[Any, Any]:
        if "render_mode" in kwargs:
            raise EnvError(f"env = {name}: a copy cannot change render_mode: give a function that builds it")
        return copy.deepcopy(env)

    return build, name
