"""Evaluation in another process, so that the runs of a stack are evaluated at the same time."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

from rl_training.algorithms.base import Learner
from rl_training.errors import EnvFailedError, RLTrainingError, WorkerError
from rl_training.interrupts import ignore_signals, raise_if_asked_to_stop
from rl_training.runtime.evaluator import Evaluator

_POLL = 0.1  # seconds between two looks at whether the program was asked to stop


class EvaluationProcess:
    """Plays the episodes of an evaluator in a process of its own, with a copy of the policy on the CPU.

    It takes the place of the evaluator. ``start`` returns at once, so that several of them can work at the same time.

    Attributes:
        last_episodes: what the evaluator recorded of each episode of the latest ``run``.
    """

    def __init__(self, evaluator: Evaluator, learner: Learner) -> None:
        self.evaluator = evaluator
        self.last_episodes: list[dict[str, Any]] = []
        # A forked process knows the environments that the program has registered.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(other, self._pipe, evaluator, type(learner), learner.spec, learner.settings),
            daemon=True,
        )
        self._process.start()
        other.close()
        self._busy = False

    def start(self, learner: Learner) -> None:
        """Begin to evaluate a policy with its present weights."""
        self._pipe.send({name: tensor.cpu().numpy() for name, tensor in learner.state_dict().items()})
        self._busy = True

    def run(self, learner: Learner) -> dict[str, float]:
        """Return the metrics of the evaluation that was started; if there is none, start one."""
        try:
            if not self._busy:
                self.start(learner)
            while not self._pipe.poll(_POLL):
                raise_if_asked_to_stop()
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(1.0)
            code = self._process.exitcode
            raise WorkerError(f"the process of the evaluation ended with exit code {code}") from None
        self._busy = False
        if isinstance(answer, RLTrainingError):
            raise answer
        metrics, self.last_episodes = answer
        return metrics  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process and close the environment."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self.evaluator.close()


def _serve(
    pipe: Connection, parent_pipe: Connection, evaluator: Evaluator, learner_type: type[Learner], *parts: Any
) -> None:
    """Evaluate the weights that arrive until the parent closes the pipe."""
    ignore_signals()
    parent_pipe.close()
    torch.set_num_threads(1)
    learner = learner_type(*parts)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has ended
        while True:
            weights: Mapping[str, Any] = pipe.recv()
            learner.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
            pipe.send(_evaluate(evaluator, learner))


def _evaluate(
    evaluator: Evaluator, learner: Learner
) -> tuple[dict[str, float], list[dict[str, Any]]] | RLTrainingError:
    """Return metrics and records of the episodes, or the error that ended the evaluation."""
    try:
        return evaluator.run(learner), evaluator.last_episodes
    except RLTrainingError as error:
        return error
    except Exception as error:
        failure = EnvFailedError(f"the evaluation raised {type(error).__name__}: {error}")
        failure.trace = traceback.format_exc()
        return failure
