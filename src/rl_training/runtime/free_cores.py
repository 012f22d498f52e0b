"""Updates that use a second core while nothing else needs it.

Two threads shorten an update, but they wait for each other by spinning: if another process takes one of the cores, an
update takes up to a hundred times as long. So a run starts with one thread, uses two while a core is idle, and goes
back to one as soon as two have lost the time of a few updates. The results do not depend on it: two threads are used
only after a trial on the run's own learner gave the same bits as one thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.runtime.acceleration import BatchSource
from rl_training.runtime.compiled_updates import CompiledUpdates
from rl_training.types import Batch, Metrics

_FREE = 0.7  # idle cores from which a second thread is worth a trial
_SHORTEST_WAIT, _LONGEST_WAIT = 2.0, 64.0  # seconds between two looks at the cores; the wait grows after a failure
_WINDOW = 20  # updates after which two threads must have been faster than one
_LARGEST_LOSS = 5.0  # two threads end at once when they have lost the time of this many updates; no single one does


class UpdatesOnFreeCores:
    """Samples and updates with one thread, or with two while a core is idle and two are faster.

    Attributes:
        threads: the threads of the next update.
    """

    def __init__(
        self,
        learner: Learner,
        source: BatchSource,
        batch_size: int,
        idle_seconds: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.learner, self.source, self.batch_size = learner, source, batch_size
        self._updates = CompiledUpdates(learner)
        self.threads = 1
        self._idle_seconds, self._clock = idle_seconds or idle_core_seconds, clock
        self._wait, self._same_bits = _SHORTEST_WAIT, True
        self._with_one: float | None = None  # the usual duration of an update with one thread
        self._with_two: list[float] = []
        self._look_again()

    def update(self) -> Metrics:
        """Sample a batch and learn from it."""
        batch = self.source.sample(self.batch_size)
        self._updates.prepare(batch)  # compiling would count as a slow update
        if self.threads == 1 and self._clock() - self._since >= self._wait:
            self._look(batch)
        started = self._clock()
        with _threads(self.threads):
            metrics = self._updates.update(batch)
        self._judge(self._clock() - started)
        return metrics

    def _look(self, batch: Batch) -> None:
        """Use two threads if a core was idle since the last look."""
        elapsed = self._clock() - self._since
        idle = (self._idle_seconds() - self._idle) / elapsed
        recent = elapsed < 2 * self._wait  # after a pause, such as an evaluation, the idle time says little
        if recent and idle >= _FREE and self._same_bits and self._with_one is not None:
            self._same_bits = same_bits_with_two_threads(self.learner, batch, self._updates.update)
            if self._same_bits:
                self.threads, self._with_two = 2, []
        self._look_again()

    def _look_again(self) -> None:
        self._since, self._idle = self._clock(), self._idle_seconds()

    def _judge(self, duration: float) -> None:
        """Remember how long an update took, and go back to one thread if two are not faster."""
        if self._with_one is None:
            self._with_one = duration
        elif self.threads == 1:
            self._with_one += 0.05 * (min(duration, 2 * self._with_one) - self._with_one)
        else:
            self._with_two.append(duration)
            lost = sum(self._with_two) - len(self._with_two) * self._with_one
            full = len(self._with_two) == _WINDOW
            if lost > (0 if full else _LARGEST_LOSS * self._with_one):
                self.threads, self._wait = 1, min(2 * self._wait, _LONGEST_WAIT)
                self._look_again()
            elif full:
                self._with_two, self._wait = [], _SHORTEST_WAIT


def may_use_free_cores() -> bool:
    """Return whether this process may run on two cores, can see which are idle, and was given no number of threads."""
    return len(_own_cores()) > 1 and Path("/proc/stat").exists() and "OMP_NUM_THREADS" not in os.environ


def idle_core_seconds() -> float:
    """Return how long the cores that this process may use have been idle, added up over the cores."""
    names = {f"cpu{core}" for core in _own_cores()}
    rows = (line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines())
    ticks = sum(int(row[4]) + int(row[5]) for row in rows if row[0] in names)  # idle, and waiting for a disk
    return ticks / os.sysconf("SC_CLK_TCK")


def same_bits_with_two_threads(learner: Learner, batch: Batch, update: Callable[[Batch], Metrics]) -> bool:
    """Return whether updates of a learner give the same bits with one thread and with two; it stays as it is."""
    before = _copied(learner.training_state())
    delay = int(getattr(learner.settings, "policy_delay", 1))
    results = []
    for threads in (1, 2):
        learner.update_count = 1_000 * delay - 2  # the first update leaves the actor as it is, the second moves it
        with _threads(threads):
            for _ in range(2):
                update(batch)
        results.append(_copied(learner.training_state()))
        learner.load_training_state(_copied(before))
    return all(torch.equal(one, two) for one, two in zip(*map(_tensors, results), strict=True))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _own_cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


def _tensors(state: Any) -> list[Tensor]:
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in _tensors(value)]
    return [state] if isinstance(state, Tensor) else []
