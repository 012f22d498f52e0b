"""Playing whole episodes with the policy as it is, on an environment of its own with the raw reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_training.algorithms.base import Learner
from rl_training.envs.factory import make_env
from rl_training.envs.goals import episode_success
from rl_training.envs.reference_scores import normalized_score, reference_scores

_EVALUATION = 2**20  # the place of evaluation among the seeds, out of reach of environment indices


class Evaluator:
    """Evaluates a learner on the same seeded episodes each time, so that scores can be compared."""

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
        self.env = make_env(env_id, env_kwargs, render_mode=render_mode, raw_reward=True)
        self.episodes, self.seed = episodes, seed
        self.reference = reference if reference is not None else reference_scores(env_id)

    def run(self, learner: Learner, *, on_step: Callable[[int], None] | None = None) -> dict[str, float]:
        """Play the episodes with deterministic actions and return their mean reward, length and success rate.

        Where the task's reference scores are known, the mean reward is also given on their scale.

        Args:
            learner: the policy.
            on_step: called with the episode's number after every reset and step, for recording frames.
        """
        rewards: list[float] = []
        lengths: list[int] = []
        successes: list[bool] = []
        for episode in range(self.episodes):
            seed = np.random.SeedSequence([self.seed, _EVALUATION, episode]).generate_state(1)[0]
            observation, info = self.env.reset(seed=int(seed))
            total, length, done = 0.0, 0, False
            if on_step is not None:
                on_step(episode)
            while not done:
                observation, reward, terminated, truncated, info = self.env.step(learner.predict(observation))
                total, length, done = total + float(reward), length + 1, terminated or truncated
                if on_step is not None:
                    on_step(episode)
            rewards.append(total)
            lengths.append(length)
            success = episode_success(info)
            if success is not None:
                successes.append(success)
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
