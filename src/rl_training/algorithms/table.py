"""The table of algorithms: one row each.

Training functions, managed classes, exports, the command line's lists and the tables of the docs are derived from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_training.algorithms.awac import AWAC
from rl_training.algorithms.base import Learner
from rl_training.algorithms.bc import BC
from rl_training.algorithms.cql import CQL, DiscreteCQL
from rl_training.algorithms.ddpg import DDPG
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.iql import IQL
from rl_training.algorithms.redq import REDQ
from rl_training.algorithms.rlpd import RLPD
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3
from rl_training.algorithms.td3_bc import TD3BC
from rl_training.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Algorithm:
    """One value of ``algo``: a learner, and where its batches come from."""

    name: str
    learner: type[Learner]
    """With hindsight: the learner of the default ``backend``."""
    description: str
    online: bool = True
    """Whether a run collects data, unless its settings say otherwise."""
    hindsight: bool = False
    """Whether sampled transitions are relabelled; the setting ``backend`` then names the learner."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of settings that this algorithm replaces, in addition to ``learner.run_defaults``."""

    @property
    def class_name(self) -> str:
        """The name of the managed class."""
        return self.name.upper() if self.hindsight else self.learner.__name__


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("her", DDPG, "Hindsight Experience Replay over the `backend` learner", hindsight=True),
        Algorithm("ddpg", DDPG, "Deep Deterministic Policy Gradient"),
        Algorithm("td3", TD3, "Twin Delayed DDPG"),
        Algorithm("sac", SAC, "Soft Actor-Critic"),
        Algorithm("redq", REDQ, "Randomized Ensembled Double Q-learning"),
        Algorithm("dqn", DQN, "Double Deep Q-Network"),
        Algorithm("bc", BC, "Behavioural cloning", online=False),
        Algorithm("td3_bc", TD3BC, "TD3 with a behavioural-cloning term", online=False),
        Algorithm("iql", IQL, "Implicit Q-learning", online=False),
        Algorithm("cql", CQL, "Conservative Q-learning", online=False),
        Algorithm("discrete_cql", DiscreteCQL, "Conservative Q-learning on discrete actions", online=False),
        Algorithm("awac", AWAC, "Advantage-weighted actor-critic", online=False),
        Algorithm(
            "rlpd",
            RLPD,
            "SAC over offline and online data, with an ensemble of normalised critics",
            defaults={"offline_batch_ratio": 0.5},
        ),
    )
}

DEFAULT_BACKEND = "ddpg"


def find_algorithm(name: str, backend: str | None = None) -> Algorithm:
    """Return the row of an algorithm; with hindsight, the row with the learner of ``backend`` in it."""
    row = _row("algo", name, list(ALGORITHMS))
    if not row.hindsight:
        return row
    base = _row("algo_kwargs.backend", backend or DEFAULT_BACKEND, backend_names())
    return dataclasses.replace(row, learner=base.learner)


def backend_names() -> list[str]:
    """Return the algorithms whose learner can be trained with hindsight."""
    return [name for name, row in ALGORITHMS.items() if not row.hindsight]


def algorithms_for(actions: str) -> list[str]:
    """Return the algorithms whose learner chooses ``continuous`` or ``discrete`` actions."""
    return [row.name for row in ALGORITHMS.values() if not row.hindsight and row.learner.actions in (actions, "any")]


def _row(key: str, name: object, names: list[str]) -> Algorithm:
    if name not in names:
        raise ConfigError(f"{key} = {name!r}: expected one of {', '.join(names)}{did_you_mean(name, names)}")
    return ALGORITHMS[str(name)]
