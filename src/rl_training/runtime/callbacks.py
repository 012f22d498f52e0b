"""Callbacks of the training loop, such as early stopping. A callback overrides the methods it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.runtime.controls import EarlyStoppingConfig

if TYPE_CHECKING:
    from rl_training.runtime.run_records import EpisodeRecord
    from rl_training.runtime.trainer import Trainer


class Callback:
    """Called by the loop; every method may call ``trainer.state.stop(reason)``."""

    def on_training_start(self, trainer: Trainer) -> None:
        """Run before the first step."""

    def on_step(self, trainer: Trainer) -> None:
        """Run after every step of the environments and the updates that follow it."""

    def on_episode(self, trainer: Trainer, record: EpisodeRecord) -> None:
        """Run after every episode that ended while collecting; it ended at step ``trainer.state.global_step``."""

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Run after every evaluation."""

    def on_log(self, trainer: Trainer, row: dict[str, float]) -> None:
        """Run after a row was written to ``metrics.csv``."""

    def on_training_end(self, trainer: Trainer) -> None:
        """Run after the last step, also when training failed."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""


class EarlyStoppingCallback(Callback):
    """Stops a run whose evaluations reached a threshold or no longer improve."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.best: dict[str, float] = {}
        self.evaluations_without_improvement = 0

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Compare an evaluation with the thresholds and with the best one so far.

        An evaluation before the first online step does not count: a good pretrained policy must not end the run.
        """
        if trainer.before_first_step:
            return
        config = self.config
        for name, threshold in (
            ("eval/mean_reward", config.reward_threshold),
            ("eval/success_rate", config.success_threshold),
        ):
            if threshold is not None and name in metrics and metrics[name] >= threshold:
                trainer.state.stop(f"early stopping: {name} {metrics[name]:.4g} reached {threshold:g}")
        improved = False
        for name in ("eval/mean_reward", "eval/success_rate"):
            if name in metrics and (name not in self.best or metrics[name] > self.best[name] + config.min_delta):
                self.best[name] = metrics[name]
                improved = True
        self.evaluations_without_improvement = 0 if improved else self.evaluations_without_improvement + 1
        if config.patience is not None and self.evaluations_without_improvement >= config.patience:
            trainer.state.stop(f"early stopping: no improvement in {config.patience} evaluations")

    def state_dict(self) -> dict[str, Any]:
        """Return the best values and the number of evaluations since then."""
        return {"best": self.best, "evaluations_without_improvement": self.evaluations_without_improvement}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.best = dict(state["best"])
        self.evaluations_without_improvement = int(state["evaluations_without_improvement"])
