"""``rl-training data``: look at, convert and collect datasets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rl_training.config import parse_overrides

data_app = typer.Typer(no_args_is_help=True, help="Look at, convert and collect datasets.")

_PLACE = "npz, pt, hdf5 or parquet by its ending, or minari:ID"

EnvOption = Annotated[str | None, typer.Option("--env", help="The environment that the data comes from.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="An argument of the environment.", metavar="KEY=VALUE")
]


@data_app.command()
def inspect(
    file: Annotated[str, typer.Argument(help=f"A dataset: {_PLACE}.")],
    env: EnvOption = None,
    set_: SetOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 where an error is found.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Show what is in a dataset, and what is wrong with it."""
    from rl_training.errors import DatasetError
    from rl_training.tools.datasets import read_dataset
    from rl_training.tools.inspection import inspect_transitions

    arrays = read_dataset(file)
    try:
        report = inspect_transitions(arrays, env, parse_overrides(set_ or []))
    except DatasetError as error:
        raise DatasetError(f"{file}: {error}") from None
    if json_:
        print(json.dumps({"file": file, "env_id": env, **report.to_json()}))
    else:
        print("\n".join(report.lines()))
    if strict and not report.is_sane:
        raise typer.Exit(2)


@data_app.command()
def convert(
    source: Annotated[str, typer.Argument(help=f"A dataset: {_PLACE}.", metavar="A")],
    target: Annotated[str, typer.Argument(help=f"What to write: {_PLACE}.", metavar="B")],
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended safely, and say what.")] = False,
    env: EnvOption = None,
    set_: SetOption = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Copy a dataset from one format into another."""
    from rl_training.tools.datasets import convert_dataset

    arguments = parse_overrides(set_ or [])
    path, rows, notes = convert_dataset(source, target, repair=repair, env_id=env, env_kwargs=arguments)
    if json_:
        print(json.dumps({"path": str(path), "transitions": rows, "repairs": notes}))
        return
    for note in notes:
        print(note)
    if repair and not notes:
        print("nothing needed repair")
    print(f"{rows:,} transitions in {path}")


@data_app.command()
def collect(
    policy: Annotated[str, typer.Option(help="A run or checkpoint, random, or scripted.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")],
    output: Annotated[str, typer.Option("--output", "-o", help=f"What to write: {_PLACE}.")],
    env: Annotated[str | None, typer.Option("--env", help="The environment; unset, that of the run.")] = None,
    noise: Annotated[float, typer.Option(min=0, help="Deviation added to actions; discrete: share at random.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides every random number.")] = 0,
    set_: SetOption = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Play episodes and write them down."""
    from rl_training.data.dataset_loaders import write_transitions
    from rl_training.tools.datasets import check_target, collect_dataset

    check_target(output)
    dataset, env_spec = collect_dataset(
        env,
        policy if policy in ("random", "scripted") else Path(policy),
        episodes=episodes,
        noise=noise,
        seed=seed,
        env_kwargs=parse_overrides(set_ or []),
        progress_bar=not json_ and sys.stderr.isatty(),
    )
    path = write_transitions(dataset, output, env_spec=env_spec)
    returns = dataset.episode_returns
    if json_:
        answer = {
            "path": str(path),
            "env_id": env_spec.id if env_spec else env,
            "episodes": len(returns),
            "transitions": len(dataset),
        }
        print(json.dumps({**answer, "mean_return": float(returns.mean())}))
        return
    print(f"{len(dataset):,} transitions of {len(returns):,} episodes in {path}")
    print(f"mean return    {returns.mean():.2f} (deviation {returns.std():.2f})")
