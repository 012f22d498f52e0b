"""SAC on transitions replayed uniformly."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.sac import SAC
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

SAC_RECIPE = Recipe("sac", learner=lambda _: SAC)


def train_sac(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train SAC on any environment that suits it."""
    return train(SAC_RECIPE, config, callbacks=callbacks)
