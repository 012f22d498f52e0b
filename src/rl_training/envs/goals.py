"""Goal-conditioned observations, and asking an environment what a reward would have been for another goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.builtin import PointGoal1DEnv
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import EnvError
from rl_training.types import GOAL_KEYS, GoalParts, extract_goal_parts, flatten_goal_observation

__all__ = [
    "GOAL_KEYS",
    "SUCCESS_KEYS",
    "GoalFunctions",
    "GoalParts",
    "PointGoal1DEnv",
    "env_name",
    "episode_success",
    "extract_goal_parts",
    "flatten_goal_observation",
    "is_goal_space",
    "recompute_rewards",
    "recompute_terminated",
    "register_goal_envs",
    "sample_goal_pairs",
]

Array = NDArray[Any]

SUCCESS_KEYS = ("is_success", "success")

_SPOT_CHECK = 256  # every so many batches the environment is asked whether the quick form of its reward still holds

_BUILTIN_ENVS = {
    "rl_training/PointGoal1D-v0": "PointGoal1DEnv",
    "rl_training/PointReach2D-v0": "PointReachGoalEnv",
    "rl_training/BitFlipping-v0": "BitFlippingEnv",
}


def register_goal_envs() -> None:
    """Make the built-in environments known to Gymnasium (once)."""
    for env_id, class_name in _BUILTIN_ENVS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=f"rl_training.envs.builtin:{class_name}")


def is_goal_space(space: gym.Space[Any]) -> bool:
    """Return whether observations are dictionaries with the three keys of a goal task."""
    return isinstance(space, spaces.Dict) and all(key in space.spaces for key in GOAL_KEYS)


def episode_success(info: Mapping[str, Any]) -> bool | None:
    """Return the success an ``info`` reports (``is_success`` or ``success``), or None where it reports none."""
    for key in SUCCESS_KEYS:
        if key in info:
            return bool(info[key])
    return None


def recompute_rewards(env: gym.Env[Any, Any], achieved_goal: Array, desired_goal: Array, info: Any = None) -> Array:
    """Ask ``env`` for the rewards ``[B]`` of a batch of goals, in one call."""
    return _ask_all(env.get_wrapper_attr("compute_reward"), achieved_goal, desired_goal, info).astype(np.float32)


def recompute_terminated(env: gym.Env[Any, Any], achieved_goal: Array, desired_goal: Array, info: Any = None) -> Array:
    """Ask ``env`` which of a batch of goals end the episode, in one call; ``[B]`` of bool."""
    return _ask_all(env.get_wrapper_attr("compute_terminated"), achieved_goal, desired_goal, info).astype(bool)


def _ask_all(function: Callable[..., Any], achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
    """Ask about one goal or a batch; one answer for a whole batch is not believed, and each goal asked for itself."""
    info = {} if info is None else info
    answer = np.asarray(function(achieved_goal, desired_goal, info))
    if answer.shape == achieved_goal.shape[:-1]:
        return answer
    return np.array([function(a, d, info) for a, d in zip(achieved_goal, desired_goal, strict=True)])


def sample_goal_pairs(env: gym.Env[Any, Any], count: int = 64, seed: int = 0) -> tuple[Array, Array]:
    """Return achieved and desired goals ``[count, D]`` met by random play, the first quarter of them equal."""
    rng = np.random.default_rng(seed)
    env.action_space.seed(seed)
    achieved: list[Array] = []
    desired: list[Array] = []
    episode = 0
    while len(achieved) < count:
        observation, _ = env.reset(seed=seed + episode)
        episode += 1
        done = False
        # A third of the rows at most comes from one episode, so that several desired goals are among them.
        for _ in range(max(1, count // 3)):
            if done:
                break
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            done = terminated or truncated
            achieved.append(np.asarray(observation["achieved_goal"], dtype=np.float32))
            desired.append(np.asarray(observation["desired_goal"], dtype=np.float32))
    achieved_goals, desired_goals = np.stack(achieved[:count]), np.stack(desired[:count])
    equal, mixed = count // 4, count // 2
    desired_goals[:equal] = achieved_goals[:equal]
    desired_goals[equal:mixed] = achieved_goals[rng.permutation(count)[: mixed - equal]]
    return achieved_goals, desired_goals


class GoalFunctions:
    """What hindsight asks of an environment: rewards and terminations for goals that were not the episode's own.

    It owns ``env`` and uses it for nothing else. Environments get the batched form wrong in many ways (one bool for a
    whole batch, a bare ``False``, an ``info`` that must be an array), so the batched answer is compared with
    one-by-one calls on goals met by random play, and where they differ the slow, safe way is taken from then on.

    Attributes:
        reward_range: smallest and largest transformed reward where the raw reward has two values, else None.
        distance_threshold: the environment's own tolerance, where it names one.
        slow: the names of the functions that are called one by one.
    """

    def __init__(self, env: gym.Env[Any, Any], transform: RewardTransformConfig | None = None, seed: int = 0) -> None:
        if not is_goal_space(env.observation_space):
            raise EnvError(f"{env_name(env)}: hindsight needs observations with the keys {', '.join(GOAL_KEYS)}")
        if not env.has_wrapper_attr("compute_reward"):
            raise EnvError(
                f"{env_name(env)}: hindsight needs the method compute_reward(achieved_goal, desired_goal, info)"
            )
        self._transform = transform or RewardTransformConfig()
        self._identity = self._transform == RewardTransformConfig()
        self.slow: list[str] = []
        achieved, desired = sample_goal_pairs(env, seed=seed)
        threshold = env.get_wrapper_attr("distance_threshold") if env.has_wrapper_attr("distance_threshold") else None
        is_number = isinstance(threshold, (int, float, np.number)) and not isinstance(threshold, bool)
        size = float(cast(Any, threshold)) if is_number else 0.0
        self.distance_threshold = size if size > 0 else None
        self._reward = self._asked = self._choose(env, "compute_reward", achieved, desired)
        self._calls = 0
        if self.distance_threshold is not None:
            self._reward = _as_distance_reward(self._asked, achieved, self.distance_threshold) or self._asked
        has_termination = env.has_wrapper_attr("compute_terminated")
        self._terminated = self._choose(env, "compute_terminated", achieved, desired) if has_termination else None
        values = np.unique(self._reward(achieved, desired))
        binary = len(values) == 2 and bool(np.isfinite(values).all())
        self.reward_range = self._transform.apply_range((float(values[0]), float(values[1]))) if binary else None

    @property
    def recomputes_termination(self) -> bool:
        """Whether the environment can say which goals would have ended the episode."""
        return self._terminated is not None

    def rewards(self, achieved_goals: Array, desired_goals: Array) -> Array:
        """Return the transformed rewards ``[B]`` of a batch of goals."""
        rewards = self._reward(achieved_goals, desired_goals)
        self._calls += 1
        if self._reward is not self._asked and self._calls % _SPOT_CHECK == 1:
            asked = self._asked(achieved_goals, desired_goals)
            if not np.array_equal(rewards, asked):  # goals unlike those of the start, such as angles that come round
                self._reward, rewards = self._asked, asked
        return rewards if self._identity else self._transform.apply(rewards)

    def state_dict(self) -> dict[str, Any]:
        """Return what decides how the next batches are answered."""
        return {"calls": self._calls, "quick": self._reward is not self._asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._calls = int(state["calls"])
        if not state["quick"]:
            self._reward = self._asked

    def terminated(self, achieved_goals: Array, desired_goals: Array) -> Array:
        """Return ``[B]`` of 0 and 1: where the episode would have ended."""
        if self._terminated is None:
            raise EnvError("this environment has no compute_terminated")
        return self._terminated(achieved_goals, desired_goals)

    def _choose(self, env: gym.Env[Any, Any], name: str, achieved: Array, desired: Array) -> Callable[..., Array]:
        """Return the batched form where it agrees with one-by-one calls, else the one-by-one form."""
        function = env.get_wrapper_attr(name)

        def one_by_one(achieved_goals: Array, desired_goals: Array) -> Array:
            pairs = zip(achieved_goals, desired_goals, strict=True)
            return np.array([float(np.asarray(function(a, d, {})).reshape(())) for a, d in pairs], dtype=np.float32)

        def batched(achieved_goals: Array, desired_goals: Array) -> Array:
            return np.asarray(function(achieved_goals, desired_goals, {}), dtype=np.float32)

        def batched_info_array(achieved_goals: Array, desired_goals: Array) -> Array:
            infos = np.array([{} for _ in achieved_goals], dtype=object)
            return np.asarray(function(achieved_goals, desired_goals, infos), dtype=np.float32)

        try:
            expected = one_by_one(achieved, desired)
        except Exception as error:
            raise EnvError(f"{env_name(env)}: {name} failed on a goal it had shown itself: {error!r}") from error
        try:
            scalar = np.ndim(function(achieved, desired, {})) == 0
        except Exception:  # it does not take batches at all
            scalar = False
        if scalar and (expected == expected[0]).all():
            # One answer for everything, goals that are met included: a constant, such as RobotEnv's bare False.
            constant = float(expected[0])
            return lambda achieved_goals, desired_goals: np.full(len(achieved_goals), constant, np.float32)
        for form in (batched, batched_info_array):
            try:
                answer = form(achieved, desired)
            except Exception:  # any failure of a foreign function just rules this form out
                continue
            if answer.shape == expected.shape and np.allclose(answer, expected, rtol=1e-5, atol=1e-6):
                return form
        self.slow.append(name)
        return one_by_one


def _as_distance_reward(
    reward: Callable[..., Array], achieved: Array, threshold: float
) -> Callable[[Array, Array], Array] | None:
    """Return a quick equal of ``reward`` where it is two-valued and decided by the distance of the goals alone.

    That is what most sparse goal tasks have. It is believed only if it gives the same answers all around the threshold,
    from equal goals to far ones, in random directions; otherwise None is returned and the environment is asked.
    """
    rng = np.random.default_rng(0)
    directions = rng.normal(size=achieved.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    factors = np.resize([0.0, 0.5, 0.98, 0.999, 1.001, 1.02, 1.5, 2.0, 10.0, 100.0, 1e3, 1e4], len(achieved))
    desired = (achieved + directions * (factors * threshold)[:, None]).astype(np.float32)
    expected = reward(achieved, desired)
    near, far = expected[0], expected[9]  # at factors 0 and 100
    ones = np.ones(achieved.shape[1], np.float32)

    def distance_reward(achieved_goals: Array, desired_goals: Array) -> Array:
        offset = achieved_goals - desired_goals
        rewards: Array = np.where(np.sqrt((offset * offset) @ ones) <= threshold, near, far)
        return rewards

    return distance_reward if np.array_equal(distance_reward(achieved, desired), expected) else None


def env_name(env: gym.Env[Any, Any]) -> str:
    """Return how an error should call an environment."""
    return f"env_id {env.spec.id!r}" if env.spec is not None else type(env.unwrapped).__name__
