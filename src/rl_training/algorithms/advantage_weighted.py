"""What IQL and AWAC share: a Gaussian policy that imitates the data's actions, weighted by their advantage."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from rl_training.algorithms.actor_critic import ActorCritic, ActorCriticSettings
from rl_training.types import Batch


class AdvantageWeightedSettings(ActorCriticSettings):
    """Settings of learners that weight imitation by the advantage."""

    max_weight: float = Field(100.0, gt=0, description="largest weight of an action")
    normalize_advantages: bool = Field(
        False,
        description="divide advantages by their std over the batch, so that the scale of the reward has no effect",
    )


class AdvantageWeighted(ActorCritic):
    """A learner whose policy maximises the weighted likelihood of the data's actions."""

    settings: AdvantageWeightedSettings

    def weighted_likelihood_loss(self, batch: Batch, advantages: Tensor, sharpness: float) -> Tensor:
        """Return -mean w log π(a|s) with w = min(exp(sharpness · advantage), max_weight); advantages are ``[B]``."""
        if self.settings.normalize_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-6)
        weights = (sharpness * advantages).exp().clamp(max=self.settings.max_weight)  # [B]
        log_probs: Tensor = self.model.actor.log_prob(batch.observations, batch.actions)  # [B]
        return -(weights * log_probs).mean()

    def _act(self, observations: Tensor, deterministic: bool, noise: Tensor | None = None) -> Any:
        actor = self.model.actor
        return actor.mode(observations) if deterministic else actor.sample(observations, self.generator, noise)
