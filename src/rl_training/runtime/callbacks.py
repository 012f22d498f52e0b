"""What happens beside learning, such as stopping early and showing progress. A callback overrides what it needs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rl_training.runtime.controls import EarlyStoppingConfig

if TYPE_CHECKING:
    from rl_training.runtime.collector import EpisodeRecord
    from rl_training.runtime.trainer import Trainer


class Callback:
    """Called by the loop; every method may call ``trainer.state.stop(reason)``."""

    def on_training_start(self, trainer: Trainer) -> None:
        """Run before the first step."""

    def on_step(self, trainer: Trainer) -> None:
        """Run after every step of the environments and the updates that follow it."""

    def on_episode(self, trainer: Trainer, record: EpisodeRecord) -> None:
        """Run after every episode that ended while collecting."""

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Run after every evaluation."""

    def on_log(self, trainer: Trainer, row: dict[str, float]) -> None:
        """Run after a row was written to ``metrics.csv``."""

    def on_training_end(self, trainer: Trainer) -> None:
        """Run after the last step, also when training failed."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
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
        """Return the best values and how long ago they were."""
        return {"best": self.best, "evaluations_without_improvement": self.evaluations_without_improvement}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.best = dict(state["best"])
        self.evaluations_without_improvement = int(state["evaluations_without_improvement"])


class ProgressCallback(Callback):
    """A progress bar with success rate, return and time left; plain lines where there is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(file=sys.stderr)
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._evaluation = ""
        self._shown_at = 0.0

    def on_training_start(self, trainer: Trainer) -> None:
        """Show the bar."""
        self._task = self._bar.add_task(
            trainer.name, total=trainer.budget.total_steps, completed=trainer.state.global_step, status=""
        )
        self._bar.start()

    def on_step(self, trainer: Trainer) -> None:
        """Move the bar, at most ten times a second."""
        if self._console.is_terminal and time.monotonic() - self._shown_at > 0.1:
            self._show(trainer)

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Show the evaluation in the bar, or as a line."""
        success = f"success {metrics['eval/success_rate']:.2f}, " if "eval/success_rate" in metrics else ""
        self._evaluation = f"[cyan]eval {success}return {metrics['eval/mean_reward']:.2f}"
        if not self._console.is_terminal:
            state = trainer.state
            print(
                f"step {state.global_step:,} of {trainer.budget.total_steps:,}, updates {state.update_count:,}:"
                f" {success}return {metrics['eval/mean_reward']:.2f}",
                file=sys.stderr,
                flush=True,
            )

    def on_training_end(self, trainer: Trainer) -> None:
        """Leave the bar as it stands at the end."""
        self._show(trainer)
        self._bar.stop()
        if not self._console.is_terminal and trainer.state.stop_reason is not None:
            print(f"stopped: {trainer.state.stop_reason}", file=sys.stderr, flush=True)

    def _show(self, trainer: Trainer) -> None:
        self._shown_at = time.monotonic()
        rollout = trainer.collector.rollout_metrics() if trainer.collector is not None else {}
        parts = [
            f"{label} {rollout[name]:.2f}"
            for label, name in (("success", "rollout/success_rate"), ("return", "rollout/ep_rew_mean"))
            if name in rollout
        ]
        if trainer.budget.pretraining:
            parts.append(f"pretraining, update {trainer.state.update_count:,} of {trainer.budget.pretrain_updates:,}")
        status = "  ".join([*parts, self._evaluation])
        self._bar.update(self._task, completed=trainer.state.global_step, status=status)
