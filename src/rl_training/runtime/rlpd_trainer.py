"""RLPD: SAC's strongest form, over prior and fresh data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from rl_training.algorithms.rlpd import RLPD
from rl_training.config import TrainConfig
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import PriorSettings, TrainResult
from rl_training.runtime.recipe import Recipe
from rl_training.runtime.schedules import Schedule


class RLPDPriorSettings(PriorSettings):
    """Half of every batch is prior data."""

    offline_batch_ratio: Annotated[float, Field(ge=0, le=1)] | Schedule | None = Field(
        0.5, description="share of prior rows in a batch: a number, or a schedule of one"
    )


RLPD_RECIPE = Recipe("rlpd", learner=lambda _: RLPD, own_settings=(RLPDPriorSettings,))


def train_rlpd(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train RLPD on a dataset and in an environment."""
    return train(RLPD_RECIPE, config, callbacks=callbacks)
