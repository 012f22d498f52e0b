"""Adam with less overhead per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

_CHUNK = 8192  # numbers; PyTorch gives a whole tensor of up to 65,536 numbers to one block of threads


def small_parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors as flat parts on CUDA, where functions over lists of tensors work on many parts at a time."""
    if tensors[0].device.type != "cuda":
        return list(tensors)
    return [part for tensor in tensors for part in torch.split(tensor.detach().view(-1), _CHUNK)]


class FusedAdam(torch.optim.Adam):
    """PyTorch's fused Adam on one group of parameters, all of which have a gradient at every step.

    PyTorch's ``step`` collects the moments and checks the options at every call, which takes longer than the arithmetic
    of a small network. This class does both once. It also avoids the methods that import torch._dynamo, which takes
    seconds.
    """

    # A class attribute on purpose: deepcopy copies only `state`, so a copy must build these lists again.
    _arguments: tuple[list[Tensor], ...] | None = None

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float | Tensor, *, capturable: bool = False) -> None:
        super().__init__(parameters, lr=lr, fused=True, capturable=capturable)

    # PyTorch's wrapper around this method imports torch._dynamo, which takes seconds; only torch.compile needs it.
    add_param_group = getattr(torch.optim.Adam.add_param_group, "__wrapped__", torch.optim.Adam.add_param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the moments from a state of PyTorch's own form."""
        super().load_state_dict(state_dict)
        self._arguments = None

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Return the moments and the number of steps of each parameter, by its position."""
        parameters = enumerate(self.param_groups[0]["params"])
        return {str(index): dict(self.state[parameter]) for index, parameter in parameters if self.state[parameter]}

    def load_moments(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what ``moments`` returned; a parameter that is not listed starts without moments."""
        self.state.clear()
        self._arguments = None
        for index, values in moments.items():
            parameter = self.param_groups[0]["params"][int(index)]
            for name, value in values.items():
                expected = torch.Size() if name == "step" else parameter.shape
                if value.shape != expected:
                    raise ValueError(f"{name} of parameter {index} has shape {value.shape}: expected {expected}")
            self.state[parameter] = {name: value.to(parameter.device, copy=True) for name, value in values.items()}

    def create_moments(self) -> None:
        """Create the moments for parameters that have none yet, as the first step of PyTorch's optimiser does."""
        for parameter in self.param_groups[0]["params"]:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        self._collect_arguments()

    def _collect_arguments(self) -> None:
        states = [self.state[parameter] for parameter in self.param_groups[0]["params"]]
        self._counts = torch.stack([state["step"] for state in states])
        for state, count in zip(states, self._counts, strict=True):
            state["step"] = count  # a view, so that one addition updates all counts
        parameters = self.param_groups[0]["params"]
        columns = [[state[key] for state in states] for key in ("exp_avg", "exp_avg_sq")]
        counts = [
            state["step"] for state, parameter in zip(states, parameters, strict=True) for _ in small_parts([parameter])
        ]
        self._arguments = small_parts(parameters), *map(small_parts, columns), counts

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the parameters along their gradients."""
        group = self.param_groups[0]
        if self._arguments is None:
            self.create_moments()
        self._counts += 1
        gradients = [parameter.grad for parameter in group["params"]]
        if isinstance(group["lr"], Tensor) and group["lr"].dim() == 1:  # one rate for each member of a stack
            states = [self.state[parameter] for parameter in group["params"]]
            whole = [
                group["params"],
                gradients,
                *([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq")),
            ]
            steps = [state["step"] for state in states]
            for member, rate in enumerate(group["lr"]):
                self._move([[tensor[member] for tensor in column] for column in whole], steps, rate)
        else:
            parameters, means, squares, steps = cast(tuple[list[Tensor], ...], self._arguments)
            self._move([parameters, small_parts(gradients), means, squares], steps, group["lr"])

    def _move(self, columns: list[list[Tensor]], steps: list[Tensor], rate: float | Tensor) -> None:
        """Move parameters; the columns are the parameters, their gradients, and the two moments."""
        group = self.param_groups[0]
        parameters, gradients, means, squares = columns
        torch._fused_adam_(
            parameters,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=cast(float, rate),
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    step.hooked = True  # type: ignore[attr-defined]  # skips torch's profiling hook: a third of a small step
