"""Advantage-Weighted Actor-Critic (Nair et al., 2020, https://arxiv.org/abs/2006.09359).

Critic:  y = r + γ (1 - terminated) · min_i Q'_i(s', a'),  a' ~ π(·|s'),   L = Σ_i mean (Q_i(s, a) - y)²
Actor:   L = -mean w log π(a|s),   w = min(exp(A / λ), max_weight),   A = min_i Q_i(s, a) - min_i Q_i(s, a~π(·|s))

The same update serves offline data, online data and any mixture of them.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.advantage_weighted import AdvantageWeighted, AdvantageWeightedSettings
from rl_training.models import MLPAWACModel
from rl_training.types import Batch, Metrics


class AWACSettings(AdvantageWeightedSettings):
    """Settings of AWAC."""

    awac_lambda: float = Field(
        1.0, gt=0, description="temperature: a small one prefers the best actions, a large one clones the data"
    )


class AWAC(AdvantageWeighted):
    """A policy that imitates the data's actions, weighted by their advantage."""

    Settings = AWACSettings
    settings: AWACSettings
    Model = MLPAWACModel

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the temporal-difference error of all critics."""
        with torch.no_grad():
            next_actions = self.model.actor.sample(batch.next_observations, self.generator)  # [B, A]
            next_values = self._target_minimum(batch.next_observations, next_actions)  # [B]
        return self._td_error(batch, next_values)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the weighted negative log-likelihood of the data's actions."""
        with torch.no_grad():
            own_actions = self.model.actor.sample(batch.observations, self.generator)  # [B, A]
            values = self.model.critic(batch.observations, own_actions).amin(dim=0)  # [members, B] to [B]
            advantages = self.model.critic(batch.observations, batch.actions).amin(dim=0) - values  # [B]
        loss = self.weighted_likelihood_loss(batch, advantages, 1.0 / self.settings.awac_lambda)
        return loss, {"train/actor_loss": loss.detach(), "train/advantage": advantages.mean()}

    def _improve_actor(self, batch: Batch) -> Metrics:
        loss, metrics = self.actor_loss(batch)
        self._minimize(loss, self.actor_optimizer)
        return metrics
