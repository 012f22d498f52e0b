"""DQN on transitions replayed uniformly."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.algorithms.dqn import DQN
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe

DQN_RECIPE = Recipe("dqn", learner=lambda _: DQN)


def train_dqn(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train DQN on any environment that suits it."""
    return train(DQN_RECIPE, config, callbacks=callbacks)
