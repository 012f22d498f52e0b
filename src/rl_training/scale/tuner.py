"""The driver of a search: Ray Tune runs the trials, Optuna's journal and the runs' folders are its whole state."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RunFailedError
from rl_training.interrupts import Interrupted, stop_on_signals
from rl_training.runtime.checkpoint_files import write_durably
from rl_training.runtime.remote.mirror import folder_of_runs
from rl_training.runtime.run_lock import lock_run
from rl_training.scale.cluster import import_ray, ray_session, require_cluster
from rl_training.scale.driver import States, Watcher, check_sweep, run_sweep
from rl_training.scale.ranking import Ranked, rank
from rl_training.scale.resources import cluster_workers, gpus_of, local_workers, threads_of
from rl_training.scale.study import (
    changes_of,
    evaluations,
    import_optuna,
    importances,
    make_scheduler,
    make_searcher,
    open_storage,
    open_study,
    requeue_killed,
    trials_left,
    tried,
)
from rl_training.scale.sweep_file import Sweep
from rl_training.scale.trials import Trial, TrialState, trial_state
from rl_training.scale.tune_file import Search
from rl_training.urls import Location, join

REPEATS = "repeats"
"""The folder of the runs on fresh seeds, in the folder of the search."""
_QUIET = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "TUNE_DISABLE_SIGINT_HANDLER": "1", "RAY_AIR_NEW_OUTPUT": "0"}
_WATCH_SECONDS = 0.5
_RETRIES = 1
"""How often Tune starts a trial again whose process died; the run continues from its checkpoint."""


@dataclass(frozen=True)
class Found:
    """What a search has found."""

    ranked: list[Ranked]
    """The configurations that were repeated on fresh seeds, the best first."""
    states: States
    """The trials of the search, by name."""
    trials: list[Trial]
    scores: dict[str, float]
    """The score of each trial that was evaluated, by name."""
    importances: dict[str, float]
    repeats: Sweep
    repeat_states: States


def run_search(
    search: Search,
    *,
    workers: int | None = None,
    address: str | None = None,
    watch: Watcher = lambda states: None,
    say: Callable[[str], None] = lambda text: None,
) -> Found:
    """Try configurations, repeat the best on fresh seeds, and return what was found.

    A search that was ended goes on: finished trials are not run again, and others continue in their folders.

    Args:
        search: what to search.
        workers: trials at a time; unset: as the file says, or as many as there are CPUs for.
        address: of a Ray cluster; unset: Ray is started on this machine.
        watch: called with the states of the trials about twice a second.
        say: called with a line when a new part begins.
    """
    import_ray("tune")
    import_optuna()
    sweep = _as_sweep(search, [search.trial({one.key: one.probes()[0] for one in search.ranges})])
    check_sweep(replace(sweep, trials=[replace(sweep.trials[0], name="no such run")]))
    if address is not None:
        require_cluster(address)
    os.environ.update(_QUIET)
    try:
        with contextlib.ExitStack() as entered:
            entered.enter_context(folder_of_runs(search.location)).mkdir(parents=True, exist_ok=True)
            entered.enter_context(lock_run(search.folder, "running this search"))
            storage = open_storage(search)
            study = open_study(search, storage)
            requeue_killed(study)
            left = trials_left(study, search.settings.trials)
            if left:
                local = local_workers(sweep, workers) if address is None else 0
                session = ray_session("tune", address, local * threads_of(sweep.trials))
                workers = cluster_workers(sweep, local or workers, entered.enter_context(session))
                write_durably(search.folder / "tune.yaml", search.path.read_text(encoding="utf-8"))
                say(f"{left} of {search.settings.trials} trials to run, {workers} at a time")
                _tune(search, storage, study, left, workers, watch)
            return _repeat(search, study, workers, address, watch, say)
    except OSError as error:
        raise ConfigError(f"folder = {str(search.location)!r}: cannot be written to: {error.strerror}") from None


def _tune(search: Search, storage: Any, study: Any, count: int, at_a_time: int, watch: Watcher) -> None:
    """Run Ray Tune for ``count`` trials. What it writes about itself is thrown away."""
    from ray import tune

    from rl_training.scale.trainable import RunTrainable

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # failed trials are reported with their own message
    earlier = [search.trial(changes) for changes in tried(study, search.ranges)]
    sweep = _as_sweep(search, [search.trial({one.key: one.probes()[0] for one in search.ranges})])
    threads, packed = threads_of(sweep.trials), pickle.dumps(search)
    trainable = tune.with_parameters(RunTrainable, packed=packed, threads=threads, working_folder=os.getcwd())
    stops: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rl-training-tune-") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": threads, "gpu": gpus_of(sweep)}),
            tune_config=tune.TuneConfig(
                search_alg=make_searcher(search, storage, len(study.get_trials(deepcopy=False))),
                scheduler=make_scheduler(search, earlier),
                num_samples=count,
                max_concurrent_trials=at_a_time,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(Path(scratch).absolute()),
                verbose=0,
                callbacks=[_watching(search, earlier, watch, stops)],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs have their own
                failure_config=tune.FailureConfig(max_failures=_RETRIES),
            ),
        )
        with stop_on_signals(stops.append):  # Ray has handlers of its own, which these replace
            tuner.fit()


def _watching(search: Search, earlier: list[Trial], watch: Watcher, stops: list[str]) -> Any:
    """Return a callback of Tune that shows the trials, and ends the search after a signal."""
    from ray import tune

    class Watching(tune.Callback):
        shown_at = 0.0

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            if stops:
                raise Interrupted(stops[0])
            if time.monotonic() - self.shown_at < _WATCH_SECONDS:
                return
            self.shown_at = time.monotonic()
            states = {trial.name: trial_state(trial, running=False) for trial in earlier}
            for one in trials:
                trial = search.trial(changes_of(one.config, search.ranges))
                states[trial.name] = _state_of(trial, one)
            watch(states)

    return Watching()


def _state_of(trial: Trial, tune_trial: Any) -> TrialState:
    """Return the state of a trial that Tune knows."""
    status = tune_trial.status
    state = trial_state(trial, running=status == "RUNNING")
    if status == "TERMINATED" and not state.is_done:
        return replace(state, status="running")  # it is writing its last checkpoint
    if status == "ERROR" and not state.error:
        return replace(state, status="failed", error=_last_line(tune_trial))
    return state


def _last_line(tune_trial: Any) -> str:
    try:
        text = Path(tune_trial.error_file).read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, TypeError):
        return "its process ended without a message"
    return text.splitlines()[-1] if text else "its process ended without a message"


def _repeat(
    search: Search, study: Any, workers: int | None, address: str | None, watch: Watcher, say: Callable[[str], None]
) -> Found:
    """Run the best configurations on fresh seeds, and rank them."""
    metric, repeat = search.settings.metric, search.settings.repeat
    trials = [search.trial(changes) for changes in tried(study, search.ranges)]
    scores = {trial.name: last for trial in trials if (last := _last_score(trial, metric)) is not None}
    if not scores:
        raise RunFailedError(f"{search.folder}: no trial of the search was evaluated, so there is nothing to compare")
    best = sorted((trial for trial in trials if trial.name in scores), key=lambda one: scores[one.name], reverse=True)
    seeds = range(search.settings.seed + 1, search.settings.seed + 1 + repeat.seeds)
    folder = join(search.location, REPEATS)
    chosen = [trial.changes for trial in best[: repeat.best]]
    sweep = _as_sweep(search, [search.trial(changes, seed, folder) for changes in chosen for seed in seeds], folder)
    say(f"the best {len(chosen)} again, with the seeds {seeds[0]} to {seeds[-1]}")
    states, interrupted = run_sweep(sweep, workers=workers, address=address, watch=watch)
    if interrupted:
        raise Interrupted("a signal")
    ranked = []
    for changes in chosen:
        runs = [trial for trial in sweep.trials if trial.changes == changes]
        found = [last for trial in runs if (last := _last_score(trial, metric)) is not None]
        if found:
            ranked.append(Ranked(changes, [score for score, _ in found], [reward for _, reward in found]))
    if not ranked:
        raise RunFailedError(f"{folder}: none of the repeated runs was evaluated; run the same command again")
    return Found(
        ranked=rank(ranked),
        states={trial.name: trial_state(trial, running=False) for trial in trials},
        trials=trials,
        scores={name: score for name, (score, _) in scores.items()},
        importances=importances(study),
        repeats=sweep,
        repeat_states=states,
    )


def _last_score(trial: Trial, metric: str) -> tuple[float, float] | None:
    """Return the last evaluation of a run: the metric, and the mean return, which decides between equals."""
    rows = evaluations(trial, metric)
    return (rows[-1][metric], rows[-1].get("eval/mean_reward", 0.0)) if rows else None


def _as_sweep(search: Search, trials: list[Trial], folder: Location | None = None) -> Sweep:
    return Sweep(search.path, folder or search.location, search.source, search.settings, trials)
