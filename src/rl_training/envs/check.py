"""``rl-training check-env``: whether an environment is fit for hindsight, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.factory import make_env, space_spec
from rl_training.envs.goals import GOAL_KEYS, SUCCESS_KEYS, GoalFunctions, is_goal_space, sample_goal_pairs
from rl_training.errors import EnvError


@dataclass
class EnvReport:
    """What was found: ``facts``, ``warnings`` (what costs speed or insight) and ``problems`` (what rules HER out)."""

    env_id: str
    facts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def fit_for_her(self) -> bool:
        """Whether nothing rules hindsight out."""
        return not self.problems


def check_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None, seed: int = 0) -> EnvReport:
    """Examine an environment: keys, shapes, the three compute functions on a batch and one by one, and success."""
    report = EnvReport(env_id)
    env = make_env(env_id, env_kwargs, raw_reward=True)
    try:
        _check_spaces(env, report)
        _check_success(env, report, seed)
        if not report.problems:
            _check_functions(env, report, seed)
    finally:
        env.close()
    return report


def _check_spaces(env: gym.Env[Any, Any], report: EnvReport) -> None:
    try:
        spec = space_spec(env)
    except EnvError as error:
        report.problems.append(str(error))
        return
    kind = f"{spec.num_actions} discrete" if spec.is_discrete else f"{spec.action_dim} continuous"
    report.facts["spaces"] = f"observation {spec.observation_dim}, goal {spec.goal_dim}, actions {kind}"
    if not is_goal_space(env.observation_space):
        report.problems.append(
            f"observations are {env.observation_space}; hindsight needs a Dict of {', '.join(GOAL_KEYS)}"
        )
        return
    for name in ("compute_reward", "compute_terminated", "compute_truncated"):
        report.facts[name] = "present" if env.has_wrapper_attr(name) else "absent"
    if not env.has_wrapper_attr("compute_reward"):
        report.problems.append("there is no method compute_reward(achieved_goal, desired_goal, info)")
    if not env.has_wrapper_attr("compute_terminated"):
        report.warnings.append("no compute_terminated: relabelled transitions keep the termination that was recorded")


def _check_success(env: gym.Env[Any, Any], report: EnvReport, seed: int) -> None:
    """Play one random episode (at most 1,000 steps) and look at the rewards and at the last info."""
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    goal_task = is_goal_space(env.observation_space)
    compute_reward = env.get_wrapper_attr("compute_reward") if env.has_wrapper_attr("compute_reward") else None
    info: dict[str, Any] = {}
    disagreements, steps, done = 0, 0, False
    while not done and steps < 1000:
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        steps, done = steps + 1, terminated or truncated
        if goal_task and compute_reward is not None:
            try:
                asked = np.asarray(compute_reward(observation["achieved_goal"], observation["desired_goal"], info))
            except Exception as error:  # whatever a foreign function raises, it is a finding
                report.problems.append(f"compute_reward failed on the environment's own goals: {error!r}")
                return
            disagreements += asked.size != 1 or not np.isclose(float(asked.reshape(())), float(reward), atol=1e-6)
    found = [key for key in SUCCESS_KEYS if key in info]
    report.facts["success"] = f"info[{found[0]!r}]" if found else "not reported"
    if not found:
        report.warnings.append("the last info has neither is_success nor success: no success rate can be shown")
    report.facts["random episode"] = f"{steps} steps" + ("" if done else " and still going")
    if disagreements:
        report.problems.append(
            f"compute_reward disagrees with the reward of step() in {disagreements} of {steps} steps"
        )
    if not done:
        report.problems.append("a random episode did not end within 1,000 steps; hindsight learns from whole episodes")


def _check_functions(env: gym.Env[Any, Any], report: EnvReport, seed: int) -> None:
    try:
        functions = GoalFunctions(env, seed=seed)
    except EnvError as error:
        report.problems.append(str(error))
        return
    for name in ("compute_reward", "compute_terminated"):
        if report.facts[name] == "present":
            slow = name in functions.slow
            report.facts[name] = "one by one only" if slow else "batched, agrees with one by one"
            if slow:
                report.warnings.append(f"{name} is wrong on batches: hindsight will call it one by one, which is slow")
    if report.facts["compute_truncated"] == "present":
        achieved, desired = sample_goal_pairs(env, seed=seed)
        truncated = env.get_wrapper_attr("compute_truncated")
        problem = ""
        try:
            single = [bool(truncated(a, d, {})) for a, d in zip(achieved, desired, strict=True)]
            agrees = np.array_equal(
                np.broadcast_to(np.asarray(truncated(achieved, desired, {}), bool), len(single)), single
            )
        except Exception as error:  # whatever a foreign function raises
            agrees, problem = False, f", it fails with {error!r}"
        verdict = "batched, agrees with one by one" if agrees else f"not on batches (it is not used{problem})"
        report.facts["compute_truncated"] = verdict
    low_high = functions.reward_range
    report.facts["reward"] = f"sparse, {low_high[0]:g} or {low_high[1]:g}" if low_high else "dense or constant"
    threshold = functions.distance_threshold
    report.facts["distance threshold"] = f"{threshold:g}" if threshold else "not named (episode_priority is uniform)"
