"""The networks of each family of algorithms, with their target copies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from rl_training.models.actors import DeterministicActor, GaussianActor, SquashedGaussianActor
from rl_training.models.mlp import MLP, CriticEnsemble
from rl_training.types import SpaceSpec

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def target_copy(module: ModuleT) -> ModuleT:
    """Return a copy that gradients never reach."""
    return copy.deepcopy(module).requires_grad_(False)


class MLPDDPGModel(nn.Module):
    """Deterministic actor and critics, each with a target: DDPG (one critic) and TD3 (two)."""

    def __init__(
        self,
        spec: SpaceSpec,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
        *,
        num_critics: int = 1,
        critic_layer_norm: bool = False,
    ) -> None:
        super().__init__()
        inputs = spec.policy_dim + spec.action_dim
        self.actor = DeterministicActor(spec, hidden_sizes, generator)
        self.critic = CriticEnsemble(inputs, hidden_sizes, generator, layer_norm=critic_layer_norm, members=num_critics)
        self.target_actor, self.target_critic = target_copy(self.actor), target_copy(self.critic)


class MLPSACModel(nn.Module):
    """Squashed Gaussian actor, critics and target critics: SAC and what is built on it."""

    def __init__(
        self,
        spec: SpaceSpec,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
        *,
        num_critics: int = 2,
        critic_layer_norm: bool = False,
    ) -> None:
        super().__init__()
        inputs = spec.policy_dim + spec.action_dim
        self.actor = SquashedGaussianActor(spec, hidden_sizes, generator)
        self.critic = CriticEnsemble(inputs, hidden_sizes, generator, layer_norm=critic_layer_norm, members=num_critics)
        self.target_critic = target_copy(self.critic)


class MLPAWACModel(nn.Module):
    """Gaussian actor with finite density at the bounds, critics and target critics."""

    def __init__(
        self,
        spec: SpaceSpec,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
        *,
        num_critics: int = 2,
        critic_layer_norm: bool = False,
    ) -> None:
        super().__init__()
        inputs = spec.policy_dim + spec.action_dim
        self.actor = GaussianActor(spec, hidden_sizes, generator)
        self.critic = CriticEnsemble(inputs, hidden_sizes, generator, layer_norm=critic_layer_norm, members=num_critics)
        self.target_critic = target_copy(self.critic)


class MLPIQLModel(MLPAWACModel):
    """The same with a state value."""

    def __init__(
        self,
        spec: SpaceSpec,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
        *,
        num_critics: int = 2,
        critic_layer_norm: bool = False,
    ) -> None:
        super().__init__(spec, hidden_sizes, generator, num_critics=num_critics, critic_layer_norm=critic_layer_norm)
        self.value = MLP(spec.policy_dim, hidden_sizes, 1, generator, layer_norm=critic_layer_norm)


class MLPDQNModel(nn.Module):
    """One value for each discrete action, and a target."""

    def __init__(
        self, spec: SpaceSpec, hidden_sizes: Sequence[int], generator: torch.Generator, *, layer_norm: bool = False
    ) -> None:
        super().__init__()
        if spec.num_actions is None:
            raise ValueError("MLPDQNModel needs a SpaceSpec with num_actions")
        self.critic = MLP(spec.policy_dim, hidden_sizes, spec.num_actions, generator, layer_norm=layer_norm)
        self.target_critic = target_copy(self.critic)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the values ``[B, num_actions]``."""
        return self.critic(observations)  # type: ignore[no-any-return]
