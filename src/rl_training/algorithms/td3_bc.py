"""TD3+BC (Fujimoto and Gu, 2021, https://arxiv.org/abs/2106.06860).

TD3 whose actor also stays near the data:  L = -λ mean Q_1(s, π(s)) + mean (π(s) - a)²,   λ = α / mean |Q_1(s, π(s))|

Deviation from the paper: normalised observations are also clamped to ±10 std.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.td3 import TD3, TD3Settings
from rl_training.fusing import fused
from rl_training.types import Batch, Metrics


class TD3BCSettings(TD3Settings):
    """Settings of TD3+BC."""

    bc_alpha: float = Field(2.5, ge=0, description="weight of the value relative to the cloning term")


class TD3BC(TD3):
    """TD3 with a behavioural-cloning term."""

    Settings = TD3BCSettings
    settings: TD3BCSettings

    def _policy_objective(self, values: Tensor, actions: Tensor, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return the cloning error minus the value, which is divided by its mean absolute value."""
        loss, cloning = _cloning_objective(values, actions, batch.actions, self.settings.bc_alpha)
        return loss, {"train/bc_loss": cloning.detach()}


@fused
def _cloning_objective(
    values: Tensor, actions: Tensor, logged: Tensor, bc_alpha: float | Tensor
) -> tuple[Tensor, Tensor]:
    weight = bc_alpha / values.detach().abs().mean()
    cloning = F.mse_loss(actions, logged)
    return cloning - weight * values.mean(), cloning
