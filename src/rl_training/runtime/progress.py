"""The progress of long jobs on stderr: a bar on a terminal, plain lines elsewhere. Nothing of it goes to stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.remote.local_copy import url_of
from rl_training.runtime.trainer import Trainer

_LINE_EVERY = 30.0  # seconds between two plain lines, at most
_BAR_EVERY = 0.1  # seconds between two updates of the bar
_RATE_OVER = 60.0  # seconds over which the rate is averaged
_NAME_WIDTH = 20
_MEGABYTE = "MB"


class Progress:
    """Shows how far a job is, its rate and the time left. Losing stderr does not end the job.

    A job has one stage or several, one after another. Example::

        with Progress("report", quiet=quiet) as progress:
            progress.start("reading", len(runs), "run")
            for run in runs:
                ...
                progress.advance()

    Args:
        name: the name of the job.
        quiet: whether to show nothing at all.
    """

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self.name, self.quiet = name, quiet
        self._what, self._unit, self._total, self._done = "", "step", 0, 0
        self._samples: deque[tuple[float, int]] = deque()
        self._shown_at = time.monotonic()
        self._bar = None if quiet or not _is_terminal() else _make_bar()
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            with _lost_stderr_tolerated():
                self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._bar is not None:
            self.update(self._total, force=True)
        self.stop()

    def stop(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            with _lost_stderr_tolerated():
                self._bar.stop()

    @property
    def is_bar(self) -> bool:
        """Whether a bar is shown, not lines."""
        return self._bar is not None

    @property
    def is_due(self) -> bool:
        """Whether the next update will be shown: the last one is old enough."""
        interval = _LINE_EVERY if self._bar is None else _BAR_EVERY
        return not self.quiet and time.monotonic() - self._shown_at > interval

    def start(self, what: str, total: int, unit: str, *, done: int = 0) -> None:
        """Begin a stage of ``total`` units, of which ``done`` are done already; ``unit`` is a singular noun."""
        self._what, self._total, self._unit, self._done = what, total, unit, done
        self._samples = deque([(time.monotonic(), done)])
        if self._bar is not None:
            with _lost_stderr_tolerated():
                if self._task is not None:
                    self._bar.remove_task(self._task)
                label = _cut(f"{self.name} {what}".strip(), _NAME_WIDTH)
                self._task = self._bar.add_task(label, total=max(1, total), completed=done, rate="", left="", status="")

    def advance(self, by: int = 1, status: str = "") -> None:
        """Add to what is done, and show it if the last update is old enough."""
        self.update(self._done + by, status)

    def update(self, done: int, status: str = "", *, force: bool = False) -> None:
        """Set what is done, and show it with ``status`` if the last update is old enough, or if ``force`` is set."""
        self._done = done
        if not (self.is_due or (force and not self.quiet)):
            return
        rate, left = self._rate_and_time_left()
        if self._bar is None:
            position, units = f"{done:,} of {self._total:,}", f"{self._unit}s"
            if self._unit == _MEGABYTE:
                position, units = f"{position} MB", "MB"
            else:
                position = f"{self._unit} {position}"
            words = [status, rate and f"{rate} {units}/s", f"{left} left" if left else "time left unknown"]
            self.line(": ".join(filter(None, [self._what, position, ", ".join(filter(None, words))])))
            return
        self._shown_at = time.monotonic()
        with _lost_stderr_tolerated():
            unit = " MB" if self._unit == _MEGABYTE else ""
            fields = {"rate": rate and f"{rate}{unit}/s", "left": left, "status": status}
            self._bar.update(self._task, completed=min(done, max(1, self._total)), refresh=force, **fields)

    def on_bytes(self, what: str, done: int, total: int) -> None:
        """Show how much of a file is read or written, in MB; a ``Watcher`` of the file formats."""
        total_mb = max(1, round(total / 1e6))
        if what != self._what or total_mb != self._total:
            self.start(what, total_mb, _MEGABYTE)
        self.update(round(done / 1e6))

    def line(self, text: str) -> None:
        """Print one line that begins with the name of the job; above the bar, if there is one."""
        self.print(f"{self.name}: {text}")

    def print(self, text: str) -> None:
        """Print one line."""
        if self.quiet:
            return
        self._shown_at = time.monotonic()
        with _lost_stderr_tolerated():
            if self._bar is None:
                print(text, file=sys.stderr, flush=True)
            else:
                self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _rate_and_time_left(self) -> tuple[str, str]:
        """Return the units per second of the last minute and the time left, as text; empty where it is unknown."""
        now = time.monotonic()
        self._samples.append((now, self._done))
        while len(self._samples) > 2 and now - self._samples[1][0] > _RATE_OVER:
            self._samples.popleft()
        started, before = self._samples[0]
        if self._done <= before or now <= started:
            return "", ""
        rate = (self._done - before) / (now - started)
        hours, rest = divmod(int(max(0, self._total - self._done) / rate), 3600)
        return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}", f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


class ProgressCallback(Callback):
    """Shows the progress of a run: success or return while exploring, the last evaluation, rate and time left."""

    def __init__(self) -> None:
        self._progress = Progress("dataset")
        self._evaluation = ""

    def on_bytes(self, what: str, done: int, total: int) -> None:
        """Show how much of the run's data is read, before training starts; a ``Watcher`` of the file formats."""
        self._progress.__enter__()
        self._progress.on_bytes(what, done, total)

    def stop(self) -> None:
        """Leave the bar as it is; called at the end, also if training never started."""
        self._progress.stop()

    def on_training_start(self, trainer: Trainer) -> None:
        """Print the run's folder, and show the bar."""
        self._progress.name = _name(trainer, _NAME_WIDTH if self._progress.is_bar else None)
        self._progress.__enter__()
        self._progress.print(f"run folder     {trainer.run_dir}")
        if (url := url_of(trainer.run_dir)) is not None:
            self._progress.print(f"mirrored to    {url}")
        if trainer.learner.fuses_kernels:
            self._progress.print("compiling      the first update takes some seconds longer than the others")
        self._start(trainer)

    def on_step(self, trainer: Trainer) -> None:
        """Move the bar, or write a line if the last one is old enough."""
        if self._progress.is_due:
            self._show(trainer)

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Show the evaluation."""
        success, score = metrics.get("eval/success_rate"), metrics["eval/mean_reward"]
        self._evaluation = f"eval {success:.2f}" if success is not None else f"eval {_short(score)}"
        if not self._progress.is_bar:
            detail = f"success {success:.2f}, " if success is not None else ""
            self._write_line(trainer, f"evaluation: {detail}return {score:.2f}")

    def on_training_end(self, trainer: Trainer) -> None:
        """Leave the bar as it is at the end."""
        if self._progress.is_bar:
            self._show(trainer, force=True)
        self.stop()
        if not self._progress.is_bar and trainer.state.stop_reason is not None:
            self._write_line(trainer, f"stopped: {trainer.state.stop_reason}")

    def _start(self, trainer: Trainer) -> None:
        """Begin the stage that the run is in: pretraining counts updates, all else counts steps."""
        budget = trainer.budget
        self._pretraining = budget.pretraining
        total = budget.pretrain_updates if budget.pretraining else budget.total_steps
        self._progress.start("", total, "update" if budget.pretraining else "step", done=budget.position)

    def _show(self, trainer: Trainer, *, force: bool = False) -> None:
        if trainer.budget.pretraining != self._pretraining:
            self._start(trainer)
        rollout = trainer.collector.rollout_metrics() if trainer.collector is not None else {}
        parts = []
        if not self._progress.is_bar:
            parts.append(f"updates {trainer.state.update_count:,}")
        if trainer.budget.pretraining:
            parts.append("pretraining")
        elif "rollout/success_rate" in rollout:
            parts.append(f"success {rollout['rollout/success_rate']:.2f}")
        elif "rollout/ep_rew_mean" in rollout:
            parts.append(f"return {_short(rollout['rollout/ep_rew_mean'])}")
        status = (" " if self._progress.is_bar else ", ").join(filter(None, [*parts, self._evaluation]))
        self._progress.update(trainer.budget.position, status, force=force)

    def _write_line(self, trainer: Trainer, text: str) -> None:
        state = trainer.state
        self._progress.line(
            f"step {state.global_step:,} of {trainer.budget.total_steps:,}, updates {state.update_count:,}: {text}"
        )


def _is_terminal() -> bool:
    try:
        return bool(sys.stderr.isatty())
    except (AttributeError, ValueError):  # a closed or unusual stream
        return False


def _make_bar() -> Any:
    """Return a bar for a terminal; None for one that cannot move its cursor."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    class Terminal(Console):
        """A console that does not exit when its reader is gone."""

        def on_broken_pipe(self) -> None:
            pass

    console = Terminal(file=sys.stderr)
    if console.is_dumb_terminal:
        return None
    # Everything fits into 80 columns: 20 for the name, 10 for the bar, 4, 8 for the rate, 7 for the time, 26 for the
    # status, and 5 between them.
    return Bar(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=10),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[status]}"),
        console=console,
    )


@contextlib.contextmanager
def _lost_stderr_tolerated() -> Iterator[None]:
    with contextlib.suppress(OSError, ValueError):  # a closed pipe or a full log disk
        yield


def _name(trainer: Trainer, width: int | None) -> str:
    """Return the run's name with its seed, cut at the front if it is too long."""
    name, seed = trainer.name, f" seed {trainer.metadata['config']['seed']}"
    return _cut(name, width - len(seed)) + seed if width is not None else name + seed


def _cut(name: str, width: int) -> str:
    """Return a name that is cut at the front if it is longer than ``width``."""
    return name if len(name) <= width else f"…{name[len(name) - width + 1 :]}"


def _short(value: float) -> str:
    """Return a number in at most six characters or so."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
