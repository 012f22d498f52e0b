"""Small goal tasks with sparse reward that need no simulator: point masses, and bit flipping."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.drawing import BLUE, GREEN, GREY, INK, ORANGE, PAPER, Picture

Array = NDArray[Any]

_PIXELS = 240
"""The width of a picture of a point mass."""


class SparseGoalEnv(gym.Env[dict[str, Array], Any]):
    """A task whose reward is 0 if the goal is met and -1 otherwise.

    The three ``compute_*`` functions take one goal ``[D]`` or any batch ``[..., D]``, so that hindsight can ask about
    any goal. They do not use ``info``, which may be left out.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 (Gymnasium's own form)
    terminate_on_success = False

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._elapsed = 0

    def compute_success(self, achieved_goal: Array, desired_goal: Array) -> Any:
        """Return whether each achieved goal meets its desired goal: a bool, or ``[B]`` of them."""
        raise NotImplementedError

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any = None) -> Any:
        """Return 0 on success and -1 otherwise: a number, or ``[B]`` of them."""
        return np.where(self.compute_success(achieved_goal, desired_goal), np.float32(0), np.float32(-1))[()]

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any = None) -> Any:
        """Return whether the episode ends at these goals."""
        success = self.compute_success(achieved_goal, desired_goal)
        return success if self.terminate_on_success else np.zeros_like(success)[()]

    def compute_truncated(self, achieved_goal: Array, desired_goal: Array, info: Any = None) -> Any:
        """Return False everywhere: a time-out depends on the clock, never on the goal."""
        return np.zeros_like(self.compute_success(achieved_goal, desired_goal))[()]

    def _outcome(
        self, observation: dict[str, Array], max_steps: int
    ) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Return what ``step`` returns, with the reward and termination that a relabelled observation would get."""
        achieved, desired = observation["achieved_goal"], observation["desired_goal"]
        info = {"is_success": bool(self.compute_success(achieved, desired))}
        reward = float(self.compute_reward(achieved, desired, info))
        terminated = bool(self.compute_terminated(achieved, desired, info))
        return observation, reward, terminated, self._elapsed >= max_steps, info


class PointMassEnv(SparseGoalEnv):
    """A point mass in a box of any dimension: accelerate it until it rests within ``threshold`` of the goal.

    The observation is position and velocity, the action an acceleration in [-1, 1] times ``action_scale``. The walls
    stop the mass. Success does not end the episode, ``max_steps`` does.

    Args:
        max_steps: the length of an episode.
        dt: the duration of a step.
        size: the walls are at -size and size; the mass starts anywhere between them.
        speed_limit: the largest speed; also called ``max_speed``.
        action_scale: the acceleration of an action of length 1.
        threshold: the distance up to which the goal is met; also called ``distance_threshold``.
        render_mode: ``rgb_array``, or None.
        distance_threshold: another name of ``threshold``.
        max_speed: another name of ``speed_limit``.
        goal_range: goals are drawn from [-goal_range, goal_range] in every dimension; at most ``size``, which it is by
            default.
        seed: the seed of the first ``reset`` if that call gives none.
    """

    dimensions: int

    def __init__(
        self,
        max_steps: int = 50,
        dt: float = 0.05,
        size: float = 1.0,
        speed_limit: float | None = None,
        action_scale: float = 10.0,
        threshold: float | None = None,
        render_mode: str | None = None,
        *,
        distance_threshold: float | None = None,
        max_speed: float | None = None,
        goal_range: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(render_mode)
        _require_count("max_steps", max_steps)
        limits = {"speed_limit": speed_limit, "max_speed": max_speed}
        thresholds = {"threshold": threshold, "distance_threshold": distance_threshold}
        optional = {**limits, **thresholds, "goal_range": goal_range}
        given = {name: value for name, value in optional.items() if value is not None}
        for name, value in {"dt": dt, "size": size, "action_scale": action_scale, **given}.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < np.inf:
                raise ValueError(f"{name} = {value!r}: expected a number greater than 0")
        if goal_range is not None and goal_range > size:
            raise ValueError(f"goal_range = {goal_range!r}: expected at most size = {size!r}")
        speed_limit, threshold = _either(limits, 1.0), _either(thresholds, 0.05)
        self.goal_range = size if goal_range is None else goal_range
        self._first_seed = seed
        self.max_steps, self.dt, self.size = max_steps, dt, size
        self.speed_limit, self.action_scale = speed_limit, action_scale
        self.distance_threshold = threshold
        n = self.dimensions
        place = spaces.Box(-size, size, (n,), np.float32)
        bound = np.array([size] * n + [speed_limit] * n, np.float32)
        self.observation_space: gym.Space[Any] = spaces.Dict(
            {"observation": spaces.Box(-bound, bound, dtype=np.float32), "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (n,), np.float32)
        self._position = np.zeros(n)
        self._velocity = np.zeros(n)
        self._goal = np.zeros(n, np.float32)
        self._way: list[Array] = []
        """The places of this episode, if they are drawn."""

    def compute_success(self, achieved_goal: Array, desired_goal: Array) -> Any:
        """Return whether the two goals are within the threshold."""
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= self.distance_threshold

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Put the mass, at rest, and the goal at new places."""
        super().reset(seed=self._first_seed if seed is None else seed)
        self._first_seed = None
        self._elapsed = 0
        self._position = self.np_random.uniform(-self.size, self.size, self.dimensions)
        self._velocity = np.zeros(self.dimensions)
        self._goal = self.np_random.uniform(-self.goal_range, self.goal_range, self.dimensions).astype(np.float32)
        self._way = [self._position]
        observation = self._observe()
        return observation, {
            "is_success": bool(self.compute_success(observation["achieved_goal"], observation["desired_goal"]))
        }

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Accelerate for ``dt``."""
        acceleration = np.clip(np.asarray(action, np.float64), -1.0, 1.0) * self.action_scale
        velocity = self._velocity + acceleration * self.dt
        velocity *= min(1.0, self.speed_limit / max(float(np.linalg.norm(velocity)), 1e-12))
        position = self._position + velocity * self.dt
        self._position = np.clip(position, -self.size, self.size)
        self._velocity = np.where(position == self._position, velocity, 0.0)
        if self.render_mode is not None:
            self._way.append(self._position)
        self._elapsed += 1
        return self._outcome(self._observe(), self.max_steps)

    def render(self) -> Any:
        """Draw the walls, the goal, the way so far and the mass, green once the goal is met, as an RGB array."""
        if self.render_mode != "rgb_array":
            return None
        width, height = _PIXELS, _PIXELS if self.dimensions > 1 else _PIXELS // 3
        half, centre = 0.5 * width - 14, (width / 2, height / 2)

        def pixel(place: Array) -> tuple[float, float]:
            up = float(place[1]) if self.dimensions > 1 else 0.0
            return centre[0] + float(place[0]) / self.size * half, centre[1] - up / self.size * half

        picture = Picture(width, height)
        if self.dimensions > 1:
            picture.box((8, 8), (width - 16, height - 16), GREY, rounding=6)
            picture.box((10, 10), (width - 20, height - 20), PAPER, rounding=4)
        else:
            picture.path([(8, centre[1]), (width - 8, centre[1])], 3, GREY)
        met = bool(self.compute_success(self._position.astype(np.float32), self._goal))
        radius = max(self.distance_threshold / self.size * half, 3.0)
        picture.disc(pixel(self._goal), radius, GREEN, opacity=0.35)
        picture.ring(pixel(self._goal), radius, 1.5, GREEN)
        picture.path([pixel(place) for place in self._way], 2, BLUE, opacity=0.4)
        picture.disc(pixel(self._position), 5, GREEN if met else BLUE)
        return picture.to_array()

    def _observe(self) -> dict[str, Array]:
        position = self._position.astype(np.float32)
        return {
            "observation": np.concatenate([position, self._velocity.astype(np.float32)]),
            "achieved_goal": position,
            "desired_goal": self._goal.copy(),
        }


class PointReachGoalEnv(PointMassEnv):
    """``rl_training/PointReach2D-v0``: a point mass in a square."""

    dimensions = 2


class PointGoal1DEnv(PointMassEnv):
    """``rl_training/PointGoal1D-v0``: a point mass on a line, the smallest goal task there is."""

    dimensions = 1


class BitFlippingEnv(SparseGoalEnv):
    """``rl_training/BitFlipping-v0``: turn one bit pattern into another, as in the paper that introduced HER.

    A discrete action flips the bit it names; a continuous one (``continuous=True``) flips every bit whose entry is
    above 0. The episode ends when the patterns agree, or after ``max_steps`` (as many as there are bits).
    """

    terminate_on_success = True

    def __init__(
        self,
        n_bits: int = 16,
        continuous: bool = False,
        max_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        _require_count("n_bits", n_bits)
        self.n_bits, self.continuous = n_bits, continuous
        self.max_steps = n_bits if max_steps is None else max_steps
        _require_count("max_steps", self.max_steps)
        bits = spaces.Box(0.0, 1.0, (n_bits,), np.float32)
        self.observation_space: gym.Space[Any] = spaces.Dict(
            {"observation": bits, "achieved_goal": bits, "desired_goal": bits}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (n_bits,), np.float32) if continuous else spaces.Discrete(n_bits)
        self._bits = np.zeros(n_bits, np.float32)
        self._goal = np.zeros(n_bits, np.float32)

    def compute_success(self, achieved_goal: Array, desired_goal: Array) -> Any:
        """Return whether all bits agree."""
        return np.all(achieved_goal == desired_goal, axis=-1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Draw a start and a goal that differ."""
        super().reset(seed=seed)
        self._elapsed = 0
        self._bits = self.np_random.integers(0, 2, self.n_bits).astype(np.float32)
        self._goal = self._bits
        while np.array_equal(self._goal, self._bits):
            self._goal = self.np_random.integers(0, 2, self.n_bits).astype(np.float32)
        return self._observe(), {"is_success": False}

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Flip the bits that the action names."""
        if self.continuous:
            self._bits = np.where(np.asarray(action) > 0, 1.0 - self._bits, self._bits).astype(np.float32)
        else:
            self._bits = self._bits.copy()
            self._bits[int(action)] = 1.0 - self._bits[int(action)]
        self._elapsed += 1
        return self._outcome(self._observe(), self.max_steps)

    def render(self) -> Any:
        """Draw the bits above those of the goal, orange where they differ, as an RGB array."""
        if self.render_mode != "rgb_array":
            return None
        cell = max(4, min(24, 480 // self.n_bits))
        picture = Picture(cell * self.n_bits + 8, 2 * cell + 12)
        for index, (bit, goal) in enumerate(zip(self._bits, self._goal, strict=True)):
            left, gap = 4 + index * cell, cell / 12
            size = (cell - 2 * gap, cell - 2 * gap)
            colour = INK if bit else GREY
            if bit != goal:
                picture.box((left, 4), (cell, cell), ORANGE, rounding=cell / 6)
            picture.box((left + gap, 4 + gap), size, colour, rounding=cell / 8)
            picture.box((left + gap, 8 + cell + gap), size, INK if goal else GREY, rounding=cell / 8)
        return picture.to_array()

    def _observe(self) -> dict[str, Array]:
        return {"observation": self._bits.copy(), "achieved_goal": self._bits.copy(), "desired_goal": self._goal.copy()}


def _either(names: dict[str, float | None], default: float) -> float:
    """Return the value of an argument that has two names."""
    values = {name: value for name, value in names.items() if value is not None}
    if len(set(values.values())) > 1:
        given = " and ".join(f"{name} = {value!r}" for name, value in values.items())
        raise ValueError(f"{given} are two names of one argument: expected one of them")
    return next(iter(values.values()), default)


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} = {value!r}: expected a whole number of at least 1")
