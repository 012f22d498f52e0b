"""Twin Delayed DDPG (Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477).

Critic:  y = r + γ (1 - terminated) · min_i Q'_i(s', π'(s') + clipped noise),   L = Σ_i mean (Q_i(s, a) - y)²
Actor:   L = -mean Q_1(s, π(s)), every ``policy_delay`` critic updates, together with the targets.

In goal tasks a small penalty keeps the actor's output before its tanh near zero; HER's authors penalise the action
itself. A saturated actor gets no gradient, and without the penalty some seeds never recover.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.actor_critic import ActorCritic, ActorCriticSettings, DemonstrationSettings
from rl_training.algorithms.base import soft_update
from rl_training.fusing import fused
from rl_training.models import MLPDDPGModel
from rl_training.types import Batch, Metrics


class TD3Settings(DemonstrationSettings, ActorCriticSettings):
    """Settings of TD3."""

    policy_delay: int = Field(2, ge=1, description="critic updates for each update of the actor and the targets")
    target_noise: float = Field(0.2, ge=0, description="std of the noise on the target's action")
    target_noise_clip: float = Field(0.5, ge=0, description="largest absolute noise on the target's action")
    saturation_penalty: float | None = Field(
        None, ge=0, description="weight of the squared actor output before tanh; unset: 0.01 in goal tasks, else 0"
    )


class TD3(ActorCritic):
    """Deterministic policy gradient with twin critics, target noise and delayed policy updates."""

    Settings = TD3Settings
    settings: TD3Settings
    Model = MLPDDPGModel
    run_defaults: ClassVar[Mapping[str, float]] = {"exploration_noise": 0.1}

    def _build(self, generator: torch.Generator) -> None:
        super()._build(generator)
        penalty, goal_task = self.settings.saturation_penalty, self.spec.goal_dim > 0
        self._first_critic = torch.zeros(1, dtype=torch.long, device=self.device)
        self.saturation_penalty = (0.01 if goal_task else 0.0) if penalty is None else penalty
        self.penalizes_saturation = self.saturation_penalty > 0
        self.smooths_target = self.settings.target_noise > 0
        self.imitates = self.settings.bc_weight > 0

    def load_policy(self, module: Mapping[str, Tensor], prefix: str | None) -> None:
        """Load another learner's policy, into the target actor too."""
        super().load_policy(module, prefix)
        self.model.target_actor.load_state_dict(self.model.actor.state_dict())

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the temporal-difference error of all critics."""
        with torch.no_grad():
            next_actions = self.model.target_actor(batch.next_observations)  # [B, A]
            if self.smooths_target:
                noise = torch.randn(next_actions.shape, generator=self.generator, device=self.device)  # [B, A]
                limit = self.settings.target_noise_clip
                noise = (noise * self.settings.target_noise).clamp(-limit, limit)
                next_actions = (next_actions + noise).clamp(-1.0, 1.0)
            next_values = self._target_minimum(batch.next_observations, next_actions)  # [B]
        return self._td_error(batch, next_values)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the policy's objective under the first critic, and the penalty that keeps tanh from saturating."""
        raw_actions = self.model.actor.mlp(batch.observations)  # [B, A]
        actions = torch.tanh(raw_actions)  # [B, A]
        values = self.model.critic(batch.observations, actions, self._first_critic, fixed=True)[0]  # [B]
        loss, metrics = self._policy_objective(values, actions, batch)
        metrics["train/actor_loss"] = loss.detach()
        if self.penalizes_saturation:
            loss = loss + _saturation_loss(raw_actions, self.saturation_penalty)
        if self.imitates and batch.offline_rows:
            cloning = self._cloning_loss(batch, actions[: batch.offline_rows], q_filter=self.settings.bc_q_filter)
            loss, metrics["train/bc_loss"] = loss + self.settings.bc_weight * cloning, cloning.detach()
        return loss, metrics

    def _policy_objective(self, values: Tensor, actions: Tensor, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the loss from the values ``[B]`` of the actor's actions ``[B, A]``."""
        return _value_loss(values), {}

    def _improve_actor(self, batch: Batch) -> Metrics:
        loss, metrics = self.actor_loss(batch)
        self._minimize(loss, self.actor_optimizer)
        return metrics

    def _move_targets(self) -> None:
        """Move both targets, but only in updates that move the actor."""
        if self._moves_actor:
            super()._move_targets()
            soft_update(self.model.target_actor.parameters(), self.model.actor.parameters(), self.settings.tau)

    def _act(self, observations: Tensor, deterministic: bool, noise: Tensor | None = None) -> Any:
        return self.model.actor(observations)


@fused
def _value_loss(values: Tensor) -> Tensor:
    return -values.mean()


@fused
def _saturation_loss(raw_actions: Tensor, weight: float | Tensor) -> Tensor:
    return weight * raw_actions.square().mean()
