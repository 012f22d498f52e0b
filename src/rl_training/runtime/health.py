"""Checks for NaN and infinity. The errors say where they first appear.

The results of environments are on the host and are checked as they arrive. The learner's numbers are checked when they
are logged or saved, because the loop waits for the device then anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.errors import NumericalError
from rl_training.types import Metrics, Observation

_LARGEST = float(np.finfo(np.float32).max)  # beyond it a number becomes infinite in a buffer
_NAMED = 4


def require_finite_step(observations: Observation, rewards: NDArray[Any], *, name: str | None = None) -> None:
    """Raise an error if environments returned a number that is not finite; the first axis is the environments'.

    ``name`` is the source of the numbers in the error; unset: the index of the environment.
    """
    parts = observations if isinstance(observations, dict) else {"observation": observations}
    for part, values in {**parts, "reward": rewards}.items():
        position = _first_wrong(values)
        if position is not None:
            raise NumericalError(
                f"{name or f'environment {position[0]}'} returned {values[position]} in {_element(part, position)}:"
                " expected a finite number that float32 can hold"
            )


def require_finite_actions(actions: NDArray[Any], learner: Learner) -> None:
    """Raise an error if actions are not finite, and name the weights that are not."""
    position = _first_wrong(actions)
    if position is not None:
        action = f"the policy chose {actions[position]} for {_element('action', position)} of environment {position[0]}"
        require_finite_learner(learner, {}, action)
        raise NumericalError(f"{action}, with weights that are finite")


def require_finite_learner(learner: Learner, metrics: Metrics, symptom: str = "") -> None:
    """Raise an error if metrics or weights are not finite; one transfer from the device checks all of them."""
    values: dict[str, Tensor] = {name: torch.as_tensor(value) for name, value in metrics.items()}
    values |= {f"weight {name}": tensor for name, tensor in learner.state_dict().items() if tensor.is_floating_point()}
    sane = torch.stack([value.isfinite().all().to(learner.device) for value in values.values()]).tolist()
    wrong = [_describe(name, value) for (name, value), ok in zip(values.items(), sane, strict=True) if not ok]
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        found = "; ".join([*([symptom] if symptom else []), *wrong[:_NAMED]])
        raise NumericalError(
            f"{found}{more}. A smaller learning rate, max_grad_norm, or smaller rewards (reward_scale) usually help"
        )


def require_finite_metrics(metrics: Mapping[str, float]) -> None:
    """Raise an error if the metrics of an evaluation are not finite."""
    wrong = [f"{name} is {value}" for name, value in metrics.items() if not np.isfinite(value)]
    if wrong:
        raise NumericalError(f"{'; '.join(wrong)}: the environment returned a reward that is not finite")


def _first_wrong(values: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the position of the first number that float32 cannot hold, or None."""
    sane = np.abs(values) <= _LARGEST  # false for NaN, too
    return None if sane.all() else tuple(int(i) for i in np.argwhere(~sane)[0])


def _element(name: str, position: tuple[int, ...]) -> str:
    return name + "".join(f"[{index}]" for index in position[1:])


def _describe(name: str, value: Tensor) -> str:
    wrong = value[~value.isfinite()]
    count = f" in {len(wrong)} of {value.numel()} values" if value.numel() > 1 else ""
    return f"{name} is {wrong[0].item()}{count}"
