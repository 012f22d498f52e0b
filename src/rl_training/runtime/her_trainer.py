"""HER: any off-policy learner over a hindsight buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.algorithms.her import BACKENDS, BackendSettings
from rl_training.config import TrainConfig, parse_settings
from rl_training.data.her_replay_buffer import HindsightSettings
from rl_training.runtime.assembly import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.recipe import Recipe


def _backend(algo_kwargs: Mapping[str, Any]) -> type[Learner]:
    given = {key: value for key, value in algo_kwargs.items() if key == "backend"}
    return BACKENDS[parse_settings(BackendSettings, given, where="her", prefix="algo_kwargs.").backend]


HER_RECIPE = Recipe("her", learner=_backend, hindsight=True, own_settings=(BackendSettings, HindsightSettings))


def train_her(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Train the ``backend`` learner with hindsight on a goal task."""
    return train(HER_RECIPE, config, callbacks=callbacks)
