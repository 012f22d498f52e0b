"""RLPD: Reinforcement Learning with Prior Data (Ball et al., 2023, https://arxiv.org/abs/2302.02948).

SAC with three additions that keep it stable on offline data with many updates per environment step: LayerNorm in the
critics, a large ensemble of critics whose target is the minimum over a small random subset, and batches with a fixed
share of offline rows (``data/mixture.py``).

Critic:  y = r + γ (1 - terminated) · (min_{i in subset} Q'_i(s', a') - α log π(a'|s')),   L = Σ_i mean (Q_i(s, a) - y)²
Actor:   L = mean (α log π(a|s) - mean_i Q_i(s, a)),   once per environment step, for any number of critic updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from rl_training.algorithms.sac import SAC, SACSettings
from rl_training.types import Batch, Metrics, SpaceSpec


class RLPDSettings(SACSettings):
    """Settings of RLPD."""

    num_critics: int = Field(10, ge=1, le=256, description="critics in the ensemble")
    num_min_critics: int | None = Field(
        2, ge=1, description="critics drawn at random for each update; their minimum is the target; unset: all"
    )
    critic_layer_norm: bool | None = Field(True, description="LayerNorm in the critics")
    policy_delay: int = Field(
        20, ge=1, description="critic updates for each update of the actor; in a run: gradient_updates_per_step"
    )
    target_entropy: float | None = Field(
        None, description="target entropy of an automatic temperature; unset: -action_dim / 2"
    )


class RLPD(SAC):
    """SAC over offline and online data, with an ensemble of normalised critics."""

    Settings = RLPDSettings
    settings: RLPDSettings
    run_defaults: ClassVar[Mapping[str, float]] = {"gradient_updates_per_step": 20.0}  # the paper's UTD
    one_actor_update_per_step = True

    @staticmethod
    def default_target_entropy(spec: SpaceSpec) -> float:
        """Return half of SAC's default, as the paper's code does."""
        return -spec.action_dim / 2

    def _policy_values(self, values: Tensor) -> Tensor:
        return values.mean(dim=0)


RLPDAlgorithm = RLPD


def rlpd_loss(learner: RLPD, batch: Batch) -> tuple[Tensor, Tensor, Metrics]:
    """Return the critics' and the actor's loss on a batch, and their metrics, without changing any weight."""
    batch = learner.normalized(batch)
    critic_loss, metrics = learner.critic_loss(batch)
    actor_loss, _, actor_metrics = learner.actor_loss(batch)
    return critic_loss, actor_loss, metrics | actor_metrics
