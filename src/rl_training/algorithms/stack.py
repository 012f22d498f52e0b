"""Learners of one algorithm that are trained together on one device.

All their tensors have a member axis, so an update of the whole stack launches as many kernels as an update of one
learner. Small networks leave most of a GPU idle: eight of them take little more time there than one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from rl_training.algorithms.base import CriticLearner, Learner
from rl_training.algorithms.optimizer import FusedAdam
from rl_training.errors import ConfigError
from rl_training.member_axis import MemberStack
from rl_training.models.cpu_products import fast_products
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.types import Batch, Metrics

_BOUNDS = ("lowest value", "highest value")
"""The names of ``value_bounds`` among the numbers in which members may differ."""


class LearnerStack:
    """Several learners as one. Each of them stays an ordinary learner whose tensors are parts of the stack's.

    The members may have different weights and different numbers in their settings, such as learning rates. They
    share one generator of noise, so a stack is repeated exactly only as a whole.

    Attributes:
        members: the learners.
        device: the device of all of them.
        generator: the generator of noise; it starts in the state of the member ``lead``.
    """

    def __init__(self, members: Sequence[Learner], lead: int = 0) -> None:
        self.members, self.device, self.generator = list(members), members[0].device, members[lead].generator
        self._lead = members[lead]
        self._stack = MemberStack(self.members)
        self._pattern = self._stack.pattern
        for learner in (self._pattern, *self.members):
            learner.generator = self.generator
        for optimizer in self._pattern._optimizers.values():
            optimizer.state.clear()  # those of one learner
        self._differing: dict[str, Tensor] = {}
        self.refresh()

    def __len__(self) -> int:
        return len(self.members)

    def refresh(self) -> None:
        """Read what is not in the members' networks: settings, bounds of values, and the states of optimisers.

        Call it after a member has loaded a state, or its reward range has changed.
        """
        self.update_count = self._lead.update_count
        if isinstance(self._pattern, CriticLearner):
            self._pattern.value_bounds = cast(CriticLearner, self.members[0]).value_bounds
        self._differing = self._differing_numbers()
        for name, optimizer in self._pattern._optimizers.items():
            self._join_optimizers(optimizer, [member._optimizers[name] for member in self.members])
            rates = [cast(float, member._learning_rates[name]) for member in self.members]
            if len(set(rates)) > 1:
                self._pattern._learning_rates[name] = torch.tensor(rates, device=self.device)
                optimizer.param_groups[0]["lr"] = torch.tensor(rates, device=self.device)

    @property
    def fuses_kernels(self) -> bool:
        """Whether the kernels of updates on CUDA are compiled."""
        return self._pattern.fuses_kernels

    @property
    def normalizer(self) -> ObservationNormalizer | None:
        """The members' normalisers as one, whose statistics have a member axis."""
        return self._pattern.normalizer

    @property
    def update_kind(self) -> Hashable:
        """The kind of the next update. Updates of equal kind run the same operations on different numbers."""
        bounds = [member.value_bounds for member in self.members if isinstance(member, CriticLearner)]
        return self._pattern.update_kind, tuple(bounds)

    def update(self, batch: Batch) -> Metrics:
        """Learn from a minibatch of each member; its tensors and the metrics have a member axis, ``[members, ...]``."""
        tensors = {name: value for name, value in batch._asdict().items() if isinstance(value, Tensor)}

        def update_one(learner: Learner, tensors: dict[str, Tensor], numbers: dict[str, Tensor]) -> Metrics:
            with _using(learner, numbers):
                return learner.update(Batch(**cast(Any, tensors), offline_rows=batch.offline_rows))

        with fast_products(self.device):  # here, because its trial cannot be made inside the members' code
            metrics: Metrics = self._stack.call(update_one, tensors, self._differing)
        self.update_count = self._pattern.update_count
        return metrics

    @property
    def update_count(self) -> int:
        """The number of updates so far."""
        return self._pattern.update_count

    @update_count.setter
    def update_count(self, count: int) -> None:
        for learner in (self._pattern, *self.members):
            learner.update_count = count

    @torch.no_grad()
    def act(self, observations: Tensor, deterministic: bool = True, noise: Tensor | None = None) -> Tensor:
        """Return actions ``[members, B, action_dim]`` for observations ``[members, B, policy_dim]``."""
        inputs = (observations,) if noise is None else (observations, noise)
        actions: Tensor = self._stack.call(lambda learner, x, *noise: learner.act(x, deterministic, *noise), *inputs)
        return actions

    @torch.no_grad()
    def observe(self, observations: Tensor) -> None:
        """Add observations ``[members, B, policy_dim]`` to the statistics of the members' normalisers."""
        if self._pattern.normalizer is not None:
            self._stack.call(_observe_one, observations)

    def scale_learning_rates(self, factor: float) -> None:
        """Set the learning rates that follow a schedule to ``factor`` times their configured values."""
        self._pattern.scale_learning_rates(factor)

    def _differing_numbers(self) -> dict[str, Tensor]:
        """Return the numbers that differ between members, ``[members]`` each; refuse other differences."""
        found: dict[str, Tensor] = {}
        tables = [_numbers(member) for member in self.members]
        for name, value in tables[0].items():
            values = [table[name] for table in tables]
            if all(other == value for other in values):
                continue
            if not all(type(other) is float for other in values):
                raise ConfigError(f"{name} = {values}: members of a stack must have the same {name}")
            found[name] = torch.tensor(values, device=self.device)
        return found

    def _join_optimizers(self, whole: FusedAdam, parts: Sequence[FusedAdam]) -> None:
        """Make the moments of each member's optimiser parts of those of the whole stack."""
        whole.create_moments()
        for part in parts:
            part.create_moments()
        columns = [part.param_groups[0]["params"] for part in parts]
        for parameter, *own in zip(whole.param_groups[0]["params"], *columns, strict=True):
            states = [part.state[key] for part, key in zip(parts, own, strict=True)]
            moments = whole.state[parameter]
            moments["step"].copy_(states[self.members.index(self._lead)]["step"])
            for key in ("exp_avg", "exp_avg_sq"):
                moments[key].copy_(torch.stack([state[key] for state in states]))
            for member, state in enumerate(states):
                state.update(step=moments["step"], exp_avg=moments["exp_avg"][member])
                state["exp_avg_sq"] = moments["exp_avg_sq"][member]


def _observe_one(learner: Learner, observations: Tensor) -> Tensor:
    learner.observe(observations)
    return observations.sum()  # vmap needs a result


def _numbers(learner: Learner) -> dict[str, Any]:
    """Return what an update reads besides tensors: settings, bounds of values, and numbers derived from them."""
    derived = {name: value for name, value in vars(learner).items() if isinstance(value, (bool, float))}
    bounds = learner.value_bounds if isinstance(learner, CriticLearner) else None
    limits = {} if bounds is None else dict(zip(_BOUNDS, bounds, strict=True))
    # A number that is derived comes last: where its setting is unset, only the derived one shows that members differ.
    return {**dict(learner.settings), **derived, **limits, "bounded": bounds is not None}


@contextlib.contextmanager
def _using(learner: Learner, numbers: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a learner use a member's own numbers, as scalar tensors, in place of the pattern's."""
    before = dict(vars(learner))
    fields = type(learner.settings).model_fields
    learner.settings = learner.settings.model_copy(update={key: numbers[key] for key in numbers if key in fields})
    for name in numbers.keys() & before.keys():
        setattr(learner, name, numbers[name])
    if _BOUNDS[0] in numbers or _BOUNDS[1] in numbers:
        low, high = cast(tuple[float, float], cast(CriticLearner, learner).value_bounds)
        bounds = numbers.get(_BOUNDS[0], torch.tensor(low)), numbers.get(_BOUNDS[1], torch.tensor(high))
        learner.value_bounds = cast(Any, bounds)
    try:
        yield
    finally:
        count = learner.update_count
        vars(learner).update(before)
        learner.update_count = count
