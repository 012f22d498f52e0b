"""IQL on logged data."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.iql import IQL
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

IQL_RECIPE = Recipe("iql", learner=lambda _: IQL, online=False)


def train_iql(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train IQL on a dataset."""
    return train(IQL_RECIPE, config, callbacks=callbacks)
