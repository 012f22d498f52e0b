"""``rl-training report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="One or more run folders.", metavar="RUN")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.", metavar="FILE")] = Path(
        "report.html"
    ),
) -> None:
    """Write a page with plots of one or more runs."""
    from rl_training.experiment.report import write_report

    print(write_report(runs, output))
