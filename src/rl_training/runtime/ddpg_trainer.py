"""DDPG on transitions replayed uniformly."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.ddpg import DDPG
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

DDPG_RECIPE = Recipe("ddpg", learner=lambda _: DDPG)


def train_ddpg(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train DDPG on any environment that suits it."""
    return train(DDPG_RECIPE, config, callbacks=callbacks)
