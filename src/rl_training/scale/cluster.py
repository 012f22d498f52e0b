"""Ray, as this package uses it: a session of its own on this machine, or a cluster that is running already."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rl_training.errors import ConfigError, MissingExtraError, RunFailedError
from rl_training.runtime.distributed.ray_session import TOKEN_HINT, require_reachable

_OBJECT_STORE_BYTES = 100_000_000
"""Of a session of its own. Trials exchange a few hundred bytes."""


@dataclass(frozen=True)
class Cluster:
    """A connected session: ``cpus`` and ``gpus`` are all that it has."""

    cpus: float
    gpus: float


def import_ray(what: str) -> Any:
    """Return the module ``ray``, with its usage reports off; ``what`` is the command that needs it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # a busy machine takes longer than Ray's minute
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do by itself, without its warning
    try:
        import ray
    except ImportError:
        raise MissingExtraError(what, "scale") from None
    return ray


@contextlib.contextmanager
def ray_session(what: str, address: str | None, cpus: int) -> Iterator[Cluster]:
    """Connect to the cluster at an address or, without one, start Ray on this machine with ``cpus`` CPUs.

    A session that is there already, as in a test, is used and left as it is.
    """
    ray = import_ray(what)
    ours = not ray.is_initialized()
    if ours:
        _start(ray, address, cpus)
    try:
        found = ray.cluster_resources()
        yield Cluster(float(found.get("CPU", 0)), float(found.get("GPU", 0)))
    finally:
        if ours:
            ray.shutdown()


def warn_about_workers(workers: int, threads: int) -> None:
    """Warn if more trials run at a time than this machine has CPUs for."""
    here = available_cpus()
    if workers * threads > here:
        factor = workers * threads / here
        warnings.warn(
            f"{workers} workers with {threads} thread{'s' if threads > 1 else ''} each are more than the {here} CPUs of"
            f" this machine: trials share them, and each takes about {factor:.1f} times as long",
            stacklevel=3,
        )


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(ray: Any, address: str | None, cpus: int) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if address is None:
            own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
            try:
                ray.init(address="local", **own, **quiet)
            except Exception as error:  # Ray raises plain exceptions here
                raise RunFailedError(f"Ray could not be started on this machine: {_first_line(error)}") from None
            return
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            reason = f"{_first_line(error)}{TOKEN_HINT}"
            raise ConfigError(f"--ray-address {address}: there is no connection to Ray: {reason}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def require_cluster(address: str) -> None:
    """Refuse an address where no Ray cluster answers, before anything is written."""
    require_reachable(address.removeprefix("ray://"), f"--ray-address {address}")
