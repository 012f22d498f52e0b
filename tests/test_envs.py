"""The environment factory: building, vectorising, refusing, and reading off spaces."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.envs import make_env, make_vector_env, space_spec
from rl_training.envs.workers import WorkerVectorEnv
from rl_training.errors import ConfigError, EnvError, MissingExtraError, RLTrainingError
from rl_training.types import SpaceSpec

POINT_1D, POINT_2D, BITS = "rl_training/PointGoal1D-v0", "rl_training/PointReach2D-v0", "rl_training/BitFlipping-v0"
BUILTIN: list[tuple[str, dict[str, Any]]] = [
    (POINT_1D, {}),
    (POINT_2D, {}),
    (POINT_2D, {"max_steps": 7, "dt": 0.1, "size": 2.0, "threshold": 0.2}),
    (BITS, {}),
    (BITS, {"n_bits": 5, "continuous": True}),
]
NEEDS_ROBOTICS = pytest.mark.skipif(
    importlib.util.find_spec("gymnasium_robotics") is None, reason="the robotics extra is not installed"
)


class ToyEnv(gym.Env[Any, Any]):
    """An environment with any two spaces, whose observations are samples of its space."""

    def __init__(self, observation_space: gym.Space[Any] | None = None, action_space: gym.Space[Any] | None = None):
        self.observation_space = observation_space or spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = action_space or spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, True, {}


def box(*shape: int, low: float = -1.0, high: float = 1.0) -> spaces.Box:
    return spaces.Box(low, high, shape, np.float32)


def play(env: gym.Env[Any, Any], seed: int, steps: int = 30) -> list[Any]:
    """Return everything seen in ``steps`` steps of seeded random play."""
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    seen: list[Any] = [observation]
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        seen.append((observation, reward, terminated, truncated, info))
        if terminated or truncated:
            observation, _ = env.reset()
            seen.append(observation)
    return seen


class TestBuiltin:
    @pytest.mark.parametrize(("env_id", "kwargs"), BUILTIN)
    def test_gymnasiums_checker_has_nothing_to_say(self, env_id: str, kwargs: dict[str, Any]) -> None:
        env = make_env(env_id, kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gymnasium_check_env(gym.make(env_id, disable_env_checker=True, **kwargs).unwrapped, skip_render_check=True)
        assert env.observation_space.contains(env.reset(seed=0)[0])
        env.close()

    @pytest.mark.parametrize(("env_id", "kwargs"), BUILTIN)
    def test_it_renders_frames_that_change(self, env_id: str, kwargs: dict[str, Any]) -> None:
        env = make_env(env_id, kwargs, render_mode="rgb_array")
        env.reset(seed=1)
        first = env.render()
        assert isinstance(first, np.ndarray)
        assert first.dtype == np.uint8
        assert first.ndim == 3
        assert first.shape[2] == 3
        action = np.ones(env.action_space.shape, np.float32) if isinstance(env.action_space, spaces.Box) else 0
        env.step(action)
        assert (env.render() != first).any()
        env.close()

    def test_without_a_mode_nothing_is_rendered(self) -> None:
        env = make_env(POINT_2D)
        env.reset(seed=0)
        assert env.unwrapped.render() is None

    @pytest.mark.parametrize(("env_id", "kwargs"), BUILTIN)
    def test_a_seed_decides_everything(self, env_id: str, kwargs: dict[str, Any]) -> None:
        one, two = make_env(env_id, kwargs), make_env(env_id, kwargs)
        np.testing.assert_equal(play(one, seed=5), play(two, seed=5))
        observations = [one.reset(seed=seed)[0]["observation"].tolist() for seed in range(10)]
        assert len({tuple(observation) for observation in observations}) > 5

    @pytest.mark.parametrize(("env_id", "kwargs"), BUILTIN)
    def test_every_observation_lies_in_its_space(self, env_id: str, kwargs: dict[str, Any]) -> None:
        env = make_env(env_id, kwargs)
        for item in play(env, seed=0, steps=200):
            observation = item[0] if isinstance(item, tuple) else item
            assert env.observation_space.contains(observation)

    def test_an_observation_is_not_changed_by_the_next_step(self) -> None:
        for env_id, kwargs in BUILTIN:
            env = make_env(env_id, kwargs)
            observation, _ = env.reset(seed=3)
            copy = {key: value.copy() for key, value in observation.items()}
            env.action_space.seed(0)
            for _ in range(3):
                env.step(env.action_space.sample())
            np.testing.assert_equal(observation, copy)


class TestRefusals:
    @pytest.mark.parametrize(
        ("env_id", "nearest"),
        [
            ("CartPole-v9", "CartPole-v1"),
            ("Pendulum", "Pendulum-v1"),
            ("PointReach2D-v0", POINT_2D),
            ("rl_training/PointReech2D-v0", POINT_2D),
            ("rl_training/BitFliping-v0", BITS),
        ],
    )
    def test_an_unknown_id_gets_the_nearest(self, env_id: str, nearest: str) -> None:
        with pytest.raises(EnvError) as caught:
            make_env(env_id)
        assert f"env_id {env_id!r}: no such environment" in str(caught.value)
        assert f"did you mean {nearest!r}?" in str(caught.value)

    @pytest.mark.parametrize("env_id", ["no_such_module:Env-v0", ":", ":Env-v0", ".relative:Env-v0"])
    def test_a_module_that_cannot_be_imported_is_named(self, env_id: str) -> None:
        with pytest.raises(EnvError) as caught:
            make_env(env_id)
        assert repr(env_id) in str(caught.value)

    def test_a_module_may_register_what_it_brings(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "brings_an_env.py").write_text(
            "import gymnasium\n"
            "gymnasium.register('Brought-v0', entry_point='rl_training.envs.builtin:PointGoal1DEnv')\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        env = make_env("brings_an_env:Brought-v0", {"max_steps": 3})
        assert env.unwrapped.max_steps == 3  # type: ignore[attr-defined]
        gym.registry.pop("Brought-v0")

    @pytest.mark.parametrize(
        ("env_id", "kwargs", "words"),
        [
            (POINT_2D, {"max_steps": 0}, "max_steps = 0"),
            (POINT_2D, {"threshold": -1.0}, "threshold = -1.0"),
            (POINT_2D, {"dt": 0}, "dt = 0"),
            (POINT_2D, {"size": float("nan")}, "size = nan"),
            (POINT_2D, {"max_steps": 2.5}, "max_steps"),
            (POINT_2D, {"max_steps": "many"}, "max_steps"),
            (POINT_2D, {"action_scale": "big"}, "action_scale"),
            (POINT_2D, {"dt": float("inf")}, "dt"),
            (POINT_2D, {"speed_limit": -1.0}, "speed_limit"),
            (BITS, {"n_bits": 0}, "n_bits = 0"),
            (BITS, {"n_bits": 2.5}, "n_bits"),
            (BITS, {"max_steps": -3}, "max_steps = -3"),
            ("Pendulum-v1", {"gravity": 9.8}, "gravity"),
        ],
    )
    def test_a_bad_argument_is_named_with_the_environment(
        self, env_id: str, kwargs: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(EnvError) as caught:
            make_env(env_id, kwargs)
        assert env_id in str(caught.value)
        assert words in str(caught.value)

    @pytest.mark.parametrize(
        ("kwargs", "nearest"),
        [({"max_step": 5}, "max_steps"), ({"treshold": 0.1}, "threshold"), ({"wrapper": {}}, "wrappers")],
    )
    def test_a_misspelt_argument_gets_the_nearest(self, kwargs: dict[str, Any], nearest: str) -> None:
        with pytest.raises((EnvError, ConfigError)) as caught:
            make_env(POINT_2D, kwargs)
        assert next(iter(kwargs)) in str(caught.value)
        assert f"did you mean {nearest!r}?" in str(caught.value)

    def test_a_robot_without_the_extra_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "gymnasium_robotics" else find_spec(name)
        )
        monkeypatch.delitem(gym.registry, "FetchReach-v4", raising=False)
        with pytest.raises(MissingExtraError, match=r"FetchReach-v4.*\[robotics\]"):
            make_env("FetchReach-v4")

    @pytest.mark.skipif(importlib.util.find_spec("Box2D") is not None, reason="Box2D is installed")
    def test_another_missing_package_is_not_called_the_robotics_extra(self) -> None:
        with pytest.raises(RLTrainingError) as caught:
            make_env("CarRacing-v3")
        assert "box2d" in str(caught.value).lower()
        assert "rl-training[robotics]" not in str(caught.value)


class TestSpaceSpec:
    def test_point_reach(self) -> None:
        assert space_spec(make_env(POINT_2D)) == SpaceSpec(observation_dim=4, action_dim=2, goal_dim=2)

    def test_point_goal(self) -> None:
        spec = space_spec(make_env(POINT_1D))
        assert (spec.observation_dim, spec.goal_dim, spec.policy_dim, spec.action_dim) == (2, 1, 3, 1)
        assert not spec.is_discrete

    def test_bit_flipping(self) -> None:
        spec = space_spec(make_env(BITS, {"n_bits": 6}))
        assert spec == SpaceSpec(observation_dim=6, action_dim=1, goal_dim=6, num_actions=6)
        assert spec.is_discrete
        assert space_spec(make_env(BITS, {"n_bits": 6, "continuous": True})) == SpaceSpec(6, 6, 6)

    def test_ordinary_tasks(self) -> None:
        assert space_spec(make_env("Pendulum-v1")) == SpaceSpec(3, 1, action_low=(-2.0,), action_high=(2.0,))
        assert space_spec(make_env("CartPole-v1")) == SpaceSpec(4, 1, num_actions=2)

    def test_bounds_are_kept_per_dimension(self) -> None:
        action = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
        assert space_spec(ToyEnv(action_space=action)) == SpaceSpec(
            3, 2, action_low=(-1.0, 0.0), action_high=(1.0, 5.0)
        )

    @pytest.mark.parametrize(
        ("observation", "action", "words"),
        [
            (spaces.Box(0, 255, (64, 64, 3), np.uint8), None, "images are not supported"),
            (box(3, 8, 8), None, "images are not supported"),
            (spaces.Box(0, 255, (8,), np.uint8), None, "images are not supported"),
            (box(4, 4), None, "expected a vector"),
            (box(), None, "expected a vector"),
            (box(0), None, "expected a vector"),
            (spaces.Discrete(5), None, "Discrete(5) is not supported"),
            (spaces.Tuple([box(2), box(2)]), None, "is not supported"),
            (spaces.MultiBinary(4), None, "is not supported"),
            (spaces.Dict({"observation": box(2), "goal": box(1)}), None, "found goal, observation"),
            (
                spaces.Dict({"observation": box(2), "achieved_goal": box(1), "desired_goal": box(2)}),
                None,
                "achieved_goal and desired_goal differ in size",
            ),
            (
                spaces.Dict({"observation": box(8, 8, 3), "achieved_goal": box(1), "desired_goal": box(1)}),
                None,
                "images are not supported",
            ),
            (
                spaces.Dict({"observation": box(2), "achieved_goal": spaces.Discrete(3), "desired_goal": box(1)}),
                None,
                "achieved_goal space Discrete(3) is not supported",
            ),
            (None, box(2, low=-np.inf, high=np.inf), "actions need finite bounds"),
            (None, box(2, low=0.0, high=np.inf), "actions need finite bounds"),
            (None, spaces.Discrete(3, start=1), "must start at 0"),
            (None, spaces.MultiDiscrete([2, 3]), "is not supported; expected Box or Discrete"),
            (None, spaces.MultiBinary(3), "is not supported; expected Box or Discrete"),
            (None, box(2, 2), "expected a vector"),
        ],
    )
    def test_what_cannot_be_learned_from_is_refused_with_the_reason(
        self, observation: Any, action: Any, words: str
    ) -> None:
        with pytest.raises(EnvError) as caught:
            space_spec(ToyEnv(observation, action))
        assert words in str(caught.value)
        assert "ToyEnv" in str(caught.value)

    def test_json_round_trip(self) -> None:
        spec = SpaceSpec(3, 2, 1, action_low=(-1.0, 0.0), action_high=(1.0, 5.0), reward_range=(-1.0, 0.0))
        assert SpaceSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
        discrete = SpaceSpec(3, 1, num_actions=4)
        assert SpaceSpec.from_json(json.loads(json.dumps(discrete.to_json()))) == discrete


UNIT = st.floats(-1, 1, width=32)
BOUND = st.floats(-100, 100, width=32)


class TestActions:
    @settings(deadline=None)
    @given(
        bounds=st.lists(st.tuples(BOUND, st.floats(0.015625, 100, width=32)), min_size=1, max_size=4), data=st.data()
    )
    def test_there_and_back(self, bounds: list[tuple[float, float]], data: Any) -> None:
        low, high = tuple(b for b, _ in bounds), tuple(b + w for b, w in bounds)
        spec = SpaceSpec(1, len(bounds), action_low=low, action_high=high)
        actions = np.array(data.draw(st.lists(UNIT, min_size=len(bounds), max_size=len(bounds))), np.float32)
        there = spec.to_env(actions)
        assert there.dtype == np.float32
        assert (there >= np.float32(low)).all()
        assert (there <= np.float32(high)).all()
        # Beside a bound of 100, float32 resolves steps of 1e-5, which are 1e-3 of the narrowest range.
        np.testing.assert_allclose(spec.to_policy(there), actions, atol=3e-3)
        batch = np.stack([actions, -actions])
        np.testing.assert_array_equal(spec.to_env(batch)[0], there)

    def test_the_ends_of_the_range_are_met_exactly(self) -> None:
        spec = SpaceSpec(1, 2, action_low=(-2.0, 0.0), action_high=(2.0, 10.0))
        np.testing.assert_array_equal(spec.to_env(np.array([[-1, -1], [1, 1], [0, 0]])), [[-2, 0], [2, 10], [0, 5]])
        np.testing.assert_array_equal(spec.to_policy(np.array([[-2, 0], [2, 10], [0, 5]])), [[-1, -1], [1, 1], [0, 0]])

    def test_what_lies_outside_is_clipped(self) -> None:
        spec = SpaceSpec(1, 1, action_low=(-2.0,), action_high=(2.0,))
        np.testing.assert_array_equal(spec.to_env(np.array([3.0])), [2.0])
        np.testing.assert_array_equal(spec.to_policy(np.array([-9.0])), [-1.0])
        np.testing.assert_array_equal(SpaceSpec(1, 1).to_policy(np.array([-9.0])), [-1.0])

    @settings(deadline=None)
    @given(actions=st.lists(UNIT, min_size=2, max_size=2))
    def test_unit_actions_are_left_as_they_are(self, actions: list[float]) -> None:
        array = np.array(actions, np.float32)
        spec = SpaceSpec(1, 2)
        np.testing.assert_array_equal(spec.to_env(array), array)
        np.testing.assert_array_equal(spec.to_policy(array), array)

    @settings(deadline=None)
    @given(indices=st.lists(st.integers(0, 17), min_size=1, max_size=5))
    def test_discrete_actions_lose_and_regain_their_axis(self, indices: list[int]) -> None:
        spec = SpaceSpec(1, 1, num_actions=18)
        inside = spec.to_policy(np.array(indices))
        assert inside.shape == (len(indices), 1)
        outside = spec.to_env(inside)
        assert outside.dtype == np.int64
        assert outside.tolist() == indices
        assert int(spec.to_env(inside[0])) == indices[0]


class TestVector:
    @pytest.mark.parametrize(("kind", "expected"), [("sync", SyncVectorEnv), ("async", WorkerVectorEnv)])
    def test_both_kinds_give_the_same_steps_and_close(self, kind: str, expected: type[Any]) -> None:
        others = set(multiprocessing.active_children())
        envs = make_vector_env(POINT_2D, {"vectorization": kind, "max_steps": 4}, 3)
        try:
            assert isinstance(envs, expected)
            assert envs.num_envs == 3
            assert envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED
            observations, _ = envs.reset(seed=[11, 12, 13])
            actions = np.full((3, 2), 0.5, np.float32)
            for step in range(4):
                observations, rewards, terminated, truncated, infos = envs.step(actions)
                assert truncated.tolist() == [step == 3] * 3
            for index, seed in enumerate([11, 12, 13]):
                single = make_env(POINT_2D, {"max_steps": 4})
                single.reset(seed=seed)
                for _ in range(4):
                    observation, reward, *_ = single.step(actions[index])
                np.testing.assert_array_equal(observations["observation"][index], observation["observation"])
                assert rewards[index] == reward
            assert not terminated.any()
            assert infos["is_success"].shape == (3,)
        finally:
            envs.close()
        assert set(multiprocessing.active_children()) == others

    def test_one_environment_can_be_reset_alone(self) -> None:
        envs = make_vector_env(POINT_1D, {}, 2)
        before, _ = envs.reset(seed=[1, 2])
        before = before["observation"].copy()
        after, _ = envs.reset(seed=[8, 9], options={"reset_mask": np.array([False, True])})
        np.testing.assert_array_equal(after["observation"][0], before[0])
        assert (after["observation"][1] != before[1]).any()
        envs.close()

    def test_sync_is_the_default(self) -> None:
        envs = make_vector_env("CartPole-v1", None, 2)
        assert isinstance(envs, SyncVectorEnv)
        envs.close()

    def test_the_settings_of_the_package_do_not_reach_the_environment(self) -> None:
        kwargs = {"wrappers": {"reward": {"scale": 2.0}}, "vectorization": "sync", "max_steps": 9}
        env = make_env(POINT_1D, kwargs)
        assert env.unwrapped.max_steps == 9  # type: ignore[attr-defined]
        assert kwargs == {"wrappers": {"reward": {"scale": 2.0}}, "vectorization": "sync", "max_steps": 9}


@NEEDS_ROBOTICS
class TestRobotics:
    def test_fetch_reach_is_known_and_plays(self) -> None:
        env = make_env("FetchReach-v4")
        assert space_spec(env) == SpaceSpec(observation_dim=10, action_dim=4, goal_dim=3)
        observation, _ = env.reset(seed=0)
        assert observation["desired_goal"].shape == (3,)
        _, reward, *_, info = env.step(np.zeros(4, np.float32))
        assert reward in (0.0, -1.0)
        assert "is_success" in info
        env.close()

    def test_a_misspelt_robot_gets_the_nearest(self) -> None:
        with pytest.raises(EnvError, match=r"FetchReech-v4.*did you mean 'FetchReach-v4'"):
            make_env("FetchReech-v4")


def test_robotics_tasks_that_cannot_be_imported_are_an_error_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo imports the graphics library that MUJOCO_GL names, and fails if there is none."""
    pytest.importorskip("gymnasium_robotics")

    def fail(name: str) -> Any:
        raise AttributeError("no glGetError")

    monkeypatch.setattr("rl_training.envs.factory.importlib.import_module", fail)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(EnvError, match=r"cannot be imported \(MUJOCO_GL = 'osmesa'\): AttributeError: no glGetError"):
        make_env("NoSuchTask-v0")


@pytest.mark.skipif(importlib.util.find_spec("panda_gym") is not None, reason="panda-gym is installed")
def test_panda_tasks_name_their_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"PandaPush-v3 needs an optional package: pip install .*panda"):
        make_env("PandaPush-v3")
