"""Metrics on disk: ``metrics.csv`` and TensorBoard events."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError

STEP, UPDATES = "global_step", "update_count"


class MetricsLogger:
    """Collects metrics by name and writes them as one row per step."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "metrics.csv"
        self._pending: dict[str, float] = {}
        self._rows: list[dict[str, float]] = []
        self._columns = [STEP, UPDATES]
        self._tensorboard: Any = None

    def open(self, resume_at: tuple[int, int] | None = None) -> None:
        """Start the logs, or go on with them after cutting off what came after that step and update."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only training needs it

        if resume_at is not None:
            self._rows = [row for row in read_metrics(self.path) if (row[STEP], row[UPDATES]) <= resume_at]
        for row in self._rows:
            self._add_columns(row)
        purge = None if resume_at is None else resume_at[0] + 1
        with self._explained():
            self._rewrite()
            self._tensorboard = SummaryWriter(str(self.path.parent), purge_step=purge)

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
                with self.path.open("a", newline="") as file:
                    csv.DictWriter(file, self._columns).writerow(row)
            for name, value in row.items():
                if name not in (STEP, UPDATES):
                    self._tensorboard.add_scalar(name, value, global_step)
        return row

    def note(self, name: str, text: str, global_step: int) -> None:
        """Write a text to TensorBoard; ``metrics.csv`` holds numbers alone."""
        with contextlib.suppress(OSError):
            self._tensorboard.add_text(name, text, global_step)

    def close(self) -> None:
        """Close the logs."""
        if self._tensorboard is not None:
            # Events that do not fit on the disk any more are no reason to fail: metrics.csv has the same values.
            with contextlib.suppress(OSError):
                self._tensorboard.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what a full or vanished disk raises into an error that names the file."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.path}: metrics cannot be written: {error}") from error

    def _add_columns(self, row: dict[str, float]) -> bool:
        new = [name for name in row if name not in self._columns]
        self._columns += new
        return bool(new)

    def _rewrite(self) -> None:
        """Write the whole file anew, through a temporary one; only when a metric appears for the first time."""
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
        temporary.replace(self.path)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the rows of a ``metrics.csv``, without its empty cells and without a row that a crash cut off."""
    if not path.is_file():
        return []
    rows: list[dict[str, float]] = []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        for cells in reader:
            try:
                row = {name: float(value) for name, value in cells.items() if value}
                rows.append({**row, STEP: int(row[STEP]), UPDATES: int(row[UPDATES])})
            except (KeyError, TypeError, ValueError):
                continue
    return rows
