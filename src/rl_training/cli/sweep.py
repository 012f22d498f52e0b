"""``rl-training sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import JsonOption, QuietOption
from rl_training.cli.streams import print_answer
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.scale.sweep_file import Sweep
    from rl_training.scale.trials import TrialState

WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Trials at a time; unset: as the CPUs allow.", metavar="N")
]
AddressOption = Annotated[
    str | None, typer.Option(help="A running Ray cluster: auto or HOST:PORT; unset: this machine.", metavar="ADDRESS")
]


def sweep(
    file: Annotated[Path, typer.Argument(help="A YAML file with a base, what to vary, and seeds.", metavar="FILE")],
    workers: WorkersOption = None,
    ray_address: AddressOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the trials, their states and the time they need; run nothing.")
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Print a SLURM script with the same commands; run nothing.")
    ] = False,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Train every combination of settings and seeds that a file describes."""
    from rl_training.runtime.remote.mirror import folder_of_runs
    from rl_training.scale.board import Board
    from rl_training.scale.driver import check_sweep, run_sweep
    from rl_training.scale.slurm import slurm_script
    from rl_training.scale.sweep_file import read_sweep
    from rl_training.scale.trials import trial_state

    if slurm and (dry_run or json_ or ray_address is not None):
        raise ConfigError("--slurm excludes --dry-run, --json and --ray-address: it prints a script")
    found = read_sweep(file)
    if slurm:
        print(slurm_script(found), end="")
        return
    if dry_run:
        check_sweep(found)
        states = {trial.name: trial_state(trial) for trial in found.trials}
        _print_plan(found, states, workers, json_)
        return
    with folder_of_runs(found.location):
        with Board("sweep", quiet=quiet) as board:
            states, interrupted = run_sweep(found, workers=workers, address=ray_address, watch=board.show)
        report = _write_report(found)
    if json_:
        print_answer({**_answer(found, states), "report": report and str(report)})
    else:
        _print_states(states)
        print(f"runs           {found.location}")
        if report is not None:
            print(f"report         {report}")
        if interrupted:
            print(f"continue with  rl-training sweep {file}")
    if interrupted:
        raise typer.Exit(3)
    if any(state.status == "failed" for state in states.values()):
        raise typer.Exit(1)


def _print_states(states: dict[str, TrialState]) -> None:
    from rl_training.scale.board import state_lines

    for line in state_lines(states):
        print(line)


def _print_plan(found: Sweep, states: dict[str, TrialState], workers: int | None, json_: bool) -> None:
    """Print what would run, and how long that takes at the rate of the first finished trial."""
    from rl_training.scale.board import clock
    from rl_training.scale.resources import local_workers
    from rl_training.scale.trials import training_rate

    at_a_time = local_workers(found, workers)
    rate = next((training_rate(trial) for trial in found.trials if states[trial.name].is_done), None)
    steps = sum(max(0, state.total - state.step) for state in states.values() if not state.is_done)
    seconds = steps / rate / at_a_time if rate else None
    if json_:
        print_answer({**_answer(found, states), "workers": at_a_time, "steps": steps, "seconds": seconds})
        return
    _print_states(states)
    waiting = sum(not state.is_done for state in states.values())
    time = (
        f"about {clock(seconds)} at {rate:,.0f} steps/s" if seconds is not None else "time unknown before a trial ends"
    )
    print(f"{waiting} of {len(states)} trials to run, {steps:,} steps, {at_a_time} at a time: {time}")


def _answer(found: Sweep, states: dict[str, TrialState]) -> dict[str, Any]:
    trials = []
    for trial in found.trials:
        state = states[trial.name]
        facts = {"status": state.status, "global_step": state.step, "total_timesteps": state.total}
        outcome = {**facts, "metrics": state.metrics, "error": state.error or None}
        trials.append({"run_dir": str(trial.location), "seed": trial.config.seed, "changes": trial.changes, **outcome})
    return {"folder": str(found.location), "trials": trials}


def _write_report(found: Sweep) -> Path | None:
    """Write the report over all runs of the sweep; None if none of them has metrics yet."""
    from rl_training.experiment.report import write_report
    from rl_training.runtime.logging import read_metrics

    runs = [trial.run_dir for trial in found.trials if read_metrics(trial.run_dir / "metrics.csv")]
    return write_report(runs, found.folder / "report.html") if runs else None
