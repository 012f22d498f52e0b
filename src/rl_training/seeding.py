"""The random streams of a run, by name. Each is a function of the run's seed, and no two of them meet.

The numbers are part of the format of a run: ``resume`` derives the seeds of episodes, evaluations and random play
again, so changing one of those three makes existing runs impossible to resume exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import count

import numpy as np

EVALUATION_SEED = 10_000
"""Seed of evaluations after training, apart from the episodes by which the best checkpoint was chosen."""


class Stream(IntEnum):
    """What random numbers are for. Environments use their index, which is below 2**20, as their stream."""

    RANDOM_ACTIONS = 2  # of random play; the number is older than the rule about indices
    EVALUATION = 2**20
    RANDOM_PLAY = 2**21
    OFFLINE_DATA = 2**22
    WEIGHTS = 2**23
    POLICY_NOISE = 2**24
    REPLAY = 2**25
    EXPLORATION = 2**26
    DATA_COLLECTION = 2**27
    REMOTE_WORKERS = 2**28


def stream_seed(seed: int, stream: int, number: int = 0) -> int:
    """Return a 32-bit seed for one stream of a run, or for one numbered episode of it."""
    return int(np.random.SeedSequence([seed, stream, number]).generate_state(1)[0])


def episode_seeds(seed: int, stream: int) -> Iterator[int]:
    """Yield the seeds of the episodes of one stream, without end."""
    return (stream_seed(seed, stream, episode) for episode in count())


def stream_generator(seed: int, stream: int) -> np.random.Generator:
    """Return NumPy's generator for one stream of a run."""
    return np.random.default_rng(np.random.SeedSequence([seed, stream]))


def worker_generator(seed: int, worker: int, episode: int) -> np.random.Generator:
    """Return the generator of the exploration of one episode that a remote worker plays."""
    return np.random.default_rng(np.random.SeedSequence([seed, Stream.REMOTE_WORKERS, worker, episode]))
