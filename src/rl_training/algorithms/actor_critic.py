"""What learners with an actor and an ensemble of critics share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rl_training.algorithms.base import CriticSettings, Learner
from rl_training.models.actor_critic import ActorCriticModel
from rl_training.types import Batch, Metrics


class ActorCriticSettings(CriticSettings):
    """Settings of learners with an actor and an ensemble of critics."""

    actor_lr: float | None = Field(None, gt=0, description="learning rate of the actor; unset: learning_rate")
    critic_lr: float | None = Field(None, gt=0, description="learning rate of the critics; unset: learning_rate")
    num_critics: int = Field(2, ge=1, le=256, description="critics in the ensemble")
    num_min_critics: int | None = Field(
        None, ge=1, description="critics, drawn anew each update, whose minimum is the target; unset: all"
    )
    policy_delay: int = Field(1, ge=1, description="critic updates for each update of the actor")

    @model_validator(mode="after")
    def _minimum_fits(self) -> ActorCriticSettings:
        if self.num_min_critics is not None and self.num_min_critics > self.num_critics:
            raise ValueError(f"num_min_critics = {self.num_min_critics} is above num_critics = {self.num_critics}")
        return self


class ActorCritic(Learner):
    """Builds the networks and optimisers, and knows the temporal-difference error of an ensemble."""

    Model: ClassVar[type[ActorCriticModel]]
    settings: Any

    def _build(self, generator: torch.Generator) -> None:
        settings = self.settings
        self.model: Any = self.Model(
            self.spec,
            settings.hidden_sizes,
            generator,
            num_critics=settings.num_critics,
            critic_layer_norm=self.critic_layer_norm,
        ).to(self.device)
        actor, critic = self.model.actor.parameters(), self.model.critic.parameters()
        self.actor_optimizer = self._optimizer("actor", actor, settings.actor_lr or settings.learning_rate)
        self.critic_optimizer = self._optimizer("critic", critic, settings.critic_lr or settings.learning_rate)

    def _target_minimum(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the smallest target value ``[B]``; only the critics that take part are evaluated."""
        members, count = None, self.settings.num_min_critics
        if count is not None and count < self.settings.num_critics:
            order = torch.randperm(self.settings.num_critics, generator=self.generator, device=self.device)
            members = order[:count]
        return self._clamp_value(self.model.target_critic(observations, actions, members).amin(dim=0))

    def _td_error(self, batch: Batch, next_values: Tensor) -> tuple[Tensor, Metrics]:
        """Return Σ_i mean (Q_i(s, a) - (r + γ (1 - terminated) next_value))² over the critics i."""
        targets = batch.rewards + self.settings.gamma * (1.0 - batch.terminated) * next_values
        values = self.model.critic(batch.observations, batch.actions)
        loss = (values - targets).square().mean(dim=1).sum()
        return loss, {"train/critic_loss": loss.detach(), "train/q_mean": values.detach().mean()}
