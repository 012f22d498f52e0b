"""Reward transforms: scale, then shift, then clip, around an environment, on arrays, and on relabelled rewards."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import HERReplayBuffer, HindsightSettings, ReplayBuffer
from rl_training.envs import (
    GoalFunctions,
    GoalRewards,
    PointGoal1DEnv,
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardShiftWrapper,
    RewardTransform,
    RewardTransformConfig,
    apply_reward_wrappers,
    make_env,
    make_raw_env,
    make_vector_env,
    space_spec,
)
from rl_training.envs.factory import split_env_kwargs
from rl_training.errors import ConfigError
from rl_training.runtime import Callback, train_her
from rl_training.runtime.logging import read_metrics
from rl_training.types import SpaceSpec

POINT = "rl_training/PointGoal1D-v0"
FINITE = st.floats(-1e6, 1e6)


class FixedRewardsEnv(gym.Env[Any, Any]):
    """Pays what it is told, one value a step."""

    def __init__(self, rewards: list[float]) -> None:
        self.observation_space = self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._rewards = iter(rewards)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), next(self._rewards), False, False, {}


def rewards_of(env: gym.Env[Any, Any], count: int) -> list[float]:
    env.reset(seed=0)
    return [float(env.step(np.zeros(1, np.float32))[1]) for _ in range(count)]


@st.composite
def transforms(draw: Any) -> RewardTransformConfig:
    low, high = sorted((draw(FINITE), draw(FINITE)))
    return RewardTransformConfig(
        scale=draw(st.floats(-100, 100)),
        shift=draw(st.floats(-100, 100)),
        clip_min=draw(st.sampled_from([None, low])),
        clip_max=draw(st.sampled_from([None, high])),
    )


class TestWrappers:
    def test_each_does_its_own(self) -> None:
        values = [-2.0, 0.0, 3.0]
        assert rewards_of(RewardScaleWrapper(FixedRewardsEnv(values), 2.0), 3) == [-4.0, 0.0, 6.0]
        assert rewards_of(RewardShiftWrapper(FixedRewardsEnv(values), 1.0), 3) == [-1.0, 1.0, 4.0]
        assert rewards_of(RewardClipWrapper(FixedRewardsEnv(values), -1.0, 1.0), 3) == [-1.0, 0.0, 1.0]
        assert rewards_of(RewardClipWrapper(FixedRewardsEnv(values), clip_min=-1.0), 3) == [-1.0, 0.0, 3.0]
        assert rewards_of(RewardClipWrapper(FixedRewardsEnv(values), clip_max=1.0), 3) == [-2.0, 0.0, 1.0]

    def test_the_order_is_scale_shift_clip(self) -> None:
        config = RewardTransformConfig(scale=10.0, shift=1.0, clip_min=-5.0, clip_max=5.0)
        # Any other order gives another of these: shift first 15, clip first 6.
        assert rewards_of(apply_reward_wrappers(FixedRewardsEnv([0.4, -0.4, 0.5, -9.0]), config), 4) == [5, -3, 5, -5]
        assert config.apply(np.array([0.4, -0.4, 0.5, -9.0])).tolist() == [5, -3, 5, -5]

    def test_they_are_stacked_in_that_order(self) -> None:
        env = apply_reward_wrappers(FixedRewardsEnv([]), RewardTransformConfig(scale=2, shift=1, clip_max=1))
        assert isinstance(env, RewardClipWrapper)
        assert isinstance(env.env, RewardShiftWrapper)
        assert isinstance(env.env.env, RewardScaleWrapper)

    def test_an_environment_that_needs_nothing_is_returned_as_it_is(self) -> None:
        env = FixedRewardsEnv([])
        assert apply_reward_wrappers(env, None) is env
        assert apply_reward_wrappers(env, RewardTransformConfig()) is env

    @settings(deadline=None)
    @given(config=transforms(), values=st.lists(FINITE, min_size=1, max_size=8))
    def test_wrappers_equal_the_function_on_arrays(self, config: RewardTransformConfig, values: list[float]) -> None:
        wrapped = rewards_of(apply_reward_wrappers(FixedRewardsEnv(values), config), len(values))
        np.testing.assert_array_equal(config.apply(np.array(values)), wrapped)
        column = config.apply(np.array(values)[:, None])
        assert column.shape == (len(values), 1)

    @settings(deadline=None)
    @given(config=transforms(), low=FINITE, width=st.floats(0, 1e6), share=st.floats(0, 1))
    def test_the_range_holds_every_reward_in_it(
        self, config: RewardTransformConfig, low: float, width: float, share: float
    ) -> None:
        bounds = config.apply_range((low, low + width))
        assert bounds is not None
        value = float(config.apply(np.array(min(low + share * width, low + width))))
        assert bounds[0] <= bounds[1]
        slack = 1e-9 * max(1.0, abs(bounds[0]), abs(bounds[1]))
        assert bounds[0] - slack <= value <= bounds[1] + slack

    def test_an_unknown_range_stays_unknown(self) -> None:
        assert RewardTransformConfig(scale=2.0).apply_range(None) is None

    def test_the_array_that_is_given_is_left_alone(self) -> None:
        rewards = np.array([1.0, 2.0])
        RewardTransformConfig(scale=3.0, shift=1.0, clip_max=4.0).apply(rewards)
        assert rewards.tolist() == [1.0, 2.0]


class TestConfiguration:
    def test_wrappers_are_configured_in_env_kwargs(self) -> None:
        env = make_env(POINT, {"wrappers": {"reward": {"scale": 3.0, "shift": 1.0}}})
        assert set(rewards_of(env, 20)) <= {1.0, -2.0}

    def test_two_bounds_may_be_given_as_one_pair(self) -> None:
        pair = RewardTransformConfig.model_validate({"clip": [-1, 2]})
        assert pair == RewardTransformConfig(clip_min=-1.0, clip_max=2.0)
        open_end = RewardTransformConfig.model_validate({"clip": [None, 2]})
        assert open_end == RewardTransformConfig(clip_max=2.0)

    def test_evaluation_keeps_the_raw_reward(self) -> None:
        kwargs = {"wrappers": {"reward": {"scale": 100.0}}}
        assert set(rewards_of(make_raw_env(POINT, kwargs), 50)) <= {0.0, -1.0}
        assert set(rewards_of(make_env(POINT, kwargs), 50)) <= {0.0, -100.0}

    def test_environments_that_collect_pay_their_own_reward(self) -> None:
        envs = make_vector_env(POINT, {"wrappers": {"reward": {"scale": 0.0, "shift": 7.0}}}, 2)
        envs.reset(seed=[0, 1])
        _, rewards, *_ = envs.step(np.zeros((2, 1), np.float32))
        assert rewards.tolist() == [-1.0, -1.0]  # the buffer transforms
        envs.close()

    def test_other_environments_are_unchanged(self) -> None:
        make_env(POINT, {"wrappers": {"reward": {"scale": 5.0}}})
        other = make_env(POINT)
        assert set(rewards_of(other, 50)) <= {0.0, -1.0}
        while isinstance(other, gym.Wrapper):
            assert not isinstance(other, (RewardScaleWrapper, RewardShiftWrapper, RewardClipWrapper))
            other = other.env

    def test_the_hindsight_functions_stay_reachable_and_raw_below_the_wrappers(self) -> None:
        env = make_env(POINT, {"wrappers": {"reward": {"scale": 5.0}}})
        assert env.get_wrapper_attr("compute_reward")(np.zeros(1), np.ones(1), {}) == -1.0

    @pytest.mark.parametrize(
        ("reward", "words"),
        [
            ({"scal": 2}, "unknown key 'env_kwargs.wrappers.reward.scal' (did you mean 'scale'?)"),
            ({"scale": "big"}, "env_kwargs.wrappers.reward.scale = 'big'"),
            ({"scale": float("nan")}, "env_kwargs.wrappers.reward.scale = nan"),
            ({"shift": float("inf")}, "env_kwargs.wrappers.reward.shift = inf"),
            ({"clip": 3}, "clip = 3: expected two bounds, [low, high]"),
            ({"clip": [1, 2, 3]}, "clip = [1, 2, 3]: expected two bounds, [low, high]"),
            ({"clip": [1, 0]}, "clip_min = 1.0 is above clip_max = 0.0"),
            ({"clip_min": 1, "clip_max": 0}, "clip_min = 1.0 is above clip_max = 0.0"),
            ({"clip": [-1, 1], "clip_min": -5}, "clip"),
            (5, "env_kwargs.wrappers.reward = 5"),
            ([1, 2], "env_kwargs.wrappers.reward = [1, 2]"),
        ],
    )
    def test_bad_values_are_named(self, reward: Any, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            split_env_kwargs({"wrappers": {"reward": reward}})
        assert words in str(caught.value)

    def test_an_unknown_wrapper_gets_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"env_kwargs\.wrappers\.rewards.*did you mean 'reward'"):
            split_env_kwargs({"wrappers": {"rewards": {}}})


class TestOneTransform:
    """The environment's transform and the algorithm's, in one object and in that order."""

    @settings(deadline=None)
    @given(first=transforms(), second=transforms(), values=st.lists(FINITE, min_size=1, max_size=8))
    def test_it_is_the_two_one_after_the_other(self, first: Any, second: Any, values: list[float]) -> None:
        both = RewardTransform(first, second)
        raw = np.array(values)
        np.testing.assert_array_equal(both.apply(raw), second.apply(first.apply(raw)))
        low, high = float(raw.min()), float(raw.max())
        assert both.apply_range((low, high)) == second.apply_range(first.apply_range((low, high)))
        np.testing.assert_array_equal(RewardTransform(both, None).apply(raw), both.apply(raw))

    def test_the_order_matters(self) -> None:
        clip, scale = RewardTransformConfig(clip_min=-1.0), RewardTransformConfig(scale=3.0)
        assert RewardTransform(clip, scale).apply(np.array([-2.0])).tolist() == [-3.0]
        assert RewardTransform(scale, clip).apply(np.array([-2.0])).tolist() == [-1.0]
        assert RewardTransform(clip, scale).apply_range((-2.0, 1.0)) == (-3.0, 3.0)
        assert RewardTransform(clip).apply_range(None) is None

    def test_nothing_to_do_is_known(self) -> None:
        assert RewardTransform().identity
        assert RewardTransform(None, RewardTransformConfig()).identity
        assert RewardTransform(RewardTransform(RewardTransformConfig(shift=1.0))).steps == (
            RewardTransformConfig(shift=1.0),
        )
        rewards = np.array([1.0])
        assert RewardTransform().apply(rewards) is rewards
        assert RewardTransform().apply_range((-1.0, 0.0)) == (-1.0, 0.0)

    @settings(deadline=None, max_examples=25)
    @given(first=transforms(), second=transforms(), rewards=st.lists(FINITE, min_size=6, max_size=6))
    def test_buffers_store_of_raw_rewards_what_they_store_of_wrapped_ones(
        self, first: Any, second: Any, rewards: list[float]
    ) -> None:
        wrapped = rewards_of(apply_reward_wrappers(FixedRewardsEnv(rewards), first), 6)
        transform = RewardTransform(first, second)
        spec = SpaceSpec(observation_dim=1, action_dim=1)
        raw, old = (ReplayBuffer(spec, 6, reward_transform=each) for each in (transform, second))
        for buffer, values in ((raw, rewards), (old, wrapped)):
            buffer.add(np.zeros((6, 1)), np.zeros((6, 1)), np.array(values), np.zeros((6, 1)), np.zeros(6), np.zeros(6))
        assert torch.equal(raw.ring.rows, old.ring.rows)

    @pytest.mark.parametrize("whole", [False, True])
    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_hindsight_stores_of_raw_rewards_what_it_stores_of_wrapped_ones(self, whole: bool, kind: Any) -> None:
        config = RewardTransformConfig(scale=0.1, shift=1 / 3)
        goals = GoalRewards(make_env(POINT), config)
        spec = space_spec(make_env(POINT), goals)
        raw = HERReplayBuffer(spec, 8, goals, reward_transform=config)
        old = HERReplayBuffer(spec, 8, goals)
        rewards = [-1.0, 0.0, -1.0, -1.0]
        wrapped = rewards_of(apply_reward_wrappers(FixedRewardsEnv(rewards), config), 4)
        places = {"observation": np.zeros((5, 2)), "achieved_goal": np.zeros((5, 1)), "desired_goal": np.zeros((5, 1))}
        for buffer, values in ((raw, np.array(rewards, kind)), (old, np.array(wrapped))):
            if whole:
                buffer.add_episode(places, np.zeros((4, 1)), values)
                continue
            one = {key: value[:1] for key, value in places.items()}
            for t in range(4):
                ended = np.array([t == 3])
                buffer.add(one, np.zeros((1, 1)), values[t : t + 1], one, np.array([False]), ended)
        assert torch.equal(raw.ring.rows[:5], old.ring.rows[:5])
        stored = raw.ring.rows[:4, raw.ring.columns["reward"].start]
        np.testing.assert_array_equal(stored, np.array(wrapped, np.float32))


class TestRelabelling:
    @pytest.mark.parametrize("strategy", ["future", "final", "episode"])
    @pytest.mark.parametrize(
        "transform",
        [
            RewardTransformConfig(),
            RewardTransformConfig(scale=4.0, shift=1.0),
            RewardTransformConfig(scale=10.0, clip_min=-3.0),
            RewardTransformConfig(scale=-1.0, shift=0.5, clip_max=1.0),
        ],
    )
    def test_relabelled_rewards_pass_through_the_same_transform(
        self, strategy: Any, transform: RewardTransformConfig
    ) -> None:
        kwargs = {"wrappers": {"reward": transform.model_dump()}, "max_steps": 20}
        raw = PointGoal1DEnv(max_steps=20)
        env = make_env(POINT, kwargs)
        goals = GoalFunctions(make_env(POINT, kwargs), transform)
        hindsight = HindsightSettings(her_ratio=0.5, goal_selection_strategy=strategy)
        buffer = HERReplayBuffer(space_spec(env), 1000, goals, settings=hindsight)
        self._fill(buffer, env)
        batch = buffer.sample(400)
        position = batch.next_observations[:, 0].numpy()
        goal = batch.observations[:, 2].numpy()
        np.testing.assert_array_equal(goal, batch.next_observations[:, 2].numpy())
        # The recorded half went through the wrappers, the relabelled half through the function.
        expected = transform.apply(raw.compute_reward(position[:, None], goal[:, None], {}))
        np.testing.assert_allclose(batch.rewards.numpy(), expected, rtol=1e-6)
        assert goals.reward_range == transform.apply_range((-1.0, 0.0))
        assert set(batch.rewards[:200].tolist()) == {float(value) for value in goals.reward_range}

    @staticmethod
    def _fill(buffer: HERReplayBuffer, env: gym.Env[Any, Any]) -> None:
        env.action_space.seed(0)
        for seed in range(12):
            observation, _ = env.reset(seed=seed)
            done = False
            while not done:
                action = env.action_space.sample()
                after, reward, terminated, truncated, _ = env.step(action)
                done = terminated or truncated
                batched = [
                    {key: value[None] for key, value in observation.items()},
                    action[None],
                    np.array([reward]),
                    {key: value[None] for key, value in after.items()},
                    np.array([terminated]),
                    np.array([truncated]),
                ]
                buffer.add(*batched)  # type: ignore[arg-type]
                observation = after

    def test_a_run_learns_from_the_transformed_and_reports_the_raw_reward(self, tiny_config: Any) -> None:
        config = tiny_config(env_kwargs={"wrappers": {"reward": {"scale": 1000.0}}})
        seen: list[float] = []

        class Look(Callback):
            def on_training_end(self, trainer: Any) -> None:
                seen.extend(trainer.experience.sample(64).rewards.tolist())

        result = train_her(config, callbacks=[Look()])
        assert set(seen) <= {-1000.0, 0.0}
        assert -1000.0 in seen
        assert -50.0 <= result.metrics["eval/mean_reward"] <= 0.0
        returns = [
            row["rollout/ep_rew_mean"]
            for row in read_metrics(result.run_dir / "metrics.csv")
            if "rollout/ep_rew_mean" in row
        ]
        assert returns
        assert min(returns) >= -50.0  # raw, as the evaluation is
