"""Evaluation: whole episodes with deterministic actions, in a separate environment that returns the raw reward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from rl_training.envs.factory import make_raw_env
from rl_training.envs.goals import episode_success
from rl_training.envs.play import play
from rl_training.envs.reference_scores import normalized_score, reference_scores
from rl_training.runtime.health import require_finite_step
from rl_training.runtime.run_records import EvaluationTrace
from rl_training.seeding import Stream, episode_seeds
from rl_training.types import Observation

_NAME = "the environment of the evaluation"


class Policy(Protocol):
    """What the evaluator needs of a learner or of an exported policy."""

    def predict(self, observation: Observation, deterministic: bool = True) -> Any:
        """Return what to pass to the environment's ``step``."""
        ...


class Evaluator:
    """Evaluates a policy on the same seeded episodes each time, so that scores can be compared."""

    def __init__(
        self,
        env_id: str,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        episodes: int = 20,
        seed: int = 0,
        render_mode: str | None = None,
        reference: tuple[float, float] | None = None,
    ) -> None:
        self.env = make_raw_env(env_id, env_kwargs, render_mode=render_mode)
        self.episodes, self.seed = episodes, seed
        self.reference = reference if reference is not None else reference_scores(env_id)
        self.last_episodes: list[dict[str, Any]] = []
        """Return, length, success and, in goal tasks, goals of each episode of the latest ``run``."""

    def run(self, learner: Policy, *, on_step: Callable[[int], None] | None = None) -> dict[str, float]:
        """Play the episodes with deterministic actions and return their mean reward, length and success rate.

        If the task has reference scores, the mean reward is also given on their scale.

        Args:
            learner: the policy, or an exported one.
            on_step: called with the episode's number after every reset and step, for showing progress.
        """
        rewards, lengths = np.zeros(self.episodes), np.zeros(self.episodes, np.int64)
        successes: list[bool] = []
        trace = EvaluationTrace()
        for step in play(self.env, learner.predict, self._seeds(), on_reset=on_step):
            require_finite_step(_batch_of_one(step.next_observation), np.array([step.reward]), name=_NAME)
            rewards[step.episode] += step.reward
            lengths[step.episode] += 1
            if on_step is not None:
                on_step(step.episode)
            trace.add(step.observation, step.next_observation)
            success = episode_success(step.info) if step.done else None
            if step.done:
                trace.finish(float(rewards[step.episode]), int(lengths[step.episode]), success)
            if success is not None:
                successes.append(success)
        self.last_episodes = trace.episodes
        metrics = {
            "eval/mean_reward": float(np.mean(rewards)),
            "eval/std_reward": float(np.std(rewards)),
            "eval/mean_ep_length": float(np.mean(lengths)),
        }
        if successes:
            metrics["eval/success_rate"] = float(np.mean(successes))
        if self.reference is not None:
            metrics["eval/normalized_score"] = normalized_score(metrics["eval/mean_reward"], self.reference)
        return metrics

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _seeds(self) -> Iterator[int]:
        return itertools.islice(episode_seeds(self.seed, Stream.EVALUATION), self.episodes)


def _batch_of_one(observation: Observation) -> Observation:
    if isinstance(observation, dict):
        return {key: np.asarray(value)[None] for key, value in observation.items()}
    return np.asarray(observation)[None]
