"""The evaluator on its own: what it plays, and what it makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import AWAC, BC, SAC, Learner
from rl_training.envs.factory import space_spec
from rl_training.runtime.evaluator import Evaluator
from scripted_env import ENV_ID, ScriptedEnv

SMALL = {"hidden_sizes": [8]}


def learner_of(learner_type: type[Learner] = SAC, **env_kwargs: Any) -> Learner:
    return learner_type(space_spec(ScriptedEnv(**env_kwargs)), SMALL, seed=3)


def scripted(evaluator: Evaluator) -> ScriptedEnv:
    env = evaluator.env.unwrapped
    assert isinstance(env, ScriptedEnv)
    return env


@pytest.mark.parametrize("learner_type", [SAC, AWAC])
def test_actions_are_the_policys_mode(learner_type: type[Learner]) -> None:
    learner = learner_of(learner_type)
    evaluator = Evaluator(ENV_ID, {"action_reward": 1.0}, episodes=3)
    state = learner.generator.get_state()
    first = evaluator.run(learner)
    played = list(scripted(evaluator).actions)
    assert evaluator.run(learner) == first
    assert torch.equal(learner.generator.get_state(), state)  # evaluating draws nothing, so it changes no run
    env = ScriptedEnv()
    expected = []
    for seed in scripted(evaluator).seeds[:3]:
        observation, _ = env.reset(seed=seed)
        for _ in range(4):
            action = learner.act(torch.from_numpy(observation)[None], deterministic=True).numpy()
            expected.append(learner.spec.to_env(action)[0])
            observation, *_ = env.step(expected[-1])
    np.testing.assert_allclose(played, expected, rtol=1e-5, atol=1e-6)
    assert first["eval/mean_reward"] == pytest.approx(10.0 + np.sum(expected, axis=0)[0] / 3, rel=1e-5)


def test_rewards_are_raw() -> None:
    kwargs = {"wrappers": {"reward": {"scale": 0.1, "shift": -5.0, "clip": [-1.0, 0.0]}}}
    assert Evaluator(ENV_ID, kwargs, episodes=1).run(learner_of())["eval/mean_reward"] == 10.0


def test_the_same_seeded_episodes_are_played_each_time() -> None:
    evaluator = Evaluator(ENV_ID, episodes=4, seed=5)
    learner = learner_of()
    for _ in range(2):
        evaluator.run(learner)
    seeds = scripted(evaluator).seeds
    assert len(seeds) == 8
    assert seeds[:4] == seeds[4:]
    assert len(set(seeds)) == 4
    other = Evaluator(ENV_ID, episodes=4, seed=6)
    other.run(learner)
    assert not set(scripted(other).seeds) & set(seeds)


def test_more_episodes_begin_with_the_same_ones() -> None:
    few, many = Evaluator(ENV_ID, episodes=2, seed=1), Evaluator(ENV_ID, episodes=5, seed=1)
    few.run(learner_of())
    many.run(learner_of())
    assert scripted(many).seeds[:2] == scripted(few).seeds


@pytest.mark.parametrize(
    ("successes", "rate"), [({4}, 1.0), ({1, 2, 3}, 0.0), (set(), 0.0), ({1, 2, 3, 4}, 1.0), (None, None)]
)
def test_success_is_that_of_the_last_step(successes: set[int] | None, rate: float | None) -> None:
    metrics = Evaluator(ENV_ID, {"successes": successes}, episodes=3).run(learner_of())
    assert metrics.get("eval/success_rate") == rate


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_both_kinds_of_end_end_an_episode(ends: str) -> None:
    metrics = Evaluator(ENV_ID, {"length": 6, "ends": ends}, episodes=2).run(learner_of())
    assert metrics == {"eval/mean_reward": 21.0, "eval/std_reward": 0.0, "eval/mean_ep_length": 6.0}


def test_mean_std_and_length_are_over_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = Evaluator(ENV_ID, episodes=3)
    lengths = iter([1, 2, 4])
    env = scripted(evaluator)
    reset = env.reset

    def with_length(**options: Any) -> Any:
        env.length = next(lengths)
        return reset(**options)

    monkeypatch.setattr(env, "reset", with_length)
    metrics = evaluator.run(learner_of())
    returns = [1.0, 3.0, 10.0]
    assert metrics["eval/mean_reward"] == pytest.approx(np.mean(returns))
    assert metrics["eval/std_reward"] == pytest.approx(np.std(returns))
    assert metrics["eval/mean_ep_length"] == pytest.approx(7 / 3)


def test_the_normalised_score_is_on_the_scale_of_its_references() -> None:
    scored = Evaluator(ENV_ID, episodes=1, reference=(5.0, 25.0)).run(learner_of())
    assert scored["eval/normalized_score"] == pytest.approx(25.0)
    assert "eval/normalized_score" not in Evaluator(ENV_ID, episodes=1).run(learner_of())


def test_on_step_is_called_after_every_reset_and_step() -> None:
    evaluator = Evaluator(ENV_ID, {"length": 3}, episodes=2)
    calls: list[tuple[int, int]] = []
    evaluator.run(learner_of(), on_step=lambda episode: calls.append((episode, scripted(evaluator).t)))
    assert calls == [(episode, t) for episode in (0, 1) for t in range(4)]


def test_discrete_policies_and_goal_tasks_are_evaluated_too() -> None:
    discrete = Evaluator(ENV_ID, {"discrete": True}, episodes=1)
    discrete.run(learner_of(BC, discrete=True))
    assert all(action.shape == () and 0 <= action < 4 for action in scripted(discrete).actions)
    goals = Evaluator(ENV_ID, {"goals": True}, episodes=1)
    assert goals.run(learner_of(goals=True))["eval/mean_reward"] == 10.0
