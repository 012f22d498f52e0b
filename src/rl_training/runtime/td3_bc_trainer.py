"""TD3+BC on logged data."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.td3_bc import TD3BC
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

TD3_BC_RECIPE = Recipe("td3_bc", learner=lambda _: TD3BC, online=False)


def train_td3_bc(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train TD3+BC on a dataset."""
    return train(TD3_BC_RECIPE, config, callbacks=callbacks)
