"""Randomized Ensembled Double Q-learning (Chen et al., 2021, https://arxiv.org/abs/2101.05982).

SAC with a large ensemble of critics, so that many updates per environment step do not overestimate values:

Critic:  y = r + γ (1 - terminated) · (min_{i in subset} Q'_i(s', a') - α log π(a'|s')),   L = Σ_i mean (Q_i(s, a) - y)²
Actor:   L = mean (α log π(a|s) - mean_i Q_i(s, a)),   once per environment step, for any number of critic updates.

The subset of ``num_min_critics`` critics is drawn again at every update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from rl_training.algorithms.sac import SAC, SACSettings


class REDQSettings(SACSettings):
    """Settings of REDQ."""

    num_critics: int = Field(10, ge=1, le=256, description="critics in the ensemble")
    num_min_critics: int | None = Field(
        2, ge=1, description="critics drawn at random for each update; their minimum is the target; unset: all"
    )
    policy_delay: int = Field(
        20, ge=1, description="critic updates for each update of the actor; in a run: gradient_updates_per_step"
    )


class REDQ(SAC):
    """SAC with an ensemble of critics and many updates per environment step."""

    Settings = REDQSettings
    settings: REDQSettings
    run_defaults: ClassVar[Mapping[str, float]] = {"gradient_updates_per_step": 20.0}
    one_actor_update_per_step = True

    def _policy_values(self, values: Tensor) -> Tensor:
        return values.mean(dim=0)
