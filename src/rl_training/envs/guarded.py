"""A wrapper whose errors name the environment that fails, returns a wrong result or does not return."""

from __future__ import annotations

import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from rl_training.errors import EnvError, EnvFailedError, RLTrainingError, shown
from rl_training.interrupts import Interrupted, OutOfTimeError, TimeLimit

_NUMBERS = "biuf"  # kinds of dtype: bool, signed, unsigned, float


class GuardedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Forwards calls, and raises an ``EnvFailedError`` that names the environment when one fails.

    A call fails if it raises an exception, returns a value that Gymnasium's interface does not allow, returns an
    observation without the shape of its space, or does not return within ``timeout`` seconds. Whether numbers are
    finite is checked elsewhere. A ``close`` that fails is a warning, since nothing depends on it.

    Attributes:
        name: the name of this environment in messages.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str, timeout: float) -> None:
        super().__init__(env)
        self.name, self._timeout = name, timeout
        self._shapes = _shapes(self._space("observation_space"))
        self._space("action_space")

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The environment's own specification, without this wrapper."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        answer = self._call("reset", lambda: self.env.reset(seed=seed, options=options))
        if not isinstance(answer, tuple) or len(answer) != 2:
            self._fail(f"reset returned {_brief(answer)}; expected a tuple of 2: observation and info")
        observation, info = answer
        return self._checked_observation("reset", observation), self._checked_info("reset", info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        answer = self._call("step", lambda: self.env.step(action))
        if not isinstance(answer, tuple) or len(answer) != 5:
            self._fail(
                f"step returned {_brief(answer)};"
                " expected a tuple of 5: observation, reward, terminated, truncated and info"
            )
        observation, reward, terminated, truncated, info = answer
        return (
            self._checked_observation("step", observation),
            self._checked_reward(reward),
            self._checked_flag("terminated", terminated),
            self._checked_flag("truncated", truncated),
            self._checked_info("step", info),
        )

    def render(self) -> Any:
        """Return a frame."""
        return self._call("render", self.env.render)

    def close(self) -> None:
        """Close the environment; a failure is a warning."""
        try:
            self._call("close", self.env.close)
        except RLTrainingError as error:
            warnings.warn(str(error), stacklevel=2)
        except Interrupted:
            pass  # the program is ending, and the environment with it

    def _call(self, call: str, function: Callable[[], Any]) -> Any:
        try:
            with TimeLimit(self._timeout):
                return function()
        except OutOfTimeError:
            self._fail(f"{call} did not return within {self._timeout:g} seconds (env_kwargs.worker_timeout)")
        except RLTrainingError:
            raise
        except gym.error.DependencyNotInstalled as error:
            raise EnvError(f"{self.name} needs another package: {error}") from None
        except KeyboardInterrupt as error:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                raise  # the user's Ctrl-C in a program that does not use this package's handlers
            self._fail(f"{call} raised {describe(error)}", error)
        except (Exception, SystemExit) as error:  # foreign code may raise anything
            self._fail(f"{call} raised {describe(error)}", error)

    def _fail(self, problem: str, cause: BaseException | None = None) -> NoReturn:
        raise EnvFailedError(f"{self.name}: {problem}") from cause

    def _space(self, name: str) -> gym.Space[Any]:
        try:
            space = getattr(self.env, name)
        except Exception as error:  # a property of foreign code
            raise EnvError(f"{self.name}: {name} cannot be read: {describe(error)}") from error
        if not isinstance(space, gym.Space):
            raise EnvError(f"{self.name}: {name} is {_brief(space)}; expected a gymnasium.spaces.Space")
        return space

    def _checked_observation(self, call: str, observation: Any) -> Any:
        if self._shapes is None:
            return observation
        if None in self._shapes:
            return self._checked_array(call, "an observation", observation, self._shapes[None])
        if not isinstance(observation, dict):
            self._fail(f"{call} returned {_brief(observation)} as observation; expected a dictionary")
        missing = [key for key in self._shapes if key not in observation]
        if missing:
            self._fail(
                f"{call} returned an observation without {missing[0]!r}; found {', '.join(map(str, observation))}"
            )
        parts = {
            key: self._checked_array(call, f"{key!r}", observation[key], shape)
            for key, shape in self._shapes.items()
            if key is not None
        }
        return {**observation, **parts}

    def _checked_array(self, call: str, what: str, value: Any, shape: tuple[int, ...]) -> Any:
        array = value
        if not isinstance(array, (np.ndarray, np.generic)):
            try:
                array = np.asarray(value)
            except Exception:  # lists of unequal length, or an object whose own conversion fails
                self._fail(f"{call} returned {_brief(value)} as {what}; expected an array of shape {shape}")
        if array.shape != shape or array.dtype.kind not in _NUMBERS:
            self._fail(
                f"{call} returned {what} of shape {array.shape} and dtype {array.dtype}; expected numbers of shape"
                f" {shape}, as observation_space says"
            )
        return array

    def _checked_reward(self, reward: Any) -> Any:
        if type(reward) is float or isinstance(reward, np.floating):
            return reward
        try:
            array = np.asarray(reward)
        except Exception:  # lists of unequal length, or an object whose own conversion fails
            array = np.asarray(None)
        if array.size != 1 or array.dtype.kind not in _NUMBERS:
            self._fail(f"step returned {_brief(reward)} as reward; expected one number")
        return array.reshape(()).item()

    def _checked_flag(self, name: str, flag: Any) -> bool:
        if isinstance(flag, (bool, np.bool_)):
            return bool(flag)
        number = isinstance(flag, (int, float, np.number)) or (isinstance(flag, np.ndarray) and flag.size == 1)
        if not number or np.asarray(flag).item() not in (0, 1):
            self._fail(f"step returned {_brief(flag)} as {name}; expected True or False")
        return bool(flag)

    def _checked_info(self, call: str, info: Any) -> dict[str, Any]:
        if not isinstance(info, dict):
            self._fail(f"{call} returned {_brief(info)} as info; expected a dictionary")
        return info


def describe(error: BaseException) -> str:
    """Return an exception's type, its message in one line, and the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f' (File "{frames[-1].filename}", line {frames[-1].lineno}, in {frames[-1].name})' if frames else ""
    try:
        message = shown(error)
    except Exception:  # an exception of foreign code whose own __str__ fails
        message = ""
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}"


def _shapes(space: gym.Space[Any]) -> dict[str | None, tuple[int, ...]] | None:
    """Return the shape of each part of an observation; the key is None if it is one array."""
    if isinstance(space, spaces.Box):
        return {None: space.shape}
    if isinstance(space, spaces.Dict):
        return {key: part.shape for key, part in space.spaces.items() if isinstance(part, spaces.Box)}
    return None


def _brief(value: Any) -> str:
    """Return a value for a message, without pages of numbers."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    try:
        text = repr(value)
    except Exception:  # an object of foreign code whose own __repr__ fails
        text = "an object"
    return f"{text[:60]}{'...' if len(text) > 60 else ''} ({type(value).__name__})" if value is not None else "None"
