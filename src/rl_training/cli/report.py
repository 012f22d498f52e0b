"""``rl-training report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.completion import complete_run
from rl_training.cli.options import QuietOption
from rl_training.errors import ConfigError
from rl_training.interrupts import Interrupted
from rl_training.urls import require_local


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run folders, folders of runs, or their URLs.",
            metavar="RUN",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.", metavar="FILE")] = Path(
        "report.html"
    ),
    png: Annotated[
        bool, typer.Option("--png", help="Write the curves as PNG files, too, into FILE's name with _png.")
    ] = False,
    serve: Annotated[
        Path | None,
        typer.Option(
            help="Show the runs of this folder in a browser of this machine, refreshed while they train.",
            metavar="FOLDER",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --serve; 0: any free one.", metavar="N")] = 8600,
    quiet: QuietOption = False,
) -> None:
    """Write a page with plots of one or more runs, or serve such pages."""
    require_local(output, "--output")
    if serve is not None:
        require_local(serve, "--serve")
        if runs or png:
            raise ConfigError(f"--serve {serve} excludes RUN and --png: it shows all runs of its folder")
        _serve(serve, port)
        return
    if not runs:
        raise ConfigError("report: expected at least one RUN, or --serve FOLDER")
    from rl_training.experiment.report import png_folder, write_report
    from rl_training.runtime.progress import Progress
    from rl_training.runtime.remote.local_copy import fetch_runs

    with Progress("report", quiet=quiet) as progress:

        def on_run(done: int, total: int) -> None:
            if done == 0:
                progress.start("", total, "run")
            progress.update(done)

        folders = [folder for run in runs for folder in fetch_runs(run)]
        written = write_report(folders, output, png=png, on_run=on_run)
    print(written)
    if png:
        print(png_folder(output))


def _serve(folder: Path, port: int) -> None:
    """Serve until a signal asks to stop, which is the usual end."""
    from rl_training.experiment.report.server import ReportServer

    with ReportServer(folder, port) as server:
        print(f"runs of {folder} are at {server.address} (Ctrl-C ends this)", flush=True)
        try:
            server.serve_forever()
        except (Interrupted, KeyboardInterrupt):
            print("ended")
