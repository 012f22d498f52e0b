"""``rl-training check-env``: whether hindsight can learn in an environment, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.envs.factory import make_raw_env, space_spec
from rl_training.envs.goals import GOAL_KEYS, SUCCESS_KEYS, GoalRewards, is_goal_space, sample_goal_pairs
from rl_training.envs.idle_actions import find_idle_actions
from rl_training.envs.play import Step, play
from rl_training.errors import EnvError

_EPISODES = 20  # episodes of random play; fewer if they are long
_ENOUGH_STEPS = 2_000  # no further episode is started after this many steps
_EPISODE_STEPS = 1_000  # a longer episode counts as endless
_FEW_MOVE = 0.2  # the report gives advice if a smaller share of random episodes moves the achieved goal

_OUTCOMES = [
    ("compute_reward", "the reward", "reward"),
    ("compute_terminated", "the termination", "terminated"),
]  # the function, the name of the value it is compared with, and the field of Step with that value


@dataclass
class EnvReport:
    """What was found: ``facts``, ``warnings`` (HER works, but something is lost) and ``problems`` (HER cannot work)."""

    env_id: str
    facts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def fit_for_her(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


@dataclass
class _RandomPlay:
    """What random play showed: the largest way of each episode's achieved goal, and every step's goals and end."""

    motions: list[float] = field(default_factory=list)
    achieved: list[NDArray[Any]] = field(default_factory=list)
    desired: list[NDArray[Any]] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)


def check_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None, seed: int = 0) -> EnvReport:
    """Examine an environment: keys, shapes, random play, and the compute functions on a batch and one by one."""
    report = EnvReport(env_id)
    env = make_raw_env(env_id, env_kwargs)
    try:
        _check_spaces(env, report)
        shown = _check_random_play(env, report, seed)
        if not report.problems:
            _report_idle_actions(env, report)
            _check_functions(env, report, seed, shown)
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


class _Agreement:
    """Compares a compute function with the result of ``step``, and counts the differences."""

    def __init__(self, env: gym.Env[Any, Any], name: str, outcome: str) -> None:
        self.name, self.outcome = name, outcome
        self._function = env.get_wrapper_attr(name)
        self._steps, self._differing = 0, 0

    def compare(self, step: Step, actual: float) -> None:
        """Call the function on the goals of a step; ``actual`` is the value that the step returned."""
        observation = cast(dict[str, Any], step.next_observation)
        answer = np.asarray(self._function(observation["achieved_goal"], observation["desired_goal"], step.info))
        self._steps += 1
        self._differing += answer.size != 1 or not np.isclose(float(answer.reshape(())), actual, atol=1e-6)

    @property
    def problem(self) -> str | None:
        """The problem, or None."""
        if not self._differing:
            return None
        return f"{self.name} disagrees with {self.outcome} of step() in {self._differing} of {self._steps} steps"


def _check_random_play(env: gym.Env[Any, Any], report: EnvReport, seed: int) -> _RandomPlay:
    """Play at random, look at rewards, terminations and success, and return what else was seen."""
    goal_task = is_goal_space(env.observation_space)
    agreements = [
        (_Agreement(env, name, outcome), field)
        for name, outcome, field in _OUTCOMES
        if goal_task and env.has_wrapper_attr(name)
    ]
    env.action_space.seed(seed)
    shown = _RandomPlay()
    motions, start = shown.motions, np.zeros(0)
    lengths: list[int] = []
    first_end: Step | None = None
    try:
        seeds = range(seed, seed + _EPISODES)
        for step in play(env, lambda _: env.action_space.sample(), seeds, max_episode_steps=_EPISODE_STEPS):
            if step.episode == len(lengths):
                lengths.append(0)
                motions.append(0.0)
                start = _achieved(step.observation) if goal_task else start
            lengths[-1] += 1
            if goal_task:
                after = cast(dict[str, Any], step.next_observation)
                motions[-1] = max(motions[-1], float(np.linalg.norm(_achieved(after) - start)))
                shown.achieved.append(np.array(after["achieved_goal"], np.float32))
                shown.desired.append(np.array(after["desired_goal"], np.float32))
                shown.terminated.append(step.terminated)
            for agreement, field in agreements:
                try:
                    agreement.compare(step, float(getattr(step, field)))
                except Exception as error:  # any error of a foreign function is a finding
                    report.problems.append(f"{agreement.name} failed on the environment's own goals: {error!r}")
                    return shown
            if step.episode == 0:
                first_end = step
            if step.done and sum(lengths) >= _ENOUGH_STEPS:
                break
    except EnvError:
        report.problems.append(
            f"a random episode did not end within {_EPISODE_STEPS:,} steps; hindsight learns from whole episodes"
        )
    assert first_end is not None  # an episode has at least one step
    found = [key for key in SUCCESS_KEYS if key in first_end.info]
    report.facts["success"] = f"info[{found[0]!r}]" if found else "not reported"
    if not found:
        report.warnings.append("the last info has neither is_success nor success: no success rate can be shown")
    report.facts["random episode"] = f"{lengths[0]} steps" + ("" if first_end.done else " and still going")
    report.problems += [agreement.problem for agreement, _ in agreements if agreement.problem is not None]
    return shown


def _report_motion(report: EnvReport, motions: list[float], threshold: float | None) -> None:
    """Say in how many random episodes the achieved goal moved, and what helps if there are few."""
    moved, count = sum(motion > (threshold or 0.0) for motion in motions), len(motions)
    distance = f"more than {threshold:g}" if threshold else "at all"
    report.facts["random motion"] = f"the achieved goal moves {distance} in {moved} of {count} random episodes"
    if moved < _FEW_MOVE * count:
        report.warnings.append(
            f"random actions move the achieved goal {distance} in only {moved} of {count} episodes, and hindsight"
            " learns from those: keep episode_priority: motion, expect a slow start, and if nothing is learned, add"
            " demonstrations (dataset_path)"
        )


def _report_idle_actions(env: gym.Env[Any, Any], report: EnvReport) -> None:
    """Name the components of the action that have no effect."""
    idle = find_idle_actions(env, space_spec(env))
    if idle is None:
        report.facts["idle actions"] = "unknown: a seed and actions do not repeat an episode"
    elif idle:
        numbers = ", ".join(str(index + 1) for index in idle)
        report.facts["idle actions"] = f"{numbers} (these components of the action have no effect)"


def _achieved(observation: Any) -> NDArray[Any]:
    return np.array(observation["achieved_goal"], np.float64)


def _report_ends(report: EnvReport, goals: GoalRewards, shown: _RandomPlay) -> None:
    """Say what is known of the termination of relabelled transitions without ``compute_terminated``."""
    goals.learn_ends(np.stack(shown.achieved), np.stack(shown.desired), np.array(shown.terminated))
    if goals.ends_when_met:
        report.facts["met goals"] = "end their episode; relabelled transitions will end as well"
        return
    seen = "none in random play" if goals.ends_when_met is None else "do not end their episode"
    report.facts["met goals"] = seen
    report.warnings.append(
        "no compute_terminated: relabelled transitions keep the termination that was recorded, unless training shows"
        " that episodes end when their goal is met"
    )


def _check_functions(env: gym.Env[Any, Any], report: EnvReport, seed: int, shown: _RandomPlay) -> None:
    """Compare the compute functions on a batch with one-by-one calls, and describe the reward."""
    try:
        goals = GoalRewards(env, seed=seed)
    except EnvError as error:
        report.problems.append(str(error))
        return
    for name in ("compute_reward", "compute_terminated"):
        if report.facts[name] == "present":
            unbatched = name in goals.unbatched
            report.facts[name] = "one by one only" if unbatched else "batched, agrees with one by one"
            if unbatched:
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
        except Exception as error:  # any error of a foreign function is a finding
            agrees, problem = False, f", it fails with {error!r}"
        result = "batched, agrees with one by one" if agrees else f"not on batches (it is not used{problem})"
        report.facts["compute_truncated"] = result
    if report.facts["compute_terminated"] == "absent":
        _report_ends(report, goals, shown)
    low_high = goals.reward_range
    report.facts["reward"] = f"sparse, {low_high[0]:g} or {low_high[1]:g}" if low_high else "dense or constant"
    threshold = goals.distance_threshold
    report.facts["distance threshold"] = f"{threshold:g}" if threshold else "not named (episode_priority is uniform)"
    _report_motion(report, shown.motions, threshold)
