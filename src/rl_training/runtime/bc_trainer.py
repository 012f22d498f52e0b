"""Behavioural cloning on logged data."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.bc import BC
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

BC_RECIPE = Recipe("bc", learner=lambda _: BC, online=False)


def train_bc(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train BC on a dataset."""
    return train(BC_RECIPE, config, callbacks=callbacks)
