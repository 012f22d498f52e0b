"""A stack of runs: several runs of one algorithm that train together on one device, each in its own folder.

The runs differ in their seeds, and may differ in numbers such as learning rates. They take their steps together: the
actions of all of them come from one call, and one update moves all learners. Each run collects, evaluates, logs and
saves for itself, so its folder is that of any other run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.stack import LearnerStack
from rl_training.errors import CheckpointError, EnvError, EnvFailedError, RLTrainingError
from rl_training.interrupts import Interrupted, stop_on_signals
from rl_training.runtime.acceleration import accelerated_updates
from rl_training.runtime.action_graphs import ChooseActions, accelerated_actions
from rl_training.runtime.collector import Collector, Transition, learner_undo_point
from rl_training.runtime.controls import INTERRUPTED, TrainResult
from rl_training.runtime.evaluation_process import EvaluationProcess
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.metrics_mean import MetricsMean
from rl_training.runtime.outcome import finished, read_result, recorded_failure, remove_old_outcome
from rl_training.runtime.stack_data import DataStack
from rl_training.runtime.trainer import Trainer

Array = NDArray[Any]


class RunStack:
    """Trains several runs together until each has ended.

    A run that fails, for example because its numbers are no longer finite, is recorded as failed; the others go on.

    Attributes:
        trainers: the runs.
        failures: what ended the runs that failed, by their position.
    """

    def __init__(self, trainers: Sequence[Trainer], ended: Collection[int] = ()) -> None:
        """Start the processes of the evaluations. Create the stack before the runs are locked: they inherit open locks.

        ``ended`` has the positions of runs that ended before the stack was resumed. They only keep its shape.
        """
        self.trainers = list(trainers)
        self.failures: dict[int, RLTrainingError] = {}
        self._ended_before, self._ended = set(ended), set(ended)
        for index in self._active():
            self._evaluate_in_process(self.trainers[index])

    def run(self) -> list[TrainResult]:
        """Train to the end and return how each run ended."""
        for index in self._active():
            remove_old_outcome(self.trainers[index].run_dir)
        try:
            with stop_on_signals(self._stop):
                self._each(Trainer.start)
                try:
                    self._loop()
                except Interrupted as request:
                    for index in self._active():
                        self.trainers[index].interrupt(str(request))
                self._ended = self._ended_before
                self._each(Trainer.finish)
        finally:
            for trainer in self.trainers:
                trainer.close()
        results = []
        for index, trainer in enumerate(self.trainers):
            known = read_result(trainer.run_dir) if index in self._ended_before | self.failures.keys() else None
            results.append(known or finished(trainer))
        return results

    def _evaluate_in_process(self, trainer: Trainer) -> None:
        """Give a run a process for its evaluations, so that those of all runs take place at the same time."""
        if len(self.trainers) > 1 and isinstance(trainer.evaluator, Evaluator):
            trainer.evaluator = EvaluationProcess(trainer.evaluator, trainer.learner)

    def _stop(self, signal: str) -> None:
        for trainer in self.trainers:
            trainer.state.stop(f"{INTERRUPTED} by {signal}")

    def _loop(self) -> None:
        self._ended = self._ended | {i for i in self._active() if self.trainers[i].state.should_stop}
        if not self._active():
            return
        lead = self._active()[0]
        learners = LearnerStack([trainer.learner for trainer in self.trainers], lead)
        data = DataStack([trainer.experience for trainer in self.trainers], lead)
        first = self.trainers[lead]
        update = accelerated_updates(learners, data, first.settings.learner.batch_size)
        choose = accelerated_actions(learners)
        metrics = MetricsMean()

        def learn() -> None:
            active = self._active()
            for _ in range(self._prepare_updates(active, learners)):
                metrics.add(update())
                for index in active:
                    self.trainers[index].state.update_count += 1

        self._each(Trainer.report_before_first_step)
        while active := self._active():
            first = self.trainers[active[0]]
            before, pretraining = first.budget.position, first.budget.pretraining
            overlap = first.settings.collection.overlap_collection and not pretraining
            if not pretraining:
                self._collect(active, learners, choose, learn if overlap else None)
            if not overlap:
                learn()
            if any(_report_is_due(self.trainers[index], before, pretraining) for index in active):
                metrics.move_to_members([trainer.train_metrics for trainer in self.trainers])
            self._end_step(active, before, pretraining)
            self._ended = self._ended | {index for index in active if self.trainers[index].state.should_stop}

    def _end_step(self, active: list[int], before: int, pretraining: bool) -> None:
        """End a step of every run. If an evaluation is cut off, those of the runs after it are still due as well."""
        for index in active:
            self._guarded(index, lambda trainer: _start_evaluation(trainer, before, pretraining))
        for position, index in enumerate(active):
            if index in self.failures:
                continue
            try:
                self._guarded(index, lambda trainer: trainer.end_step(before, pretraining))
            except Interrupted:
                for later in active[position + 1 :]:
                    _postpone_report(self.trainers[later], before, pretraining)
                raise

    def _active(self) -> list[int]:
        return [i for i in range(len(self.trainers)) if i not in self._ended and i not in self.failures]

    def _each(self, step: Callable[[Trainer], None]) -> None:
        """Do something for every run that has not ended; a run in which it fails is recorded and left out."""
        for index in self._active():
            self._guarded(index, step)

    def _guarded(self, index: int, step: Callable[[Trainer], None]) -> None:
        trainer = self.trainers[index]
        try:
            with recorded_failure(trainer):
                step(trainer)
        except CheckpointError:
            raise  # the disk is full or gone, for all runs
        except RLTrainingError as error:
            self.failures[index] = error
            warnings.warn(f"{trainer.run_dir.name} has ended, the other runs go on: {error}", stacklevel=3)

    def _collect(
        self,
        active: list[int],
        learners: LearnerStack,
        choose: ChooseActions,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Take one step in every environment of every run; an interruption undoes the steps of all runs.

        ``meanwhile`` is called while environments in other processes take their step.
        """
        collectors = [trainer.collector for trainer in self.trainers]
        if collectors[0] is None:  # offline, each update counts as a step
            for index in active:
                self.trainers[index].state.global_step += 1
            return
        undo = {index: _collector(self.trainers[index]).undo_point() for index in active}
        undo_learners = learner_undo_point(learners)
        transitions: dict[int, Transition] = {}

        def attempt(index: int, step: Callable[[Collector], None]) -> None:
            def step_or_undo(trainer: Trainer) -> None:
                try:
                    step(_collector(trainer))
                except (EnvError, EnvFailedError):
                    undo[index]()  # the failed run is saved as it was before this step
                    raise

            if index not in self.failures:
                self._guarded(index, step_or_undo)

        try:
            seen: dict[int, list[Array]] = {}
            for index in active:
                attempt(index, lambda collector: seen.update({index: collector.inputs()}))  # noqa: B023
            actions = self._actions(seen, choose)
            for index in active:
                own = None if actions is None else actions[index]
                attempt(index, lambda collector: collector.send(own, self.trainers[index].budget.progress))  # noqa: B023
            if meanwhile is not None:
                meanwhile()
            for index in active:
                attempt(index, lambda collector: transitions.update({index: collector.receive()}))  # noqa: B023
        except Interrupted:
            for function in (*undo.values(), undo_learners):
                function()
            raise
        for index, transition in transitions.items():
            self._guarded(index, lambda trainer: trainer.store_step(transition))  # noqa: B023

    def _actions(self, seen: dict[int, list[Array]], choose: ChooseActions) -> Array | None:
        """Return the actions of all policies, ``[runs, E, action_dim]``; None as long as they act at random."""
        if not seen:  # all runs have failed
            return None
        nothing = [np.zeros_like(part) for part in next(iter(seen.values()))]
        rows = [seen.get(index, nothing) for index in range(len(self.trainers))]
        inputs = [np.stack(parts) for parts in zip(*rows, strict=True)]  # [runs, E, policy_dim] each
        noises = {index: _collector(self.trainers[index]).noise() for index in seen}
        known = [noises.get(index, noises[min(seen)]) for index in range(len(self.trainers))]
        noise = np.stack(cast(list[Array], known)) if known[0] is not None else None  # [runs, E, action_dim]
        return choose(inputs, self.trainers[min(seen)].acts_at_random, noise)

    def _prepare_updates(self, active: list[int], learners: LearnerStack) -> int:
        """Return how many updates are due. As long as one run has nothing to sample, none is."""
        trainers = [self.trainers[index] for index in active]
        if any(len(trainer.experience) == 0 for trainer in trainers):
            for trainer in trainers:
                trainer.state.last_step_without_data = trainer.state.global_step
            return 0
        bounds = learners.update_kind
        updates = [trainer.prepare_updates() for trainer in trainers]
        if learners.update_kind != bounds:
            learners.refresh()
        first = trainers[0]
        if updates[0] > 0 and first.settings.loop.lr_schedule is not None:
            learners.scale_learning_rates(first.settings.loop.lr_schedule(first.budget.learning_progress))
        return updates[0]


def _collector(trainer: Trainer) -> Collector:
    assert isinstance(trainer.collector, Collector)  # train_stack refuses num_workers
    return trainer.collector


def _start_evaluation(trainer: Trainer, before: int, pretraining: bool) -> None:
    """Begin the evaluation that ``end_step`` will need, if another process does it."""
    due = _is_due(trainer, before, pretraining, trainer.settings.loop.eval_interval)
    if due and isinstance(trainer.evaluator, EvaluationProcess):
        trainer.evaluator.start(trainer.learner)


def _postpone_report(trainer: Trainer, before: int, pretraining: bool) -> None:
    """Leave what ``end_step`` would report to the resumed run."""
    if _report_is_due(trainer, before, pretraining):
        trainer.state.report_due = (before, pretraining and not trainer.budget.pretraining)


def _report_is_due(trainer: Trainer, before: int, pretraining: bool) -> bool:
    """Return whether ``end_step`` will evaluate, log or save."""
    loop = trainer.settings.loop
    return _is_due(trainer, before, pretraining, loop.eval_interval, loop.log_interval, loop.checkpoint_interval)


def _is_due(trainer: Trainer, before: int, pretraining: bool, *intervals: int | None) -> bool:
    """Return whether one of the intervals was completed, or the run ends or goes online, with this step."""
    ending = trainer.state.should_stop or trainer.budget.stop_reason() is not None
    going_online = pretraining and not trainer.budget.pretraining
    return ending or going_online or any(trainer.budget.completed(before, interval) for interval in intervals)
