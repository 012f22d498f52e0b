"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_training.cli.completion import complete_run

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="An argument of the environment; may be given many times.", metavar="KEY=VALUE"),
]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Import the module that the run's env_id names, though the run is not yours.")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:N or auto.", metavar="DEVICE")]
PolicyArgument = Annotated[
    str,
    typer.Argument(
        help="A run (its best checkpoint is taken), a checkpoint or a bundle: a folder or a URL.",
        metavar="RUN|CHECKPOINT|BUNDLE",
        autocompletion=complete_run,
    ),
]
TrainedArgument = Annotated[
    str,
    typer.Argument(
        help="A run (its best checkpoint is taken) or a checkpoint: a folder or a URL.",
        metavar="RUN|CHECKPOINT",
        autocompletion=complete_run,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress on stderr.")]
