"""Components of the action without effect, and the target entropy that leaves them out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.algorithms import SAC
from rl_training.config import parse_config
from rl_training.envs.builtin import BitFlippingEnv, PointReachGoalEnv
from rl_training.envs.check import check_env
from rl_training.envs.factory import space_spec
from rl_training.envs.idle_actions import find_idle_actions
from rl_training.errors import ConfigError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import resume, train
from rl_training.types import SpaceSpec

ENV_ID, NOISY_ID = "tests/Blocked-v0", "tests/Noisy-v0"


class Blocked(gym.ActionWrapper[Any, Any, Any]):
    """PointReach2D with a third component of the action, the second one, which does nothing."""

    def __init__(self) -> None:
        super().__init__(PointReachGoalEnv())
        self.action_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)

    def action(self, action: Any) -> Any:
        return action[[0, 2]]


class Rewarded(Blocked):
    """The second component costs something, which only the reward shows."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, float(reward) - 0.1 * abs(float(action[1])), *rest


class Noisy(Blocked):
    """Its observations have noise that no seed repeats."""

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return {
            **observation,
            "observation": observation["observation"] + np.random.default_rng().normal(size=4),
        }, *rest


class Deaf(Blocked):
    """No component has an effect."""

    def action(self, action: Any) -> Any:
        return np.zeros(2, np.float32)


for name, env_class in ((ENV_ID, Blocked), (NOISY_ID, Noisy)):
    if name not in gym.registry:
        gym.register(name, entry_point=env_class)


def idle(env: gym.Env[Any, Any]) -> tuple[int, ...] | None:
    return find_idle_actions(env, space_spec(env))


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (Blocked, (1,)),
        (PointReachGoalEnv, ()),
        (Rewarded, ()),
        (Noisy, None),
        (Deaf, ()),
        (BitFlippingEnv, ()),
        (lambda: BitFlippingEnv(n_bits=4, continuous=True), ()),
    ],
)
def test_a_component_is_idle_if_nothing_depends_on_it(env: Any, expected: tuple[int, ...] | None) -> None:
    assert idle(env()) == expected


def test_check_env_names_idle_components() -> None:
    assert check_env(ENV_ID).facts["idle actions"] == "2 (these components of the action have no effect)"
    assert check_env(NOISY_ID).facts["idle actions"] == "unknown: a seed and actions do not repeat an episode"
    assert "idle actions" not in check_env("rl_training/PointReach2D-v0").facts


def test_the_target_entropy_counts_components_with_an_effect() -> None:
    def target(spec: SpaceSpec, **options: Any) -> float:
        return SAC(spec, {"hidden_sizes": [8], **options}).target_entropy

    free, blocked = SpaceSpec(3, 4), SpaceSpec(3, 4, idle_actions=(1, 3))
    assert target(free, entropy_per_action=-0.25) == -1.0
    assert target(blocked, entropy_per_action=-0.25) == pytest.approx(-0.5 + 2 * math.log(2))
    assert target(blocked) == -4.0
    assert target(blocked, target_entropy=1.5) == 1.5


def test_two_target_entropies_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"target_entropy = -1 and entropy_per_action = -0.5: expected one of them"):
        SAC(SpaceSpec(3, 2), {"target_entropy": -1.0, "entropy_per_action": -0.5})


def config(folder: Path, algo: str = "her", env_id: str = ENV_ID, **options: Any) -> Any:
    backend = {"backend": "sac"} if algo == "her" else {}
    return parse_config(
        {
            "algo": algo,
            "env_id": env_id,
            "total_timesteps": 160,
            "eval_episodes": 1,
            "output_dir": str(folder),
            "algo_kwargs": {**backend, "hidden_sizes": [8], "batch_size": 16, "learning_starts": 60, **options},
        }
    )


class Seen(Callback):
    """Keeps the learner of a run."""

    learner: Any

    def on_step(self, trainer: Any) -> None:
        self.learner = trainer.learner


@pytest.mark.parametrize("algo", ["her", "sac"])
def test_a_run_leaves_idle_components_out_and_so_does_its_continuation(tmp_path: Path, algo: str) -> None:
    first, second = Seen(), Seen()
    result = train(config(tmp_path, algo, entropy_per_action=-0.25), [first])
    resume(result.run_dir, [second], overrides=["total_timesteps=200"])
    for run in (first, second):
        assert run.learner.spec.idle_actions == (1,)
        assert run.learner.target_entropy == pytest.approx(-0.5 + math.log(2))


@pytest.mark.parametrize("options", [{"target_entropy": -1.0}, {"entropy_per_action": -1.0, "alpha": 0.1}])
def test_environments_are_played_only_for_a_target_that_needs_it(tmp_path: Path, options: dict[str, float]) -> None:
    seen = Seen()
    train(config(tmp_path, **options), [seen])
    assert seen.learner.spec.idle_actions == ()


def test_a_run_says_if_it_cannot_find_idle_components(tmp_path: Path) -> None:
    seen = Seen()
    with pytest.warns(UserWarning, match="a seed and actions do not repeat an episode"):
        train(config(tmp_path, env_id=NOISY_ID, entropy_per_action=-0.25), [seen])
    assert seen.learner.target_entropy == -0.75


def test_a_continuation_says_that_other_components_are_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train(config(tmp_path, entropy_per_action=-0.25))
    monkeypatch.setattr("rl_training.runtime.build.find_idle_actions", lambda *_: (0, 1))
    seen = Seen()
    with pytest.warns(UserWarning, match=r"were \[1\] and are \[0, 1\] now, .* not exact"):
        resume(result.run_dir, [seen], overrides=["total_timesteps=200"])
    assert seen.learner.spec.idle_actions == (0, 1)
