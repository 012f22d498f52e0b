"""Goal observations, and an environment's rewards and terminations for goals other than the episode's own."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from itertools import count as numbers
from itertools import islice
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.builtin import PointGoal1DEnv
from rl_training.envs.distance_rule import (
    DeviceRewards,
    DistanceRule,
    TensorFunction,
    find_distance_rule,
    find_threshold,
)
from rl_training.envs.play import play
from rl_training.envs.rewards import RewardTransform, RewardTransformConfig
from rl_training.errors import EnvError
from rl_training.gym_ids import register_goal_envs
from rl_training.types import GOAL_KEYS, GoalParts, extract_goal_parts, flatten_goal_observation

__all__ = [
    "GOAL_KEYS",
    "SUCCESS_KEYS",
    "GoalFunctions",
    "GoalParts",
    "GoalRewards",
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

_EPISODE_CHECK = 16  # rewards on an accelerator are compared with the environment's once in this many episodes
_SPOT_CHECK = 256  # the distance form of the reward is compared with the environment's once in this many batches


def is_goal_space(space: gym.Space[Any]) -> bool:
    """Return whether observations are dictionaries with the three keys of a goal task."""
    return isinstance(space, spaces.Dict) and all(key in space.spaces for key in GOAL_KEYS)


def episode_success(info: Mapping[str, Any]) -> bool | None:
    """Return the success that an ``info`` reports (``is_success`` or ``success``), or None if it reports none."""
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
    """Evaluate one goal or a batch; if the result for a batch has another shape, evaluate the goals one by one."""
    info = {} if info is None else info
    answer = np.asarray(function(achieved_goal, desired_goal, info))
    if answer.shape == achieved_goal.shape[:-1]:
        return answer
    return np.array([function(a, d, info) for a, d in zip(achieved_goal, desired_goal, strict=True)])


def sample_goal_pairs(env: gym.Env[Any, Any], count: int = 64, seed: int = 0) -> tuple[Array, Array]:
    """Return achieved and desired goals ``[count, D]`` of random play; in the first quarter the two are equal."""
    rng = np.random.default_rng(seed)
    env.action_space.seed(seed)
    achieved: list[Array] = []
    desired: list[Array] = []
    for episode_seed in numbers(seed):
        # At most a third of the rows comes from one episode, so that there are several desired goals.
        for step in islice(play(env, lambda _: env.action_space.sample(), [episode_seed]), max(1, count // 3)):
            observation = cast(dict[str, Array], step.next_observation)
            achieved.append(np.asarray(observation["achieved_goal"], dtype=np.float32))
            desired.append(np.asarray(observation["desired_goal"], dtype=np.float32))
        if len(achieved) >= count:
            break
    achieved_goals, desired_goals = np.stack(achieved[:count]), np.stack(desired[:count])
    equal, mixed = count // 4, count // 2
    desired_goals[:equal] = achieved_goals[:equal]
    desired_goals[equal:mixed] = achieved_goals[rng.permutation(count)[: mixed - equal]]
    return achieved_goals, desired_goals


class GoalRewards:
    """The rewards and terminations of an environment for goals other than the episode's own, as hindsight needs them.

    It owns ``env``, which is used for nothing else. Environments get the batched form wrong in many ways (one bool for
    a whole batch, a bare ``False``, an ``info`` that must be an array). So the batched result is compared with
    one-by-one calls on goals of random play, and if they differ, the function is called one by one from then on.

    Random play also shows what the reward looks like: whether it has two values, which bounds the values a learner can
    reach, and whether the distance of the goals decides it, which can be computed without the environment. Later
    rewards can prove this wrong. ``check_play`` and ``rewards`` look for such rewards, widen ``reward_range`` and stop
    using the distance.

    Attributes:
        reward_range: smallest and largest transformed reward if random play saw two values, else None. It becomes a new
            tuple when a reward outside of it is seen; compare with ``is`` to notice.
        distance_threshold: the environment's own tolerance, or the one that its reward shows, if there is one.
        ends_when_met: for an environment without ``compute_terminated``, whether an episode ends when its goal is met;
            None as long as no goal was met.
        unbatched: the names of the functions that are called one by one.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        transform: RewardTransform | RewardTransformConfig | None = None,
        seed: int = 0,
    ) -> None:
        self._name = env_name(env)
        if not is_goal_space(env.observation_space):
            raise EnvError(f"{self._name}: hindsight needs observations with the keys {', '.join(GOAL_KEYS)}")
        if not env.has_wrapper_attr("compute_reward"):
            raise EnvError(
                f"{self._name}: hindsight needs the method compute_reward(achieved_goal, desired_goal, info)"
            )
        self._transform = RewardTransform(transform)
        self.unbatched: list[str] = []
        achieved, desired = sample_goal_pairs(env, seed=seed)
        threshold = env.get_wrapper_attr("distance_threshold") if env.has_wrapper_attr("distance_threshold") else None
        is_number = isinstance(threshold, (int, float, np.number)) and not isinstance(threshold, bool)
        size = float(cast(Any, threshold)) if is_number else 0.0
        self._env_reward = self._choose(env, "compute_reward", achieved, desired)
        self.distance_threshold = size if size > 0 else None
        self._distance_reward: DistanceRule | None = None
        if self.distance_threshold is not None:
            self._distance_reward = find_distance_rule(self._env_reward, achieved, self.distance_threshold)
        else:
            self._find_threshold(achieved)
        self._torch_reward = _matching_torch_reward(env, self._env_reward, achieved, desired)
        self._batches, self._spot_checks = 0, 0
        has_termination = env.has_wrapper_attr("compute_terminated")
        self._terminated = self._choose(env, "compute_terminated", achieved, desired) if has_termination else None
        self._distance_terminated = None
        if self._terminated is not None and self.distance_threshold is not None:
            self._distance_terminated = find_distance_rule(self._terminated, achieved, self.distance_threshold)
        found = (self._distance_reward or self._env_reward)(achieved, desired) + 0.0  # + 0.0: no -0
        values = np.unique(found)
        binary = len(values) == 2 and bool(np.isfinite(values).all())
        self.reward_range = self._transform.apply_range((float(values[0]), float(values[1]))) if binary else None
        # The first goals are equal, so they are met.
        self._met_reward = float(found[0]) if binary and found[0] == values[1] else None
        self.ends_when_met: bool | None = None
        self._warned = False

    def _find_threshold(self, achieved: Array) -> None:
        """Look for the tolerance of an environment that does not name it, in its reward."""
        with contextlib.suppress(Exception):  # the environment may refuse goals that it never gave
            found = find_threshold(self._env_reward, achieved[0])
            rule = None if found is None else find_distance_rule(self._env_reward, achieved, found)
            if rule is not None:
                self.distance_threshold, self._distance_reward = rule.threshold, rule

    @property
    def recomputes_termination(self) -> bool:
        """Whether it is known which goals would have ended the episode."""
        return self._terminated is not None or self.ends_when_met is True

    def rewards(self, achieved_goals: Array, desired_goals: Array) -> Array:
        """Return the transformed rewards ``[B]`` of goals ``[B, D]``."""
        self._batches += 1
        if self._distance_reward is None:
            rewards = self._env_reward(achieved_goals, desired_goals)
        else:
            rewards = self._distance_reward(achieved_goals, desired_goals)
            if self._batches % _SPOT_CHECK == 1:
                env_rewards = self._env_reward(achieved_goals, desired_goals)
                if not np.array_equal(rewards, env_rewards):  # later goals can differ from the first: angles that wrap
                    self._distance_reward, rewards = None, env_rewards
        if not self._transform.identity:
            rewards = self._transform.apply(rewards)
        if self._distance_reward is None:  # the distance form has two values, and the range holds both
            self._include(rewards)
        return rewards

    def raw_rewards(self, achieved_goals: Array, desired_goals: Array) -> Array:
        """Return the environment's own rewards ``[B]`` of goals ``[B, D]``."""
        return self._env_reward(achieved_goals, desired_goals)

    def on_device(self) -> DeviceRewards | None:
        """Return the rewards and terminations as functions of tensors; None if the environment must compute them."""
        reward: TensorFunction | None = self._torch_reward
        if reward is None and self._distance_reward is not None:
            reward = self._distance_reward.of_tensors
        if reward is None or (self._terminated is not None and self._distance_terminated is None):
            return None
        if self._terminated is None and self._met_reward is not None:
            return DeviceRewards(reward, _is_reward(reward, self._met_reward), self._transform, ends_are_learned=True)
        terminated = None if self._distance_terminated is None else self._distance_terminated.of_tensors
        return DeviceRewards(reward, terminated, self._transform)

    @property
    def why_not_on_device(self) -> str:
        """Why ``on_device`` returns None, for a message."""
        reward = self._torch_reward or self._distance_reward
        function = "compute_reward" if reward is None else "compute_terminated"
        return f"{function} of {self._name} is not a test of the distance of the goals"

    def check_play(self, rewards: Array, achieved_goals: Array, desired_goals: Array) -> None:
        """Compare the assumptions about the reward with the rewards of a played episode.

        Args:
            rewards: ``[T]`` transformed rewards of the steps.
            achieved_goals: ``[T, D]`` after each step.
            desired_goals: ``[T, D]`` after each step.
        """
        self._include(rewards)
        if self._distance_reward is None:
            return
        assumed = self._distance_reward(achieved_goals, desired_goals)  # [T], raw
        expected = self._transform.apply(assumed)
        differs = np.abs(rewards - expected) > 1e-5 * np.maximum(1.0, np.abs(expected))
        # A distance at the threshold can be rounded either way, so the environment's reward for these goals decides.
        if differs.any() and not np.array_equal(
            self._env_reward(achieved_goals[differs], desired_goals[differs]), assumed[differs]
        ):
            self._distance_reward = None

    def learn_ends(self, achieved_goals: Array, desired_goals: Array, terminated: Array) -> None:
        """Learn from played steps whether an episode ends when its own goal is met, if nothing else says so.

        One episode that ended there is enough to assume it. One that went on refutes it for good.

        Args:
            achieved_goals: ``[T, D]`` after each step.
            desired_goals: ``[T, D]``, the goals that the environment gave.
            terminated: ``[T]``, whether the environment ended the episode.
        """
        if self._terminated is not None or self._met_reward is None or self.ends_when_met is False:
            return
        met, ended = self.met(achieved_goals, desired_goals), np.asarray(terminated, bool)
        if (met & ~ended).any():
            self.ends_when_met = False
        elif met.any():
            self.ends_when_met = True

    def met(self, achieved_goals: Array, desired_goals: Array) -> NDArray[np.bool_]:
        """Return whether goals ``[B, D]`` are met, ``[B]``, by a reward that has two values."""
        rewards = (self._distance_reward or self._env_reward)(achieved_goals, desired_goals)
        return np.asarray(rewards == self._met_reward)

    def spot_check(self, achieved_goals: Array, desired_goals: Array) -> None:
        """Compare the rewards that an accelerator computes for goals ``[T, D]`` with the environment's, now and then.

        If they differ, ``on_device`` returns None from then on.
        """
        self._spot_checks += 1
        if self._spot_checks % _EPISODE_CHECK != 1:
            return
        expected = self._env_reward(achieved_goals, desired_goals)
        if self._torch_reward is not None:
            tensors = (torch.from_numpy(np.array(goals)) for goals in (achieved_goals, desired_goals))
            if not np.allclose(self._torch_reward(*tensors).numpy(), expected, rtol=1e-5, atol=1e-6):
                self._torch_reward = None
        if self._distance_reward is not None and not np.array_equal(
            self._distance_reward(achieved_goals, desired_goals), expected
        ):
            self._distance_reward = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that later rewards depend on."""
        return {
            "calls": self._batches,
            "quick": self._distance_reward is not None,
            "reward_range": None if self.reward_range is None else list(self.reward_range),
            "ends_when_met": self.ends_when_met,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned; old states lack ``reward_range`` or ``ends_when_met``."""
        self._batches = int(state["calls"])
        self.ends_when_met = state.get("ends_when_met")
        if not state["quick"]:
            self._distance_reward = None
        stored = state.get("reward_range")
        if stored is not None and tuple(stored) != self.reward_range:
            self.reward_range = float(stored[0]), float(stored[1])
            self._warned = True  # the run has warned before

    def terminated(self, achieved_goals: Array, desired_goals: Array) -> Array:
        """Return ``[B]`` of 0 and 1: whether the episode would have ended at goals ``[B, D]``."""
        if self._terminated is not None:
            return self._terminated(achieved_goals, desired_goals)
        if not self.ends_when_met:
            raise EnvError(f"{self._name} has no compute_terminated")
        return self.met(achieved_goals, desired_goals).astype(np.float32)

    def _include(self, rewards: Array) -> None:
        """Widen the range if a transformed reward is outside it, and warn the first time."""
        if self.reward_range is None:
            return
        low, high = self.reward_range
        smallest, largest = float(rewards.min()), float(rewards.max())
        rounding = 1e-5 * max(abs(low), abs(high))  # rewards are float32
        if smallest >= low - rounding and largest <= high + rounding:
            return
        self.reward_range = min(low, smallest), max(high, largest)
        if not self._warned:
            self._warned = True
            outside = smallest if smallest < low - rounding else largest
            warnings.warn(
                f"{self._name}: a reward of {outside:g} is outside [{low:g}, {high:g}], the range seen in random"
                " play. The range and the bounds on values are widened, now and whenever this happens again",
                stacklevel=2,
            )

    def _choose(self, env: gym.Env[Any, Any], name: str, achieved: Array, desired: Array) -> Callable[..., Array]:
        """Return the batched form if it agrees with one-by-one calls, else the one-by-one form; both give ``[B]``."""
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
            raise EnvError(f"{env_name(env)}: {name} failed on a goal from its own observations: {error!r}") from error
        try:
            scalar = np.ndim(function(achieved, desired, {})) == 0
        except Exception:  # it takes no batches
            scalar = False
        if scalar and (expected == expected[0]).all():
            # The result is the same for all goals, met or not: a constant, such as the bare False of RobotEnv.
            constant = float(expected[0])
            return lambda achieved_goals, desired_goals: np.full(len(achieved_goals), constant, np.float32)
        for form in (batched, batched_info_array):
            try:
                answer = form(achieved, desired)
            except Exception:  # any error means that this form cannot be used
                continue
            if answer.shape == expected.shape and np.allclose(answer, expected, rtol=1e-5, atol=1e-6):
                return form
        self.unbatched.append(name)
        return one_by_one


GoalFunctions = GoalRewards
"""The name of ``GoalRewards`` before 0.2."""


def _is_reward(reward: TensorFunction, value: float) -> TensorFunction:
    """Return the function of goals that is 1 where their reward has a value, and 0 elsewhere."""
    return lambda achieved_goals, desired_goals: (reward(achieved_goals, desired_goals) == value).float()


def _matching_torch_reward(
    env: gym.Env[Any, Any], reward: Callable[..., Array], achieved: Array, desired: Array
) -> TensorFunction | None:
    """Return the environment's ``compute_reward_torch``, if it has one that agrees with ``compute_reward``."""
    if not env.has_wrapper_attr("compute_reward_torch"):
        return None
    function: TensorFunction = env.get_wrapper_attr("compute_reward_torch")
    found = function(torch.from_numpy(achieved), torch.from_numpy(desired)).numpy()
    if found.shape != (len(achieved),) or not np.allclose(found, reward(achieved, desired), rtol=1e-5, atol=1e-6):
        raise EnvError(
            f"{env_name(env)}: compute_reward_torch and compute_reward differ on goals of random play:"
            " expected the same rewards"
        )
    return function


def env_name(env: gym.Env[Any, Any]) -> str:
    """Return the name of an environment for messages: its id, or the name of its class."""
    return f"env_id {env.spec.id!r}" if env.spec is not None else type(env.unwrapped).__name__
