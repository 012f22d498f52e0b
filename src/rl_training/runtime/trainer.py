"""The loop: collect → sample → update → callbacks → evaluate → checkpoint. There is no other."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any, cast

from rl_training.algorithms.base import Learner
from rl_training.config import differences
from rl_training.data import HERReplayBuffer, ReplayBuffer
from rl_training.data.mixture import Mixture, Source
from rl_training.errors import CheckpointError, DatasetError
from rl_training.runtime.acceleration import accelerated_update
from rl_training.runtime.budget import Budget
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.collector import Collector
from rl_training.runtime.controls import CollectionSettings, LoopSettings, PriorSettings, TrainerState
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.health import require_finite_learner, require_finite_metrics
from rl_training.runtime.logging import MetricsLogger
from rl_training.types import Metrics


class Trainer:
    """Trains one learner on one experience until a budget is used up or something asks it to stop.

    What the ``collector`` brings goes to ``replay``; offline there is neither. ``prior`` says how a mixture with prior
    data is drawn, and ``starts_trained`` that the policy is worth following, and evaluating, from the first step.
    """

    def __init__(
        self,
        *,
        name: str,
        learner: Learner,
        experience: Source,
        replay: ReplayBuffer | HERReplayBuffer | None,
        collector: Collector | None,
        evaluator: Evaluator | None,
        settings: LoopSettings,
        collection: CollectionSettings | None,
        prior: PriorSettings | None = None,
        starts_trained: bool = False,
        batch_size: int,
        total_steps: int,
        store: CheckpointStore,
        logger: MetricsLogger,
        about: dict[str, Any],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.name, self.learner, self.experience = name, learner, experience
        self.collector, self.evaluator = collector, evaluator
        self.replay, self.collection, self.prior = replay, collection, prior
        self._starts_trained = starts_trained
        self.settings, self.batch_size = settings, batch_size
        self.store, self.logger, self.callbacks = store, logger, list(callbacks)
        self.about = about
        self.state = TrainerState()
        pretrain_updates = prior.offline_pretrain_updates if prior is not None else 0
        self.budget = Budget(self.state, total_steps, settings.max_updates, pretrain_updates, collection)
        self._update = accelerated_update(learner)
        self._train_metrics: Metrics = {}
        self._restored_at: tuple[int, int] | None = None
        self._saved_at: tuple[int, int] | None = None
        self._clock, self._clock_step, self._clock_updates = time.perf_counter(), 0, 0

    def run(self) -> None:
        """Train to the end. Whatever happens, callbacks and logs are closed properly."""
        self.budget.check()  # a finished run that is resumed has nothing left to do
        self.logger.open(resume_at=self._restored_at)
        self._restart_clock()
        for callback in self.callbacks:
            callback.on_training_start(self)
        try:
            if self._starts_trained and self._restored_at is None:
                self._report_and_save(handing_over=True)  # what is handed over, before the first step changes it
            while not self.state.should_stop:
                before, pretraining = self.budget.position, self.budget.pretraining
                if not pretraining:
                    self._collect()
                self._learn()
                self.budget.check()
                for callback in self.callbacks:
                    callback.on_step(self)
                handing_over = pretraining and not self.budget.pretraining
                self._report_and_save(before, handing_over=handing_over)
            if self.state.interrupted and self._saved_at != (self.state.global_step, self.state.update_count):
                self.save()  # the signal came before the first step, or after this one had been reported
            self.logger.note("stop_reason", self.state.stop_reason or "", self.state.global_step)
        finally:
            for callback in self.callbacks:
                callback.on_training_end(self)
            for part in (self.collector, self.evaluator, self.logger):
                if part is not None:
                    part.close()

    def restore(self) -> None:
        """Go on from the latest checkpoint: everything that decides the steps to come is put back."""
        state, manifest = self.store.take_up()
        try:
            self.learner.load_training_state(state["learner"])
            if isinstance(self.experience, Mixture) != ("prior" in state["experience"]):
                begun, now = ("with", "without") if "prior" in state["experience"] else ("without", "with")
                raise DatasetError(
                    f"the run was begun {begun} prior data and goes on {now}: expected the same (dataset=)"
                )
            self.experience.load_state_dict(state["experience"])
            if self.replay is not None:
                self.store.load_rows(self.replay.ring)
            self.state.load_state_dict(state["trainer"]["state"])
            self._train_metrics = dict(state["trainer"]["train_metrics"])
            for name, callback in self._named_callbacks().items():
                if name in state["trainer"]["callbacks"]:
                    callback.load_state_dict(state["trainer"]["callbacks"][name])
            changed = self.collector.load_state_dict(state["collector"]) if self.collector is not None else []
        except DatasetError as error:
            source = self.about["config"]["algo_kwargs"].get("dataset_path") or "dataset"
            raise DatasetError(f"{source}: {error}") from None
        except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            edited = differences(manifest["config"], self.about["config"])
            reason = "; ".join(f"{key} = {now!r}, the checkpoint has {then!r}" for key, then, now in edited)
            raise CheckpointError(f"the checkpoint does not fit config.yaml: {reason or error}") from error
        self.store.settle()
        self._restored_at = (self.state.global_step, self.state.update_count)
        if changed and self.replay is not None:
            for index in changed:
                self.replay.discard_open_episode(index)
            warnings.warn(
                f"environments {changed} did not repeat their open episode, so they are not deterministic: this resume"
                " is not exact, and a fresh episode was started there",
                stacklevel=2,
            )

    def _collect(self) -> None:
        """Take one step in every environment; offline, where there is none to take, the update itself is the step."""
        if self.collector is None or self.replay is None or self.collection is None:
            self.state.global_step += 1
            return
        trained = self._starts_trained or self.budget.pretrain_updates > 0
        random = self.state.global_step < self.collection.learning_starts and not trained
        self.replay.add(*cast(Any, self.collector.step(self.budget.progress, random)))
        self.state.global_step += self.collector.num_envs

    def _learn(self) -> None:
        """Do the updates that are due at this step, none of which waits for the device."""
        updates = self.budget.updates_due(has_data=len(self.experience) > 0)
        if updates > 0 and self.settings.lr_schedule is not None:
            self.learner.scale_learning_rates(self.settings.lr_schedule(self.budget.progress))
        if self.prior is not None and isinstance(self.experience, Mixture):
            self.experience.ratio = self.prior.prior_share(self.budget.progress)
        for _ in range(updates):
            self._train_metrics.update(self._update(self.experience.sample(self.batch_size)))
            self.state.update_count += 1

    def _report_and_save(self, before: int | None = None, *, handing_over: bool = False) -> None:
        """Evaluate, log and checkpoint where an interval was completed since ``before``, and always at the end.

        So it is where a policy that was trained before takes its first step.
        """
        settings, state = self.settings, self.state
        # An interrupted run reports nothing of its own: once resumed, its log is that of a run that never stopped.
        finishing = state.should_stop and not state.interrupted
        evaluating = handing_over or finishing or self._crossed(before, settings.eval_interval)
        logging = evaluating or self._crossed(before, settings.log_interval)
        saving = handing_over or self._crossed(before, settings.checkpoint_interval)
        if logging or saving or state.should_stop:
            require_finite_learner(self.learner, self._train_metrics)
        is_best = evaluating and self.evaluator is not None and self._evaluate(self.evaluator)
        if logging:
            self._log()
        if saving or is_best or state.should_stop:
            self.save(best=is_best)

    def _evaluate(self, evaluator: Evaluator) -> bool:
        """Evaluate and return whether this is the best policy so far."""
        metrics = evaluator.run(self.learner)
        require_finite_metrics(metrics)
        state = self.state
        state.last_evaluation = metrics
        self.logger.record(metrics)
        if self.collector is not None and state.global_step == 0:
            state.handed_over = metrics["eval/mean_reward"]
        elif state.handed_over is not None:
            self.logger.record({"handover/change": metrics["eval/mean_reward"] - state.handed_over})
        for callback in self.callbacks:
            callback.on_evaluation(self, metrics)
        score = (metrics.get("eval/success_rate", 0.0), metrics["eval/mean_reward"])
        is_best = state.best_score is None or score > state.best_score
        if is_best:
            state.best_score = score
        return is_best

    def save(self, *, best: bool = False) -> None:
        """Write a checkpoint of everything ``restore`` needs."""
        self.store.save(*self.snapshot(), self.replay, best=best)
        self._saved_at = (self.state.global_step, self.state.update_count)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state, without replay rows, and what a manifest says about it."""
        state = {
            "learner": self.learner.training_state(),
            "experience": self.experience.state_dict(with_rows=False),
            "collector": self.collector.state_dict() if self.collector is not None else {},
            "trainer": {
                "state": self.state.state_dict(),
                "train_metrics": self._train_metrics,
                "callbacks": {name: callback.state_dict() for name, callback in self._named_callbacks().items()},
            },
        }
        counters = {"global_step": self.state.global_step, "update_count": self.state.update_count}
        return state, {**self.about, **counters}

    def _named_callbacks(self) -> dict[str, Callback]:
        return {f"{index}-{type(callback).__name__}": callback for index, callback in enumerate(self.callbacks)}

    def _log(self) -> None:
        """Write a row of metrics; here, and only here, the device is waited for."""
        elapsed = max(time.perf_counter() - self._clock, 1e-9)
        state = self.state
        metrics = {name: float(value) for name, value in self._train_metrics.items()}
        if self.collector is not None:
            metrics |= self.collector.rollout_metrics()
        share = self.experience.take_share() if isinstance(self.experience, Mixture) else None
        if share is not None:
            metrics["train/offline_share"] = share
        metrics["time/fps"] = (state.global_step - self._clock_step) / elapsed
        metrics["time/updates_per_second"] = (state.update_count - self._clock_updates) / elapsed
        self.logger.record(metrics)
        self.logger.flush(state.global_step, state.update_count)
        self._train_metrics = {}  # a row speaks of the updates since the one before it
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._clock = time.perf_counter()
        self._clock_step, self._clock_updates = self.state.global_step, self.state.update_count

    def _crossed(self, before: int | None, interval: int | None) -> bool:
        """Return whether the steps since ``before`` completed an interval."""
        return interval is not None and before is not None and self.budget.position // interval > before // interval
