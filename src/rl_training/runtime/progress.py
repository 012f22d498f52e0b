"""The progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import Trainer

_LINE_EVERY = 30.0  # seconds between two plain lines, at most
_BAR_EVERY = 0.1  # seconds between two updates of the bar


class ProgressCallback(Callback):
    """Shows progress, success, return and the time left on stderr. Losing stderr does not end the run."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        class Terminal(Console):
            """A console that does not exit when its reader is gone."""

            def on_broken_pipe(self) -> None:
                pass

        self._console = Terminal(file=sys.stderr)
        # Everything fits into 80 columns: 22 for the name, 12 for the bar, 5, 8 for the time, and 29 for the status.
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[status]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: Any = None
        self._evaluation = ""
        self._shown_at = self._started_at = time.monotonic()
        self._first_position = 0

    def on_training_start(self, trainer: Trainer) -> None:
        """Print the run's folder, and show the bar."""
        self._started_at, self._first_position = time.monotonic(), trainer.budget.position
        with self._tolerating_a_lost_terminal():
            self._console.print(f"run folder     {trainer.run_dir}", highlight=False, soft_wrap=True)
            self._task = self._bar.add_task(_name(trainer, 22), total=trainer.budget.total_steps, status="")
            self._bar.start()

    def on_step(self, trainer: Trainer) -> None:
        """Move the bar, or write a line if the last one is old enough."""
        if time.monotonic() - self._shown_at > (_BAR_EVERY if self._console.is_terminal else _LINE_EVERY):
            self._show(trainer)

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Show the evaluation."""
        success = metrics.get("eval/success_rate")
        self._evaluation = (
            f"eval {success:.2f}" if success is not None else f"eval {_short(metrics['eval/mean_reward'])}"
        )
        if not self._console.is_terminal:
            detail = f"success {success:.2f}, " if success is not None else ""
            self._write_line(trainer, f"evaluation: {detail}return {metrics['eval/mean_reward']:.2f}")

    def on_training_end(self, trainer: Trainer) -> None:
        """Leave the bar as it is at the end."""
        with self._tolerating_a_lost_terminal():
            if self._console.is_terminal:
                self._show(trainer)
            self._bar.stop()
        if not self._console.is_terminal and trainer.state.stop_reason is not None:
            self._write_line(trainer, f"stopped: {trainer.state.stop_reason}")

    def _show(self, trainer: Trainer) -> None:
        rollout = trainer.collector.rollout_metrics() if trainer.collector is not None else {}
        parts = []
        if trainer.budget.pretraining:
            parts.append(f"pretraining {trainer.state.update_count:,}/{trainer.budget.pretrain_updates:,}")
        elif "rollout/success_rate" in rollout:
            parts.append(f"success {rollout['rollout/success_rate']:.2f}")
        elif "rollout/ep_rew_mean" in rollout:
            parts.append(f"return {_short(rollout['rollout/ep_rew_mean'])}")
        if self._console.is_terminal:
            self._shown_at = time.monotonic()
            status = " ".join([*parts, self._evaluation])
            with self._tolerating_a_lost_terminal():
                self._bar.update(self._task, completed=trainer.state.global_step, status=status)
        else:
            self._write_line(trainer, ", ".join([*parts, self._time_left(trainer)]))

    def _write_line(self, trainer: Trainer, text: str) -> None:
        """Write a line that names the run, the seed and the step."""
        self._shown_at = time.monotonic()
        state = trainer.state
        with self._tolerating_a_lost_terminal():
            print(
                f"{_name(trainer)}: step {state.global_step:,} of {trainer.budget.total_steps:,},"
                f" updates {state.update_count:,}: {text}",
                file=sys.stderr,
                flush=True,
            )

    def _time_left(self, trainer: Trainer) -> str:
        done = trainer.budget.position - self._first_position
        if done <= 0 or trainer.budget.pretraining:
            return "time left unknown"
        seconds = (time.monotonic() - self._started_at) / done * (trainer.budget.total_steps - trainer.budget.position)
        hours, rest = divmod(int(seconds), 3600)
        return f"{hours}:{rest // 60:02d}:{rest % 60:02d} left"

    @contextlib.contextmanager
    def _tolerating_a_lost_terminal(self) -> Iterator[None]:
        with contextlib.suppress(OSError, ValueError):  # a closed pipe or a full log disk
            yield


def _name(trainer: Trainer, width: int | None = None) -> str:
    """Return the run's name with its seed, cut at the front if it is too long."""
    name, seed = trainer.name, f" seed {trainer.metadata['config']['seed']}"
    if width is not None and len(name) + len(seed) > width:
        name = f"…{name[len(name) + len(seed) - width + 1 :]}"
    return name + seed


def _short(value: float) -> str:
    """Return a number in at most six characters or so."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
