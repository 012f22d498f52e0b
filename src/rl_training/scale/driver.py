"""The driver of a sweep: it hands the trials that are not finished to Ray, and follows them by their folders."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl_training.envs.consent import approve
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError, RemoteError, shown
from rl_training.interrupts import stop_on_signals
from rl_training.runtime.checkpoint_files import write_durably
from rl_training.runtime.remote.mirror import folder_of_runs
from rl_training.runtime.run_lock import lock_run
from rl_training.scale.cluster import import_ray, ray_session, require_cluster
from rl_training.scale.resources import cluster_workers, gpus_of, local_workers, threads_of
from rl_training.scale.sweep_file import Sweep, env_configs, require_free_folders
from rl_training.scale.trials import Trial, TrialState, refresh, trial_state
from rl_training.scale.worker import train_trials

_POLL_SECONDS = 0.5
_STOP_SECONDS = 60.0
"""How long interrupted trials may take to save a checkpoint."""
_RETRIES = 3
"""How often Ray starts a trial again whose process or node died; the trial continues from its checkpoint."""

States = dict[str, TrialState]
"""The states of all trials, by name and in their order."""
Watcher = Callable[[States], None]


def check_sweep(sweep: Sweep) -> None:
    """Refuse what would fail later: folders with other runs in them, and environments that cannot be made."""
    require_free_folders(sweep.trials)
    for config in env_configs(sweep.trials):
        approve(config.env_id)
        make_env(str(config.env_id), config.env_kwargs).close()


def run_sweep(
    sweep: Sweep, *, workers: int | None = None, address: str | None = None, watch: Watcher = lambda states: None
) -> tuple[States, bool]:
    """Run the trials that are not finished, and return the states of all, and whether a signal ended the sweep.

    Args:
        sweep: what to run.
        workers: trials at a time; unset: as the file says, or as many as there are CPUs for.
        address: of a Ray cluster; unset: Ray is started on this machine.
        watch: called with the states about twice a second.
    """
    check_sweep(sweep)
    import_ray("sweep")
    if address is not None:
        require_cluster(address)
    try:
        with contextlib.ExitStack() as entered:
            entered.enter_context(folder_of_runs(sweep.location)).mkdir(parents=True, exist_ok=True)
            entered.enter_context(lock_run(sweep.folder, "running this sweep"))
            states = {trial.name: trial_state(trial, running=False) for trial in sweep.trials}
            waiting = [group for group in sweep.groups if not all(states[trial.name].is_done for trial in group)]
            watch(states)
            if not waiting:
                return states, False
            return _run_trials(sweep, waiting, states, workers, address, watch)
    except OSError as error:
        raise ConfigError(f"folder = {str(sweep.location)!r}: cannot be written to: {error.strerror}") from None


def _run_trials(
    sweep: Sweep,
    waiting: Sequence[list[Trial]],
    states: States,
    workers: int | None,
    address: str | None,
    watch: Watcher,
) -> tuple[States, bool]:
    local = local_workers(sweep, workers) if address is None else 0
    local = min(local, len(waiting))  # each of them is one process
    with ray_session("sweep", address, local * threads_of(sweep.trials)) as cluster:
        at_a_time = local or cluster_workers(sweep, workers, cluster)
        if gpus_of(sweep) > cluster.gpus:
            raise ConfigError(f"gpus_per_trial = {gpus_of(sweep):g}: Ray has {cluster.gpus:g} GPUs here")
        write_durably(sweep.folder / "sweep.yaml", sweep.path.read_text(encoding="utf-8"))
        stops: list[str] = []
        with stop_on_signals(stops.append):  # Ray has handlers of its own, which these replace
            follower = _Follower(states, watch)
            queue = list(waiting)
            while (queue or follower.running) and not stops:
                while queue and len(follower.running) < at_a_time:
                    group = queue.pop(0)
                    follower.running[_submit(group, gpus_of(sweep))] = group
                follower.wait(_POLL_SECONDS)
            if stops:
                follower.stop_all()
    return states, bool(stops)


def _submit(group: list[Trial], gpus: float) -> Any:
    """Hand a trial, or a stack, to Ray: in a process of its own, which Ray starts again if it dies."""
    ray, first = import_ray("sweep"), group[0]
    task = ray.remote(max_calls=1)(train_trials)
    options = {"num_cpus": first.config.num_threads, "num_gpus": gpus, "max_retries": _RETRIES, "name": first.name}
    configs = [trial.config.model_dump(mode="json") for trial in group]
    places = [trial.location for trial in group]
    places = [str(place.absolute()) if isinstance(place, Path) else place for place in places]
    return task.options(**options).remote(configs, places, os.getcwd())


class _Follower:
    """Keeps the states of the trials that are running up to date."""

    def __init__(self, states: States, watch: Watcher) -> None:
        self.running: dict[Any, list[Trial]] = {}
        self._ray, self._states, self._watch = import_ray("sweep"), states, watch

    def wait(self, seconds: float) -> None:
        """Wait for trials to end, for a while, and read the states of all that run."""
        ended, _ = self._ray.wait(list(self.running), num_returns=1, timeout=seconds)
        for reference in ended:
            error = self._failure(reference)
            for trial in self.running.pop(reference):
                with contextlib.suppress(RemoteError):
                    refresh(trial)
                self._states[trial.name] = trial_state(trial, running=False, error=error)
        for trial in (trial for group in self.running.values() for trial in group):
            self._states[trial.name] = trial_state(trial, running=True)
        self._watch(self._states)

    def stop_all(self) -> None:
        """Ask the trials to save a checkpoint and end, and wait for that."""
        for reference in self.running:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=False)
        end = time.monotonic() + _STOP_SECONDS
        while self.running and time.monotonic() < end:
            self.wait(_POLL_SECONDS)
        for trial in (trial for group in self.running.values() for trial in group):
            self._states[trial.name] = trial_state(trial, running=False)

    def _failure(self, reference: Any) -> str:
        """Return why a trial failed, or nothing."""
        exceptions = self._ray.exceptions
        try:
            return str(self._ray.get(reference))
        except exceptions.TaskCancelledError:
            return ""
        except exceptions.RayTaskError as error:  # an error that nobody expected
            return f"unexpected {shown(str(error.cause or error).strip().splitlines()[-1])}. Please report it: a bug"
        except exceptions.RayError as error:
            return f"its process died {_RETRIES + 1} times: {shown(str(error).strip().splitlines()[0])}"
