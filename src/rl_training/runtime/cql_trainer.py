"""CQL on logged data."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.cql import CQL, DiscreteCQL
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

CQL_RECIPE = Recipe("cql", learner=lambda _: CQL, online=False)
DISCRETE_CQL_RECIPE = Recipe("discrete_cql", learner=lambda _: DiscreteCQL, online=False)


def train_cql(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train CQL on a dataset."""
    return train(CQL_RECIPE, config, callbacks=callbacks)


def train_discrete_cql(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train CQL on a dataset with discrete actions."""
    return train(DISCRETE_CQL_RECIPE, config, callbacks=callbacks)
