"""Conservative Q-Learning (Kumar et al., 2020, https://arxiv.org/abs/2006.04779), CQL(H) on SAC.

Critic:  L = SAC's + α_cql Σ_i mean (logsumexp_a Q_i(s, a) - Q_i(s, a_data))

The log-sum-exp is estimated from 3n actions: n uniform ones, n of the policy at s, and n of the policy at s'. The
log-density of each action is subtracted from its value (importance weights). With ``lagrange`` set, α_cql is learned so
that the gap stays near that number.

``calibrated`` is Cal-QL (Nakamoto et al., 2023, https://arxiv.org/abs/2303.05479): the values of the policy's
actions are raised to at least the return that the data reached from s, so that CQL does not push them below the returns
of the data. Only offline rows have such a return; online rows are not bounded.

At first the values are wrong, and an actor that maximises them moves away from the data. ``bc_updates`` lets it clone
the data at first, ``bc_weight`` adds a cloning term throughout; both are off by default.

On discrete actions (``DiscreteCQL``, on double DQN) the log-sum-exp is exact.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.dqn import DQN, DQNSettings
from rl_training.algorithms.sac import SAC, SACSettings
from rl_training.types import Batch, Metrics


class CQLSettings(SACSettings):
    """Settings of CQL."""

    cql_alpha: float = Field(5.0, ge=0, description="weight of the conservative term; with lagrange: its initial value")
    cql_actions: int = Field(10, ge=1, description="actions drawn from each of the three sources")
    lagrange: float | None = Field(
        None, description="target of the gap, which a learned weight keeps; unset: the weight is fixed"
    )
    backup_entropy: bool | None = Field(False, description="include the entropy term in the target")
    bc_updates: int = Field(
        0, ge=0, description="number of first updates in which the actor clones the data; the critics learn as usual"
    )
    calibrated: bool = Field(False, description="Cal-QL: do not push values below the returns that the data reached")


class CQL(SAC):
    """SAC with a penalty on the values of actions that are not in the data."""

    Settings = CQLSettings
    settings: CQLSettings
    temperatures: ClassVar[Mapping[str, str]] = {**SAC.temperatures, "log_cql_alpha": "cql_alpha"}

    def _build(self, generator: torch.Generator) -> None:
        super()._build(generator)
        start = torch.tensor(math.log(max(self.settings.cql_alpha, 1e-6)), device=self.device)
        learned = self.settings.lagrange is not None
        self.is_conservative = self.settings.cql_alpha > 0
        self.log_cql_alpha = nn.Parameter(start, requires_grad=learned)
        if learned:
            rate = self.settings.critic_lr or self.settings.learning_rate
            self.cql_alpha_optimizer = self._optimizer("cql_alpha", [self.log_cql_alpha], rate)

    @property
    def update_kind(self) -> Hashable:
        """Whether the next update moves the actor, and whether it does so by cloning."""
        return super().update_kind, self.update_count + 1 <= self.settings.bc_updates

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Metrics]:
        """Return SAC's loss, or the cloning loss in the first ``bc_updates`` updates."""
        if not 0 < self.settings.bc_updates >= self.update_count:
            return super().actor_loss(batch)
        loss = -self.model.actor.log_prob(batch.observations, batch.actions).mean()
        with torch.no_grad():  # for the temperature
            _, log_probs = self.model.actor.sample(batch.observations, self.generator)  # [B]
        return loss, log_probs, {"train/actor_loss": loss.detach(), "train/entropy": -log_probs.mean()}

    @property
    def needs_returns(self) -> bool:
        """Whether batches of offline data should contain returns."""
        return self.settings.calibrated

    def conservative_gap(self, batch: Batch) -> Tensor:
        """Return for each critic how much higher it values other actions than the data's, ``[members]``.

        Shapes: B rows, n = ``cql_actions``, A = ``action_dim``.
        """
        size, count = len(batch.observations), self.settings.cql_actions
        with torch.no_grad():
            shape = (size, count, self.spec.action_dim)
            random = torch.rand(shape, generator=self.generator, device=self.device) * 2.0 - 1.0  # [B, n, A]
            both = torch.cat([batch.observations, batch.next_observations])  # [2B, policy_dim]
            drawn, log_probs = self.model.actor.sample(both, self.generator, count)  # [2B, n, A], [2B, n]
            now, after = drawn.split(size)  # [B, n, A] each
            log_now, log_after = log_probs.split(size)  # [B, n] each
            density = torch.full_like(log_now, -self.spec.action_dim * math.log(2.0))  # [B, n], uniform
            weights = torch.cat([density, log_now, log_after], dim=1)  # [B, 3n]
            observations = batch.observations.repeat_interleave(count, dim=0)  # [B * n, policy_dim]
        # [members, B, n] for each source; one source at a time, because a third of the actions fits into the cache.
        random_values, *own_values = (
            self.model.critic(observations, actions.flatten(0, 1)).view(-1, size, count)
            for actions in (random, now, after)
        )
        if self.settings.calibrated and batch.returns is not None:
            own_values = [torch.maximum(values, batch.returns[:, None]) for values in own_values]
        values = torch.cat([random_values, *own_values], dim=2)  # [members, B, 3n]
        others = torch.logsumexp(values - weights, dim=2) - math.log(3 * count)  # [members, B]
        taken: Tensor = self.model.critic(batch.observations, batch.actions)  # [members, B]
        return (others - taken).mean(dim=1)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return SAC's error and the weighted conservative gap."""
        loss, metrics = super().critic_loss(batch)
        gap = self.conservative_gap(batch)  # [members]
        weight = self.log_cql_alpha.exp().clamp(max=1e6)
        if self.settings.lagrange is not None:
            excess = gap.detach() - self.settings.lagrange
            self._minimize(-(weight * excess).sum(), self.cql_alpha_optimizer)
            weight = self.log_cql_alpha.detach().exp().clamp(max=1e6)
            loss = loss + (weight * (gap - self.settings.lagrange)).sum()
        elif self.is_conservative:
            loss = loss + weight * gap.sum()
        return loss, metrics | {"train/cql_gap": gap.detach().mean()}


class DiscreteCQLSettings(DQNSettings):
    """Settings of CQL on discrete actions."""

    cql_alpha: float = Field(1.0, ge=0, description="weight of the conservative term")


class DiscreteCQL(DQN):
    """Double DQN with a penalty on the values of actions that are not in the data."""

    Settings = DiscreteCQLSettings
    settings: DiscreteCQLSettings

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Return DQN's error and the weighted conservative gap."""
        loss, metrics = super().critic_loss(batch)
        values: Any = self.model.critic(batch.observations)  # [B, num_actions]
        taken = values.gather(1, batch.actions.long()).squeeze(1)  # [B]
        gap = (torch.logsumexp(values, dim=1) - taken).mean()
        return loss + self.settings.cql_alpha * gap, metrics | {"train/cql_gap": gap.detach()}
