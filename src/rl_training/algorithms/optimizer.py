"""Adam with less overhead per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class FusedAdam(torch.optim.Adam):
    """PyTorch's fused Adam on one group of parameters, all of which have a gradient at every step.

    PyTorch's ``step`` collects the moments and checks the options at every call, which takes longer than the arithmetic
    of a small network. This class does both once.
    """

    # A class attribute on purpose: deepcopy copies only `state`, so a copy must build these lists again.
    _arguments: tuple[list[Tensor], ...] | None = None

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float | Tensor, *, capturable: bool = False) -> None:
        super().__init__(parameters, lr=lr, fused=True, capturable=capturable)

    # PyTorch's wrapper around this method imports torch._dynamo, which takes seconds; only torch.compile needs it.
    add_param_group = getattr(torch.optim.Adam.add_param_group, "__wrapped__", torch.optim.Adam.add_param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the moments."""
        super().load_state_dict(state_dict)
        self._arguments = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the parameters along their gradients."""
        group = self.param_groups[0]
        if self._arguments is None:
            if not self.state:
                super().step()  # the first step creates the moments
                return
            states = [self.state[parameter] for parameter in group["params"]]
            self._counts = torch.stack([state["step"] for state in states])
            for state, count in zip(states, self._counts, strict=True):
                state["step"] = count  # a view, so that one addition updates all counts
            self._arguments = tuple([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
        means, squares, steps = self._arguments
        self._counts += 1
        torch._fused_adam_(
            group["params"],
            [parameter.grad for parameter in group["params"]],
            means,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    step.hooked = True  # type: ignore[attr-defined]  # skips torch's profiling hook: a third of a small step
