"""The networks of each family of algorithms, with their target copies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from rl_training.models.actors import DeterministicActor, GaussianActor, SquashedGaussianActor
from rl_training.models.mlp import MLP, CriticEnsemble
from rl_training.types import SpaceSpec

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def target_copy(module: ModuleT) -> ModuleT:
    """Return a copy whose parameters need no gradient."""
    return copy.deepcopy(module).requires_grad_(False)


class ActorCriticModel(nn.Module):
    """An actor, an ensemble of critics and their targets; subclasses say which actor."""

    Actor: ClassVar[type[Any]]

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
        self.actor = self.Actor(spec, hidden_sizes, generator)
        inputs = spec.policy_dim + spec.action_dim
        self.critic = CriticEnsemble(inputs, hidden_sizes, generator, layer_norm=critic_layer_norm, members=num_critics)
        self.target_critic = target_copy(self.critic)


class MLPDDPGModel(ActorCriticModel):
    """Deterministic actor with a target copy: DDPG and TD3."""

    Actor = DeterministicActor

    def __init__(
        self, spec: SpaceSpec, hidden_sizes: Sequence[int], generator: torch.Generator, **options: Any
    ) -> None:
        super().__init__(spec, hidden_sizes, generator, **options)
        self.target_actor = target_copy(self.actor)


class MLPSACModel(ActorCriticModel):
    """Squashed Gaussian actor: SAC and the algorithms based on it."""

    Actor = SquashedGaussianActor


class MLPAWACModel(ActorCriticModel):
    """Gaussian actor whose density is finite at the bounds."""

    Actor = GaussianActor


class MLPIQLModel(ActorCriticModel):
    """Gaussian actor whose density is finite at the bounds, and a state value."""

    Actor = GaussianActor

    def __init__(
        self, spec: SpaceSpec, hidden_sizes: Sequence[int], generator: torch.Generator, **options: Any
    ) -> None:
        super().__init__(spec, hidden_sizes, generator, **options)
        layer_norm = options.get("critic_layer_norm", False)
        self.value = MLP(spec.policy_dim, hidden_sizes, 1, generator, layer_norm=layer_norm)


class MLPDQNModel(nn.Module):
    """One value for each discrete action, and a target."""

    def __init__(
        self, spec: SpaceSpec, hidden_sizes: Sequence[int], generator: torch.Generator, *, layer_norm: bool = False
    ) -> None:
        super().__init__()
        if spec.num_actions is None:
            raise ValueError("num_actions is None: expected the number of discrete actions")
        self.critic = MLP(spec.policy_dim, hidden_sizes, spec.num_actions, generator, layer_norm=layer_norm)
        self.target_critic = target_copy(self.critic)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the values ``[B, num_actions]``."""
        return self.critic(observations)  # type: ignore[no-any-return]
