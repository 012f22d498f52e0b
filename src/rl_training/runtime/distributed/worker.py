"""The worker's side of distributed collection: one environment, a copy of the policy, and whole episodes."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.envs.factory import make_vector_env
from rl_training.errors import RLTrainingError
from rl_training.interrupts import ignore_signals
from rl_training.runtime.collector import Collector, Transition
from rl_training.runtime.exploration import ExplorationSettings
from rl_training.runtime.run_records import EpisodeRecord
from rl_training.seeding import worker_generator
from rl_training.types import Observation, SpaceSpec

Array = NDArray[Any]


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker needs to build its environment and its copy of the policy."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    learner_type: type[Learner]
    learner_settings: LearnerSettings
    spec: SpaceSpec
    exploration: ExplorationSettings
    seed: int
    folder: str
    """The working folder of the learner, from which modules of environments are imported."""
    longest: int | None
    """The steps after which an unfinished episode is handed over in parts; None: episodes are handed over whole."""


class Policy(NamedTuple):
    """The weights that a worker acts with, and their number among those that the learner has sent."""

    version: int
    weights: dict[str, Array]


class Request(NamedTuple):
    """What the learner asks a worker for."""

    number: int
    """The number of the episode among those of this worker."""
    step: int
    """The step of the learner, whose current weights come with the request."""
    progress: float
    """The progress of the run, for schedules of exploration."""
    random: bool
    """Whether the actions are random, because nothing has been learned yet."""


class Played(NamedTuple):
    """An episode of T steps, or a part of a long one, as a worker hands it over."""

    worker: int
    request: Request
    policy_version: int
    observations: dict[str, Array]
    """``[T + 1, D]`` float32, the final observation included; a plain observation has the key ``observation``."""
    actions: Array
    """``[T, action_dim]``"""
    rewards: Array
    """``[T]``, raw."""
    terminated: bool
    truncated: bool
    record: EpisodeRecord | None
    """How the episode ended; None for a part of an episode that goes on."""
    saturation: tuple[int, int]

    def copied(self) -> Played:
        """Return a copy that owns its memory: arrays from Ray are views that keep its object store full."""
        parts = {key: np.array(value) for key, value in self.observations.items()}
        return self._replace(observations=parts, actions=np.array(self.actions), rewards=np.array(self.rewards))


class Failure(NamedTuple):
    """An error in a worker that would end a local run, too."""

    kind: type[RLTrainingError]
    message: str
    trace: str


def acting_weights(learner: Learner, version: int) -> Policy:
    """Return a copy of what the learner needs to act: its policy network and its normaliser, or all its weights."""
    prefixes = ("",) if learner.policy_prefix is None else (learner.policy_prefix, "normalizer.")
    state = {name: value for name, value in learner.state_dict().items() if name.startswith(prefixes)}
    return Policy(version, {name: value.detach().cpu().numpy().copy() for name, value in state.items()})


class EpisodeWorker:
    """Plays episodes on request. Ray runs one in each process; what it needs is built at the first request.

    Episode ``number`` of worker ``index`` has seeds of its own, which follow from the run's seed. A worker that is
    restarted continues with the number it is asked for.
    """

    def __init__(self, plan: WorkerPlan, index: int) -> None:
        self._plan, self._index = plan, index
        self._collector: Collector | None = None
        self._loaded: int | None = None
        self._unfinished = False

    def prepare(self) -> Failure | None:
        """Build the environment and the policy, and return what went wrong, if anything did."""
        try:
            self._built()
        except RLTrainingError as error:
            return _failure(error)
        return None

    def play(self, request: Request, policy: Policy) -> Played | Failure:
        """Play an episode, or the next part of an unfinished one, and return it."""
        try:
            return self._play(self._built(), request, policy)
        except RLTrainingError as error:
            return _failure(error)

    def _play(self, collector: Collector, request: Request, policy: Policy) -> Played:
        learner = collector.learner
        if self._loaded != policy.version:
            # Tensors of their own: arrays from Ray are read-only views of its object store.
            weights = {name: torch.tensor(value) for name, value in policy.weights.items()}
            learner.load_state_dict(weights, strict=False)
            self._loaded = policy.version
        if not self._unfinished:
            collector.start_episode(request.number)
            rng = collector.exploration.rng = worker_generator(self._plan.seed, self._index, request.number)
            learner.generator.manual_seed(int(rng.integers(2**63)))
        steps: list[Transition] = []
        while not steps or not (collector.ended or len(steps) == self._plan.longest):
            inputs, noise = torch.from_numpy(collector.inputs()[0]), collector.noise()
            given = None if noise is None else torch.from_numpy(noise)
            actions = None if request.random else learner.act(inputs, False, given).numpy()
            collector.send(actions, request.progress)
            steps.append(collector.receive())
        self._unfinished = not collector.ended
        saturation, collector.saturation = tuple(collector.saturation), [0, 0]
        last = steps[-1]
        return Played(
            worker=self._index,
            request=request,
            policy_version=policy.version,
            observations=_stacked([*(step.observations for step in steps), last.next_observations]),
            actions=np.concatenate([step.actions for step in steps], dtype=np.float32),
            rewards=np.concatenate([step.rewards for step in steps], dtype=np.float64),
            terminated=bool(last.terminated[0]),
            truncated=bool(last.truncated[0]),
            record=collector.ended[0] if collector.ended else None,
            saturation=(saturation[0], saturation[1]),
        )

    def _built(self) -> Collector:
        if self._collector is None:
            plan = self._plan
            ignore_signals()  # the learner decides when a worker ends
            torch.set_num_threads(1)
            with contextlib.suppress(OSError):  # the folder may not exist on another machine
                os.chdir(plan.folder)
            envs = make_vector_env(plan.env_id, {**plan.env_kwargs, "vectorization": "sync"}, 1)
            learner = plan.learner_type(plan.spec, plan.learner_settings, seed=plan.seed)
            self._collector = Collector(envs, learner, plan.exploration, plan.seed, first_index=self._index)
        return self._collector


def _stacked(observations: list[Observation]) -> dict[str, Array]:
    """Return observations ``[1, D]`` of T + 1 moments as ``[T + 1, D]`` for each part."""
    first = observations[0]
    if isinstance(first, dict):
        parts: dict[str, list[Any]] = {key: [one[key] for one in observations] for key in first}
    else:
        parts = {"observation": observations}
    return {key: np.concatenate(values, dtype=np.float32, casting="same_kind") for key, values in parts.items()}


def _failure(error: RLTrainingError) -> Failure:
    return Failure(type(error), str(error), traceback.format_exc())
