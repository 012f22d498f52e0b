"""The warnings of a run, kept in ``warnings.jsonl`` so that the report can repeat them."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl_training.runtime.checkpoint_files import open_without_following, write_durably

WARNINGS = "warnings.jsonl"


class WarningLog:
    """Collects warnings and, once the run's folder is known, appends each to its file."""

    def __init__(self) -> None:
        self._early: list[str] = []
        self._path: Path | None = None
        self._step: Callable[[], int] = lambda: 0

    def attach(self, run_dir: Path, step: Callable[[], int], *, resumed: bool = False) -> None:
        """Write to the run's folder from now on; ``step`` returns the current step.

        If the run was resumed, warnings after the current step are removed: the run may give them again.
        """
        path = run_dir.absolute() / WARNINGS  # an environment may change the working folder
        kept = [entry for entry in read_warnings(run_dir) if entry[0] <= step()] if resumed else []
        with contextlib.suppress(OSError):  # a disk that cannot be written to ends the run with its own message
            if kept or path.exists():
                write_durably(path, "".join(_line(*entry) for entry in kept))
        self._path, self._step = path, step
        for message in self._early:
            self.add(message)

    def add(self, message: str) -> None:
        """Record one warning."""
        if self._path is None:
            self._early.append(message)
            return
        with (
            contextlib.suppress(OSError),
            open(self._path, "a", encoding="utf-8", opener=open_without_following) as file,
        ):
            file.write(_line(self._step(), message))


@contextlib.contextmanager
def recorded_warnings() -> Iterator[WarningLog]:
    """Record the warnings that are shown inside; they are still shown."""
    log, show = WarningLog(), warnings.showwarning

    def record(message: Warning | str, *details: Any, **options: Any) -> None:
        log.add(re.sub(r"\x1b\[[0-9;]*m", "", str(message)))  # Gymnasium colours its own
        show(message, *details, **options)

    warnings.showwarning = record
    try:
        yield log
    finally:
        if warnings.showwarning is record:
            warnings.showwarning = show


def read_warnings(run_dir: Path) -> list[tuple[int, str]]:
    """Return the step and the text of each recorded warning of a run."""
    try:
        lines = (run_dir / WARNINGS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # a line that a crash cut off
            entry = json.loads(line)
            entries.append((int(entry["global_step"]), str(entry["message"])))
    return entries


def _line(step: int, message: str) -> str:
    return json.dumps({"global_step": step, "message": message}) + "\n"
