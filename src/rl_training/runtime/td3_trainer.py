"""TD3 on transitions replayed uniformly."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.td3 import TD3
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

TD3_RECIPE = Recipe("td3", learner=lambda _: TD3)


def train_td3(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train TD3 on any environment that suits it."""
    return train(TD3_RECIPE, config, callbacks=callbacks)
