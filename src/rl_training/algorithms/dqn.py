"""Deep Q-Network (Mnih et al., 2015) with the double estimator (van Hasselt et al., 2015, https://arxiv.org/abs/1509.06461).

y = r + γ (1 - terminated) · Q'(s', argmax_a Q(s', a)),   L = mean Huber(Q(s, a) - y)

Deviation from the paper: the target network moves by soft updates (``tau``), not by copies every few thousand steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.base import CriticLearner, CriticSettings, soft_update
from rl_training.models import MLPDQNModel
from rl_training.types import Batch, Metrics


class DQNSettings(CriticSettings):
    """Settings of DQN."""


class DQN(CriticLearner):
    """Double Q-learning over discrete actions."""

    Settings = DQNSettings
    settings: DQNSettings
    actions = "discrete"
    run_defaults: ClassVar[Mapping[str, float]] = {"random_action_prob": 0.1}

    def _build(self, generator: torch.Generator) -> None:
        super()._build(generator)
        model = MLPDQNModel(self.spec, self.settings.hidden_sizes, generator, layer_norm=self.critic_layer_norm)
        self.model = model.to(self.device)
        self.critic_optimizer = self._optimizer("critic", self.model.critic.parameters(), self.settings.learning_rate)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the double-Q temporal-difference error."""
        with torch.no_grad():
            next_actions = self.model.critic(batch.next_observations).argmax(dim=1, keepdim=True)  # [B, 1]
            next_values = self.model.target_critic(batch.next_observations).gather(1, next_actions).squeeze(1)  # [B]
            continues = self.settings.gamma * (1.0 - batch.terminated)  # [B]
            targets = batch.rewards + continues * self._clamp_value(next_values)  # [B]
        values = self.model.critic(batch.observations).gather(1, batch.actions.long()).squeeze(1)  # [B]
        loss = F.smooth_l1_loss(values, targets)
        return loss, {"train/critic_loss": loss.detach(), "train/q_mean": values.detach().mean()}

    def _update(self, batch: Batch) -> Metrics:
        loss, metrics = self.critic_loss(batch)
        self._minimize(loss, self.critic_optimizer)
        soft_update(self.model.target_critic.parameters(), self.model.critic.parameters(), self.settings.tau)
        return metrics

    def _act(self, observations: Tensor, deterministic: bool, noise: Tensor | None = None) -> Any:
        return self.model.critic(observations).argmax(dim=1, keepdim=True).float()
