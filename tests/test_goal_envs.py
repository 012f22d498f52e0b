"""Goal tasks: the rules of the built-in ones, and asking any environment about other goals."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from ending_env import ENV_ID as ENDING
from ending_env import EndingEnv
from rl_training.data import HERReplayBuffer, HindsightSettings
from rl_training.envs import (
    BitFlippingEnv,
    GoalFunctions,
    GoalRewards,
    PointGoal1DEnv,
    PointReachGoalEnv,
    RewardTransformConfig,
    space_spec,
)
from rl_training.envs.check import check_env
from rl_training.envs.goals import PointGoal1DEnv as PointGoal1DEnvFromGoals
from rl_training.envs.goals import (
    episode_success,
    extract_goal_parts,
    flatten_goal_observation,
    is_goal_space,
    recompute_rewards,
    recompute_terminated,
    register_goal_envs,
    sample_goal_pairs,
)
from rl_training.errors import EnvError

BUILTIN: list[Callable[[], Any]] = [
    PointGoal1DEnv,
    PointReachGoalEnv,
    lambda: BitFlippingEnv(n_bits=4),
    lambda: BitFlippingEnv(n_bits=4, continuous=True),
]


class ToyGoalEnv(gym.Env[Any, Any]):
    """A point that jumps about in [-1, 1]²; what it computes is left to the cases below."""

    distance = 0.1
    terminates = False

    def __init__(self) -> None:
        place = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict({"observation": place, "achieved_goal": place, "desired_goal": place})
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def near(self, achieved: Any, desired: Any) -> Any:
        return np.linalg.norm(achieved - desired, axis=-1) <= self.distance

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return self.near(achieved, desired).astype(np.float32) - 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        observation = self._observe()
        goals = observation["achieved_goal"], observation["desired_goal"]
        reward = float(np.squeeze(self.compute_reward(*goals, {})))
        terminated = bool(np.squeeze(self.compute_terminated(*goals, {}))) if self.terminates else False
        return observation, reward, terminated, self.steps >= 10, {"is_success": reward == 0}

    def _observe(self) -> dict[str, Any]:
        place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": self.goal.copy()}


def run_out(env: Any, action: Any, steps: int) -> list[tuple[Any, float, bool, bool, dict[str, Any]]]:
    return [env.step(action) for _ in range(steps)]


class TestPointMass:
    def test_the_promised_defaults(self) -> None:
        env = PointReachGoalEnv()
        assert (env.max_steps, env.dt, env.size) == (50, 0.05, 1.0)
        assert (env.speed_limit, env.action_scale, env.distance_threshold) == (1.0, 10.0, 0.05)

    def test_the_class_is_importable_from_goals(self) -> None:
        assert PointGoal1DEnvFromGoals is PointGoal1DEnv

    def test_fifty_steps_then_a_time_out_and_never_a_termination(self) -> None:
        env = PointReachGoalEnv()
        env.reset(seed=0)
        outcomes = run_out(env, np.zeros(2), 50)
        assert [truncated for *_, truncated, _ in outcomes] == [False] * 49 + [True]
        assert not any(terminated for _, _, terminated, _, _ in outcomes)

    def test_success_does_not_end_the_episode(self) -> None:
        env = PointReachGoalEnv(threshold=10.0)
        _, info = env.reset(seed=0)
        assert info["is_success"] is True
        outcomes = run_out(env, np.ones(2), 50)
        assert all(info["is_success"] is True and reward == 0.0 for _, reward, _, _, info in outcomes)
        assert [terminated or truncated for _, _, terminated, truncated, _ in outcomes] == [False] * 49 + [True]

    def test_the_reward_says_there_or_not_there(self) -> None:
        env = PointGoal1DEnv(threshold=0.3)
        env.reset(seed=4)
        rng = np.random.default_rng(0)
        seen = set()
        for _ in range(40):
            env.reset()
            for _ in range(50):
                observation, reward, _, _, info = env.step(rng.uniform(-1, 1, 1))
                distance = np.linalg.norm(observation["achieved_goal"] - observation["desired_goal"])
                assert reward == (0.0 if distance <= 0.3 else -1.0)
                assert info["is_success"] == (reward == 0.0)
                seen.add(reward)
        assert seen == {0.0, -1.0}

    def test_an_action_accelerates(self) -> None:
        env = PointReachGoalEnv()
        observation, _ = env.reset(seed=2)
        start = observation["observation"]
        np.testing.assert_array_equal(start[2:], 0.0)
        observation, *_ = env.step(np.array([0.5, -0.25]))
        velocity = np.array([0.5, -0.25]) * 10.0 * 0.05
        np.testing.assert_allclose(observation["observation"][2:], velocity, rtol=1e-6)
        np.testing.assert_allclose(observation["observation"][:2], start[:2] + velocity * 0.05, rtol=1e-5)
        np.testing.assert_array_equal(observation["achieved_goal"], observation["observation"][:2])

    def test_dt_and_action_scale_are_arguments(self) -> None:
        env = PointGoal1DEnv(dt=0.1, action_scale=2.0)
        observation, _ = env.reset(seed=2)
        start = float(observation["observation"][0])
        observation, *_ = env.step(np.array([1.0]))
        np.testing.assert_allclose(observation["observation"], [start + 0.2 * 0.1, 0.2], rtol=1e-5)

    @pytest.mark.parametrize("limit", [1.0, 0.3])
    def test_the_speed_is_limited_as_a_whole(self, limit: float) -> None:
        env = PointReachGoalEnv(speed_limit=limit, size=100.0)
        env.reset(seed=0)
        observation, *_ = run_out(env, np.array([1.0, 1.0]), 10)[-1]
        velocity = observation["observation"][2:]
        np.testing.assert_allclose(np.linalg.norm(velocity), limit, rtol=1e-5)
        np.testing.assert_allclose(velocity[0], velocity[1])

    def test_an_action_beyond_its_bounds_counts_as_its_bound(self) -> None:
        one, two = PointReachGoalEnv(), PointReachGoalEnv()
        one.reset(seed=1)
        two.reset(seed=1)
        np.testing.assert_equal(one.step(np.array([9.0, -9.0])), two.step(np.array([1.0, -1.0])))

    def test_a_wall_stops_the_mass(self) -> None:
        env = PointReachGoalEnv()
        env.reset(seed=0)
        observation, *_ = run_out(env, np.array([1.0, 0.0]), 50)[-1]
        assert observation["observation"][0] == 1.0
        assert observation["observation"][2] == 0.0
        assert env.observation_space.contains(observation)

    def test_start_and_goal_are_uniform_in_the_square(self) -> None:
        env = PointReachGoalEnv()
        env.reset(seed=0)
        observations = [env.reset()[0] for _ in range(2000)]
        for key in ("achieved_goal", "desired_goal"):
            places = np.array([observation[key] for observation in observations])
            assert np.abs(places).max() <= 1.0
            np.testing.assert_allclose(places.mean(0), 0.0, atol=0.06)
            np.testing.assert_allclose(places.var(0), 1 / 3, atol=0.03)
            assert abs(np.corrcoef(places.T)[0, 1]) < 0.1

    def test_size_moves_the_walls_and_the_goals(self) -> None:
        env = PointGoal1DEnv(size=3.0)
        env.reset(seed=0)
        goals = np.array([env.reset()[0]["desired_goal"] for _ in range(200)])
        assert 2.5 < np.abs(goals).max() <= 3.0
        assert env.observation_space["desired_goal"].high == np.float32(3.0)  # type: ignore[index]

    def test_the_goal_stays_put_for_an_episode(self) -> None:
        env = PointReachGoalEnv()
        goal = env.reset(seed=3)[0]["desired_goal"]
        for observation, *_ in run_out(env, np.ones(2), 50):
            np.testing.assert_array_equal(observation["desired_goal"], goal)
        assert (env.reset()[0]["desired_goal"] != goal).any()

    def test_max_steps_is_an_argument(self) -> None:
        env = PointGoal1DEnv(max_steps=3)
        env.reset(seed=0)
        assert [truncated for *_, truncated, _ in run_out(env, np.zeros(1), 3)] == [False, False, True]

    def test_the_threshold_itself_is_a_success(self) -> None:
        env = PointGoal1DEnv(threshold=0.5)
        assert env.compute_success(np.array([0.0]), np.array([0.5]))
        assert not env.compute_success(np.array([0.0]), np.array([0.500001]))

    def test_the_other_names_of_the_arguments_mean_the_same(self) -> None:
        env = PointReachGoalEnv(max_steps=50, distance_threshold=0.2, goal_range=0.5, max_speed=0.3, seed=4)
        assert (env.distance_threshold, env.goal_range, env.speed_limit) == (0.2, 0.5, 0.3)
        assert PointReachGoalEnv(threshold=0.2, distance_threshold=0.2).distance_threshold == 0.2
        with pytest.raises(
            ValueError, match=r"threshold = 0\.1 and distance_threshold = 0\.2 are two names of one argument"
        ):
            PointReachGoalEnv(threshold=0.1, distance_threshold=0.2)
        with pytest.raises(ValueError, match=r"speed_limit = 1\.0 and max_speed = 2\.0"):
            PointReachGoalEnv(speed_limit=1.0, max_speed=2.0)
        made = gym.make("rl_training/PointReach2D-v0", distance_threshold=0.2)
        assert made.get_wrapper_attr("distance_threshold") == 0.2

    def test_goals_come_from_the_goal_range_and_the_mass_from_everywhere(self) -> None:
        env = PointReachGoalEnv(goal_range=0.25, size=2.0)
        env.reset(seed=0)
        observations = [env.reset()[0] for _ in range(200)]
        goals, starts = (np.array([o[key] for o in observations]) for key in ("desired_goal", "achieved_goal"))
        assert 0.2 < np.abs(goals).max() <= 0.25
        assert np.abs(starts).max() > 1.5
        with pytest.raises(ValueError, match=r"goal_range = 3\.0: expected at most size = 2\.0"):
            PointReachGoalEnv(goal_range=3.0, size=2.0)

    def test_seed_is_that_of_the_first_reset_alone(self) -> None:
        env, plain = PointReachGoalEnv(seed=4), PointReachGoalEnv()
        np.testing.assert_equal(env.reset()[0], plain.reset(seed=4)[0])
        np.testing.assert_equal(env.reset()[0], plain.reset()[0])
        env = PointReachGoalEnv(seed=4)
        np.testing.assert_equal(env.reset(seed=9)[0], plain.reset(seed=9)[0])
        np.testing.assert_equal(env.reset()[0], plain.reset()[0])

    @pytest.mark.parametrize("argument", ["max_steps", "dt", "size", "threshold", "goal_range", "max_speed"])
    @pytest.mark.parametrize("value", [0, -1, float("nan")])
    def test_impossible_arguments_are_refused(self, argument: str, value: float) -> None:
        with pytest.raises(ValueError, match=f"{argument} = "):
            PointReachGoalEnv(**{argument: value})


class TestBitFlipping:
    def test_an_action_flips_its_bit_and_no_other(self) -> None:
        env = BitFlippingEnv(n_bits=6)
        before = env.reset(seed=0)[0]["observation"]
        after = env.step(4)[0]["observation"]
        assert np.flatnonzero(before != after).tolist() == [4]

    def test_a_continuous_action_flips_the_bits_above_zero(self) -> None:
        env = BitFlippingEnv(n_bits=4, continuous=True)
        before = env.reset(seed=0)[0]["observation"]
        after = env.step(np.array([0.1, -0.5, 0.0, 1.0]))[0]["observation"]
        assert np.flatnonzero(before != after).tolist() == [0, 3]

    def test_the_right_flips_succeed_and_end_the_episode(self) -> None:
        env = BitFlippingEnv(n_bits=8)
        observation, info = env.reset(seed=1)
        assert info["is_success"] is False
        wrong = np.flatnonzero(observation["observation"] != observation["desired_goal"])
        assert len(wrong) > 1
        for bit in wrong[:-1]:
            _, reward, terminated, truncated, info = env.step(int(bit))
            assert (reward, terminated, truncated, info["is_success"]) == (-1.0, False, False, False)
        observation, reward, terminated, _, info = env.step(int(wrong[-1]))
        assert (reward, terminated, info["is_success"]) == (0.0, True, True)
        np.testing.assert_array_equal(observation["achieved_goal"], observation["desired_goal"])

    @pytest.mark.parametrize(("arguments", "steps"), [({"n_bits": 5}, 5), ({"n_bits": 5, "max_steps": 2}, 2)])
    def test_it_times_out_after_as_many_steps_as_bits_or_as_told(self, arguments: dict[str, Any], steps: int) -> None:
        env = BitFlippingEnv(**arguments)
        observation, _ = env.reset(seed=0)
        if (observation["observation"] != observation["desired_goal"]).sum() == 1:
            observation, _ = env.reset(seed=1)
        right = np.flatnonzero(observation["observation"] == observation["desired_goal"])
        bit = int(right[0]) if len(right) else 0
        outcomes = run_out(env, bit, steps)
        assert [truncated for *_, truncated, _ in outcomes] == [False] * (steps - 1) + [True]

    def test_the_goal_always_differs_from_the_start(self) -> None:
        env = BitFlippingEnv(n_bits=2)
        env.reset(seed=0)
        for _ in range(100):
            observation, _ = env.reset()
            assert (observation["observation"] != observation["desired_goal"]).any()
            assert set(observation["observation"]) <= {0.0, 1.0}

    def test_every_pattern_is_drawn(self) -> None:
        env = BitFlippingEnv(n_bits=3)
        env.reset(seed=0)
        starts = {tuple(env.reset()[0]["observation"]) for _ in range(300)}
        assert len(starts) == 8

    def test_no_bits_are_refused(self) -> None:
        with pytest.raises(ValueError, match="n_bits = 0"):
            BitFlippingEnv(n_bits=0)


class TestComputeFunctions:
    @pytest.mark.parametrize("make", BUILTIN)
    @pytest.mark.parametrize("name", ["compute_success", "compute_reward", "compute_terminated", "compute_truncated"])
    def test_a_batch_and_one_goal_agree(self, make: Callable[[], Any], name: str) -> None:
        env = make()
        achieved, desired = sample_goal_pairs(env, count=40, seed=0)
        info = () if name == "compute_success" else ({},)
        batch = getattr(env, name)(achieved, desired, *info)
        assert np.shape(batch) == (40,)
        single = [getattr(env, name)(a, d, *info) for a, d in zip(achieved, desired, strict=True)]
        assert all(np.ndim(value) == 0 for value in single)
        np.testing.assert_array_equal(batch, single)
        # Any number of leading axes will do.
        shaped = getattr(env, name)(achieved.reshape(4, 10, -1), desired.reshape(4, 10, -1), *info)
        np.testing.assert_array_equal(shaped, np.reshape(batch, (4, 10)))

    @pytest.mark.parametrize("make", BUILTIN)
    def test_they_say_of_the_own_goal_what_step_said(self, make: Callable[[], Any]) -> None:
        env = make()
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(200):
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            goals = observation["achieved_goal"], observation["desired_goal"], info
            assert env.compute_reward(*goals) == reward
            assert env.compute_terminated(*goals) == terminated
            assert not env.compute_truncated(*goals)
            if terminated or truncated:
                env.reset()

    @pytest.mark.parametrize("name", ["compute_reward", "compute_terminated", "compute_truncated"])
    def test_the_info_may_be_left_out(self, name: str) -> None:
        achieved, desired = np.zeros((3, 2)), np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.04]])
        for env in (PointReachGoalEnv(), BitFlippingEnv(n_bits=2)):
            function = getattr(env, name)
            np.testing.assert_array_equal(function(achieved, desired), function(achieved, desired, {}))

    def test_only_bit_flipping_ends_on_success(self) -> None:
        place = np.zeros(2)
        assert not PointReachGoalEnv().compute_terminated(place, place, {})
        assert BitFlippingEnv(n_bits=2).compute_terminated(place, place, {})
        assert not BitFlippingEnv(n_bits=2).compute_terminated(place, place + 1, {})


class TestObservations:
    SINGLE = {"observation": np.arange(3.0), "achieved_goal": np.array([7.0]), "desired_goal": np.array([9.0])}  # noqa: RUF012

    def test_one_observation_is_flattened_and_taken_apart(self) -> None:
        flat = flatten_goal_observation(self.SINGLE)
        assert flat.dtype == np.float32
        assert flat.tolist() == [0, 1, 2, 9]
        parts = extract_goal_parts(self.SINGLE)
        assert (parts.observation.tolist(), parts.achieved_goal.tolist(), parts.desired_goal.tolist()) == (
            [0, 1, 2],
            [7],
            [9],
        )
        assert all(part.dtype == np.float32 for part in parts)

    def test_a_batch_is_flattened_and_taken_apart_row_by_row(self) -> None:
        batch = {key: np.stack([value, value + 10]) for key, value in self.SINGLE.items()}
        assert flatten_goal_observation(batch).tolist() == [[0, 1, 2, 9], [10, 11, 12, 19]]
        assert extract_goal_parts(batch).achieved_goal.tolist() == [[7], [17]]

    def test_goal_spaces_are_told_from_others(self) -> None:
        assert is_goal_space(PointReachGoalEnv().observation_space)
        assert not is_goal_space(spaces.Box(-1, 1, (2,)))
        assert not is_goal_space(spaces.Dict({"observation": spaces.Box(-1, 1, (2,))}))

    @pytest.mark.parametrize("order", ["import rl_training, gymnasium", "import gymnasium, rl_training"])
    def test_importing_the_package_registers_its_environments(self, order: str) -> None:
        code = (
            f"{order}; env = gymnasium.make('rl_training/PointGoal1D-v0', max_steps=3); env.reset(seed=0); print(env)"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "PointGoal1DEnv" in ran.stdout

    def test_the_old_name_is_kept(self) -> None:
        assert GoalFunctions is GoalRewards

    def test_registering_twice_is_no_error(self) -> None:
        register_goal_envs()
        register_goal_envs()
        assert "rl_training/PointReach2D-v0" in gym.registry

    def test_goal_pairs_hold_equal_ones_and_repeat_under_a_seed(self) -> None:
        env = PointReachGoalEnv()
        achieved, desired = sample_goal_pairs(env, count=64, seed=3)
        assert achieved.shape == desired.shape == (64, 2)
        np.testing.assert_array_equal(achieved[:16], desired[:16])
        assert (achieved[32:] != desired[32:]).any(axis=1).all()
        np.testing.assert_array_equal(sample_goal_pairs(env, count=64, seed=3), (achieved, desired))

    def test_recomputing_broadcasts_a_bare_answer(self) -> None:
        env = ToyGoalEnv()
        env.compute_terminated = lambda *_: False  # type: ignore[attr-defined]
        goals = np.zeros((5, 2), np.float32)
        assert recompute_terminated(env, goals, goals).tolist() == [False] * 5
        assert recompute_rewards(env, goals, goals + 1).tolist() == [-1.0] * 5


class CollapsingEnv(ToyGoalEnv):
    """Its termination turns a batch into one bool."""

    terminates = True

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        return bool(np.all(self.near(achieved, desired)))


class BareFalseEnv(ToyGoalEnv):
    """Its termination is False, whatever the shape."""

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        return False


class ConstantOnlySinglyEnv(ToyGoalEnv):
    """Its termination is False for every single goal and fails on a batch."""

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        if achieved.ndim > 1:
            raise ValueError("one goal at a time")
        return False


class ArrayInfoEnv(ToyGoalEnv):
    """Its reward wants one info for each goal of a batch, in an array."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        if achieved.ndim > 1:
            assert isinstance(info, np.ndarray)
            assert all(isinstance(entry, dict) for entry in info)
            assert len(info) == len(achieved)
        return super().compute_reward(achieved, desired, info)


class RaisingEnv(ToyGoalEnv):
    """Its reward knows one goal at a time."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return 0.0 if self.near(achieved, desired) else -1.0  # a batch has no truth value


class WrongOnBatchesEnv(ToyGoalEnv):
    """Its reward forgets the axis, so that a batch has the distance of all goals together."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        near = np.linalg.norm(achieved - desired) <= self.distance
        return np.full(achieved.shape[:-1], 0.0 if near else -1.0)[()]


class ColumnEnv(ToyGoalEnv):
    """Its reward keeps an axis of 1."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.expand_dims(super().compute_reward(achieved, desired, info), -1)


class TestGoalFunctions:
    @staticmethod
    def pairs(env: Any, count: int = 50) -> tuple[Any, Any]:
        rng = np.random.default_rng(5)
        achieved = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
        desired = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
        desired[:20] = achieved[:20] + rng.uniform(-0.2, 0.2, (20, 2))
        return achieved, desired.astype(np.float32)

    @pytest.mark.parametrize(
        ("env_type", "slow"),
        [
            (ToyGoalEnv, []),
            (CollapsingEnv, ["compute_terminated"]),
            (BareFalseEnv, []),
            (ConstantOnlySinglyEnv, ["compute_terminated"]),
            (ArrayInfoEnv, []),
            (RaisingEnv, ["compute_reward"]),
            (WrongOnBatchesEnv, ["compute_reward"]),
            (ColumnEnv, ["compute_reward"]),
        ],
    )
    def test_whatever_is_wrong_with_batches_the_answers_are_those_of_single_goals(
        self, env_type: type[ToyGoalEnv], slow: list[str]
    ) -> None:
        functions = GoalFunctions(env_type())
        assert functions.unbatched == slow
        env = env_type()
        achieved, desired = self.pairs(env)
        expected = [float(np.squeeze(env.compute_reward(a, d, {}))) for a, d in zip(achieved, desired, strict=True)]
        assert set(expected) == {0.0, -1.0}
        rewards = functions.rewards(achieved, desired)
        assert rewards.shape == (50,)
        np.testing.assert_array_equal(rewards, expected)
        assert functions.recomputes_termination == hasattr(env, "compute_terminated")
        if functions.recomputes_termination:
            ended = [float(env.compute_terminated(a, d, {})) for a, d in zip(achieved, desired, strict=True)]
            np.testing.assert_array_equal(functions.terminated(achieved, desired), ended)

    def test_without_termination_it_says_so(self) -> None:
        with pytest.raises(EnvError, match="compute_terminated"):
            GoalFunctions(ToyGoalEnv()).terminated(np.zeros((1, 2)), np.zeros((1, 2)))

    MET, MISSED = np.zeros((1, 2), np.float32), np.full((1, 2), 0.9, np.float32)

    def test_one_episode_that_ends_where_its_goal_is_met_tells_what_ends_the_others(self) -> None:
        goals = GoalFunctions(EndingEnv())
        assert goals.ends_when_met is None
        goals.learn_ends(self.MET, self.MISSED, np.array([True]))  # something else ended it
        assert goals.ends_when_met is None
        assert not goals.recomputes_termination
        goals.learn_ends(np.concatenate([self.MISSED, self.MET]), np.zeros((2, 2)), np.array([False, True]))
        assert goals.ends_when_met
        assert goals.recomputes_termination
        ends = goals.terminated(np.array([[0.0, 0.0], [0.0, 0.04], [0.0, 0.06]]), np.zeros((3, 2)))
        assert (ends.tolist(), ends.dtype) == ([1.0, 1.0, 0.0], np.float32)
        restored = GoalFunctions(EndingEnv())
        restored.load_state_dict(goals.state_dict())
        assert restored.ends_when_met

    def test_one_episode_that_goes_on_refutes_it_for_good(self) -> None:
        goals = GoalFunctions(EndingEnv())
        for ended in (True, False, True):
            goals.learn_ends(self.MET, self.MET, np.array([ended]))
        assert goals.ends_when_met is False
        assert not goals.recomputes_termination
        with pytest.raises(EnvError, match="compute_terminated"):
            goals.terminated(self.MET, self.MET)

    def test_the_environment_s_own_word_counts_more(self) -> None:
        goals = GoalFunctions(PointReachGoalEnv())
        goals.learn_ends(self.MET, self.MET, np.array([True]))
        assert goals.ends_when_met is None
        assert goals.terminated(self.MET, self.MET).tolist() == [0.0]

    def test_a_reward_with_more_than_two_values_does_not_say_what_is_met(self) -> None:
        class Dense(EndingEnv):
            def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
                return -np.linalg.norm(achieved - desired, axis=-1)

        goals = GoalFunctions(Dense())
        goals.learn_ends(self.MET, self.MET, np.array([True]))
        assert goals.ends_when_met is None

    def test_learned_ends_are_the_same_on_a_device(self) -> None:
        goals = GoalFunctions(EndingEnv())
        rewards = goals.on_device()
        assert rewards is not None
        assert rewards.ends_are_learned
        achieved = np.random.default_rng(0).uniform(-0.1, 0.1, (50, 2)).astype(np.float32)
        goals.ends_when_met = True
        found = rewards.terminated(torch.from_numpy(achieved), torch.zeros(50, 2))
        assert found is not None
        assert 0 < found.sum() < 50
        np.testing.assert_array_equal(found.numpy(), goals.terminated(achieved, np.zeros((50, 2), np.float32)))

    def test_a_batch_of_another_size_works_too(self) -> None:
        functions = GoalFunctions(BareFalseEnv())
        assert functions.terminated(np.zeros((7, 2)), np.ones((7, 2))).tolist() == [0.0] * 7

    @pytest.mark.parametrize(
        ("reward", "transform", "expected"),
        [
            (lambda near: np.where(near, 0.0, -1.0), {}, (-1.0, 0.0)),
            (lambda near: np.where(near, 1.0, 0.0), {}, (0.0, 1.0)),
            (lambda near: np.where(near, 5.0, -2.0), {}, (-2.0, 5.0)),
            (lambda near: np.zeros_like(near, float), {}, None),
            (lambda near: np.where(near, 0.0, -1.0), {"scale": 10.0, "shift": 1.0}, (-9.0, 1.0)),
            (lambda near: np.where(near, 0.0, -1.0), {"scale": -2.0}, (0.0, 2.0)),
            (lambda near: np.where(near, 0.0, -1.0), {"scale": 10.0, "clip_min": -3.0}, (-3.0, 0.0)),
        ],
    )
    def test_the_range_of_a_sparse_reward_is_found_and_transformed(
        self, reward: Callable[[Any], Any], transform: dict[str, Any], expected: tuple[float, float] | None
    ) -> None:
        env = ToyGoalEnv()
        env.compute_reward = lambda a, d, info: reward(env.near(a, d))[()]  # type: ignore[method-assign]
        assert GoalFunctions(env, RewardTransformConfig(**transform)).reward_range == expected

    def test_a_dense_reward_has_no_known_range(self) -> None:
        env = ToyGoalEnv()
        env.compute_reward = lambda a, d, info: -np.linalg.norm(a - d, axis=-1)  # type: ignore[method-assign]
        functions = GoalFunctions(env)
        assert functions.reward_range is None
        assert functions.unbatched == []

    @pytest.mark.parametrize("make", BUILTIN)
    def test_builtin_environments_take_the_quick_way(self, make: Callable[[], Any]) -> None:
        functions = GoalFunctions(make())
        assert functions.unbatched == []
        assert functions.reward_range == (-1.0, 0.0)

    def test_the_transform_applies_to_the_answers(self) -> None:
        functions = GoalFunctions(PointGoal1DEnv(), RewardTransformConfig(scale=2.0, shift=0.5))
        achieved, desired = np.array([[0.0], [0.0]], np.float32), np.array([[0.0], [0.9]], np.float32)
        assert functions.rewards(achieved, desired).tolist() == [0.5, -1.5]

    def test_it_needs_goals_and_a_reward_function(self) -> None:
        with pytest.raises(EnvError, match=r"Pendulum-v1.*observation, achieved_goal, desired_goal"):
            GoalFunctions(gym.make("Pendulum-v1"))
        env = ToyGoalEnv()
        env.step = lambda action: (env._observe(), 0.0, False, True, {})  # type: ignore[assignment, method-assign]
        plain = gym.Wrapper(env)
        plain.has_wrapper_attr = lambda name: name != "compute_reward"  # type: ignore[method-assign]
        with pytest.raises(EnvError, match=r"ToyGoalEnv.*compute_reward"):
            GoalFunctions(plain)

    def test_a_reward_that_fails_on_one_goal_is_named(self) -> None:
        env = ToyGoalEnv()
        env.step = lambda action: (env._observe(), 0.0, False, True, {})  # type: ignore[assignment, method-assign]
        env.compute_reward = lambda a, d, info: info["speed"]  # type: ignore[method-assign]
        with pytest.raises(EnvError, match=r"ToyGoalEnv.*compute_reward.*speed"):
            GoalFunctions(env)


def norm_of(order: float) -> Callable[[Any], Any]:
    return lambda offset: np.linalg.norm(offset, ord=order, axis=-1)


def angle(offset: Any) -> Any:
    turn = 2 * np.pi * 0.1  # goals are angles, and a full turn of them is this long
    return np.linalg.norm((offset + turn / 2) % turn - turn / 2, axis=-1)


class TestDistanceShortcut:
    """An environment that names a ``distance_threshold`` and rewards by it is answered without being asked."""

    @staticmethod
    def env_with(distance: Callable[[Any], Any], threshold: float = 0.1, rule: float = 0.1) -> tuple[Any, list[int]]:
        env, calls = ToyGoalEnv(), [0]

        def compute_reward(achieved: Any, desired: Any, info: Any) -> Any:
            calls[0] += 1
            return np.where(distance(achieved - desired) <= rule, np.float32(0), np.float32(-1))[()]

        env.compute_reward = compute_reward  # type: ignore[method-assign]
        env.distance_threshold = threshold  # type: ignore[attr-defined]
        return env, calls

    @staticmethod
    def near_pairs(count: int = 400) -> tuple[Any, Any]:
        rng = np.random.default_rng(1)
        achieved = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
        return achieved, (achieved + rng.uniform(-0.4, 0.4, (count, 2))).astype(np.float32)

    def test_it_is_taken_where_it_holds(self) -> None:
        env, calls = self.env_with(norm_of(2))
        functions = GoalFunctions(env)
        achieved, desired = self.near_pairs()
        functions.rewards(achieved, desired)  # the first batch is compared with the environment's own answer
        before = calls[0]
        rewards = functions.rewards(achieved, desired)
        assert calls[0] == before
        np.testing.assert_array_equal(rewards, env.compute_reward(achieved, desired, {}))
        assert functions.distance_threshold == 0.1

    @pytest.mark.parametrize(
        ("distance", "rule"),
        [
            (norm_of(np.inf), 0.1),
            (norm_of(1), 0.1),
            (lambda offset: np.abs(offset[..., 0]), 0.1),
            (norm_of(2), 0.12),
            (norm_of(2), 0.09),
            (lambda offset: -np.linalg.norm(offset, axis=-1), -0.1),
            (angle, 0.1),
        ],
        ids=["largest coordinate", "sum", "first coordinate", "wider", "narrower", "keep away", "angles"],
    )
    def test_another_rule_is_always_asked_for(self, distance: Callable[[Any], Any], rule: float) -> None:
        env, _ = self.env_with(distance, rule=rule)
        functions = GoalFunctions(env)
        achieved, desired = self.near_pairs()
        expected = env.compute_reward(achieved, desired, {})
        assert len(np.unique(expected)) == 2
        np.testing.assert_array_equal(functions.rewards(achieved, desired), expected)

    def test_a_rule_that_differs_only_far_away_is_noticed_by_a_spot_check(self) -> None:
        env, _ = self.env_with(lambda offset: np.linalg.norm((offset + 1) % 2 - 1, axis=-1), threshold=0.01, rule=0.01)
        functions = GoalFunctions(env)
        achieved, desired = np.array([[-0.999, 0.0]], np.float32), np.array([[0.999, 0.0]], np.float32)
        assert env.compute_reward(achieved, desired, {}).tolist() == [0.0]
        assert functions.rewards(achieved, desired).tolist() == [0.0]

    def test_a_dense_reward_is_always_asked_for(self) -> None:
        env, _ = self.env_with(norm_of(2))
        env.compute_reward = lambda a, d, info: -np.linalg.norm(a - d, axis=-1)
        achieved, desired = self.near_pairs()
        np.testing.assert_allclose(
            GoalFunctions(env).rewards(achieved, desired), env.compute_reward(achieved, desired, {}), rtol=1e-6
        )

    @pytest.mark.parametrize("threshold", [0, -1.0, None, "near"])
    def test_without_a_threshold_it_is_found_in_the_reward(self, threshold: Any) -> None:
        env, _ = self.env_with(norm_of(2), threshold=threshold)
        assert GoalFunctions(env).distance_threshold == 0.1
        env, _ = self.env_with(norm_of(np.inf), threshold=threshold)  # no distance of two points
        functions = GoalFunctions(env)
        assert functions.distance_threshold is None
        reward = env.compute_reward
        env.compute_reward = lambda a, d, info: reward(a, d, info) if np.abs(d).max() < 9 else 1 / 0
        assert GoalFunctions(env).distance_threshold is None  # it fails on goals that are too far
        achieved, desired = self.near_pairs()
        np.testing.assert_array_equal(functions.rewards(achieved, desired), env.compute_reward(achieved, desired, {}))

    @settings(deadline=None, max_examples=25)
    @given(threshold=st.floats(0.001, 0.5), shift=st.sampled_from([-1.0, 0.0]))
    def test_quick_answers_equal_the_environments_own(self, threshold: float, shift: float) -> None:
        env = PointReachGoalEnv(threshold=threshold)
        functions = GoalFunctions(env, RewardTransformConfig(shift=shift))
        achieved, desired = self.near_pairs(100)
        own = env.compute_reward(achieved, desired, {}) + shift
        # Within a rounding error of the threshold either answer will do.
        clear = np.abs(np.linalg.norm(achieved - desired, axis=-1) - threshold) > 1e-6
        np.testing.assert_array_equal(functions.rewards(achieved, desired)[clear], own[clear])

    @pytest.mark.parametrize("env", [PointGoal1DEnv(), PointReachGoalEnv()])
    def test_quick_answers_equal_the_environments_own_along_an_episode(self, env: Any) -> None:
        # At full speed one step is exactly as long as the threshold, so ties are common here, not a curiosity.
        functions = GoalFunctions(env)
        rng = np.random.default_rng(0)
        for episode in range(20):
            env.reset(seed=episode)
            action = rng.uniform(-1, 1, env.dimensions)
            places = np.array([env.step(action)[0]["achieved_goal"] for _ in range(50)])
            achieved, desired = places[:-1], places[1:]
            own = env.compute_reward(achieved, desired, {})
            np.testing.assert_array_equal(functions.rewards(achieved, desired), own)


class ThreeLevelEnv(ToyGoalEnv):
    """Pays -10 below the floor at -0.9, which random play never reaches, 0 at the goal and -1 elsewhere."""

    distance_threshold = 0.1
    lowest = -0.8

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        reward = self.near(achieved, desired).astype(np.float32) - 1.0
        return np.where(np.asarray(achieved)[..., 1] < -0.9, np.float32(-10.0), reward)[()]

    def _observe(self) -> dict[str, Any]:
        observation = super()._observe()
        observation["achieved_goal"] = np.maximum(observation["achieved_goal"], self.lowest)
        return observation


class TestRewardsThatRandomPlayMissed:
    """What random play shows of the reward is corrected as soon as a reward proves it wrong."""

    FLOOR = np.array([[0.0, -0.95]] * 5, np.float32)  # below the floor, at which every reward is -10
    ABOVE = np.array([[0.0, 0.5]] * 5, np.float32)

    @staticmethod
    def assumed() -> GoalRewards:
        goals = GoalRewards(ThreeLevelEnv())
        assert goals.reward_range == (-1.0, 0.0)
        assert goals.state_dict()["quick"]
        goals.rewards(TestRewardsThatRandomPlayMissed.ABOVE, TestRewardsThatRandomPlayMissed.ABOVE)  # the spot check
        return goals

    def test_play_widens_the_range_and_ends_the_quick_form_at_once(self) -> None:
        goals = self.assumed()
        assert goals.rewards(self.FLOOR, self.ABOVE).tolist() == [-1.0] * 5  # what was wrong for 255 batches
        before = goals.reward_range
        with pytest.warns(UserWarning, match=r"ToyGoalEnv|ThreeLevelEnv: a reward of -10 is outside \[-1, 0\]"):
            goals.check_play(np.full(5, -10.0, np.float32), self.FLOOR, self.ABOVE)
        assert goals.reward_range == (-10.0, 0.0)
        assert goals.reward_range is not before
        assert goals.rewards(self.FLOOR, self.ABOVE).tolist() == [-10.0] * 5

    def test_relabelling_widens_the_range_and_says_so_once(self) -> None:
        goals = self.assumed()
        goals.load_state_dict({**goals.state_dict(), "quick": False})
        with pytest.warns(UserWarning, match="a reward of -10 is outside"):
            assert goals.rewards(self.FLOOR, self.ABOVE).tolist() == [-10.0] * 5
        assert goals.reward_range == (-10.0, 0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            goals.check_play(np.full(5, 3.0, np.float32), self.ABOVE, self.ABOVE)
        assert goals.reward_range == (-10.0, 3.0)

    def test_a_spot_check_widens_the_range_too(self) -> None:
        goals = GoalRewards(ThreeLevelEnv())
        with pytest.warns(UserWarning, match="outside"):
            assert goals.rewards(self.FLOOR, self.ABOVE).tolist() == [-10.0] * 5  # the first batch is compared
        assert goals.reward_range == (-10.0, 0.0)

    def test_a_buffer_reports_the_new_range_and_relabels_by_the_new_rule(self) -> None:
        env, goals = ThreeLevelEnv(), self.assumed()
        buffer = HERReplayBuffer(space_spec(env, goals), 100, goals, settings=HindsightSettings(her_ratio=1.0))
        before = buffer.reward_range
        places = np.linspace([0.0, 0.5], [0.0, -0.98], 6).astype(np.float32)  # falls below the floor at its last step
        observations = {"observation": places, "achieved_goal": places, "desired_goal": np.ones((6, 2), np.float32)}
        with pytest.warns(UserWarning, match="a reward of -10 is outside"):
            buffer.add_episode(observations, np.zeros((5, 2)), np.array([-1.0, -1.0, -1.0, -1.0, -10.0]))
        assert buffer.reward_range == (-10.0, 0.0)
        assert buffer.reward_range is not before
        batch = buffer.sample(50)
        fallen = batch.next_observations[:, 1] < -0.9
        assert fallen.any()
        assert (batch.rewards[fallen] == -10.0).all()
        assert (batch.rewards[~fallen] > -10.0).all()
        other_goals = GoalRewards(ThreeLevelEnv())
        other = HERReplayBuffer(space_spec(env, other_goals), 100, other_goals)
        other.load_state_dict(buffer.state_dict())
        assert other.reward_range == (-10.0, 0.0)

    def test_rewards_within_the_range_change_nothing(self) -> None:
        goals = self.assumed()
        before = goals.reward_range
        met = np.where(np.arange(5) % 2 == 0, 0.0, -1.0).astype(np.float32)
        desired = np.where(met[:, None] == 0, self.ABOVE, self.ABOVE + 0.5).astype(np.float32)
        goals.check_play(met, self.ABOVE, desired)
        assert goals.reward_range is before
        assert goals.state_dict()["quick"]

    def test_a_tie_that_was_rounded_otherwise_is_no_contradiction(self) -> None:
        goals = GoalRewards(PointReachGoalEnv())
        achieved, desired = np.array([[0.0, 0.0]], np.float32), np.array([[0.05, 0.0]], np.float32)
        paid = -1.0 - goals.rewards(achieved, desired)  # the other side of the threshold than on float32 goals
        goals.check_play(paid.astype(np.float32), achieved, desired)
        assert goals.state_dict()["quick"]

    @pytest.mark.parametrize("scale", [0.1, -0.3])
    def test_the_range_is_that_of_the_transformed_reward(self, scale: float) -> None:
        goals = GoalRewards(ThreeLevelEnv(), RewardTransformConfig(scale=scale, shift=0.7))
        goals.rewards(self.ABOVE, self.ABOVE)
        before = goals.reward_range
        assert before == pytest.approx(tuple(sorted((0.7, 0.7 - scale))))
        rounded = (np.array([0.0, -1.0]) * scale + 0.7).astype(np.float32)  # not exactly the range's own numbers
        goals.check_play(rounded, self.ABOVE[:2], np.stack([self.ABOVE[0], self.ABOVE[0] + 1]))
        assert goals.reward_range is before
        assert goals.state_dict()["quick"]
        with pytest.warns(UserWarning, match="outside"):
            goals.check_play((np.full(5, -10.0) * scale + 0.7).astype(np.float32), self.FLOOR, self.ABOVE)
        assert goals.reward_range == pytest.approx(tuple(sorted((0.7 if scale > 0 else 0.7 - 0.0, 0.7 - 10 * scale))))

    def test_the_range_survives_a_restart(self) -> None:
        goals = self.assumed()
        with pytest.warns(UserWarning, match="outside"):
            goals.check_play(np.full(5, -10.0, np.float32), self.FLOOR, self.ABOVE)
        other = GoalRewards(ThreeLevelEnv())
        other.load_state_dict(goals.state_dict())
        assert other.reward_range == (-10.0, 0.0)
        assert other.rewards(self.FLOOR, self.ABOVE).tolist() == [-10.0] * 5
        older = GoalRewards(ThreeLevelEnv())
        before = older.reward_range
        older.load_state_dict({"calls": 3, "quick": True})  # as checkpoints before 0.2 have it
        assert older.reward_range is before


@pytest.fixture
def registered() -> Any:
    """Return a function that makes an environment class known to Gymnasium for the length of a test."""
    names: list[str] = []

    def register(env_type: Callable[..., Any]) -> str:
        name = f"rl_training_tests/Toy{len(names)}-v0"
        gym.register(name, entry_point=env_type)
        names.append(name)
        return name

    yield register
    for name in names:
        gym.registry.pop(name)


class TestCheckEnv:
    @pytest.mark.parametrize(
        ("env_id", "facts"),
        [
            (
                "rl_training/PointReach2D-v0",
                {
                    "spaces": "observation 4, goal 2, actions 2 continuous",
                    "success": "info['is_success']",
                    "random episode": "50 steps",
                    "reward": "sparse, -1 or 0",
                    "distance threshold": "0.05",
                },
            ),
            (
                "rl_training/BitFlipping-v0",
                {"spaces": "observation 16, goal 16, actions 16 discrete", "reward": "sparse, -1 or 0"},
            ),
        ],
    )
    def test_a_fit_environment_is_described(self, env_id: str, facts: dict[str, str]) -> None:
        report = check_env(env_id)
        assert report.fit_for_her
        assert report.problems == []
        assert report.warnings == []
        assert facts.items() <= report.facts.items()
        for name in ("compute_reward", "compute_terminated", "compute_truncated"):
            assert report.facts[name] == "batched, agrees with one by one"

    def test_arguments_reach_the_environment(self) -> None:
        report = check_env("rl_training/BitFlipping-v0", {"n_bits": 5, "continuous": True})
        assert report.facts["spaces"] == "observation 5, goal 5, actions 5 continuous"

    def test_reward_wrappers_are_no_disagreement(self) -> None:
        assert check_env("rl_training/PointGoal1D-v0", {"wrappers": {"reward": {"scale": 10.0}}}).problems == []

    def test_a_task_without_goals_is_unfit(self) -> None:
        report = check_env("Pendulum-v1")
        assert not report.fit_for_her
        assert "observation, achieved_goal, desired_goal" in report.problems[0]
        assert report.facts["success"] == "not reported"

    def test_a_slow_function_is_a_warning(self, registered: Any) -> None:
        report = check_env(registered(CollapsingEnv))
        assert report.fit_for_her
        assert report.facts["compute_terminated"] == "one by one only"
        assert report.facts["compute_truncated"] == "absent"
        assert any("compute_terminated is wrong on batches" in warning for warning in report.warnings)

    def test_a_missing_termination_is_a_warning(self, registered: Any) -> None:
        report = check_env(registered(ToyGoalEnv))
        assert report.fit_for_her
        assert any("no compute_terminated" in warning for warning in report.warnings)

    @pytest.mark.parametrize(
        ("threshold", "found"),
        [(0.4, "end their episode; relabelled transitions will end as well"), (1e-6, "none in random play")],
    )
    def test_it_says_whether_met_goals_end_their_episode(self, threshold: float, found: str) -> None:
        report = check_env(ENDING, {"threshold": threshold})
        assert report.facts["met goals"] == found
        assert any("no compute_terminated" in warning for warning in report.warnings) == (threshold < 0.1)

    def test_it_says_that_met_goals_do_not_end_their_episode(self, registered: Any) -> None:
        report = check_env(registered(ToyGoalEnv))
        assert report.facts["met goals"] == "do not end their episode"

    def test_no_success_is_a_warning(self, registered: Any) -> None:
        class Silent(ToyGoalEnv):
            def step(self, action: Any) -> Any:
                return (*super().step(action)[:4], {})

        report = check_env(registered(Silent))
        assert report.fit_for_her
        assert report.facts["success"] == "not reported"
        assert any("is_success" in warning for warning in report.warnings)

    def test_success_under_its_other_name_is_found(self, registered: Any) -> None:
        class Other(ToyGoalEnv):
            def step(self, action: Any) -> Any:
                return (*super().step(action)[:4], {"success": False})

        assert check_env(registered(Other)).facts["success"] == "info['success']"

    def test_a_reward_that_disagrees_with_step_is_a_problem(self, registered: Any) -> None:
        class Disagreeing(ToyGoalEnv):
            def step(self, action: Any) -> Any:
                observation, _, *rest = super().step(action)
                return (observation, 3.0, *rest)

        report = check_env(registered(Disagreeing))
        assert not report.fit_for_her
        assert "disagrees with the reward of step() in 200 of 200 steps" in report.problems[0]

    def test_a_termination_that_disagrees_with_step_is_a_problem(self, registered: Any) -> None:
        class Falls(ToyGoalEnv):
            def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
                return np.zeros(np.shape(achieved)[:-1], bool)[()]

            def step(self, action: Any) -> Any:
                observation, reward, _, truncated, info = super().step(action)
                return observation, reward, self.steps == 5, truncated, info

        report = check_env(registered(Falls))
        assert not report.fit_for_her
        assert report.problems == ["compute_terminated disagrees with the termination of step() in 20 of 100 steps"]

    def test_random_play_says_how_often_the_goal_moves(self, registered: Any) -> None:
        class Stuck(ToyGoalEnv):
            """Its achieved goal moves in every sixth episode, by 0.3, and is still otherwise."""

            distance_threshold = 0.1
            episode = 0

            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                self.moves = Stuck.episode % 6 == 5
                Stuck.episode += 1
                return super().reset(seed=seed)

            def _observe(self) -> dict[str, Any]:
                place = np.full(2, 0.3 if self.moves and self.steps >= 5 else 0.0, np.float32)
                return {"observation": place, "achieved_goal": place, "desired_goal": self.goal.copy()}

        report = check_env(registered(Stuck))
        assert report.fit_for_her
        assert report.facts["random motion"] == "the achieved goal moves more than 0.1 in 3 of 20 random episodes"
        assert any("in only 3 of 20 episodes" in warning and "demonstrations" in warning for warning in report.warnings)
        moving = check_env("rl_training/BitFlipping-v0")
        assert moving.facts["random motion"] == "the achieved goal moves at all in 20 of 20 random episodes"
        assert moving.warnings == []

    def test_an_episode_without_end_is_a_problem(self, registered: Any) -> None:
        class Endless(ToyGoalEnv):
            def step(self, action: Any) -> Any:
                observation, reward, _, _, info = super().step(action)
                return observation, reward, False, False, info

        report = check_env(registered(Endless))
        assert not report.fit_for_her
        assert any("did not end" in problem for problem in report.problems)

    @pytest.mark.parametrize("name", ["compute_reward", "compute_terminated", "compute_truncated"])
    def test_a_function_that_fails_is_reported_and_not_raised(self, registered: Any, name: str) -> None:
        def fails(self: Any, achieved: Any, desired: Any, info: Any) -> Any:
            raise KeyError("speed")

        class Failing(ToyGoalEnv):
            def step(self, action: Any) -> Any:
                self.steps += 1
                observation = self._observe()
                reward = float(self.near(observation["achieved_goal"], observation["desired_goal"])) - 1.0
                return observation, reward, False, self.steps >= 10, {"is_success": False}

        setattr(Failing, name, fails)
        report = check_env(registered(Failing))
        found = [*report.problems, *report.warnings, *(f"{k} {v}" for k, v in report.facts.items())]
        assert any(name in line and ("speed" in line or "fail" in line) for line in found)
        assert report.fit_for_her == (name == "compute_truncated")

    def test_an_image_is_a_problem_named_once(self, registered: Any) -> None:
        class Image(ToyGoalEnv):
            def __init__(self) -> None:
                super().__init__()
                self.observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

            def _observe(self) -> Any:
                return np.zeros((8, 8, 3), np.uint8)

            def step(self, action: Any) -> Any:
                return self._observe(), 0.0, False, True, {}

        report = check_env(registered(Image))
        assert not report.fit_for_her
        assert len(report.problems) == 1
        assert "images are not supported" in report.problems[0]

    @pytest.mark.parametrize(
        ("info", "expected"),
        [
            ({}, None),
            ({"is_success": True}, True),
            ({"is_success": np.float32(0)}, False),
            ({"success": 1.0}, True),
            ({"is_success": False, "success": True}, False),
        ],
    )
    def test_success_is_read_from_either_name(self, info: dict[str, Any], expected: bool | None) -> None:
        assert episode_success(info) is expected


class LateTwist(PointGoal1DEnv):
    """Its reward changes its rule after a while, and it offers a torch version of the old rule."""

    twisted = False

    def compute_reward(self, achieved_goal, desired_goal, info):
        reward = super().compute_reward(achieved_goal, desired_goal, info)
        return reward - 1.0 if self.twisted else reward


@pytest.mark.parametrize("with_torch", [False, True])
def test_rewards_of_an_accelerator_are_compared_with_the_environments(with_torch, monkeypatch):
    if with_torch:
        threshold = LateTwist().distance_threshold

        def rule(achieved: torch.Tensor, desired: torch.Tensor) -> torch.Tensor:
            return torch.where((achieved - desired).norm(dim=-1) <= threshold, 0.0, -1.0)

        monkeypatch.setattr(LateTwist, "compute_reward_torch", staticmethod(rule), raising=False)
    env = LateTwist()
    goals = GoalRewards(env)
    device = goals.on_device()
    assert device is not None
    assert not with_torch or device.raw_reward is rule
    pairs = np.linspace(0, 1, 8, dtype=np.float32)[:, None], np.zeros((8, 1), np.float32)
    goals.spot_check(*pairs)
    assert goals.on_device() is not None
    env.twisted = True
    for _ in range(16):
        goals.spot_check(*pairs)
    assert goals.on_device() is None
    assert "compute_reward" in goals.why_not_on_device


def test_a_torch_version_that_differs_is_refused(monkeypatch):
    monkeypatch.setattr(
        PointGoal1DEnv, "compute_reward_torch", staticmethod(lambda a, d: torch.zeros(len(a))), raising=False
    )
    with pytest.raises(EnvError, match="compute_reward_torch and compute_reward differ"):
        GoalRewards(PointGoal1DEnv())
