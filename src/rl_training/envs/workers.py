"""Several environments that step together: in this process, or each in its own process with a time limit."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import queue
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from rl_training.envs.guarded import GuardedEnv
from rl_training.errors import EnvError, RLTrainingError, WorkerError
from rl_training.interrupts import Interrupted, TimeLimit, ignore_signals

EnvBuilder = Callable[[], gym.Env[Any, Any]]


class LocalVectorEnv(SyncVectorEnv):
    """Gymnasium's environments that step one after another; messages say which of them failed."""

    def __init__(self, builders: Sequence[EnvBuilder]) -> None:
        super().__init__(builders, autoreset_mode=AutoresetMode.DISABLED)
        for index, env in enumerate(self.envs):
            while isinstance(env, gym.Wrapper):
                if isinstance(env, GuardedEnv):
                    env.name = f"environment {index}, {env.name}"
                env = env.env


class WorkerVectorEnv(AsyncVectorEnv):
    """Gymnasium's environments in separate processes; a ``WorkerError`` names one that dies, hangs or fails."""

    def __init__(self, builders: Sequence[EnvBuilder], timeout: float) -> None:
        self.timeout = timeout
        builders = [partial(_in_worker, build) for build in builders]
        try:
            super().__init__(builders, autoreset_mode=AutoresetMode.DISABLED, worker=_work)
        except (EOFError, ConnectionError):
            report, _ = self._report()
            self._kill()
            raise EnvError(report or f"an environment could not be built: its process {self._how()}") from None
        # Workers ignore SIGTERM, which is how multiprocessing would end them at exit.
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
        """End the workers: with a message if all of them wait for one, by force otherwise."""
        atexit.unregister(self._kill)
        if not terminate and self._state == AsyncState.DEFAULT and all(p.is_alive() for p in self.processes):
            with contextlib.suppress(EOFError, OSError):
                super().close_extras(timeout)
                return
        self._kill()
        self._state = AsyncState.DEFAULT  # do not wait for an answer that is still due
        super().close_extras(terminate=True)

    @contextlib.contextmanager
    def _watched(self, call: str) -> Iterator[None]:
        """Name the worker that did not answer a call, and end all of them: the run cannot continue with the others."""
        try:
            with TimeLimit(self.timeout + 60):  # the pipes have the time limit; this one handles requests to stop
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
            raise WorkerError(f"the process of {_names(list(dead))} {self._how(dead)}") from None
        except Interrupted:
            self._kill()
            raise

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Name the environment that failed, the error and the line that raised it."""
        if all(successes):
            return
        report, trace = self._report()
        self._kill()
        error = WorkerError(report or "an environment failed without a message")
        error.trace = trace
        raise error

    def _report(self) -> tuple[str, str]:
        """Return a message about the failure of a worker and its traceback; both are empty if it wrote none."""
        try:
            index, kind, value, trace = self.error_queue.get(timeout=1.0)
        except (queue.Empty, EOFError, OSError):
            return "", ""
        if issubclass(kind, RLTrainingError):  # the guard around the environment has described it
            text = f"environment {index}, {value}"
        else:
            places = [line.strip() for line in str(trace).splitlines() if line.strip().startswith("File ")]
            where = f" ({places[-1]})" if places else ""
            text = f"environment {index} raised {kind.__name__}: {value}{where}"
        return text, str(trace)

    def _how(self, dead: dict[int, str] | None = None) -> str:
        dead = self._dead() if dead is None else dead
        return dead[min(dead)] if dead else "is gone"

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


def _work(index: int, build: Any, pipe: Any, parent_pipe: Any, shared_memory: Any, errors: Any, *more: Any) -> None:
    """Serve an environment until the parent asks it to stop. If the parent has ended, stop without a message."""
    try:
        _async_worker(index, build, pipe, parent_pipe, shared_memory, errors, *more)
    except (EOFError, ConnectionError):
        pass
    except Exception as error:  # the environment could not be built
        kind = type(error) if isinstance(error, RLTrainingError) else RuntimeError
        errors.put((index, kind, str(error), traceback.format_exc()))


def _names(indices: list[int]) -> str:
    return f"environment{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices)) or '?'}"


def _in_worker(build: EnvBuilder) -> gym.Env[Any, Any]:
    """Build an environment in a worker process, which ignores signals: its parent decides when it ends.

    A terminal sends Ctrl-C, and a scheduler its SIGTERM, to every process of a group.
    """
    if multiprocessing.parent_process() is not None:  # AsyncVectorEnv also builds one here, to read its spaces
        ignore_signals()
    return build()
