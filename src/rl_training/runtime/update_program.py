"""A recorded update of a learner as a program: its computing parts are compiled, and the rest runs as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch._inductor
from torch import Tensor, fx

from rl_training.algorithms.base import Learner
from rl_training.runtime.update_recording import Part, Step, batch_tensors, learner_tensors, record
from rl_training.types import Batch, Metrics

_FEWEST_OPERATIONS = 10  # compiling a part takes seconds; one with fewer operations would gain nothing
# The order of a sum must not depend on the number of threads, so the loops use one. Matrix products use all of them.
_OPTIONS: dict[str, Any] = {"cpp.threads": 1}

Values = list[Tensor]
"""All values of one update so far: the inputs of the recording, its constants, draws, and the results of its parts."""


class UpdateProgram:
    """The update of a learner for batches of the form of ``batch``, with ``bounds`` of values that may change."""

    def __init__(self, learner: Learner, batch: Batch, bounds: Sequence[Tensor]) -> None:
        recording = record(learner, batch, bounds)
        self._learner, self._bounds, self._tensors = learner, bounds, learner_tensors(learner)
        self._constants = list(recording.constants.values())
        self._draws = [(draw.function, draw.arguments, draw.options) for draw in recording.draws]
        drawn = [draw.node for draw in recording.draws]
        places = {node: place for place, node in enumerate([*recording.inputs, *recording.constants, *drawn])}
        self._actions: list[Callable[[Values], None]] = []
        for action in recording.actions:
            if isinstance(action, Step):
                self._actions.append(_step(learner, action, [places[node] for node in action.gradients]))
            else:
                self._actions.append(_computation(action, [places[node] for node in action.inputs]))
                places |= {node: len(places) + index for index, node in enumerate(action.outputs)}
        self._metrics = [(name, places[node]) for name, node in recording.metrics.items()]

    def __call__(self, batch: Batch) -> Metrics:
        """Do the update."""
        generator = self._learner.generator
        values = [*self._tensors, *batch_tensors(batch), *self._bounds, *self._constants]
        for function, arguments, options in self._draws:
            values.append(function(*arguments, generator=generator, **options))
        for action in self._actions:
            action(values)
        return {name: values[place] for name, place in self._metrics}


def _step(learner: Learner, step: Step, gradients: list[int]) -> Callable[[Values], None]:
    optimizer = learner._optimizers[step.name]

    def act(values: Values) -> None:
        for parameter, place in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
            parameter.grad = values[place]
        optimizer.step()

    return act


def _computation(part: Part, inputs: list[int]) -> Callable[[Values], None]:
    function = part.module.forward
    if part.operations >= _FEWEST_OPERATIONS:
        with torch.no_grad():
            function = torch._inductor.compile(part.module, [_example(node) for node in part.inputs], options=_OPTIONS)

    def act(values: Values) -> None:
        values.extend(function(*[values[place] for place in inputs]))

    return act


def _example(node: fx.Node) -> Tensor:
    """Return a tensor of the form that a node had when it was recorded."""
    form = cast(Tensor, node.meta["val"])
    return torch.empty_strided(form.shape, form.stride(), dtype=form.dtype).zero_()
