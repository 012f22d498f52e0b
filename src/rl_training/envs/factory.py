"""Build environments from ``env_id`` and ``env_kwargs``, single or several at once, and read their spaces."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from pydantic import Field

from rl_training.config import Settings, parse_settings
from rl_training.envs.consent import env_module, require_consent
from rl_training.envs.goals import GoalRewards, env_name, is_goal_space, register_goal_envs
from rl_training.envs.guarded import GuardedEnv, describe
from rl_training.envs.objects import is_object_id
from rl_training.envs.rewards import RewardTransformConfig, apply_reward_wrappers
from rl_training.envs.workers import LocalVectorEnv, WorkerVectorEnv, free_processes
from rl_training.errors import EnvError, MissingExtraError, did_you_mean
from rl_training.interrupts import OutOfTimeError, TimeLimit
from rl_training.types import SpaceSpec

_ROBOTICS_PREFIXES = ("Fetch", "Hand", "Adroit", "PointMaze", "AntMaze", "FrankaKitchen")


class WrapperSettings(Settings):
    """``env_kwargs.wrappers``: wrappers around the environment."""

    reward: RewardTransformConfig | None = Field(None, description="scale, shift and clip, in that order")


class EnvSettings(Settings):
    """The keys of ``env_kwargs`` that this package uses; all others are passed to the environment."""

    wrappers: WrapperSettings = Field(default_factory=WrapperSettings, description="wrappers around the environment")
    vectorization: Literal["sync", "async"] = Field(
        "sync", description="sync: all environments in this process; async: in worker processes"
    )
    worker_processes: int | None = Field(
        None,
        ge=1,
        description="worker processes of async; unset: one per environment, but no more than there are cores",
    )
    worker_timeout: float = Field(
        600.0, gt=0, le=1e6, description="seconds an environment may take for one step or reset"
    )


def split_env_kwargs(env_kwargs: Mapping[str, Any]) -> tuple[EnvSettings, dict[str, Any]]:
    """Separate this package's keys from the environment's arguments."""
    own = {key: value for key, value in env_kwargs.items() if key in EnvSettings.model_fields}
    settings = parse_settings(EnvSettings, own, where="config", prefix="env_kwargs.")
    return settings, {key: value for key, value in env_kwargs.items() if key not in own}


def make_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, render_mode: str | None = None
) -> gym.Env[Any, Any]:
    """Build one environment with the reward wrappers that ``env_kwargs.wrappers`` sets."""
    settings, _ = split_env_kwargs(env_kwargs or {})
    return apply_reward_wrappers(make_raw_env(env_id, env_kwargs, render_mode=render_mode), settings.wrappers.reward)


def make_raw_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, render_mode: str | None = None
) -> gym.Env[Any, Any]:
    """Build one environment that returns its own reward: ``env_kwargs.wrappers`` is not applied."""
    settings, arguments = split_env_kwargs(env_kwargs or {})
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    require_consent(env_id)
    with _module_folder(env_id):
        _require_registered(env_id)
        env = _build(env_id, arguments, settings.worker_timeout)
    return GuardedEnv(env, f"env_id {env_id!r}", settings.worker_timeout)


def _build(env_id: str, arguments: Mapping[str, Any], timeout: float) -> gym.Env[Any, Any]:
    try:
        with TimeLimit(timeout):
            return gym.make(env_id, disable_env_checker=True, **arguments)
    except gym.error.DependencyNotInstalled as error:
        if "mujoco" in str(error).lower():
            raise MissingExtraError(env_id, "robotics") from None
        raise EnvError(f"env_id {env_id!r} needs another package: {error}") from None
    except OutOfTimeError:
        raise EnvError(
            f"env_id {env_id!r} was not built within {timeout:g} seconds (env_kwargs.worker_timeout)"
        ) from None
    except (Exception, SystemExit) as error:  # a constructor may raise anything
        reason = str(error).partition(" was raised from the environment creator")[0] or type(error).__name__
        hint = _argument_hint(env_id, arguments)
        raise EnvError(f"env_id {env_id!r} with env_kwargs {arguments}: {reason}{hint}") from error


def make_vector_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int, *, runs: int = 1
) -> VectorEnv[Any, Any, Any]:
    """Build ``num_envs`` environments that step together and return their own, raw rewards.

    ``runs`` is the number of runs that share the cores of this machine.

    Automatic resets are off: the collector resets finished environments itself, each with its own seed, so that it
    sees the true final observation and no transition crosses the end of an episode.
    """
    settings, _ = split_env_kwargs(env_kwargs or {})
    build = partial(make_raw_env, env_id, dict(env_kwargs or {}))
    if settings.vectorization == "async":
        processes = settings.worker_processes or free_processes(num_envs, runs)
        return WorkerVectorEnv(build, num_envs, settings.worker_timeout, processes)
    return LocalVectorEnv([build] * num_envs)


def space_spec(env: gym.Env[Any, Any], goals: GoalRewards | None = None) -> SpaceSpec:
    """Read the sizes and bounds of an environment's spaces, or raise an error that says why they are not supported.

    ``goals`` adds the range of the reward, if it is known.
    """
    name = env_name(env)
    reward_range = goals.reward_range if goals is not None else None
    observation_space, action_space = env.observation_space, env.action_space
    goal_dim = 0
    if isinstance(observation_space, spaces.Dict):
        if not is_goal_space(observation_space):
            raise EnvError(
                f"{name}: a dictionary observation needs the keys observation, achieved_goal and desired_goal;"
                f" found {', '.join(observation_space.spaces)}"
            )
        goal_dim = _vector_size(observation_space["desired_goal"], f"{name}: desired_goal")
        if _vector_size(observation_space["achieved_goal"], f"{name}: achieved_goal") != goal_dim:
            raise EnvError(f"{name}: achieved_goal and desired_goal differ in size")
        observation_space = observation_space["observation"]
    observation_dim = _vector_size(observation_space, f"{name}: observation")
    if isinstance(action_space, spaces.Discrete):
        if action_space.start != 0:
            raise EnvError(f"{name}: discrete actions must start at 0, found {action_space}")
        return SpaceSpec(observation_dim, 1, goal_dim, num_actions=int(action_space.n), reward_range=reward_range)
    if not isinstance(action_space, spaces.Box):
        raise EnvError(f"{name}: action space {action_space} is not supported; expected Box or Discrete")
    action_dim = _vector_size(action_space, f"{name}: action")
    low, high = np.asarray(action_space.low, np.float64), np.asarray(action_space.high, np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise EnvError(f"{name}: actions need finite bounds, found {action_space}")
    if (low >= high).any():
        raise EnvError(f"{name}: every action needs a lower bound below its upper bound, found {action_space}")
    standard = (low == -1.0).all() and (high == 1.0).all()
    return SpaceSpec(
        observation_dim,
        action_dim,
        goal_dim,
        action_low=None if standard else tuple(low.tolist()),
        action_high=None if standard else tuple(high.tolist()),
        reward_range=reward_range,
    )


def _argument_hint(env_id: str, arguments: Mapping[str, Any]) -> str:
    """Return the nearest valid name of the first argument that the environment does not know."""
    try:
        entry_point: Any = gym.spec(env_id.rpartition(":")[2]).entry_point
        if isinstance(entry_point, str):
            entry_point = gym.envs.registration.load_env_creator(entry_point)
        parameters = inspect.signature(entry_point).parameters if entry_point is not None else {}
    except Exception:  # a failed hint must not hide the original error
        return ""
    known = [*parameters, *EnvSettings.model_fields, "max_episode_steps"]
    unknown = [name for name in arguments if name not in known]
    return did_you_mean(unknown[0], known) if unknown else ""


def _vector_size(space: gym.Space[Any], what: str) -> int:
    if not isinstance(space, spaces.Box):
        raise EnvError(f"{what} space {space} is not supported; expected a Box with one dimension")
    if len(space.shape) == 3 or space.dtype == np.uint8:
        raise EnvError(f"{what} has shape {space.shape} and dtype {space.dtype}: images are not supported")
    if len(space.shape) != 1 or space.shape[0] == 0:
        raise EnvError(
            f"{what} has shape {space.shape}; expected a vector (gymnasium.wrappers.FlattenObservation helps)"
        )
    return int(space.shape[0])


@contextmanager
def _module_folder(env_id: str) -> Iterator[None]:
    """Make the current folder importable, after all others, while the module of an ``env_id`` is imported."""
    with importable_working_folder() if env_module(env_id) is not None else nullcontext():
        yield


@contextmanager
def importable_working_folder() -> Iterator[None]:
    """Make the current folder importable, after all others, for code that the user named."""
    folder = os.getcwd()
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _require_registered(env_id: str) -> None:
    """Register the built-in environments and, if installed, the robotics ones; raise an error for an unknown id."""
    register_goal_envs()
    module, name = env_module(env_id), env_id.partition(":")[2] or env_id
    if module is not None:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # a foreign module may raise anything when it is imported
            raise EnvError(f"env_id {env_id!r}: module {module!r} cannot be imported: {describe(error)}") from error
    if name in gym.registry:
        return
    if is_object_id(name):
        raise EnvError(
            f"env_id {env_id!r} names an environment that was given as an object, in another process: pass the object"
            " again, for example HER(config, env=...).resume(run_dir)"
        )
    if importlib.util.find_spec("gymnasium_robotics") is not None:
        try:
            with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):  # it prints a notice about other tasks
                gym.register_envs(importlib.import_module("gymnasium_robotics"))
        except Exception as error:  # MuJoCo loads the renderer that MUJOCO_GL names
            hint = f" (MUJOCO_GL = {os.environ['MUJOCO_GL']!r})" if "MUJOCO_GL" in os.environ else ""
            message = f"env_id {env_id!r}: gymnasium_robotics cannot be imported{hint}: {describe(error)}"
            raise EnvError(message) from error
        if name in gym.registry:
            return
    elif name.startswith(_ROBOTICS_PREFIXES):
        raise MissingExtraError(env_id, "robotics")
    if name.startswith("Panda"):
        if importlib.util.find_spec("panda_gym") is None:
            raise MissingExtraError(env_id, "panda")
        importlib.import_module("panda_gym")  # it registers its tasks
        if name in gym.registry:
            return
    own = f"; the module {module!r} does not register it" if module else "; for your own environment write module:Name"
    raise EnvError(f"env_id {env_id!r}: no such environment{did_you_mean(name, gym.registry) or own}")
