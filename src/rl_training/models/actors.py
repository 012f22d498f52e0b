"""Policies over actions in [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.fusing import fused
from rl_training.models.mlp import MLP
from rl_training.types import SpaceSpec

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
_DEFAULT_LOG_STD = -2.0  # for a policy loaded from one without a std


class DeterministicActor(nn.Module):
    """``tanh`` of an MLP."""

    def __init__(self, spec: SpaceSpec, hidden_sizes: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = MLP(spec.policy_dim, hidden_sizes, spec.action_dim, generator)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the actions ``[B, A]``."""
        return torch.tanh(self.mlp(observations))


class GaussianActor(nn.Module):
    """A Gaussian around ``tanh`` of an MLP, with one learned std per action dimension.

    Unlike that of the squashed Gaussian, its density is finite at the bounds, where many logged actions are.
    """

    def __init__(self, spec: SpaceSpec, hidden_sizes: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = MLP(spec.policy_dim, hidden_sizes, spec.action_dim, generator)
        self.log_std = nn.Parameter(torch.zeros(spec.action_dim))

    def mode(self, observations: Tensor) -> Tensor:
        """Return the mean ``[B, A]``, the action to take when not exploring."""
        return torch.tanh(self.mlp(observations))

    def sample(self, observations: Tensor, generator: torch.Generator, noise: Tensor | None = None) -> Tensor:
        """Return actions ``[B, A]`` within the bounds; ``noise`` ``[B, A]`` is standard normal, None: drawn here."""
        mean = self.mode(observations)  # [B, A]
        if noise is None:
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return torch.addcmul(mean, self._log_std.exp(), noise).clamp(-1.0, 1.0)

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the log-density ``[B]`` of given actions."""
        z = (actions - self.mode(observations)) * (-self._log_std).exp()  # [B, A]
        return (-0.5 * z.square() - self._log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    @property
    def _log_std(self) -> Tensor:
        return self.log_std.clamp(-5.0, LOG_STD_MAX)


class SquashedGaussianActor(nn.Module):
    """A Gaussian with state-dependent mean and std, squashed by ``tanh``."""

    def __init__(self, spec: SpaceSpec, hidden_sizes: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = MLP(spec.policy_dim, hidden_sizes, 2 * spec.action_dim, generator)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log std before squashing, ``[B, A]`` each."""
        return _mean_and_log_std(self.mlp(observations))

    def mode(self, observations: Tensor) -> Tensor:
        """Return the squashed mean ``[B, A]``, the action to take when not exploring."""
        return torch.tanh(self(observations)[0])

    def sample(
        self, observations: Tensor, generator: torch.Generator, count: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return differentiable actions ``[B, A]`` and their log-densities ``[B]``.

        With ``count``, there are that many for each observation: ``[B, count, A]`` and ``[B, count]``.
        """
        mean, log_std = self(observations)  # [B, A] each
        if count is not None:
            mean, log_std = (x.unsqueeze(1).expand(-1, count, -1) for x in (mean, log_std))
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return _squash(mean, log_std, noise)

    def draw(self, observations: Tensor, generator: torch.Generator, noise: Tensor | None = None) -> Tensor:
        """Return actions ``[B, A]`` without their densities; ``noise`` ``[B, A]`` is standard normal, None: drawn."""
        mean, log_std = self(observations)  # [B, A] each
        if noise is None:
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return torch.tanh(torch.addcmul(mean, log_std.exp(), noise))

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the log-density ``[B]`` of given actions; those at the bounds are moved slightly inside."""
        mean, log_std = self(observations)  # [B, A] each
        raw = torch.atanh(actions.clamp(-1.0 + 1e-5, 1.0 - 1e-5))  # [B, A]
        gaussian = -0.5 * ((raw - mean) * (-log_std).exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        log_probs: Tensor = (gaussian - _squash_correction(raw)).sum(-1)
        return log_probs


@fused
def _mean_and_log_std(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two halves of a network's outputs, the second one within its bounds."""
    mean, log_std = outputs.chunk(2, dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


@fused
def _squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions ``[..., A]`` and their log-densities ``[...]``, from standard normal noise ``[..., A]``."""
    raw = torch.addcmul(mean, log_std.exp(), noise)  # [..., A]
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)  # [..., A]
    return torch.tanh(raw), (gaussian - _squash_correction(raw)).sum(-1)


def _squash_correction(raw: Tensor) -> Tensor:
    """Return log(1 - tanh(x)²) in a form that stays accurate for large x."""
    return 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))


@torch.no_grad()
def load_actor(actor: nn.Module, other: Mapping[str, Tensor]) -> None:
    """Load the policy of another actor, which may be of another class, from its ``state_dict``.

    The mean action is the same afterwards; the std is the same if it depends on the state in both.

    Raises:
        ValueError: the hidden layers or the number of actions differ.
    """
    own = actor.state_dict()
    squashed = isinstance(actor, SquashedGaussianActor)
    size = len(own["mlp.output.bias"]) // (2 if squashed else 1)
    outputs = len(other["mlp.output.bias"])
    if outputs not in (size, 2 * size) or len(other.get("log_std", own["mlp.output.bias"][:size])) != size:
        raise ValueError(f"the other policy has {outputs} outputs: expected {size} actions")
    new = dict(own)
    for name in {**own, **other}:
        if not name.startswith("mlp."):
            continue
        value = other.get(name)
        if value is not None and name.startswith("mlp.output."):
            mean, log_std = value[..., :size], value[..., size:]
            if squashed and log_std.shape[-1] == 0:
                constant = other.get("log_std", torch.full((size,), _DEFAULT_LOG_STD, device=value.device))
                log_std = constant if name.endswith("bias") else torch.zeros_like(mean)
            value = torch.cat([mean, log_std], dim=-1) if squashed else mean
        there = None if value is None else list(value.shape)
        here = list(own[name].shape) if name in own else None
        if value is None or there != here:
            raise ValueError(
                f"{name} has shape {there} in the other policy and {here} here: expected the same hidden_sizes"
            )
        new[name] = value
    if "log_std" in own:
        new["log_std"] = other.get("log_std", torch.full_like(own["log_std"], _DEFAULT_LOG_STD))
    actor.load_state_dict(new)
