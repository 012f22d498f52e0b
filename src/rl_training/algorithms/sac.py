"""Soft Actor-Critic (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905).

Critic:       y = r + γ (1 - terminated) · (min_i Q'_i(s', a') - α log π(a'|s')),   L = Σ_i mean (Q_i(s, a) - y)²
Actor:        L = mean (α log π(a|s) - min_i Q_i(s, a)),   a ~ π(·|s)
Temperature:  L = -mean log α · (log π(a|s) + target entropy), together with the actor.

In goal tasks the entropy term of y is left out unless ``backup_entropy`` is set, because it would take the values
out of the range that the sparse reward allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from rl_training.algorithms.actor_critic import ActorCritic, ActorCriticSettings, DemonstrationSettings, lowest
from rl_training.fusing import fused
from rl_training.models import MLPSACModel
from rl_training.types import Batch, Metrics, SpaceSpec


class SACSettings(DemonstrationSettings, ActorCriticSettings):
    """Settings of SAC."""

    alpha: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="temperature: a fixed number, or auto to learn it"
    )
    initial_alpha: float = Field(1.0, gt=0, description="initial value of an automatic temperature")
    target_entropy: float | None = Field(
        None, description="target entropy of an automatic temperature; unset: -action_dim"
    )
    entropy_per_action: float | None = Field(
        None,
        description="target entropy of each action component that has an effect, in place of target_entropy; one"
        " without effect adds log 2",
    )
    backup_entropy: bool | None = Field(
        None, description="include the entropy term in the target; unset: not in goal tasks"
    )

    @model_validator(mode="after")
    def _one_target(self) -> SACSettings:
        if self.target_entropy is not None and self.entropy_per_action is not None:
            raise ValueError(
                f"target_entropy = {self.target_entropy:g} and entropy_per_action = {self.entropy_per_action:g}:"
                " expected one of them; null unsets the other"
            )
        return self


class SAC(ActorCritic):
    """Maximum-entropy actor-critic."""

    Settings = SACSettings
    settings: SACSettings
    Model = MLPSACModel
    temperatures: ClassVar[Mapping[str, str]] = {"log_alpha": "alpha"}

    def _build(self, generator: torch.Generator) -> None:
        super()._build(generator)
        settings = self.settings
        self.target_entropy = self._target_entropy()
        self.imitates = settings.bc_weight > 0
        self.learns_alpha = settings.alpha == "auto"
        alpha = settings.initial_alpha if settings.alpha == "auto" else settings.alpha
        # A fixed temperature may be 0, which has no logarithm: a very small temperature is stored instead.
        log_alpha = torch.tensor(math.log(max(alpha, 1e-20)), device=self.device)
        self.log_alpha = nn.Parameter(log_alpha, requires_grad=self.learns_alpha)
        if self.learns_alpha:
            self.alpha_optimizer = self._optimizer(
                "alpha", [self.log_alpha], settings.actor_lr or settings.learning_rate
            )

    @property
    def backup_entropy(self) -> bool:
        """Whether the target includes the entropy term: as set, or by default in all but goal tasks."""
        setting = self.settings.backup_entropy
        return self.spec.goal_dim == 0 if setting is None else setting

    def set_reward_range(self, reward_range: tuple[float, float] | None) -> None:
        """Bound the values, unless they include the entropy term, which can exceed the reward's range."""
        super().set_reward_range(None if self.backup_entropy else reward_range)

    def _target_entropy(self) -> float:
        if self.settings.target_entropy is not None:
            return self.settings.target_entropy
        if self.settings.entropy_per_action is None:
            return self.default_target_entropy(self.spec)
        idle = len(self.spec.idle_actions)
        # Idle components cost no reward, so the policy makes them uniform on [-1, 1], which has entropy log 2.
        return self.settings.entropy_per_action * (self.spec.action_dim - idle) + idle * math.log(2.0)

    @staticmethod
    def default_target_entropy(spec: SpaceSpec) -> float:
        """Return the target entropy if ``target_entropy`` is unset."""
        return -spec.action_dim

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the soft temporal-difference error of all critics."""
        with torch.no_grad():
            # [B, A], [B]
            next_actions, next_log_probs = self.model.actor.sample(batch.next_observations, self.generator)
            next_values = self._target_minimum(batch.next_observations, next_actions)  # [B]
            if self.backup_entropy:
                next_values = next_values - self.log_alpha.exp() * next_log_probs
        return self._td_error(batch, next_values)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Metrics]:
        """Return the actor's loss and the log-probabilities ``[B]`` of the actions it drew."""
        actions, log_probs = self.model.actor.sample(batch.observations, self.generator)  # [B, A], [B]
        values = self._policy_values(self.model.critic(batch.observations, actions, fixed=True))  # [B]
        loss = _soft_policy_loss(self.log_alpha.detach(), log_probs, values)
        log_probs = log_probs.detach()
        metrics = {"train/actor_loss": loss.detach(), "train/entropy": -log_probs.mean()}
        if self.imitates and batch.offline_rows:
            cloning = self._cloning_loss(
                batch,
                self.model.actor.mode(batch.observations[: batch.offline_rows]),
                q_filter=self.settings.bc_q_filter,
            )
            loss, metrics["train/bc_loss"] = loss + self.settings.bc_weight * cloning, cloning.detach()
        return loss, log_probs, metrics

    def _policy_values(self, values: Tensor) -> Tensor:
        """Return what the actor maximises ``[B]``, from the values of all critics ``[members, B]``."""
        return lowest(values)

    def alpha_loss(self, log_probs: Tensor) -> Tensor:
        """Return the loss that raises the temperature while the entropy is below its target; log_probs: ``[B]``."""
        return _temperature_loss(self.log_alpha, log_probs, self.target_entropy)

    def _improve_actor(self, batch: Batch) -> Metrics:
        """Move the actor and the temperature."""
        loss, log_probs, metrics = self.actor_loss(batch)
        self._minimize(loss, self.actor_optimizer)
        if self.learns_alpha:
            self._minimize(self.alpha_loss(log_probs), self.alpha_optimizer)
        metrics["train/alpha"] = self.log_alpha.detach().exp()
        return metrics

    def _act(self, observations: Tensor, deterministic: bool, noise: Tensor | None = None) -> Any:
        if deterministic:
            return self.model.actor.mode(observations)
        return self.model.actor.draw(observations, self.generator, noise)


@fused
def _soft_policy_loss(log_alpha: Tensor, log_probs: Tensor, values: Tensor) -> Tensor:
    return (log_alpha.exp() * log_probs - values).mean()


@fused
def _temperature_loss(log_alpha: Tensor, log_probs: Tensor, target_entropy: float | Tensor) -> Tensor:
    return -log_alpha * (log_probs + target_entropy).mean()
