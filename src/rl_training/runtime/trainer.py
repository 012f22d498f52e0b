"""The loop: collect → sample → update → callbacks → evaluate → checkpoint. All algorithms use it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from rl_training.data.her_replay_buffer import HERReplayBuffer
from rl_training.interrupts import Interrupted
from rl_training.runtime.acceleration import accelerated_updates
from rl_training.runtime.budget import Budget
from rl_training.runtime.build import RunComponents
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.collector import Transition
from rl_training.runtime.controls import INTERRUPTED, TrainerState
from rl_training.runtime.diagnosis import Diagnosis
from rl_training.runtime.evaluation_process import EvaluationProcess
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.free_cores import UpdatesOnFreeCores
from rl_training.runtime.health import require_finite_learner, require_finite_metrics
from rl_training.runtime.logging import MetricsLogger
from rl_training.runtime.metrics_mean import MetricsMean
from rl_training.runtime.run_records import RunRecords
from rl_training.runtime.run_state import restore_run, snapshot
from rl_training.runtime.settings import RunSettings


class Trainer:
    """Trains one learner until a budget is used up or something asks it to stop.

    Attributes:
        state: the counters; ``state.stop(reason)`` ends the run after the current step.
        learner, experience, replay, collector, evaluator: the parts of the run, see ``RunComponents``.
        logger: writes the metrics; ``logger.record`` adds values to the next row.
    """

    def __init__(
        self,
        *,
        name: str,
        components: RunComponents,
        settings: RunSettings,
        total_steps: int,
        store: CheckpointStore,
        logger: MetricsLogger,
        metadata: dict[str, Any],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.name, self.settings = name, settings
        self.learner, self.experience, self.mixture = components.learner, components.experience, components.mixture
        self.replay, self.collector = components.replay, components.collector
        self.evaluator: Evaluator | EvaluationProcess | None = components.evaluator
        self.store, self.logger, self.callbacks = store, logger, list(callbacks)
        self.metadata, self.records, self._data_summary = metadata, RunRecords(self.run_dir), components.data_summary
        self.state = TrainerState()
        pretrain_updates = settings.prior.offline_pretrain_updates if self.mixture is not None else 0
        collection = settings.collection if settings.online else None
        self.budget = Budget(self.state, total_steps, settings.loop.max_updates, pretrain_updates, collection)
        self._goals, self._reward_range = components.goals, self.learner.spec.reward_range
        self._update = accelerated_updates(self.learner, self.experience, settings.learner.batch_size)
        self.train_metrics = MetricsMean()
        self._diagnosis = Diagnosis()
        self._restored_at: tuple[int, int] | None = None
        self._restored_unevaluated = False
        self._saved_at: tuple[int, int] | None = None
        self._clock, self._clock_step, self._clock_updates = time.perf_counter(), 0, 0

    def use_free_cores(self) -> None:
        """Use a second core for updates while it is idle."""
        batch_size = self.settings.learner.batch_size
        self._update = UpdatesOnFreeCores(self.learner, self.experience, batch_size).update

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.store.folder.parent

    @property
    def before_first_step(self) -> bool:
        """Whether the run collects data and has not taken its first step yet."""
        return self.collector is not None and self.state.global_step == 0

    def run(self) -> None:
        """Train to the end. Callbacks and logs are closed even if training fails."""
        self.start()
        try:
            try:
                self._loop()
            except Interrupted as request:  # the step was undone, or the evaluation is still due
                self.interrupt(str(request))
            self.finish()
        finally:
            self.close()

    def start(self) -> None:
        """Open the logs and tell the callbacks."""
        self._stop_at_budget()  # a finished run that is resumed has nothing left to do
        self.logger.open(resume_at=self._restored_at)
        self.records.open(self._restored_at, collects=self.collector is not None, data=self._data_summary)
        self._restart_clock()
        for callback in self.callbacks:
            callback.on_training_start(self)

    def interrupt(self, signal: str) -> None:
        """End the run because of a signal that cut off a step or an evaluation."""
        self.state.should_stop, self.state.stop_reason = True, f"{INTERRUPTED} by {signal}"

    def finish(self) -> None:
        """Save what an interruption left unsaved, and log why the run ended."""
        if self.state.interrupted and self._saved_at != (self.state.global_step, self.state.update_count):
            self.save()  # the signal came before the first step, or after this one had been reported
        self.logger.note("stop_reason", self.state.stop_reason or "", self.state.global_step)

    def close(self) -> None:
        """Close the environments and the logs."""
        for callback in self.callbacks:
            callback.on_training_end(self)
        for part in (self.collector, self.evaluator, self.logger, self.records):
            if part is not None:
                part.close()

    def _loop(self) -> None:
        """Collect, learn, call back, evaluate and save until something asks to stop."""
        self.report_before_first_step()
        while not self.state.should_stop:
            before, pretraining = self.budget.position, self.budget.pretraining
            overlap = self.settings.collection.overlap_collection and not pretraining
            if not pretraining:
                self._collect(self._learn if overlap else None)
            if not overlap:
                self._learn()
            self.end_step(before, pretraining)

    def _learn(self) -> None:
        """Make the updates that are due."""
        for _ in range(self.prepare_updates()):
            self.train_metrics.add(self._update())
            self.state.update_count += 1

    def report_before_first_step(self) -> None:
        """Repeat a report that was cut off, or evaluate a loaded policy before the first step changes it."""
        if self.state.report_due is not None:
            self._report_and_save(self.state.report_due[0], going_online=self.state.report_due[1])
        elif self.settings.init.init_from is not None and self._restored_at is None:
            self._report_and_save(going_online=True)

    def end_step(self, before: int, pretraining: bool) -> None:
        """Call back, evaluate, log and save, as far as it is due after a step that started at ``before``."""
        self._stop_at_budget()
        for callback in self.callbacks:
            callback.on_step(self)
        self._report_and_save(before, going_online=pretraining and not self.budget.pretraining)

    def restore(self, last: tuple[int, int] | None = None) -> None:
        """Continue from the latest checkpoint: everything that later steps depend on is restored.

        ``last`` names the newest checkpoint that counts, by its steps and updates.
        """
        restore_run(self, last)
        self._restored_at = (self.state.global_step, self.state.update_count)
        self._restored_unevaluated = self.state.report_due is not None

    def _collect(self, meanwhile: Callable[[], None] | None) -> None:
        """Take one step in every environment. Offline, each update counts as a step."""
        if self.collector is None or self.replay is None:
            self.state.global_step += 1
            return
        self.store_step(self.collector.step(self.budget.progress, self.acts_at_random, meanwhile))

    @property
    def acts_at_random(self) -> bool:
        """Whether the next step ignores the policy, because it has not learned anything yet."""
        trained = self.settings.init.init_from is not None or self.budget.pretrain_updates > 0
        return self.state.global_step < self.settings.collection.learning_starts and not trained

    def store_step(self, transition: Transition) -> None:
        """Store a step of all environments, and tell the callbacks of the episodes it ended."""
        assert self.collector is not None  # only an online run collects
        assert self.replay is not None
        self.replay.add(*cast(Any, transition))
        self.state.global_step += self.collector.num_envs
        self.records.add_episodes(self.state.global_step, self.collector.ended)
        for record in self.collector.ended:
            for callback in self.callbacks:
                callback.on_episode(self, record)

    def prepare_updates(self) -> int:
        """Return how many updates are due at this step, after telling the parts what has changed for them."""
        settings = self.settings
        if len(self.experience) == 0:  # hindsight has nothing to sample before the first episode is complete
            self.state.last_step_without_data = self.state.global_step
            return 0
        if self.mixture is not None:
            self.mixture.ratio = settings.prior.offline_share(self.budget.progress)
        if self._goals is not None and self._goals.reward_range is not self._reward_range:
            self._reward_range = self._goals.reward_range  # a reward outside the earlier range was seen
            self.learner.set_reward_range(self._reward_range)
        updates = self.budget.updates_due()
        if updates > 0 and settings.loop.lr_schedule is not None:
            self.learner.scale_learning_rates(settings.loop.lr_schedule(self.budget.learning_progress))
        return updates

    def _stop_at_budget(self) -> None:
        """Stop if a budget is used up. The run is then complete, even if a signal came at its last step."""
        reason = self.budget.stop_reason()
        if reason is not None and (not self.state.should_stop or self.state.interrupted):
            self.state.should_stop, self.state.stop_reason = True, reason

    def _report_and_save(self, before: int | None = None, *, going_online: bool = False) -> None:
        """Evaluate, log and save a checkpoint, each if its interval was completed since ``before``.

        All three also happen at the end, and before a pretrained policy takes its first step online.
        """
        settings, state = self.settings.loop, self.state
        # An interruption adds no report, so that a resumed run has the same log as a run that never stopped.
        finishing = state.should_stop and not state.interrupted
        evaluating = going_online or finishing or self.budget.completed(before, settings.eval_interval)
        logging = evaluating or self.budget.completed(before, settings.log_interval)
        saving = going_online or self.budget.completed(before, settings.checkpoint_interval)
        if logging or saving or state.should_stop:
            require_finite_learner(self.learner, self.train_metrics.last)
        is_best = False
        if evaluating and self.evaluator is not None:
            state.report_due = (before, going_online)  # stays due if the evaluation is cut off
            is_best = self._evaluate(self.evaluator)
            state.report_due = None
        if logging:
            self._log()
        if saving or is_best or state.should_stop:
            self.save(best=is_best)

    def _evaluate(self, evaluator: Evaluator | EvaluationProcess) -> bool:
        """Evaluate and return whether this is the best policy so far."""
        metrics = evaluator.run(self.learner)
        require_finite_metrics(metrics)
        state = self.state
        self.records.write_evaluation(state.global_step, state.update_count, evaluator.last_episodes)
        state.last_evaluation = metrics
        self.logger.record(metrics)
        if self.before_first_step:
            state.pretrained_return = metrics["eval/mean_reward"]
        elif state.pretrained_return is not None:
            self.logger.record({"eval/change_since_offline": metrics["eval/mean_reward"] - state.pretrained_return})
        for callback in self.callbacks:
            callback.on_evaluation(self, metrics)
        score = (metrics.get("eval/success_rate", 0.0), metrics["eval/mean_reward"])
        is_best = state.best_score is None or score > state.best_score
        if is_best:
            state.best_score = score
        return is_best

    def save(self, *, best: bool = False) -> None:
        """Write a checkpoint of everything ``restore`` needs."""
        position = (self.state.global_step, self.state.update_count)
        # If the evaluation of a checkpoint was still due, the checkpoint is written again after it.
        again = self._restored_unevaluated and position == self._restored_at
        self.store.save(*snapshot(self), self.replay, best=best, replace=again)
        self._saved_at = position

    def _log(self) -> None:
        """Write a row of metrics. Only here does the loop wait for the device."""
        elapsed = max(time.perf_counter() - self._clock, 1e-9)
        state = self.state
        metrics = self.train_metrics.take()
        if self.collector is not None:
            metrics |= self.collector.rollout_metrics()
        hindsight = self.replay if self.replay is not None else self.experience
        if isinstance(hindsight, HERReplayBuffer):
            metrics |= hindsight.take_metrics()
        if isinstance(self.replay, HERReplayBuffer) and self.collector is not None:
            metrics |= self.collector.take_saturation()
            bounds = getattr(self.learner, "value_bounds", None)
            for message in self._diagnosis.check(metrics, state.update_count, bounds):
                warnings.warn(message, stacklevel=2)
        share = self.mixture.take_share() if self.mixture is not None else None
        if share is not None:
            metrics["train/offline_share"] = share
        metrics |= {f"train/{name}_lr": rate for name, rate in self.learner.learning_rates.items()}
        metrics["time/fps"] = (state.global_step - self._clock_step) / elapsed
        metrics["time/updates_per_second"] = (state.update_count - self._clock_updates) / elapsed
        self.logger.record(metrics)
        row = self.logger.flush(state.global_step, state.update_count)
        for callback in self.callbacks:
            callback.on_log(self, row)
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._clock = time.perf_counter()
        self._clock_step, self._clock_updates = self.state.global_step, self.state.update_count
