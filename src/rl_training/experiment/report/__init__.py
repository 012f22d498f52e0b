"""The report: one page, complete in itself, about one run or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from rl_training.errors import ConfigError
from rl_training.experiment.report.one_run import run_page
from rl_training.experiment.report.run_data import RunData, find_runs, read_run
from rl_training.experiment.report.several_runs import runs_page
from rl_training.runtime.checkpoint_files import write_durably


def write_report(
    runs: Sequence[Path], output: Path, *, png: bool = False, on_run: Callable[[int, int], None] | None = None
) -> Path:
    """Write an HTML page about runs. A folder that is not a run stands for the runs below it.

    Args:
        runs: the runs' folders, or folders of runs.
        output: the page.
        png: whether to write the curves as PNG files, too: into the folder ``<output without .html>_png``.
        on_run: called with the number of runs read so far and their number in all, first with 0, for showing progress.
    """
    if output.is_symlink():
        raise ConfigError(f"{output}: a symbolic link; expected the report's own path")
    if output.is_dir():
        raise ConfigError(f"{output}: a folder; expected the path of an HTML file")
    found = read_runs(runs, on_run)
    text = run_page(found[0]) if len(found) == 1 else runs_page(found, link=lambda run: _link(run, output))
    if png:
        from rl_training.experiment.report.png import write_pngs

        write_pngs(found, png_folder(output))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_durably(output, text)
    except OSError as error:
        raise ConfigError(f"{output}: the report cannot be written: {error}") from None
    return output


def _link(run: RunData, page: Path) -> str:
    """Return the address of a run's own report as seen from a page; empty if it has none."""
    report = run.path.absolute() / "report.html"
    if not report.is_file() or report == page.absolute():
        return ""
    return quote(Path(os.path.relpath(report, page.absolute().parent)).as_posix(), safe="/=")


def png_folder(output: Path) -> Path:
    """Return the folder for the PNG files of a page."""
    return output.with_name(f"{output.stem}_png")


def read_runs(paths: Sequence[Path], on_run: Callable[[int, int], None] | None = None) -> list[RunData]:
    """Read runs, and the runs below folders; a run that is named twice counts once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such folder; expected a run, or a folder of runs")
        below = find_runs(path)
        if not below:
            raise ConfigError(f"{path}: not a run with metrics, and there is none in the folders below it")
        for run in below:
            found.setdefault(run.resolve(), run)
    tell = on_run or (lambda done, total: None)
    tell(0, len(found))
    read = []
    for run in found.values():
        read.append(read_run(run))
        tell(len(read), len(found))
    return read
