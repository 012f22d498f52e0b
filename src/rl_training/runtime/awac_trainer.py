"""AWAC on logged data."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.awac import AWAC
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

AWAC_RECIPE = Recipe("awac", learner=lambda _: AWAC, online=False)


def train_awac(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train AWAC on a dataset."""
    return train(AWAC_RECIPE, config, callbacks=callbacks)
