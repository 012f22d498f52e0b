"""What learners with an actor and an ensemble of critics share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rl_training.algorithms.base import CriticLearner, CriticSettings, soft_update
from rl_training.config import Settings
from rl_training.fusing import fused
from rl_training.models.actor_critic import ActorCriticModel
from rl_training.types import Batch, Metrics


class ActorCriticSettings(CriticSettings):
    """Settings of learners with an actor and an ensemble of critics."""

    actor_lr: float | None = Field(None, gt=0, description="learning rate of the actor; unset: learning_rate")
    critic_lr: float | None = Field(None, gt=0, description="learning rate of the critics; unset: learning_rate")
    num_critics: int = Field(2, ge=1, le=256, description="critics in the ensemble")
    num_min_critics: int | None = Field(
        None, ge=1, description="critics drawn at random for each update; their minimum is the target; unset: all"
    )
    policy_delay: int = Field(1, ge=1, description="critic updates for each update of the actor")

    @model_validator(mode="after")
    def _minimum_fits(self) -> ActorCriticSettings:
        if self.num_min_critics is not None and self.num_min_critics > self.num_critics:
            raise ValueError(f"num_min_critics = {self.num_min_critics} is above num_critics = {self.num_critics}")
        return self


class DemonstrationSettings(Settings):
    """How an actor imitates offline data (Nair et al., 2018, https://arxiv.org/abs/1709.10089)."""

    bc_weight: float = Field(0.0, ge=0, description="weight of imitating the offline rows of a batch; 0: off")
    bc_q_filter: bool = Field(
        True, description="imitate only actions whose value is above that of the actor's own action"
    )


class ActorCritic(CriticLearner):
    """A learner with an actor and an ensemble of critics: its networks, optimisers and temporal-difference error."""

    Model: ClassVar[type[ActorCriticModel]]
    settings: ActorCriticSettings
    policy_prefix = "model.actor."

    def _build(self, generator: torch.Generator) -> None:
        super()._build(generator)
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

    @property
    def update_kind(self) -> Hashable:
        """Whether the next update moves the actor."""
        return super().update_kind, (self.update_count + 1) % self.settings.policy_delay == 0

    @property
    def _moves_actor(self) -> bool:
        """Whether the current update moves the actor."""
        return self.update_count % self.settings.policy_delay == 0

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss of all critics."""
        raise NotImplementedError

    def _update(self, batch: Batch) -> Metrics:
        """Move the critics, then every ``policy_delay`` updates the actor, then the targets."""
        loss, metrics = self.critic_loss(batch)
        self._minimize(loss, self.critic_optimizer)
        if self._moves_actor:
            metrics |= self._improve_actor(batch)
        self._move_targets()
        return metrics

    def _improve_actor(self, batch: Batch) -> Metrics:
        raise NotImplementedError

    def _move_targets(self) -> None:
        soft_update(self.model.target_critic.parameters(), self.model.critic.parameters(), self.settings.tau)

    def _target_minimum(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the smallest value ``[B]`` of the target critics, or of ``num_min_critics`` random ones."""
        members, count = None, self.settings.num_min_critics
        if count is not None and count < self.settings.num_critics:
            draws = torch.rand(self.settings.num_critics, generator=self.generator, device=self.device)
            members = draws.topk(count).indices  # [count]; the other critics are not evaluated
        return self._clamp_value(lowest(self.model.target_critic(observations, actions, members)))

    def _cloning_loss(self, batch: Batch, own_actions: Tensor, *, q_filter: bool) -> Tensor:
        """Return the mean squared distance of ``own_actions`` ``[P, A]`` to the actions of the P offline rows.

        With the Q-filter, a row counts only if the critics value its action above the actor's own.
        """
        rows = slice(0, batch.offline_rows)
        observations, actions = batch.observations[rows], batch.actions[rows]  # [P, policy_dim], [P, A]
        errors = (own_actions - actions).square().mean(dim=1)  # [P]
        if q_filter:
            with torch.no_grad():
                # The mean over the critics, [2P]: one call for both kinds of actions.
                both = self.model.critic(observations.repeat(2, 1), torch.cat([actions, own_actions])).mean(dim=0)
                demonstrated, own = both.chunk(2)  # [P] each
            errors = errors * (demonstrated > own)
        return errors.mean()

    def _td_error(self, batch: Batch, next_values: Tensor) -> tuple[Tensor, Metrics]:
        """Return Σ_i mean (Q_i(s, a) - y)² over the critics i, with y = r + γ (1 - terminated) next_value, ``[B]``."""
        values = self.model.critic(batch.observations, batch.actions)  # [members, B]
        loss = squared_td_error(values, batch.rewards, batch.terminated, next_values, self.settings.gamma)
        metrics = {"train/critic_loss": loss.detach(), "train/q_mean": values.detach().mean()}
        if 0 < batch.offline_rows < len(batch.rewards):
            metrics["train/q_offline"] = values.detach()[:, : batch.offline_rows].mean()
            metrics["train/q_online"] = values.detach()[:, batch.offline_rows :].mean()
        return loss, metrics


@fused
def lowest(values: Tensor) -> Tensor:
    """Return the smallest value ``[B]`` of all critics, from ``[members, B]``."""
    return values.amin(dim=0)


@fused
def squared_td_error(
    values: Tensor, rewards: Tensor, terminated: Tensor, next_values: Tensor, gamma: float | Tensor
) -> Tensor:
    """Return Σ_i mean (Q_i - y)² for values Q ``[members, B]``; the others are ``[B]``."""
    targets = rewards + gamma * (1.0 - terminated) * next_values  # [B]
    return (values - targets).square().mean(dim=1).sum()
