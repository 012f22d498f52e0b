"""Distributed collection: Ray actors play whole episodes, and the learner takes them one step at a time.

Every worker has one request at a time and at most two episodes that the learner has not finished with, so workers wait
when the learner is slow. The learner takes episodes in the order in which they arrive and never waits for a certain
worker.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig
from rl_training.envs.objects import is_object_id
from rl_training.errors import EnvError
from rl_training.interrupts import asked_to_stop, raise_if_asked_to_stop
from rl_training.runtime.collector import Transition
from rl_training.runtime.distributed.pool import WorkerPool
from rl_training.runtime.distributed.ray_session import RaySession
from rl_training.runtime.distributed.worker import Played, Request, WorkerPlan, acting_weights
from rl_training.runtime.rollout_statistics import RolloutStatistics
from rl_training.runtime.run_records import EpisodeRecord
from rl_training.runtime.settings import RunSettings
from rl_training.types import Observation, flatten_goal_observation

Array = NDArray[Any]

_LONGEST = 1_000  # steps after which an episode is handed over in parts, if the replay buffer allows it
_AHEAD = 2  # episodes of one worker that the learner has not finished with
_PUT_SECONDS = 0.05  # between two sets of weights, because every machine of the cluster fetches each of them
_POLL_SECONDS = 0.005  # between two looks at what has arrived, while the learner is busy
_WAIT_SECONDS = 0.2  # between two looks at the signals, while the learner waits


class Counts(NamedTuple):
    """What became of the episodes that were asked for. All others are still ahead of the learner."""

    asked: int = 0
    stored: int = 0
    lost: int = 0
    """Their worker died, or the learner ended before it had taken them."""
    stale: int = 0
    """Dropped, because the learner had taken more than ``max_policy_age`` steps since it sent the weights."""


class _Sent(NamedTuple):
    """Weights in the object store."""

    policy: Any
    """A reference to them."""
    step: int
    """The last step at which they were the learner's own."""
    state: tuple[int, int]
    """The state of the learner that they belong to."""
    time: float


class RemoteCollector(RolloutStatistics):
    """Takes the place of a ``Collector``: hands the episodes of the workers to the loop, one step at a time."""

    num_envs = 1  # a step of the loop is one transition

    def __init__(self, pool: WorkerPool, learner: Learner, max_age: int) -> None:
        super().__init__()
        self.learner, self._pool, self._max_age = learner, pool, max_age
        self._counts = Counts()
        self._numbers = np.zeros(pool.size, np.int64)  # the next episode of each worker
        self._waiting = np.zeros(pool.size, np.int64)  # episodes of each worker that have arrived
        self._idle = deque(range(pool.size))
        self._arrived: deque[Played] = deque()
        self._current: Played | None = None
        self._position = 0  # the next step of the current episode
        self._steps = 0
        self._sent: _Sent | None = None
        self._versions = 0
        self._ages: deque[int] = deque(maxlen=100)
        self._poll_at, self._started, self._waited = 0.0, time.monotonic(), 0.0

    @property
    def counts(self) -> Counts:
        """What became of the episodes so far."""
        return self._counts._replace(lost=self._counts.lost + self._pool.lost)

    @property
    def ahead(self) -> int:
        """The episodes that were asked for and that the learner has not finished with."""
        return len(self._pool) + len(self._arrived) + (self._current is not None)

    def step(self, progress: float, random: bool, meanwhile: Callable[[], None] | None = None) -> Transition:
        """Return the next transition, ``[1, ...]``. ``progress`` and ``random`` are passed on to the next episodes.

        ``meanwhile`` is called first. The workers play in any case.
        """
        if meanwhile is not None:
            meanwhile()
        if self._current is None:
            self._current, self._position = self._next(progress, random), 0
        elif time.monotonic() >= self._poll_at and not asked_to_stop():
            self._receive(0.0)
            self._ask(progress, random)
        return self._hand_over(self._current)

    def rollout_metrics(self) -> dict[str, float]:
        """Return the statistics of the last 100 episodes, the ages of their policies, and the counts."""
        counts = {f"collect/{name}_episodes": float(count) for name, count in self.counts._asdict().items()}
        metrics = {**super().rollout_metrics(), **counts, "collect/episodes_ahead": float(self.ahead)}
        if self._ages:
            metrics["collect/policy_age_mean"] = float(np.mean(self._ages))
            metrics["collect/policy_age_max"] = float(max(self._ages))
        metrics["collect/wait_share"] = self._waited / max(time.monotonic() - self._started, 1e-9)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs: counters, and the rest of the episode that is being handed over."""
        return {
            "finished": [list(record[:3]) for record in self.finished],
            "saturation": list(self.saturation),
            "steps": self._steps,
            "counts": list(self.counts),
            "numbers": self._numbers.copy(),
            "ages": list(self._ages),
            "current": None if self._current is None else _rest_of(self._current, self._position),
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Restore the counters, for any number of workers. Episodes that were ahead of the learner count as lost."""
        self.finished.clear()
        self.finished.extend(EpisodeRecord(*record) for record in state["finished"])
        self.saturation, self._steps = list(state["saturation"]), int(state["steps"])
        counts = Counts(*(int(count) for count in state["counts"]))
        current = state["current"]
        ahead = counts.asked - counts.stored - counts.lost - counts.stale - (current is not None)
        self._counts = counts._replace(lost=counts.lost + ahead)
        stored = state["numbers"]  # also of workers that there are none of now: no number is used twice
        self._numbers = np.append(stored, self._numbers[len(stored) :])
        self._ages.extend(int(age) for age in state["ages"])
        self._current, self._position = None if current is None else _restored(current), 0
        return []

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _next(self, progress: float, random: bool) -> Played:
        """Return the next episode that is recent enough, and wait for one if none has arrived."""
        while True:
            self._ask(progress, random)
            began = time.monotonic()
            while not self._arrived:
                raise_if_asked_to_stop()
                self._receive(_WAIT_SECONDS)
                self._ask(progress, random)
            self._waited += time.monotonic() - began
            played = self._arrived.popleft()
            self._waiting[played.worker] -= 1
            age = 0 if played.request.random else self._steps - played.request.step
            if age > self._max_age:
                self._counts = self._counts._replace(stale=self._counts.stale + 1)
                continue
            self._ages.append(age)
            self._observe(played)
            self.saturation = [old + new for old, new in zip(self.saturation, played.saturation, strict=True)]
            return played

    def _hand_over(self, played: Played) -> Transition:
        """Return the next transition of an episode."""
        t = self._position
        self._position, self._steps = t + 1, self._steps + 1
        last = self._position == len(played.rewards)
        self.ended = []
        if last:
            self._current = None
            self._counts = self._counts._replace(stored=self._counts.stored + 1)
            if played.record is not None:
                self.ended = [played.record]
                self.finished.append(played.record)
        return Transition(
            _row(played.observations, t),
            played.actions[t : t + 1],
            played.rewards[t : t + 1],
            _row(played.observations, t + 1),
            np.array([last and played.terminated]),
            np.array([last and played.truncated]),
        )

    def _observe(self, played: Played) -> None:
        """Show the normaliser what the policy saw, and what it will see with hindsight."""
        if self.learner.normalizer is None:
            return
        seen = {key: value[:-1] for key, value in played.observations.items()}
        parts = [seen["observation"]]
        if len(seen) > 1:
            goals = (seen["desired_goal"], seen["achieved_goal"])
            parts = [flatten_goal_observation({**seen, "desired_goal": goal}) for goal in goals]
        for part in parts:
            self.learner.observe(torch.from_numpy(part).to(self.learner.device))

    def _ask(self, progress: float, random: bool) -> None:
        """Ask idle workers for episodes, as far as those are expected to be recent enough when they are stored."""
        room, waiting = self._room() - self.ahead, []
        while self._idle and room > 0:
            worker = self._idle.popleft()
            if self._waiting[worker] >= _AHEAD:
                waiting.append(worker)
                continue
            sent = self._newest_weights()
            request = Request(int(self._numbers[worker]), sent.step, progress, random)
            self._pool.ask(worker, request, sent.policy)
            self._numbers[worker] += 1
            self._counts = self._counts._replace(asked=self._counts.asked + 1)
            room -= 1
        if self._idle and not self._arrived and self._current is None:
            warnings.warn(
                f"max_policy_age = {self._max_age} keeps workers idle while the learner waits: a larger one lets all of"
                " them play",
                stacklevel=2,
            )
        self._idle.extend(waiting)

    def _room(self) -> float:
        """Return how many episodes may be ahead of the learner so that the last of them is recent enough."""
        if not self.finished:
            return math.inf
        length = min(float(np.mean([record.length for record in self.finished])), _LONGEST)
        return max(1.0, self._max_age // length)

    def _newest_weights(self) -> _Sent:
        """Return the weights for a request. Changed weights are put into the object store first, but not too often."""
        now, sent = time.monotonic(), self._sent
        state = (self.learner.update_count, self._steps if self.learner.normalizer is not None else 0)
        if sent is not None and sent.state == state:
            self._sent = sent._replace(step=self._steps)  # they are still the newest
        elif sent is None or now - sent.time >= _PUT_SECONDS:
            self._versions += 1
            policy = self._pool.put(acting_weights(self.learner, self._versions))
            self._sent = _Sent(policy, self._steps, state, now)
        assert self._sent is not None
        return self._sent

    def _receive(self, seconds: float) -> None:
        """Take what has arrived. If nothing has, wait for the first episode, at most ``seconds``."""
        arrived, back = self._pool.receive(seconds)
        self._arrived.extend(arrived)
        for played in arrived:
            self._waiting[played.worker] += 1
        self._idle.extend([*(played.worker for played in arrived), *back])
        self._poll_at = time.monotonic() + _POLL_SECONDS


def start_remote_collection(
    config: TrainConfig, settings: RunSettings, env_id: str, learner: Learner, *, hindsight: bool
) -> RemoteCollector:
    """Start the workers of a run; ``hindsight`` needs whole episodes, however long they are."""
    if is_object_id(env_id):
        raise EnvError(
            f"num_workers = {config.num_workers}: an environment that was given as an object exists in this process"
            " only; expected an env_id that other processes can build, such as my_module:MyTask-v0, or num_workers: 0"
        )
    plan = WorkerPlan(
        env_id=env_id,
        env_kwargs=config.env_kwargs,
        learner_type=type(learner),
        learner_settings=settings.learner,
        spec=learner.spec,
        exploration=settings.exploration,
        seed=config.seed,
        folder=os.getcwd(),
        longest=None if hindsight else _LONGEST,
    )
    session = RaySession(config.ray_address)
    try:
        pool = WorkerPool(session, plan, config.num_workers)
    except BaseException:
        session.close()
        raise
    return RemoteCollector(pool, learner, settings.collection.max_policy_age)


def _row(observations: dict[str, Array], t: int) -> Observation:
    """Return the observation ``[1, D]`` of one moment, as an environment gives it."""
    if len(observations) == 1:
        return observations["observation"][t : t + 1]
    return {key: value[t : t + 1] for key, value in observations.items()}


def _rest_of(played: Played, start: int) -> dict[str, Any]:
    """Return the steps of an episode from ``start`` on, as plain values and arrays."""
    return {
        **played._asdict(),
        "request": list(played.request),
        "observations": {key: value[start:].copy() for key, value in played.observations.items()},
        "actions": played.actions[start:].copy(),
        "rewards": played.rewards[start:].copy(),
        "record": None if played.record is None else list(played.record),
        "saturation": list(played.saturation),
    }


def _restored(rest: dict[str, Any]) -> Played:
    """Return the steps of an episode that ``_rest_of`` returned."""
    record = rest["record"]
    if record is not None:
        record = EpisodeRecord(*record)._replace(goal=None if record[-1] is None else tuple(record[-1]))
    request, saturation = Request(*rest["request"]), (rest["saturation"][0], rest["saturation"][1])
    return Played(**{**rest, "request": request, "record": record, "saturation": saturation})
