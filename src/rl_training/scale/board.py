"""The trials of a sweep as a table: live on a terminal, as lines elsewhere, and as text at the end."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rl_training.errors import shown
from rl_training.runtime.progress import Progress
from rl_training.scale.trials import TrialState

_ORDER = ("running", "failed", "interrupted", "unfinished", "missing", "stopped", "completed")
"""What a table that is too long for the screen shows first."""
_HEADS = ("trial", "state", "step", "success", "return", "steps/s", "left")
_ROOM = 8
"""Lines of a terminal that are left free."""


class Board:
    """Shows the states of trials on stderr while they run.

    Args:
        name: the name of the job.
        quiet: whether to show nothing.
    """

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._lines = Progress(name, quiet=quiet)
        self._live = None if quiet or not self._lines.is_bar else _live_table()
        self._last: dict[str, str] = {}
        self._started = False

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError, ValueError):
                self._live.stop()

    def show(self, states: Mapping[str, TrialState]) -> None:
        """Show the states; a trial that has ended gets a line of its own where there is no table."""
        if self._live is not None:
            with contextlib.suppress(OSError, ValueError):
                self._live.update(_table(states, self._live.console.size.height - _ROOM), refresh=True)
            return
        for name, state in states.items():
            if self._started and state.status != self._last.get(name) and state.status not in ("running", "missing"):
                self._lines.line(f"{name}: {_outcome(state)}")
            self._last[name] = state.status
        if not self._started or self._lines.is_due:
            self._lines.line(summary(states))
        self._started = True


def summary(states: Mapping[str, TrialState]) -> str:
    """Return one line: how many trials are in which state, and the time left."""
    counts = Counter(state.status for state in states.values())
    parts = [f"{counts[status]} {status}" for status in reversed(_ORDER) if counts[status]]
    left = seconds_left(states)
    return f"{len(states)} trials: {', '.join(parts)}" + (f", {clock(left)} left" if left is not None else "")


def seconds_left(states: Mapping[str, TrialState]) -> float | None:
    """Return the time to the end at the rate of the trials that are running; None if that is unknown."""
    rates = [state.rate for state in states.values() if state.status == "running" and state.rate]
    steps = sum(max(0, state.total - state.step) for state in states.values() if not state.is_done)
    return steps / sum(rates) if rates else None


def state_lines(states: Mapping[str, TrialState]) -> list[str]:
    """Return the table as plain text, errors below it."""
    rows = [_HEADS, *(_cells(name, state) for name, state in states.items())]
    filled = [index for index in range(len(_HEADS)) if index < 3 or any(row[index] for row in rows[1:])]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_HEADS))]
    lines = ["  ".join(_aligned(row[index], index, widths[index]) for index in filled).rstrip() for row in rows]
    return lines + [f"failed         {name}: {shown(state.error)}" for name, state in states.items() if state.error]


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _aligned(text: str, index: int, width: int) -> str:
    return text.ljust(width) if index < 2 else text.rjust(width)


def _cells(name: str, state: TrialState) -> tuple[str, ...]:
    success, score = state.metrics.get("eval/success_rate"), state.metrics.get("eval/mean_reward")
    running = state.status == "running"
    left = state.seconds_left
    return (
        name,
        state.status,
        f"{state.step:,}/{state.total:,}",
        "" if success is None else f"{success:.2f}",
        "" if score is None else f"{score:.2f}",
        f"{state.rate:,.0f}" if running and state.rate else "",
        clock(left) if running and left is not None else "",
    )


def _outcome(state: TrialState) -> str:
    if state.error:
        return f"failed: {shown(state.error)}"
    success, score = state.metrics.get("eval/success_rate"), state.metrics.get("eval/mean_reward")
    parts = [f"{state.status} at step {state.step:,}"]
    parts += [f"success {success:.2f}"] if success is not None else []
    parts += [f"return {score:.2f}"] if score is not None else []
    return ", ".join(parts)


def _live_table() -> Any:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(file=sys.stderr), auto_refresh=False)


def _table(states: Mapping[str, TrialState], height: int) -> Any:
    """Return the table for a terminal; of too many trials, those that matter now."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(caption=summary(states), caption_justify="left", box=None, pad_edge=False)
    for index, head in enumerate(_HEADS):
        table.add_column(head, justify="left" if index < 2 else "right", no_wrap=index != 0, overflow="fold")
    ordered = sorted(states.items(), key=lambda item: _ORDER.index(item[1].status))
    for name, state in ordered[: max(5, height)]:
        table.add_row(*(escape(cell) for cell in _cells(name, state)))
    return table
