"""Metrics of a run: ``metrics.csv``, TensorBoard events, and tracking services."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.runtime.checkpoint_files import open_without_following, write_durably
from rl_training.runtime.tracking import TrackedRun

STEP, UPDATES = "global_step", "update_count"


class MetricsLogger:
    """Collects metrics by name and writes them as one row per step.

    TensorBoard and the tracking services get the same values over the steps. The rows of pretraining, which takes no
    steps, go under ``pretrain/`` over the updates.
    """

    def __init__(self, run_dir: Path, *, tensorboard: bool = True, tracked: TrackedRun | None = None) -> None:
        self.path = run_dir.absolute() / "metrics.csv"  # an environment may change the working folder
        self._pending: dict[str, float] = {}
        self._rows: list[dict[str, float]] = []
        self._columns = [STEP, UPDATES]
        self._tensorboard: Any = None
        self._uses_tensorboard, self._tracked, self._ended = tensorboard, tracked, False

    def open(self, resume_at: tuple[int, int] | None = None) -> None:
        """Start the logs, or continue them after removing the rows beyond that step and update."""
        if resume_at is not None:
            self._rows = [row for row in read_metrics(self.path) if (row[STEP], row[UPDATES]) <= resume_at]
        for row in self._rows:
            self._add_columns(row)
        purge = None if resume_at is None else resume_at[0] + 1
        with self._explained():
            self._rewrite()
            if self._uses_tensorboard:
                self._open_tensorboard(purge)
        if self._tracked is not None:
            self._tracked.start(resumed=resume_at is not None)

    def _open_tensorboard(self, purge: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import; only training needs it

        self._tensorboard = SummaryWriter(str(self.path.parent), purge_step=purge)
        for row in self._rows:
            # TensorBoard drops every point from purge_step on, also those that count updates: write these again.
            if _pretraining(row) and row[UPDATES] >= (purge or 0):
                self._add_scalars(row)

    def record(self, metrics: dict[str, float]) -> None:
        """Add values to the row that the next ``flush`` writes."""
        self._pending.update(metrics)

    def flush(self, global_step: int, update_count: int) -> dict[str, float]:
        """Write what was recorded as one row and return it."""
        row, self._pending = {STEP: global_step, UPDATES: update_count, **self._pending}, {}
        self._rows.append(row)
        with self._explained():
            if self._add_columns(row):
                self._rewrite()
            else:
                with open(self.path, "a", newline="", opener=open_without_following) as file:
                    csv.DictWriter(file, self._columns).writerow(row)
            if self._tensorboard is not None:
                self._add_scalars(row)
        if self._tracked is not None:
            prefix, axis = _axis(row)
            values = {prefix + name: value for name, value in row.items() if name not in (STEP, UPDATES)}
            self._tracked.log(values, axis=axis, position=int(row[axis]))
        return row

    def note(self, name: str, text: str, global_step: int) -> None:
        """Write a text to TensorBoard and the tracking services; ``metrics.csv`` holds only numbers."""
        self._ended = True  # only a run that did not fail gets here
        if self._tensorboard is not None:
            with contextlib.suppress(OSError):
                self._tensorboard.add_text(name, text, global_step)
        if self._tracked is not None:
            self._tracked.note(name, text)

    def close(self) -> None:
        """Close the logs."""
        if self._tensorboard is not None:
            # Ignore a disk that is too full for the last events: metrics.csv has the same values.
            with contextlib.suppress(OSError):
                self._tensorboard.close()
        if self._tracked is not None:
            self._tracked.finish(failed=not self._ended)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the error of a full or missing disk into one that names the file."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path}: metrics cannot be written: {error}") from error

    def _add_columns(self, row: dict[str, float]) -> bool:
        new = [name for name in row if name not in self._columns]
        self._columns += new
        return bool(new)

    def _rewrite(self) -> None:
        """Write the whole file again: at the start, and when a metric appears for the first time."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(self._rows)
        write_durably(self.path, text.getvalue())

    def _add_scalars(self, row: dict[str, float]) -> None:
        prefix, position = _axis(row)
        for name, value in row.items():
            if name not in (STEP, UPDATES):
                self._tensorboard.add_scalar(prefix + name, value, row[position])


def _axis(row: dict[str, float]) -> tuple[str, str]:
    """Return the prefix of a row's metrics, and the counter that they are drawn over."""
    return ("pretrain/", UPDATES) if _pretraining(row) else ("", STEP)


def _pretraining(row: dict[str, float]) -> bool:
    """Return whether a row was written before the first step, when updates use offline data only."""
    return row[STEP] == 0 and row[UPDATES] > 0


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the rows of a ``metrics.csv``, without its empty cells and without rows that a crash cut off."""
    if not path.is_file():
        return []
    rows: list[dict[str, float]] = []
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            for cells in csv.DictReader(file):
                try:
                    row = {name: float(value) for name, value in cells.items() if value}
                    rows.append({**row, STEP: int(row[STEP]), UPDATES: int(row[UPDATES])})
                except (KeyError, OverflowError, TypeError, ValueError):
                    continue
    except (OSError, csv.Error) as error:
        raise CheckpointError(f"{path}: metrics cannot be read: {error}") from None
    return rows
