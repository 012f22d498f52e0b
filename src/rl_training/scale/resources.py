"""How many CPUs and GPUs the trials of a sweep take, and how many of them run at a time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from rl_training.errors import ConfigError
from rl_training.scale.cluster import Cluster, available_cpus, warn_about_workers
from rl_training.scale.sweep_file import Sweep
from rl_training.scale.trials import Trial


def threads_of(trials: Sequence[Trial]) -> int:
    """Return the largest number of threads of a trial."""
    return max(trial.config.num_threads for trial in trials)


def gpus_of(sweep: Sweep) -> float:
    """Return the GPUs that a trial takes: as the file says, or one if the trials use CUDA."""
    if sweep.settings.gpus_per_trial is not None:
        return sweep.settings.gpus_per_trial
    return 1.0 if any(trial.config.device.startswith("cuda") for trial in sweep.trials) else 0.0


def local_workers(sweep: Sweep, asked: int | None) -> int:
    """Return how many trials run at a time on this machine, with a warning where that is too many."""
    threads = threads_of(sweep.trials)
    workers = asked or sweep.settings.workers
    if workers is None:
        return max(1, available_cpus() // threads)
    warn_about_workers(workers, threads)
    return workers


def cluster_workers(sweep: Sweep, asked: int | None, cluster: Cluster) -> int:
    """Return how many trials run at a time on a cluster; a trial that fits nowhere is refused."""
    threads, gpus = threads_of(sweep.trials), gpus_of(sweep)
    if gpus > cluster.gpus:
        raise ConfigError(f"gpus_per_trial = {gpus:g}: Ray has {cluster.gpus:g} GPUs here")
    if threads > cluster.cpus:
        raise ConfigError(f"num_threads = {threads}: Ray has {cluster.cpus:g} CPUs here")
    room = int(min(cluster.cpus / threads, cluster.gpus / gpus if gpus else cluster.cpus))
    workers = asked or sweep.settings.workers
    if workers is not None and workers > room:
        warnings.warn(
            f"{workers} workers are more than Ray has room for: {room} trials run at a time, and the others wait",
            stacklevel=2,
        )
    return min(workers or room, room)
