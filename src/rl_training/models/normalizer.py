"""Running statistics of observations, with which a learner normalises its inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.fusing import fused


class ObservationNormalizer(nn.Module):
    """Running mean and variance per dimension; ``forward`` returns ``(x - mean) / std``, clamped to ±``clip``."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def observe(self, observations: Tensor) -> None:
        """Update the statistics with ``[B, size]`` observations (Chan's parallel formula, in float64)."""
        batch = observations.double()
        count = self.count + len(batch)
        delta = batch.mean(0) - self.mean
        weight = len(batch) / count
        squares = self.variance * self.count + batch.var(0, correction=0) * len(batch)
        self.variance.copy_((squares + delta.square() * self.count * weight) / count)
        self.mean.add_(delta * weight)
        self.count.copy_(count)

    def forward(self, observations: Tensor) -> Tensor:
        """Normalise ``[..., size]`` observations."""
        return _normalize(observations, self.mean, self.variance, self.clip)


@fused
def _normalize(observations: Tensor, mean: Tensor, variance: Tensor, clip: float) -> Tensor:
    std = variance.sqrt().clamp_min(1e-3).float()
    return ((observations - mean.float()) / std).clamp(-clip, clip)
