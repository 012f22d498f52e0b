"""Hand-written controllers, which give demonstrations before anything has been trained."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.factory import importable_working_folder
from rl_training.envs.guarded import describe
from rl_training.errors import ConfigError, did_you_mean, shown
from rl_training.types import SpaceSpec

Array = NDArray[Any]
Controller = Callable[[dict[str, Array]], Array]


def scripted_controller(env_id: str) -> Controller:
    """Return the hand-written controller of an environment, from a goal observation to an action."""
    if env_id not in _CONTROLLERS:
        known = ", ".join(_CONTROLLERS)
        raise ConfigError(
            f"--policy scripted: there is no controller for {env_id!r}{did_you_mean(env_id, _CONTROLLERS)};"
            f" expected one of {known}, a trained run, or a function of your own, written module:function"
        )
    return _CONTROLLERS[env_id]


def names_function(policy: str) -> bool:
    """Return whether a policy is written ``module:function``."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", policy) is not None


def own_controller(policy: str, spec: SpaceSpec) -> Callable[[Any], Array]:
    """Import the user's controller ``module:function`` and check every action that it returns.

    The function takes one observation and returns an action in the environment's units. A continuous action beyond the
    environment's bounds is clipped to them.
    """
    module_name, _, name = policy.partition(":")
    try:
        with importable_working_folder():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's module may raise anything when it is imported
        raise ConfigError(f"--policy {policy}: module {module_name!r} cannot be imported: {describe(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        found = "no such function" if function is None else f"expected a function, found {type(function).__name__}"
        raise ConfigError(f"--policy {policy}: {found} in the module {module_name!r}{did_you_mean(name, functions)}")

    def act(observation: Any) -> Array:
        try:
            action = np.asarray(function(observation))
        except (Exception, SystemExit) as error:
            raise ConfigError(f"--policy {policy} failed: {describe(error)}") from error
        return _checked_action(action, spec, policy)

    return act


def _checked_action(action: Array, spec: SpaceSpec, policy: str) -> Array:
    """Return an action as the environment takes it, or say what is wrong with it."""
    if spec.num_actions is not None:
        if action.ndim == 0 and action.dtype.kind in "biu" and 0 <= int(action) < spec.num_actions:
            return action.astype(np.int64)
        expected = f"an integer from 0 to {spec.num_actions - 1}"
    else:
        if action.shape == (spec.action_dim,) and action.dtype.kind in "biuf" and np.isfinite(action).all():
            return np.clip(action, *spec.action_bounds).astype(np.float32)
        expected = f"{spec.action_dim} finite number{'s' if spec.action_dim > 1 else ''} in a list or an array"
    found = shown(repr(action.tolist()))
    found = found if len(found) <= 60 else f"{found[:57]}..."
    raise ConfigError(f"--policy {policy} returned {found} of shape {action.shape}; expected {expected}")


def _steer_point(observation: dict[str, Array]) -> Array:
    """Drive a point mass to the goal, braking in time."""
    position, velocity = np.split(observation["observation"], 2)
    acceleration = 4.0 * (observation["desired_goal"] - position) - 1.5 * velocity
    return np.asarray(np.clip(acceleration, -1.0, 1.0), np.float32)


def _reach(observation: dict[str, Array]) -> Array:
    """Move the gripper straight to the goal."""
    return _move(observation["desired_goal"] - observation["achieved_goal"])


def _push(observation: dict[str, Array]) -> Array:
    """Bring the closed gripper down behind the block, as seen from the goal, and push; lift it if it is off course.

    It uses only positions, so it can start anywhere in an episode.
    """
    gripper, block = observation["observation"][:3], observation["achieved_goal"]
    way = (observation["desired_goal"] - block)[:2]
    distance = float(np.linalg.norm(way))
    if distance < 0.01:
        return np.zeros(4, np.float32)
    direction = way / distance
    offset = (gripper - block)[:2]
    along = float(offset @ direction)
    aside = offset - along * direction
    height = float(gripper[2] - block[2])
    lined_up = along < -0.02 and float(np.linalg.norm(aside)) < 0.02
    if lined_up and height < 0.03:
        forward = direction * min(0.03, 0.35 * distance + max(0.0, -along - 0.05)) - aside
        return _move(np.array([*forward, -height]))
    behind = -0.08 * direction - offset
    if float(np.linalg.norm(behind)) < 0.02:
        return _move(np.array([*behind, -height]))
    return _move(np.array([*(behind if height > 0.05 else 0.0 * behind), 0.08 - height]))


def _move(offset: Array) -> Array:
    """Return the Fetch arm's action that moves its gripper by ``offset``, as far as one step goes."""
    return np.array([*np.clip(offset / 0.03, -1.0, 1.0), 0.0], np.float32)


_CONTROLLERS: dict[str, Controller] = {
    "rl_training/PointGoal1D-v0": _steer_point,
    "rl_training/PointReach2D-v0": _steer_point,
    "FetchReach-v4": _reach,
    "FetchPush-v4": _push,
}
