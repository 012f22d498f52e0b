"""``rl-training report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import QuietOption


def report(
    runs: Annotated[list[Path], typer.Argument(help="One or more run folders.", metavar="RUN")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.", metavar="FILE")] = Path(
        "report.html"
    ),
    quiet: QuietOption = False,
) -> None:
    """Write a page with plots of one or more runs."""
    from rl_training.experiment.report import write_report
    from rl_training.runtime.progress import Progress

    with Progress("report", quiet=quiet) as progress:
        progress.start("", len(runs), "run")
        written = write_report(runs, output)
        progress.update(len(runs))
    print(written)
