"""``rl-training data``: inspect, convert and collect datasets."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rl_training.cli.help import PlainCommand
from rl_training.cli.options import JsonOption, QuietOption, SetOption, TrustOption
from rl_training.cli.streams import print_answer
from rl_training.config import parse_overrides
from rl_training.errors import ConfigError, DatasetError, shown
from rl_training.urls import is_url

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inspect, convert and collect datasets.")

_SOURCE = "npz, pt, hdf5, parquet or csv by its ending, the folder of a LeRobot or Minari dataset, or minari:ID"
_TARGET = "npz, pt, hdf5, parquet or csv by its ending, or minari:ID"
_READ = "npz, pt, hdf5, parquet, csv, lerobot or minari"
_WRITTEN = "npz, pt, hdf5, parquet, csv or minari"

OverwriteOption = Annotated[bool, typer.Option("--overwrite", "-y", help="Replace a file that exists, without asking.")]
EnvOption = Annotated[
    str | None, typer.Option("--env", help="The environment that the data comes from.", metavar="ENV_ID")
]
KindOption = Annotated[
    str | None,
    typer.Option("--kind", help=f"The format that is read, if the name does not tell it: {_READ}.", metavar="KIND"),
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        help="Read an array of another name, e.g. sensor=observations; may be given many times.",
        metavar="NAME=KEY",
    ),
]


@data_app.command(cls=PlainCommand)
def inspect(
    file: Annotated[str, typer.Argument(help=f"A dataset: {_SOURCE}.", metavar="FILE")],
    env: EnvOption = None,
    set_: SetOption = None,
    kind: KindOption = None,
    rename: RenameOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 if an error is found.")] = False,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Show what is in a dataset, and what is wrong with it."""
    from rl_training.data.formats.storage import watch_bytes
    from rl_training.runtime.progress import Progress
    from rl_training.tools.datasets import read_dataset
    from rl_training.tools.inspection import inspect_transitions

    with Progress("data inspect", quiet=quiet) as progress:
        with watch_bytes(progress.on_bytes):
            arrays = read_dataset(file, kind=kind, rename=_parse_rename(rename))
        try:
            report = inspect_transitions(arrays, env, parse_overrides(set_ or []), progress=progress)
        except DatasetError as error:
            raise DatasetError(f"{file}: {error}") from None
    if json_:
        print_answer({"file": file, "env_id": env, **report.to_json()})
    else:
        print("\n".join(map(shown, report.lines())))
    if strict and not report.is_sane:
        raise typer.Exit(2)


@data_app.command(cls=PlainCommand)
def convert(
    source: Annotated[str, typer.Argument(help=f"A dataset: {_SOURCE}.", metavar="SOURCE")],
    target: Annotated[str, typer.Argument(help=f"What to write: {_TARGET}.", metavar="TARGET")],
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired safely, and say what.")] = False,
    overwrite: OverwriteOption = False,
    env: EnvOption = None,
    set_: SetOption = None,
    kind: KindOption = None,
    target_kind: Annotated[
        str | None,
        typer.Option(
            "--target-kind", help=f"The format of TARGET, if its name does not tell it: {_WRITTEN}.", metavar="KIND"
        ),
    ] = None,
    rename: RenameOption = None,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Copy a dataset from one format into another."""
    from rl_training.runtime.progress import Progress
    from rl_training.tools.datasets import convert_dataset

    _confirm_target(target, target_kind, overwrite)
    with Progress("data convert", quiet=quiet) as progress:
        path, rows, notes = convert_dataset(
            source,
            target,
            repair=repair,
            env_id=env,
            env_kwargs=parse_overrides(set_ or []),
            kind=kind,
            target_kind=target_kind,
            rename=_parse_rename(rename),
            progress=progress,
        )
    if json_:
        print_answer({"path": str(path), "transitions": rows, "repairs": notes})
        return
    for note in notes:
        print(note)
    if repair and not notes:
        print("nothing needed repair")
    print(f"{rows:,} transitions in {shown(path)}")


@data_app.command(cls=PlainCommand)
def collect(
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="A run or checkpoint, random, scripted, or a function of your own: module:function.",
            metavar="POLICY",
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.", metavar="N")],
    output: Annotated[str, typer.Option("--output", "-o", help=f"What to write: {_TARGET}.", metavar="FILE")],
    overwrite: OverwriteOption = False,
    env: Annotated[
        str | None, typer.Option("--env", help="The environment; unset: that of the run.", metavar="ENV_ID")
    ] = None,
    noise: Annotated[
        float,
        typer.Option(
            min=0, help="Std of the noise on actions in [-1, 1]; discrete: share of random ones.", metavar="STD"
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.", metavar="N")] = 0,
    set_: SetOption = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help=f"The format of FILE, if its name does not tell it: {_WRITTEN}.", metavar="KIND"),
    ] = None,
    trust: TrustOption = False,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Play episodes and write them to a dataset."""
    from rl_training.data.dataset_loaders import write_transitions
    from rl_training.data.formats.storage import watch_bytes
    from rl_training.envs.consent import trust_all_runs
    from rl_training.runtime.progress import Progress
    from rl_training.runtime.remote.local_copy import fetch
    from rl_training.runtime.remote.local_copy import policy as policy_files
    from rl_training.tools.datasets import collect_dataset

    if trust:
        trust_all_runs()
    _confirm_target(output, kind, overwrite)
    policy = str(fetch(policy, policy_files)) if is_url(policy) else policy
    with Progress("data collect", quiet=quiet) as progress, watch_bytes(progress.on_bytes):
        dataset, env_spec = collect_dataset(
            env,
            policy,
            episodes=episodes,
            noise=noise,
            seed=seed,
            env_kwargs=parse_overrides(set_ or []),
            progress=progress,
        )
        path = write_transitions(dataset, output, kind, env_spec=env_spec)
    returns = dataset.episode_returns
    if json_:
        answer = {
            "path": str(path),
            "env_id": env_spec.id if env_spec else env,
            "episodes": len(returns),
            "transitions": len(dataset),
        }
        print_answer({**answer, "mean_return": float(returns.mean())})
        return
    print(f"{len(dataset):,} transitions of {len(returns):,} episodes in {shown(path)}")
    print(f"mean return    {returns.mean():.2f} (std {returns.std():.2f})")


def _confirm_target(target: str, kind: str | None, overwrite: bool) -> None:
    """Refuse a target that cannot be written, and ask before a file is replaced."""
    from rl_training.tools.datasets import check_target

    existing = check_target(target, kind)
    if existing is None or overwrite:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise DatasetError(f"{existing}: exists already; expected another name, or --overwrite to replace it")
    if not typer.confirm(f"{shown(existing)} exists already. Replace it?", err=True):
        raise DatasetError(f"{existing}: exists already and was not replaced")


def _parse_rename(options: list[str] | None) -> dict[str, str]:
    """Return the names in a file and the keys to read them as."""
    pairs = [option.rpartition("=") for option in options or []]
    for option, (name, _, key) in zip(options or [], pairs, strict=True):
        if not name or not key:
            raise ConfigError(f"--rename {shown(option)}: expected NAME=KEY, e.g. sensor=observations")
    return {name: key for name, _, key in pairs}
