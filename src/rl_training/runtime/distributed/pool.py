"""The Ray actors of distributed collection: started, asked, restarted when they die, and ended."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any, NoReturn

from rl_training.errors import EnvError, NumericalError, WorkerError
from rl_training.interrupts import raise_if_asked_to_stop
from rl_training.runtime.distributed.ray_session import RaySession
from rl_training.runtime.distributed.worker import EpisodeWorker, Failure, Played, Policy, Request, WorkerPlan

_MOST_DEATHS = 10  # of a worker, without an episode in between
_MOST_TRIES = 180  # to reach a worker that is being restarted
_TRY_SECONDS = 1.0  # between two of them
_START_SECONDS = 180.0
_WAIT_SECONDS = 0.2  # between two looks at the signals


class WorkerPool:
    """Workers in processes of their own, on the machines of a Ray cluster.

    Attributes:
        size: the number of workers, those that were given up included.
        lost: the episodes that were lost because their worker died.
    """

    def __init__(self, session: RaySession, plan: WorkerPlan, size: int) -> None:
        """Start the workers and wait until the first of them has built its environment."""
        self.size, self.lost = size, 0
        self._session, self._ray = session, session.ray
        self._calls: dict[Any, int] = {}  # the worker of each request
        self._restarts: dict[Any, int] = {}  # the worker of each try to reach one that is being restarted
        self._unreached: dict[int, tuple[int, float]] = {}  # how often that was tried, and the time of the next try
        self._deaths = [0] * size  # of each worker, since its last episode
        cpus, free = session.cpus
        if size > cpus:
            warnings.warn(
                f"num_workers = {size}, and Ray has {cpus:g} CPUs: all workers start and share them. This helps where"
                " environments wait, for a simulator or a device, and not where they compute",
                stacklevel=2,
            )
        share = min(1.0, math.floor(1e4 * free / size) / 1e4)  # so that all of them fit
        options = {"num_cpus": share, "max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        actor_type = self._ray.remote(**options)(EpisodeWorker)
        self._actors = {index: actor_type.remote(plan, index) for index in range(size)}
        self._require_one()

    def __len__(self) -> int:
        """Return how many episodes are being played."""
        return len(self._calls)

    def put(self, policy: Policy) -> Any:
        """Put weights into Ray's object store, once for all workers, and return a reference to them."""
        return self._ray.put(policy)

    def ask(self, worker: int, request: Request, policy: Any) -> None:
        """Ask a worker for an episode; ``policy`` is a reference to weights."""
        self._calls[self._actors[worker].play.remote(request, policy)] = worker

    def receive(self, seconds: float) -> tuple[list[Played], list[int]]:
        """Return the episodes that have arrived, and the workers that died and are back.

        If nothing has arrived, wait for the first episode, at most ``seconds``.
        """
        self._try_restarts()
        pending = [*self._calls, *self._restarts]
        if not pending:
            time.sleep(min(seconds, _TRY_SECONDS))
            return [], []
        ray = self._ray
        ready, others = ray.wait(pending, num_returns=1, timeout=seconds)
        if ready and others:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        arrived, back = [], []
        for call in ready:
            played = call in self._calls
            worker = (self._calls if played else self._restarts).pop(call)
            try:
                answer = ray.get(call)
            except ray.exceptions.RayTaskError as error:
                raise WorkerError(f"worker {worker} failed: {_line(error, -1)}") from error
            except ray.exceptions.RayError as error:  # the process or the machine of the worker is gone
                raise_if_asked_to_stop()  # a signal to the whole process group may have ended Ray
                if played:
                    self.lost += 1
                    self._deaths[worker] += 1
                    warnings.warn(f"worker {worker} died and is restarted; its episode is lost", stacklevel=3)
                self._wait_for(worker, error)
                continue
            if isinstance(answer, Failure):
                _raise(answer, worker)
            if played:
                self._deaths[worker] = 0
                arrived.append(answer.copied())
            else:
                del self._unreached[worker]
                back.append(worker)
        return arrived, back

    def close(self) -> None:
        """End the workers, and Ray if it was started for them."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._calls.clear()
        self._restarts.clear()
        self._unreached.clear()
        self._session.close()

    def _wait_for(self, worker: int, error: Exception) -> None:
        """Try again later to reach a worker that Ray restarts; one that keeps dying, or does not start, is given up."""
        tries, _ = self._unreached.get(worker, (0, 0.0))
        if self._deaths[worker] < _MOST_DEATHS and tries < _MOST_TRIES:
            self._unreached[worker] = tries + 1, time.monotonic() + _TRY_SECONDS
            return
        self._unreached.pop(worker, None)
        self._ray.kill(self._actors.pop(worker))
        problem = f"worker {worker} died {_MOST_DEATHS} times without finishing an episode"
        if self._deaths[worker] < _MOST_DEATHS:
            problem = f"worker {worker} died and could not be restarted"
        if not self._actors:
            raise WorkerError(f"{problem}, and no worker is left: {_line(error, 0)}")
        warnings.warn(f"{problem}: the run goes on without it", stacklevel=4)

    def _try_restarts(self) -> None:
        """Call the workers whose time has come. Ray refuses calls while a worker starts."""
        called, now = set(self._restarts.values()), time.monotonic()
        for worker, (_, due) in self._unreached.items():
            if worker not in called and now >= due:
                self._restarts[self._actors[worker].prepare.remote()] = worker

    def _require_one(self) -> None:
        """Wait for the first worker, and raise an error if it cannot work."""
        ray, end = self._ray, time.monotonic() + _START_SECONDS
        calls = {actor.prepare.remote(): index for index, actor in self._actors.items()}
        ready: list[Any] = []
        while not ready:
            raise_if_asked_to_stop()
            if time.monotonic() > end:
                raise EnvError(f"num_workers = {self.size}: no worker started within {_START_SECONDS:g} seconds")
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=_WAIT_SECONDS)
        who = f"num_workers = {self.size}: worker {calls[ready[0]]}"
        try:
            answer = ray.get(ready[0])
        except ray.exceptions.RayError as error:
            raise EnvError(f"{who} did not start: {_line(error, -1)}") from error
        if isinstance(answer, Failure):
            raise EnvError(
                f"{who} cannot build its environment: {answer.message}. A worker is another process: an environment"
                " that the running program registers needs an env_id with its module, such as my_module:MyTask-v0"
            )


def _raise(failure: Failure, worker: int) -> NoReturn:
    """Raise the error of a worker here."""
    message = f"worker {worker}, {failure.message}"
    if issubclass(failure.kind, NumericalError):
        raise NumericalError(message)
    error = WorkerError(message)
    error.trace = failure.trace
    raise error


def _line(error: Exception, index: int) -> str:
    return str(error).strip().splitlines()[index]
