"""Updates on a CPU as a few compiled functions. Inductor, the compiler of ``torch.compile``, makes them of a recording.

Most operations of an update of small networks take a CPU longer to start than to compute. A compiled function fuses
them into loops. It needs no autograd, because the gradients are part of the recording.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, cast

import torch

from rl_training.algorithms.base import CriticLearner, Learner
from rl_training.fusing import keep_compiled_code_private
from rl_training.models.cpu_products import fast_products
from rl_training.types import Batch, Metrics

if TYPE_CHECKING:
    from rl_training.runtime.update_program import UpdateProgram


def why_not_compiled() -> str | None:
    """Return why updates on a CPU cannot be compiled here; None if they can."""
    compiler = os.environ.get("CXX", "g++")  # as Inductor does
    return None if shutil.which(compiler) else f"there is no C++ compiler: expected {compiler}"


class CompiledUpdates:
    """Updates of a learner on a CPU. They are compiled once for each kind of update and each form of a batch.

    A learner that does not ask for it (``fuses_kernels``), or an update that cannot be compiled, runs as it is written.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._programs: dict[Hashable, UpdateProgram | None] = {}
        self._limits = torch.zeros(()), torch.zeros(())  # the learner's bounds of values, while it has any
        self._works = learner.fuses_kernels

    def update(self, batch: Batch) -> Metrics:
        """Learn from one minibatch."""
        program = self._program(batch)
        if program is None:
            return self.learner.update(batch)
        self.learner.update_count += 1
        with fast_products(self.learner.device), torch.no_grad():
            return program(batch)

    def prepare(self, batch: Batch) -> None:
        """Compile what the update on a batch needs, unless that has been done."""
        self._program(batch)

    def _program(self, batch: Batch) -> UpdateProgram | None:
        """Return the program of the next update; None if it is not compiled."""
        if not self._works:
            return None
        tensors = (*batch[:5], batch.returns)
        form = tuple(None if x is None else (x.shape, x.stride()) for x in tensors)
        key = self._kind(), batch.offline_rows, form
        if key not in self._programs:
            self._programs[key] = self._compile(batch)
        return self._programs[key]

    def _kind(self) -> Hashable:
        """Return the kind of the next update. It leaves the bounds of values open, because they are inputs."""
        learner = self.learner
        if not isinstance(learner, CriticLearner) or learner.value_bounds is None:
            return learner.update_kind
        bounds = learner.value_bounds
        for limit, bound in zip(self._limits, bounds, strict=True):
            limit.fill_(bound)
        learner.value_bounds = cast(Any, "open")
        try:
            return learner.update_kind
        finally:
            learner.value_bounds = bounds

    def _compile(self, batch: Batch) -> UpdateProgram | None:
        """Compile the next update. If that fails, all later updates run as they are written."""
        reason = why_not_compiled()
        attempts = 2 if reason is None else 0  # Ctrl-C ends the compiler's process too, but the update must be finished
        for _ in range(attempts):
            try:
                return self._program_of(batch)
            except Exception as error:  # the compiler has many kinds of errors
                reason = " ".join(str(error).split())[:200]
        self._works = False
        warnings.warn(f"updates are not compiled and stay slower: {reason}", stacklevel=5)
        return None

    def _program_of(self, batch: Batch) -> UpdateProgram:
        keep_compiled_code_private()
        from rl_training.runtime.update_program import UpdateProgram  # imports parts of PyTorch that take seconds

        bounded = isinstance(self.learner, CriticLearner) and self.learner.value_bounds is not None
        with fast_products(self.learner.device):
            return UpdateProgram(self.learner, batch, self._limits if bounded else ())
