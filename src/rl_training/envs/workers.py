"""Environments in processes of their own, each of which has to answer in time."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from rl_training.errors import WorkerError

EnvBuilder = Callable[[], gym.Env[Any, Any]]


class WorkerVectorEnv(AsyncVectorEnv):
    """Gymnasium's asynchronous environments; one that dies, hangs or raises is named in a ``WorkerError``."""

    def __init__(self, builders: Sequence[EnvBuilder], timeout: float) -> None:
        self.timeout = timeout
        builders = [partial(_in_worker, build) for build in builders]
        super().__init__(builders, autoreset_mode=AutoresetMode.DISABLED, worker=_work)
        # Workers do not heed SIGTERM, which is how multiprocessing would end those that are left at exit.
        atexit.register(self._kill)

    def step_async(self, actions: Any) -> None:
        """Send an action to every worker."""
        with self._watched("step"):
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        """Wait for every worker's step."""
        with self._watched("step"):
            return super().step_wait(self.timeout if timeout is None else timeout)

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Ask every worker for a reset."""
        with self._watched("reset"):
            super().reset_async(seed, options)

    def reset_wait(self, timeout: float | None = None) -> Any:
        """Wait for every worker's reset."""
        with self._watched("reset"):
            return super().reset_wait(self.timeout if timeout is None else timeout)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers: in order where all of them are waiting for that, by force otherwise."""
        atexit.unregister(self._kill)
        if not terminate and self._state == AsyncState.DEFAULT and all(p.is_alive() for p in self.processes):
            with contextlib.suppress(EOFError, OSError):
                super().close_extras(timeout)
                return
        self._kill()
        self._state = AsyncState.DEFAULT  # an answer that is still due is not waited for
        super().close_extras(terminate=True)

    @contextlib.contextmanager
    def _watched(self, call: str) -> Iterator[None]:
        """Say which worker did not answer a call, and end them all: what the others hold is of no use any more."""
        try:
            yield
        except multiprocessing.TimeoutError:
            silent = [i for i, pipe in enumerate(self.parent_pipes) if pipe is not None and not pipe.poll()]
            self._kill()
            raise WorkerError(
                f"{_names(silent)} did not answer a {call} within {self.timeout:g} seconds (env_kwargs.worker_timeout)"
            ) from None
        except (EOFError, ConnectionError):
            dead = self._dead()
            self._kill()
            how = dead[min(dead)] if dead else "is gone"
            raise WorkerError(f"the process of {_names(list(dead))} {how}") from None

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Name the environment that raised an error, the error and where it was raised."""
        if all(successes):
            return
        index, kind, value, trace = self.error_queue.get()
        self._kill()
        places = [line.strip() for line in str(trace).splitlines() if line.strip().startswith("File ")]
        where = f" ({places[-1]})" if places else ""
        raise WorkerError(f"environment {index} raised {kind.__name__}: {value}{where}")

    def _dead(self) -> dict[int, str]:
        """Return the workers that have ended, and how."""
        end = time.monotonic() + 1.0  # a pipe breaks a moment before its process is known to have ended
        while all(process.is_alive() for process in self.processes) and time.monotonic() < end:
            time.sleep(0.01)
        found = {}
        for index, process in enumerate(self.processes):
            if not process.is_alive():
                code = process.exitcode or 0
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                found[index] = how
        return found

    def _kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()


def _work(*arguments: Any) -> None:
    """Serve an environment until told to stop, or until nobody is left to serve, which is nothing to report."""
    with contextlib.suppress(EOFError, ConnectionError):
        _async_worker(*arguments)


def _names(indices: list[int]) -> str:
    return f"environment{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices)) or '?'}"


def _in_worker(build: EnvBuilder) -> gym.Env[Any, Any]:
    """Build an environment in a worker process, which leaves signals to the process that steers it.

    A terminal sends Ctrl-C, and a scheduler its SIGTERM, to every process of a group.
    """
    if multiprocessing.parent_process() is not None:  # AsyncVectorEnv also builds one here, to read its spaces
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return build()
