"""``rl-training share``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import JsonOption, TrainedArgument
from rl_training.cli.streams import print_answer
from rl_training.errors import shown


def share(
    path: TrainedArgument,
    hub: Annotated[str, typer.Option(help="A model repository, such as user/point-reach.", metavar="REPO")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the folder and upload nothing.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder to write; unset: named after REPO.", metavar="FOLDER"),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", "-y", help="Replace a folder that share wrote.")] = False,
    json_: JsonOption = False,
) -> None:
    """Write a policy as a Hugging Face model folder, and upload it."""
    from rl_training.export.share import prepare_share, push_share, require_hub, require_repository
    from rl_training.runtime.remote.local_copy import fetch, policy

    require_repository(hub)
    if not dry_run:
        require_hub()  # before anything is written
    folder = output or Path(hub.rpartition("/")[2])
    prepare_share(fetch(path, policy), hub, folder, overwrite=overwrite)
    address = None if dry_run else push_share(folder, hub, private=private)
    files = sorted(file.name for file in folder.iterdir())
    if json_:
        print_answer({"folder": str(folder), "files": files, "repository": hub, "address": address})
        return
    print(f"folder         {shown(folder)}")
    print(f"files          {', '.join(files)}")
    if address is None:
        print(f"not uploaded   leave out --dry-run to upload it to {hub}")
    else:
        print(f"uploaded       {address}")
