"""Several environments that step together: in this process, or in worker processes with a time limit."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space
from numpy.typing import NDArray

from rl_training.envs.goals import episode_success
from rl_training.envs.guarded import GuardedEnv
from rl_training.errors import EnvError, RLTrainingError, WorkerError
from rl_training.interrupts import Interrupted, TimeLimit, ignore_signals

Array = NDArray[Any]
EnvBuilder = Callable[[], gym.Env[Any, Any]]

_UNKNOWN = -1  # an environment's success, if its info does not report one


class LocalVectorEnv(SyncVectorEnv):
    """Gymnasium's environments that step one after another; messages say which of them failed."""

    def __init__(self, builders: Sequence[EnvBuilder]) -> None:
        super().__init__(builders, autoreset_mode=AutoresetMode.DISABLED)
        for index, env in enumerate(self.envs):
            while isinstance(env, gym.Wrapper):
                if isinstance(env, GuardedEnv):
                    env.name = f"environment {index}, {env.name}"
                env = env.env


class WorkerVectorEnv(VectorEnv[Any, Any, Any]):
    """Environments in worker processes; a ``WorkerError`` names one that dies, hangs or fails.

    A process steps its environments one after another. It writes their observations, rewards and flags to memory that
    it shares with this process. Of the infos only the success of each environment comes back.

    Attributes:
        processes: the worker processes.
        blocks: the indices of the environments in each process.
    """

    def __init__(self, build: EnvBuilder, num_envs: int, timeout: float, max_processes: int) -> None:
        """Start at most ``max_processes`` for ``num_envs``, of which each call may take ``timeout`` seconds."""
        self.processes, self._pipes = list[Any](), list[Connection]()
        self._due = list[Connection]()  # the workers that have not answered yet
        probe = build()
        self.num_envs, self.render_mode = num_envs, probe.render_mode
        self.metadata = {**probe.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space, self.single_action_space = probe.observation_space, probe.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        probe.close()
        share = -(-self.num_envs // max_processes)  # rounded up
        starts = range(0, self.num_envs, share)
        self.blocks = [range(start, min(start + share, self.num_envs)) for start in starts]
        self._limit = timeout * share
        context = multiprocessing.get_context()
        self._memory = _SharedMemory(context, self.single_observation_space, self.num_envs)
        self._results = self._memory.results()
        for block in self.blocks:
            pipe, child_pipe = context.Pipe()
            process = context.Process(
                target=_work, args=(block, CloudpickleWrapper(build), child_pipe, pipe, self._memory), daemon=True
            )
            process.start()
            child_pipe.close()
            self.processes.append(process)
            self._pipes.append(pipe)
        # Workers ignore SIGTERM, which is how multiprocessing would end them at exit.
        atexit.register(self._kill)
        self._due = list(self._pipes)
        try:
            self._receive("build")
        except WorkerError as error:
            atexit.unregister(self._kill)
            raise EnvError(str(error)) from None

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take a step in every environment."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Array) -> None:
        """Send an action to every environment."""
        self._send("step", [actions[block.start : block.stop] for block in self.blocks])

    def step_wait(self) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Wait for the step of every environment."""
        self._receive("step")
        known = self._results.success != _UNKNOWN
        infos = {"is_success": self._results.success == 1, "_is_success": known} if known.any() else {}
        results = self._results
        return self._observations(), results.rewards.copy(), results.terminated.copy(), results.truncated.copy(), infos

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in the environments in ``options["reset_mask"]``, or in all of them."""
        if isinstance(seed, int):
            seed = [seed + index for index in range(self.num_envs)]
        seeds = [None] * self.num_envs if seed is None else seed
        own_options = dict(options or {})
        mask = own_options.pop("reset_mask", np.ones(self.num_envs, bool))
        resets = [{index: seeds[index] for index in block if mask[index]} for block in self.blocks]
        self._send("reset", [(block, own_options) if block else None for block in resets])
        self._receive("reset")
        return self._observations(), {}

    def close_extras(self, **_: Any) -> None:
        """End the workers: with a message if all of them wait for one, by force otherwise."""
        atexit.unregister(self._kill)
        if not self._due and all(process.is_alive() for process in self.processes):
            with contextlib.suppress(OSError):
                for pipe in self._pipes:
                    pipe.send(None)
                for process in self.processes:
                    process.join(self._limit)
        self._kill()
        for pipe in self._pipes:
            pipe.close()

    def _observations(self) -> Any:
        copies = {key: array.copy() for key, array in self._results.observations.items()}
        return copies if isinstance(self.single_observation_space, spaces.Dict) else copies[""]

    def _send(self, call: str, parts: Sequence[Any]) -> None:
        """Send each worker its part of a call; a worker without one is left alone."""
        with self._watched(call):
            for pipe, part in zip(self._pipes, parts, strict=True):
                if part is not None:
                    self._due.append(pipe)
                    pipe.send((call, part))

    def _receive(self, call: str) -> None:
        """Wait for the workers that were sent a call."""
        end = time.monotonic() + self._limit
        with self._watched(call):
            while self._due:
                ready = wait(self._due, max(0.0, end - time.monotonic()))
                if not ready:
                    raise multiprocessing.TimeoutError
                for pipe in cast(list[Connection], ready):
                    failure = pipe.recv()
                    self._due.remove(pipe)
                    if failure is not None:
                        raise _worker_error(failure)

    @contextlib.contextmanager
    def _watched(self, call: str) -> Iterator[None]:
        """Name the worker that did not answer a call, and end all of them: the run cannot continue with the others."""
        try:
            with TimeLimit(self._limit + 60):  # ``wait`` has the time limit; this one handles requests to stop
                yield
        except multiprocessing.TimeoutError:
            silent = [
                i for pipe, block in zip(self._pipes, self.blocks, strict=True) if pipe in self._due for i in block
            ]
            self._kill()
            raise WorkerError(
                f"{_names(silent)} did not answer a {call} within {self._limit:g} seconds (env_kwargs.worker_timeout)"
            ) from None
        except (EOFError, ConnectionError):
            dead = self._dead()
            self._kill()
            how = next(iter(dead.values()), "is gone")
            raise WorkerError(f"the process of {_names([i for block in dead for i in block])} {how}") from None
        except (Interrupted, WorkerError):
            self._kill()
            raise

    def _dead(self) -> dict[range, str]:
        """Return the environments whose process has ended, and how."""
        end = time.monotonic() + 1.0  # a pipe breaks a moment before its process is known to have ended
        while all(process.is_alive() for process in self.processes) and time.monotonic() < end:
            time.sleep(0.01)
        found = {}
        for block, process in zip(self.blocks, self.processes, strict=True):
            if not process.is_alive():
                code = process.exitcode or 0
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                found[block] = how
        return found

    def _kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()


def free_processes(num_envs: int, runs: int = 1) -> int:
    """Return how many processes the environments of a run get if ``runs`` runs share the cores of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(num_envs, cores // runs))


class _Results(NamedTuple):
    """Arrays in shared memory; the first axis is the environments'."""

    observations: dict[str, Array]
    rewards: Array
    terminated: Array
    truncated: Array
    success: Array


class _SharedMemory:
    """The memory of ``_Results``, in a form that can be sent to a process when it starts."""

    def __init__(self, context: Any, space: gym.Space[Any], num_envs: int) -> None:
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        self._observations = {
            key: self._allocate(context, (num_envs, *part.shape), part.dtype)
            for key, part in parts.items()
            if isinstance(part, spaces.Box)  # no learner uses another part
        }
        if not self._observations:
            raise EnvError(f"env_kwargs.vectorization = 'async': expected Box observations, found {space}")
        dtypes = (np.float64, np.bool_, np.bool_, np.int8)
        self._others = [self._allocate(context, (num_envs,), dtype) for dtype in dtypes]

    def results(self) -> _Results:
        """Return the memory as arrays."""
        observations = {key: self._array(*memory) for key, memory in self._observations.items()}
        return _Results(observations, *(self._array(*memory) for memory in self._others))

    @staticmethod
    def _allocate(context: Any, shape: tuple[int, ...], dtype: Any) -> tuple[Any, tuple[int, ...], Any]:
        return context.RawArray("b", int(np.prod(shape)) * np.dtype(dtype).itemsize), shape, dtype

    @staticmethod
    def _array(memory: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.frombuffer(memory, dtype).reshape(shape)


class _Failure(NamedTuple):
    """What a worker sends if one of its environments failed."""

    env: int
    kind: str
    text: str
    trace: str
    described: bool
    """Whether the text says what failed, as that of this package's own errors does."""


def _worker_error(failure: _Failure) -> WorkerError:
    """Return an error that names the environment, its error and the line that raised it."""
    if failure.described:
        error = WorkerError(f"environment {failure.env}, {failure.text}")
    else:
        places = [line.strip() for line in failure.trace.splitlines() if line.strip().startswith("File ")]
        where = f" ({places[-1]})" if places else ""
        error = WorkerError(f"environment {failure.env} raised {failure.kind}: {failure.text}{where}")
    error.trace = failure.trace
    return error


def _work(block: range, build: EnvBuilder, pipe: Connection, parent_pipe: Connection, memory: _SharedMemory) -> None:
    """Serve environments until the parent asks for the end, or has ended itself.

    A worker ignores signals, and its parent decides when it ends: a terminal sends Ctrl-C, and a scheduler its SIGTERM,
    to every process of a group.
    """
    ignore_signals()
    parent_pipe.close()
    results = memory.results()
    envs: dict[int, gym.Env[Any, Any]] = {}
    index = block.start
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            for index in block:
                envs[index] = build()
            pipe.send(None)
            while (message := pipe.recv()) is not None:
                call, part = message
                if call == "step":
                    for index, action in zip(block, part, strict=True):
                        _write_step(results, index, envs[index].step(action))
                else:
                    seeds, options = part
                    for index, seed in seeds.items():
                        _write_observation(results, index, envs[index].reset(seed=seed, options=options)[0])
                pipe.send(None)
        except (EOFError, ConnectionError):
            pass
        except Exception as error:  # foreign code may raise anything
            described = isinstance(error, RLTrainingError)
            pipe.send(_Failure(index, type(error).__name__, str(error), traceback.format_exc(), described))
    for env in envs.values():
        env.close()


def _write_step(results: _Results, index: int, step: tuple[Any, Any, bool, bool, dict[str, Any]]) -> None:
    observation, results.rewards[index], results.terminated[index], results.truncated[index], info = step
    _write_observation(results, index, observation)
    success = episode_success(info)
    results.success[index] = _UNKNOWN if success is None else success


def _write_observation(results: _Results, index: int, observation: Any) -> None:
    for key, array in results.observations.items():
        array[index] = observation[key] if key else observation


def _names(indices: list[int]) -> str:
    return f"environment{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices)) or '?'}"
