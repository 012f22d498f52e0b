"""``rl-training tune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import JsonOption, QuietOption
from rl_training.cli.streams import print_answer
from rl_training.cli.sweep import AddressOption, WorkersOption

if TYPE_CHECKING:
    from rl_training.scale.tune_file import Search
    from rl_training.scale.tuner import Found


def tune(
    file: Annotated[Path, typer.Argument(help="A YAML file with a base and ranges of settings.", metavar="FILE")],
    workers: WorkersOption = None,
    ray_address: AddressOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file and show the search; run nothing.")
    ] = False,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Search for good settings, and compare the best on fresh seeds."""
    from rl_training.runtime.checkpoint_files import write_durably
    from rl_training.runtime.progress import Progress
    from rl_training.runtime.remote.mirror import folder_of_runs
    from rl_training.scale.board import Board
    from rl_training.scale.tune_file import read_search

    search = read_search(file)
    if dry_run:
        _print_search(search, json_)
        return
    from rl_training.scale.tune_report import search_page
    from rl_training.scale.tuner import run_search

    best, report = search.folder / "best.yaml", search.folder / "report.html"
    with folder_of_runs(search.location):
        with Board("tune", quiet=quiet) as board:
            say = Progress("tune", quiet=quiet).line
            found = run_search(search, workers=workers, address=ray_address, watch=board.show, say=say)
        write_durably(best, _best_yaml(search, found))
        write_durably(report, search_page(search, found))
    failed = [name for name, state in {**found.states, **found.repeat_states}.items() if state.status == "failed"]
    if json_:
        print_answer({**_answer(search, found), "failed": failed, "best": str(best), "report": str(report)})
    else:
        _print_found(search, found)
        for name in failed:
            print(f"failed         {name}")
        print(f"best           {best}")
        print(f"report         {report}")
    if failed:
        raise typer.Exit(1)


def _print_search(search: Search, json_: bool) -> None:
    """Print what would be searched."""
    facts = {
        "folder": str(search.location),
        "metric": search.settings.metric,
        "trials": search.settings.trials,
        "total_timesteps": search.config.total_timesteps,
        "grace": search.grace if search.settings.asha is not None else None,
    }
    if json_:
        print_answer({**facts, "space": search.settings.space})
        return
    for name, value in facts.items():
        print(f"{name:15} {'none: every trial runs to its end' if value is None else value}")
    for one in search.ranges:
        print(f"{one.key}: {one.kind} {list(one.values)}")


def _print_found(search: Search, found: Found) -> None:
    """Print the ranking on fresh seeds."""
    from rl_training.scale.ranking import how_sure

    for place, one in enumerate(found.ranked, start=1):
        low, high = one.interval
        settings = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in one.changes.items())
        print(f"{place}. {one.mean:.3f} ({low:.3f} to {high:.3f}, {len(one.scores)} seeds): {settings}")
    print(how_sure(found.ranked))


def _answer(search: Search, found: Found) -> dict[str, Any]:
    from rl_training.scale.ranking import probability_better

    first = found.ranked[0]
    ranked = [
        {
            "changes": one.changes,
            "mean": one.mean,
            "interval": one.interval,
            "scores": one.scores,
            "first_is_better": None if one is first else probability_better(first, one),
        }
        for one in found.ranked
    ]
    trials = [
        {
            "run_dir": str(trial.location),
            "status": found.states[trial.name].status,
            "global_step": found.states[trial.name].step,
            "score": found.scores.get(trial.name),
            "changes": trial.changes,
        }
        for trial in found.trials
    ]
    facts = {"folder": str(search.location), "metric": search.settings.metric, "importances": found.importances}
    return {**facts, "ranking": ranked, "trials": trials}


def _best_yaml(search: Search, found: Found) -> str:
    """Return the configuration that ranks first, as ``train`` takes it."""
    from rl_training.scale.sweep_file import check_changes

    best = found.ranked[0]
    config = check_changes(search.source, best.changes, search.path)
    comment = f"# {search.settings.metric} {best.mean:.3f} over {len(best.scores)} fresh seeds"
    return f"{comment}, found by rl-training tune {search.path.name}\n{config.to_yaml()}"
