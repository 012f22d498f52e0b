"""Which runs compile their updates. It follows from the configuration, so that a resumed run decides the same."""

from __future__ import annotations

import warnings

import torch

from rl_training.config import TrainConfig
from rl_training.runtime.budget import Budget
from rl_training.runtime.compiled_updates import why_not_compiled
from rl_training.runtime.controls import TrainerState
from rl_training.runtime.settings import RunSettings

_WORTHWHILE = 50_000
"""Updates from which a run on a CPU is compiled by default. Compiling takes up to 20 s; an update saves 0.7 ms."""


def compiles_updates(config: TrainConfig, settings: RunSettings, device: torch.device, *, runs: int = 1) -> bool:
    """Return whether a run on a device compiles its updates; ``runs`` is the number of runs trained together."""
    if device.type == "cuda" or config.compile is False:
        return bool(config.compile)
    share, why_not = settings.prior.offline_share, None
    if runs > 1:
        why_not = "in a stack of runs"
    elif share.kind != "constant" or share.warmup:
        # Each number of offline rows would be compiled for, which takes longer than it saves.
        why_not = "while offline_batch_ratio changes"
    if why_not is not None:
        if config.compile is True:
            warnings.warn(f"compile: true has no effect on a CPU {why_not}: updates are not compiled", stacklevel=2)
        return False
    if config.compile is True:
        return True
    return expected_updates(config, settings) >= _WORTHWHILE and why_not_compiled() is None


def expected_updates(config: TrainConfig, settings: RunSettings) -> int:
    """Return how many updates a run makes if nothing stops it early."""
    end = TrainerState(global_step=config.total_timesteps)
    collection = settings.collection if settings.online else None
    pretrain = settings.prior.offline_pretrain_updates
    return Budget(end, config.total_timesteps, settings.loop.max_updates, pretrain, collection).updates_due()
