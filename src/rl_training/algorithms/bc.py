"""Behavioural cloning: supervised learning of the data's actions.

Deterministic:  L = mean ‖π(s) - a‖²        Gaussian:  L = -mean log π(a|s)        Discrete:  cross-entropy
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.models import MLP, DeterministicActor, GaussianActor
from rl_training.types import Batch, Metrics


class BCSettings(LearnerSettings):
    """Settings of behavioural cloning."""

    policy: Literal["deterministic", "gaussian"] = Field(
        "deterministic", description="squared error, or likelihood under a Gaussian (discrete actions: cross-entropy)"
    )


class BC(Learner):
    """Supervised learning of the data's actions, continuous or discrete."""

    Settings = BCSettings
    settings: BCSettings
    actions = "any"
    policy_prefix = "actor."

    def _build(self, generator: torch.Generator) -> None:
        hidden = self.settings.hidden_sizes
        self.actor: Any
        if self.spec.num_actions is not None:
            self.actor = MLP(self.spec.policy_dim, hidden, self.spec.num_actions, generator)
        elif self.settings.policy == "gaussian":
            self.actor = GaussianActor(self.spec, hidden, generator)
        else:
            self.actor = DeterministicActor(self.spec, hidden, generator)
        self.actor.to(self.device)
        self.actor_optimizer = self._optimizer("actor", self.actor.parameters(), self.settings.learning_rate)

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the error of the actor's output: actions ``[B, A]``, or logits ``[B, num_actions]`` if discrete."""
        if self.spec.is_discrete:
            loss = F.cross_entropy(self.actor(batch.observations), batch.actions[:, 0].long())
        elif self.settings.policy == "gaussian":
            loss = -self.actor.log_prob(batch.observations, batch.actions).mean()
        else:
            loss = F.mse_loss(self.actor(batch.observations), batch.actions)
        return loss, {"train/actor_loss": loss.detach()}

    def _update(self, batch: Batch) -> Metrics:
        loss, metrics = self.actor_loss(batch)
        self._minimize(loss, self.actor_optimizer)
        return metrics

    def _act(self, observations: Tensor, deterministic: bool, noise: Tensor | None = None) -> Any:
        if self.spec.is_discrete:
            return self.actor(observations).argmax(dim=1, keepdim=True).float()
        if self.settings.policy == "deterministic":
            return self.actor(observations)
        if deterministic:
            return self.actor.mode(observations)
        return self.actor.sample(observations, self.generator, noise)
