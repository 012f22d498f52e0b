"""Implicit Q-Learning (Kostrikov et al., 2021, https://arxiv.org/abs/2110.06169).

Value:   L = mean |τ_e - 1(u < 0)| u²,   u = min_i Q'_i(s, a) - V(s)   (an expectile: near the best actions of the data)
Critic:  y = r + γ (1 - terminated) · V(s'),   L = Σ_i mean (Q_i(s, a) - y)²
Actor:   L = -mean w log π(a|s),   w = min(exp(β u), max_weight)

IQL never evaluates an action outside the data.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.advantage_weighted import AdvantageWeighted, AdvantageWeightedSettings
from rl_training.algorithms.base import soft_update
from rl_training.models import MLPIQLModel
from rl_training.types import Batch, Metrics


class IQLSettings(AdvantageWeightedSettings):
    """Settings of IQL."""

    expectile: float = Field(
        0.7, gt=0, lt=1, description="0.5: the value of the data's mean action; near 1: that of its best"
    )
    temperature: float = Field(3.0, ge=0, description="β: 0 clones the data, a large value prefers its best actions")


class IQL(AdvantageWeighted):
    """Expectile values, and a policy that imitates the actions above them."""

    Settings = IQLSettings
    settings: IQLSettings
    Model = MLPIQLModel
    scheduled_optimizers = ("actor",)  # the paper's cosine schedule applies to the policy only

    def _build(self, generator: torch.Generator) -> None:
        super()._build(generator)
        rate = self.settings.critic_lr or self.settings.learning_rate
        self.value_optimizer = self._optimizer("value", self.model.value.parameters(), rate)

    def value_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the expectile loss and the advantages ``[B]`` of the data's actions."""
        with torch.no_grad():
            targets = self._target_minimum(batch.observations, batch.actions)  # [B]
        advantages = targets - self.model.value(batch.observations).squeeze(-1)  # [B]
        # |τ - 1(u < 0)| is τ above zero and 1 - τ below it.
        weights = torch.where(advantages < 0, 1.0 - self.settings.expectile, self.settings.expectile)  # [B]
        return (weights * advantages.square()).mean(), advantages.detach()

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the temporal-difference error of all critics."""
        with torch.no_grad():
            next_values = self._clamp_value(self.model.value(batch.next_observations).squeeze(-1))  # [B]
        return self._td_error(batch, next_values)

    def actor_loss(self, batch: Batch, advantages: Tensor) -> Tensor:
        """Return the negative log-likelihood of the data's actions, weighted by their advantages ``[B]``."""
        return self.weighted_likelihood_loss(batch, advantages, self.settings.temperature)

    def _update(self, batch: Batch) -> Metrics:
        value_loss, advantages = self.value_loss(batch)
        self._minimize(value_loss, self.value_optimizer)
        loss, metrics = self.critic_loss(batch)
        self._minimize(loss, self.critic_optimizer)
        soft_update(self.model.target_critic.parameters(), self.model.critic.parameters(), self.settings.tau)
        metrics |= {"train/value_loss": value_loss.detach(), "train/advantage": advantages.mean()}
        if self._moves_actor:
            loss = self.actor_loss(batch, advantages)
            self._minimize(loss, self.actor_optimizer)
            metrics["train/actor_loss"] = loss.detach()
        return metrics
