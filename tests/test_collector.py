"""The collector on its own, in environments whose every number is known."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.algorithms import DDPG, DQN, SAC, TD3, Learner
from rl_training.data import ReplayBuffer
from rl_training.data.goal_cells import GoalCells
from rl_training.envs.builtin import PointReachGoalEnv
from rl_training.envs.factory import space_spec
from rl_training.envs.goals import GoalRewards
from rl_training.runtime.collector import Collector, Transition
from rl_training.runtime.exploration import Exploration, ExplorationSettings
from rl_training.runtime.practice import Practice
from rl_training.seeding import stream_seed
from rl_training.types import SpaceSpec, flatten_goal_observation
from scripted_env import HIGH, LOW, ScriptedEnv

SMALL = {"hidden_sizes": [8]}


def make_collector(
    *envs: ScriptedEnv, learner: type[Learner] = DDPG, seed: int = 7, options: Any = None, **exploration: Any
) -> Collector:
    vector = SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.DISABLED)
    built = learner(space_spec(envs[0]), SMALL | (options or {}), seed=1)
    return Collector(vector, built, ExplorationSettings(**exploration), seed)


def still(collector: Collector, factor: float = 0.0) -> Collector:
    """Multiply the policy's output before its tanh. At 0, exploration alone decides the actions."""
    for name, value in collector.learner.named_parameters():
        if "actor" in name and "output" in name:
            value.data.mul_(factor)
    return collector


def collect(collector: Collector, steps: int, *, random: bool = False, progress: float = 0.0) -> list[Transition]:
    # Copies: a vector environment may write the next observation into the same array.
    return [copy.deepcopy(collector.step(progress, random)) for _ in range(steps)]


def actions_of(transitions: list[Transition]) -> np.ndarray:
    return np.concatenate([transition.actions for transition in transitions])


# Exploration


@pytest.mark.parametrize("std", [0.05, 0.3])
def test_noise_has_the_configured_std(std: float) -> None:
    collector = still(make_collector(*(ScriptedEnv() for _ in range(20)), exploration_noise=std))
    noise = actions_of(collect(collector, 60))
    assert noise.shape == (1200, 2)
    assert noise.std() == pytest.approx(std, rel=0.05)
    assert noise.mean() == pytest.approx(0.0, abs=0.05 * std + 0.01)
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.1


@pytest.mark.parametrize(("learner", "std"), [(DDPG, 0.1), (TD3, 0.1)])
def test_without_a_setting_the_learners_own_noise_is_used(learner: type[Learner], std: float) -> None:
    noise = actions_of(collect(still(make_collector(*(ScriptedEnv() for _ in range(20)), learner=learner)), 30))
    assert noise.std() == pytest.approx(std, rel=0.1)


def test_noise_is_added_to_the_policys_action_and_stays_in_bounds() -> None:
    envs = [ScriptedEnv(tag=float(index)) for index in range(10)]
    collector = still(make_collector(*envs, exploration_noise=0.2), 0.2)  # far from the bounds
    steps = collect(collector, 40)
    own = torch.cat([collector.learner.act(torch.from_numpy(t.observations)) for t in steps]).numpy()
    assert np.abs(own).max() > 0.05
    assert (actions_of(steps) - own).std() == pytest.approx(0.2, rel=0.1)
    wild = actions_of(collect(make_collector(*(ScriptedEnv() for _ in range(5)), exploration_noise=5.0), 10))
    assert np.abs(wild).max() == 1.0
    assert wild.dtype == np.float32


def test_without_noise_the_action_is_the_policys_own() -> None:
    collector = make_collector(ScriptedEnv(), ScriptedEnv(tag=1.0), exploration_noise=0.0)
    for transition in collect(collector, 6):
        expected = collector.learner.act(torch.from_numpy(transition.observations))
        np.testing.assert_array_equal(transition.actions, expected.numpy())


def test_a_stochastic_policy_is_sampled_while_collecting() -> None:
    collector = make_collector(ScriptedEnv(), learner=SAC)
    generator = collector.learner.generator.clone_state()
    (transition,) = collect(collector, 1)
    inputs = torch.from_numpy(transition.observations)
    expected = collector.learner.model.actor.sample(inputs, generator)[0]
    np.testing.assert_array_equal(transition.actions, expected.detach().numpy())
    assert not np.array_equal(transition.actions, collector.learner.act(inputs).numpy())


def test_a_share_of_the_actions_is_random() -> None:
    collector = make_collector(*(ScriptedEnv() for _ in range(20)), exploration_noise=0.0, random_action_prob=0.25)
    actions = actions_of(collect(still(collector), 60))
    is_random = (actions != 0).any(axis=1)
    assert is_random.mean() == pytest.approx(0.25, abs=0.05)
    assert (actions[is_random] != 0).all()  # the whole action, not one of its numbers
    assert actions[is_random].std() == pytest.approx(1 / np.sqrt(3), rel=0.1)  # uniform over [-1, 1]


def test_the_share_of_random_actions_follows_its_schedule() -> None:
    schedule = {"kind": "linear", "start": 1.0, "end": 0.0, "fraction": 0.5}
    envs = [ScriptedEnv() for _ in range(20)]
    collector = still(make_collector(*envs, exploration_noise=0.0, random_action_prob=schedule))
    assert (actions_of(collect(collector, 5, progress=0.0)) != 0).all()
    assert (actions_of(collect(collector, 20, progress=0.25)) != 0).mean() == pytest.approx(0.5, abs=0.1)
    assert (actions_of(collect(collector, 5, progress=0.5)) == 0).all()


def test_the_random_phase_does_not_ask_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = make_collector(*(ScriptedEnv() for _ in range(20)))
    monkeypatch.setattr(collector.learner, "act", lambda *_, **__: pytest.fail("the policy was asked"))
    actions = actions_of(collect(collector, 30, random=True))
    assert actions.min() < -0.95
    assert actions.max() > 0.95
    assert actions.std() == pytest.approx(1 / np.sqrt(3), rel=0.05)


def test_discrete_actions_are_indices_and_get_no_noise() -> None:
    envs = [ScriptedEnv(discrete=True) for _ in range(10)]
    collector = make_collector(*envs, learner=DQN, exploration_noise=0.5, random_action_prob=0.0)
    for transition in collect(collector, 4):
        expected = collector.learner.act(torch.from_numpy(transition.observations))
        np.testing.assert_array_equal(transition.actions, expected.numpy())
    assert set(actions_of(collect(collector, 20, random=True)).ravel()) == {0.0, 1.0, 2.0, 3.0}
    assert all(action.dtype == np.int64 and action.shape == () for env in envs for action in env.actions)


def test_a_discrete_learner_explores_by_random_actions_of_its_own_probability() -> None:
    collector = make_collector(*(ScriptedEnv(discrete=True) for _ in range(30)), learner=DQN)
    steps = collect(collector, 40)
    own = torch.cat([collector.learner.act(torch.from_numpy(t.observations)) for t in steps]).numpy()
    assert (actions_of(steps) != own).mean() == pytest.approx(0.1 * 3 / 4, abs=0.025)  # a quarter repeats the own one


def test_actions_are_stored_in_the_policys_units_and_played_in_the_environments() -> None:
    env = ScriptedEnv()
    stored = actions_of(collect(make_collector(env, exploration_noise=0.5), 12))
    assert np.abs(stored).max() <= 1.0
    low, high = np.array(LOW), np.array(HIGH)
    np.testing.assert_allclose(env.actions, low + (stored + 1) / 2 * (high - low), rtol=1e-5, atol=1e-6)


# Episodes


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_a_time_out_is_not_a_termination(ends: str) -> None:
    collector = make_collector(ScriptedEnv(length=3, ends=ends))
    buffer = ReplayBuffer(collector.spec, 100)
    steps = collect(collector, 9)
    for number, transition in enumerate(steps, start=1):
        assert transition.terminated.tolist() == [number % 3 == 0 and ends == "terminated"]
        assert transition.truncated.tolist() == [number % 3 == 0 and ends == "truncated"]
        buffer.add(*transition)
    assert buffer.sample(200).terminated.max().item() == float(ends == "terminated")


def test_no_transition_crosses_the_end_of_an_episode() -> None:
    envs = [ScriptedEnv(length=3, tag=0.0), ScriptedEnv(length=5, tag=1.0, ends="truncated")]
    steps = collect(make_collector(*envs), 31)
    for index, length in enumerate((3, 5)):
        for number, transition in enumerate(steps):
            before, after = transition.observations[index], transition.next_observations[index]
            assert before[0] == after[0] == index
            assert before[1] == after[1]  # the same episode
            assert (before[2], after[2]) == (number % length, number % length + 1)  # the true final one included
            assert transition.rewards[index] == after[2]
            ended = bool(transition.terminated[index] | transition.truncated[index])
            assert ended == (after[2] == length)
        draws = [transition.observations[index][1] for transition in steps]
        assert len(set(draws)) == -(-31 // length)
        for (before, after), step in zip(itertools.pairwise(draws), steps, strict=False):
            assert (before != after) == bool(step.terminated[index] | step.truncated[index])


def test_every_episode_has_a_seed_of_its_own() -> None:
    envs = [ScriptedEnv(length=2), ScriptedEnv(length=3)]
    collect(make_collector(*envs, seed=11), 12)
    for index, (env, episodes) in enumerate(zip(envs, (7, 5), strict=True)):
        assert env.seeds == [stream_seed(11, index, number) for number in range(episodes)]
    assert len({seed for env in envs for seed in env.seeds}) == 12
    assert stream_seed(11, 0, 1) != stream_seed(12, 0, 1)


def test_records_hold_return_length_and_success() -> None:
    envs = [ScriptedEnv(length=3, successes={3}), ScriptedEnv(length=4, successes={1, 2, 3})]
    collector = make_collector(*envs)
    assert collector.rollout_metrics() == {}
    collect(collector, 12)
    assert sorted(record[:3] for record in collector.finished) == [(6.0, 3, True)] * 4 + [(10.0, 4, False)] * 3
    assert {(record.length, record.environment) for record in collector.finished} == {(3, 0), (4, 1)}
    assert collector.rollout_metrics() == {
        "rollout/ep_rew_mean": pytest.approx(54 / 7),
        "rollout/ep_len_mean": pytest.approx(24 / 7),
        "rollout/success_rate": pytest.approx(4 / 7),
    }


def test_success_is_unknown_where_it_is_not_reported() -> None:
    collector = make_collector(ScriptedEnv(length=2))
    collect(collector, 4)
    assert [record.success for record in collector.finished] == [None, None]
    assert "rollout/success_rate" not in collector.rollout_metrics()


def test_the_last_hundred_episodes_count() -> None:
    env = ScriptedEnv(length=1)
    collector = make_collector(env)
    collect(collector, 100)
    env.action_reward = 100.0
    collect(still(collector), 50)
    assert len(collector.finished) == 100
    assert sum(record.reward == 1.0 for record in collector.finished) == 50


# Normalisation


def test_every_observation_reaches_the_normaliser_once() -> None:
    collector = make_collector(
        ScriptedEnv(length=3), ScriptedEnv(length=5, tag=1.0), options={"normalize_observations": True}
    )
    steps = collect(collector, 10)
    seen = np.concatenate([transition.observations for transition in steps])
    normalizer = collector.learner.normalizer
    assert normalizer.count.item() == 20
    np.testing.assert_allclose(normalizer.mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.variance, seen.var(0), rtol=1e-5)


def test_achieved_goals_reach_the_normaliser_as_well() -> None:
    """Hindsight makes goals of them, so their scale counts as much as that of the desired ones: 5 and 1 here."""
    collector = make_collector(ScriptedEnv(goals=True), options={"normalize_observations": True})
    collect(collector, 10)
    assert collector.learner.normalizer.mean[-1].item() == pytest.approx(3.0)
    assert collector.learner.normalizer.variance[-1].item() == pytest.approx(4.0)


def test_the_policy_acts_on_normalised_observations() -> None:
    envs = [ScriptedEnv(length=9, tag=100.0 * index) for index in range(3)]
    collector = make_collector(*envs, options={"normalize_observations": True}, exploration_noise=0.0)
    transition = collect(collector, 5)[-1]
    learner, seen = collector.learner, torch.from_numpy(transition.observations)
    normalizer = learner.normalizer
    inputs = (seen - normalizer.mean) / normalizer.variance.sqrt().clamp_min(1e-3)
    expected = learner.model.actor(inputs.float().clamp(-10, 10)).detach().numpy()
    np.testing.assert_allclose(transition.actions, expected, rtol=1e-4, atol=1e-5)


def test_goal_tasks_show_the_policy_the_desired_goal() -> None:
    collector = make_collector(ScriptedEnv(goals=True), exploration_noise=0.0)
    (transition,) = collect(collector, 1)
    inputs = torch.from_numpy(flatten_goal_observation(transition.observations))
    assert inputs[0, -1] == 1.0
    np.testing.assert_array_equal(transition.actions, collector.learner.act(inputs).numpy())


# Resume


@pytest.mark.parametrize("steps", [0, 1, 7, 15])
def test_open_episodes_are_restored(steps: int) -> None:
    def build() -> Collector:
        envs = [ScriptedEnv(length=4, successes={4}), ScriptedEnv(length=5, tag=1.0), ScriptedEnv(length=50, tag=2.0)]
        return make_collector(*envs, exploration_noise=0.3, random_action_prob=0.2)

    whole, begun = build(), build()
    collect(whole, steps)
    collect(begun, steps)
    state = copy.deepcopy(begun.state_dict())
    resumed = build()
    assert resumed.load_state_dict(state) == []
    assert [record[:3] for record in resumed.finished] == [record[:3] for record in whole.finished]
    for expected, found in zip(collect(whole, 12), collect(resumed, 12), strict=True):
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_array_equal(a, b)
    assert [record[:3] for record in resumed.finished] == [record[:3] for record in whole.finished]


def test_an_environment_that_does_not_repeat_its_episode_starts_another() -> None:
    collector = make_collector(ScriptedEnv(length=9), ScriptedEnv(length=9))
    collect(collector, 4)
    state = copy.deepcopy(collector.state_dict())
    changed = make_collector(ScriptedEnv(length=9), ScriptedEnv(length=9, tag=3.0))
    assert changed.load_state_dict(state) == [1]
    (transition,) = collect(changed, 1)
    assert transition.observations[:, 2].tolist() == [4.0, 0.0]
    assert changed.envs.envs[1].unwrapped.seeds[-1] == stream_seed(7, 1, 1)
    collect(changed, 8)
    assert [(record.reward, record.length) for record in changed.finished] == [(45.0, 9), (45.0, 9)]


def test_another_number_of_environments_is_refused() -> None:
    state = make_collector(ScriptedEnv(), ScriptedEnv()).state_dict()
    with pytest.raises(ValueError, match="1 environments, the stored run had 2"):
        make_collector(ScriptedEnv()).load_state_dict(state)


# Correlated noise


@pytest.mark.parametrize(("share", "period"), [(0.5, 2), (0.25, 4)])
def test_noise_is_correlated_in_a_share_of_the_episodes(share: float, period: int) -> None:
    settings = {"noise_correlation": 0.9, "correlated_episodes": share}
    collector = still(make_collector(*(ScriptedEnv(length=50) for _ in range(8)), **settings))
    noises = []
    for _ in range(200):
        collector.step(0.0, random=False)
        noises.append(collector.exploration.drift.copy())
    steps = np.stack(noises).reshape(4, 50, 8, 2)  # [episodes, steps, environments, actions]
    for episode in range(4):
        for index in range(8):
            one = steps[episode, :, index]
            found = np.mean([np.corrcoef(one[:-1, k], one[1:, k])[0, 1] for k in range(2)])
            assert (found > 0.5) == ((episode + index) % period == period - 1)
    assert steps.std() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("share", "found"), [(None, [False, True]), (0.0, [False, False]), (1.0, [True, True])])
def test_episodes_that_practise_can_have_a_share_of_their_own(share: float | None, found: list[bool]) -> None:
    settings = ExplorationSettings(noise_correlation=0.9, correlated_episodes=0.5, correlated_practice=share)
    exploration = Exploration(settings, {}, SpaceSpec(3, 2), 4, np.random.default_rng(0))
    practising = np.array([False, False, True, True])
    episodes = np.array([0, 1, 0, 1])
    assert exploration.is_correlated(episodes, practising).tolist() == [False, True, *found]


@pytest.mark.parametrize("practises", [False, True])
def test_the_noise_of_a_step_is_that_of_its_goal(practises: bool) -> None:
    env = PointReachGoalEnv(max_steps=200)
    goals = GoalRewards(env)
    practice = Practice(GoalCells(2, 10.0), goals, 1, nearest=False)
    vector = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.DISABLED)
    settings = ExplorationSettings(noise_correlation=0.95, correlated_episodes=0.0, correlated_practice=1.0)
    collector = Collector(vector, DDPG(space_spec(env, goals), SMALL), settings, 0, practice)
    collector.inputs()
    practice.active[:] = practises
    noises = []
    for _ in range(150):
        collector.step(0.0, random=False)
        noises.append(collector.exploration.drift[0].copy())
    found = np.corrcoef(np.ravel(noises[:-1]), np.ravel(noises[1:]))[0, 1]
    assert (found > 0.5) == practises


@pytest.mark.parametrize("learner", [SAC, DDPG])
def test_the_actions_have_the_correlated_noise(learner: type[Learner]) -> None:
    collector = still(make_collector(ScriptedEnv(length=50), learner=learner, noise_correlation=0.9))
    noises, actions = [], []
    for _ in range(40):
        actions.append(collector.step(0.0, random=False).actions[0])
        noises.append(collector.exploration.drift[0].copy())
    assert np.corrcoef(np.ravel(noises), np.ravel(actions))[0, 1] > 0.95


# Goals that give way to others


@pytest.mark.parametrize(("tolerance", "reward"), [(10.0, 0.0), (1e-6, -1.0)])
def test_a_held_goal_gives_way_without_a_reset(tolerance: float, reward: float) -> None:
    """For the buffer an episode ends and another one starts; the environment's own episode goes on."""
    env = PointReachGoalEnv(max_steps=12, distance_threshold=tolerance)
    goals = GoalRewards(env)
    practice = Practice(GoalCells(2, 10.0), goals, 1, nearest=False, hold=3)  # every goal counts as held at once
    vector = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.DISABLED)
    collector = Collector(vector, DDPG(space_spec(env, goals), SMALL), ExplorationSettings(), 0, practice)
    far = np.array([30.0, 0.0], np.float32)  # the goal of an earlier episode
    collector.inputs()
    practice._earlier = [far]
    own = collector._observations["desired_goal"][0].copy()
    steps = collect(collector, 12)
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True] + [False] * 8 + [True]
    assert not any(step.terminated[0] for step in steps)
    for index, step in enumerate(steps):
        expected = own if index < 3 else far
        for observation in (step.observations, step.next_observations):  # one goal within a transition
            np.testing.assert_array_equal(observation["desired_goal"][0], expected)
        assert step.rewards[0] == (reward if index < 3 else -1.0)
    for before, after in itertools.pairwise(steps):
        np.testing.assert_array_equal(before.next_observations["observation"], after.observations["observation"])
    (record,) = collector.ended
    assert (record.length, record.success) == (12, True)  # one episode of the environment, and its goal was reached
