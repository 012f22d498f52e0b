"""Multi-layer perceptrons, one at a time and as an ensemble of critics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.fusing import fused

# For <= 12 outputs, F.linear on the transposed weight is ~2x faster than addmm (forward + backward, CPU).
_NARROW = 12


def uniform_parameter(shape: Sequence[int], fan_in: int, generator: torch.Generator) -> nn.Parameter:
    """Return a parameter drawn from U(-1/√fan_in, 1/√fan_in), PyTorch's own default for linear layers."""
    bound = 1.0 / math.sqrt(fan_in)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=generator))


class Linear(nn.Module):
    """The weight and bias of a linear layer; for several networks at once, ``weight`` is ``[members, in, out]``."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator, members: int = 1) -> None:
        super().__init__()
        self.weight = uniform_parameter([members, inputs, outputs], inputs, generator)
        self.bias = uniform_parameter([members, 1, outputs], inputs, generator)
        if members == 1:
            self.weight, self.bias = nn.Parameter(self.weight.data[0]), nn.Parameter(self.bias.data[0, 0])


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``x @ weight + bias``: ``[B, in]`` or ``[members, B, in]`` to ``[B, out]`` or ``[members, B, out]``."""
    if weight.dim() == 2 and weight.shape[1] > _NARROW:
        return torch.addmm(bias, x, weight)
    if weight.dim() == 2:
        return F.linear(x, weight.t().contiguous(), bias)
    if x.dim() == 2:
        x = x.expand(len(weight), *x.shape)
    if weight.shape[2] == 1:  # baddbmm is slow for matrix-vector products
        return torch.add(bias, (x * weight.transpose(1, 2)).sum(dim=2, keepdim=True))
    if x.device.type == "cuda":  # baddbmm copies the bias first; a compiled sum costs nothing
        return torch.add(bias, torch.bmm(x, weight))
    return torch.baddbmm(bias, x, weight)


class LayerNorm(nn.Module):
    """The scale and shift of a layer normalisation; each member has its own."""

    def __init__(self, size: int, members: int = 1) -> None:
        super().__init__()
        shape = (size,) if members == 1 else (members, 1, size)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalise the last axis."""
    size, on_cpu = x.shape[-1:], x.device.type == "cpu"
    if scale.dim() == 1 and not on_cpu:
        return F.layer_norm(x, size, scale, shift)
    # On a CPU the kernel's own gradients of scale and shift depend on the number of threads. So it gets neutral ones:
    # without any it is slower.
    neutral = (torch.ones(size), torch.zeros(size)) if on_cpu else (None, None)
    return torch.addcmul(shift, F.layer_norm(x, size, *neutral), scale)


class MLP(nn.Module):
    """Linear layers with ReLU between them and, on request, LayerNorm before each ReLU; one network or several."""

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        outputs: int,
        generator: torch.Generator,
        *,
        layer_norm: bool = False,
        members: int = 1,
    ) -> None:
        super().__init__()
        sizes = [inputs, *hidden_sizes]
        self.hidden = nn.ModuleList(Linear(a, b, generator, members) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(LayerNorm(size, members) for size in (hidden_sizes if layer_norm else ()))
        self.output = Linear(sizes[-1], outputs, generator, members)

    def forward(self, x: Tensor, members: Tensor | None = None, *, fixed: bool = False) -> Tensor:
        """Map ``[B, inputs]`` to ``[B, outputs]``, or ``[members, B, outputs]`` if there are several members.

        ``members`` are the indices of those to evaluate; ``fixed`` networks get no gradient, only their input does.
        """
        layers, norms = ([_parameters(layer, fixed) for layer in group] for group in (self._layers, self.norms))
        return _apply(x, members, layers, norms)

    @property
    def _layers(self) -> list[nn.Module]:
        return [*self.hidden, self.output]


def _parameters(layer: nn.Module, fixed: bool) -> list[Tensor]:
    """Return weight and bias."""
    tensors = [cast(Tensor, layer.weight), cast(Tensor, layer.bias)]
    return [tensor.detach() for tensor in tensors] if fixed else tensors


@fused
def _apply(x: Tensor, members: Tensor | None, layers: list[list[Tensor]], norms: list[list[Tensor]]) -> Tensor:
    """Return the output of an MLP whose layers and norms have these weights and biases."""
    for index, (weight, bias) in enumerate(layers):
        if members is not None and weight.dim() == 3:
            weight, bias = weight.index_select(0, members), bias.index_select(0, members)
        x = linear(x, weight, bias)
        if index == len(layers) - 1:
            break
        if norms:
            scale, shift = norms[index]
            if members is not None and scale.dim() == 3:
                scale, shift = scale.index_select(0, members), shift.index_select(0, members)
            x = layer_norm(x, scale, shift)
        x = x.relu_()  # in place: no gradient needs the input of the ReLU
    return x


class CriticEnsemble(nn.Module):
    """``members`` action-value functions, evaluated together as batched matrix products."""

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
        *,
        layer_norm: bool = False,
        members: int = 1,
    ) -> None:
        super().__init__()
        self.members = members
        self.mlp = MLP(inputs, hidden_sizes, 1, generator, layer_norm=layer_norm, members=members)

    def forward(
        self, observations: Tensor, actions: Tensor, members: Tensor | None = None, *, fixed: bool = False
    ) -> Tensor:
        """Return the values ``[members, B]``, of all critics or of those whose indices are given.

        ``fixed`` critics get no gradient: an actor that maximises the values needs only that of its actions.
        """
        values: Tensor = self.mlp(torch.cat([observations, actions], dim=-1), members, fixed=fixed).squeeze(-1)
        return values.unsqueeze(0) if self.members == 1 else values
