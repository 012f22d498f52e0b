"""HER's learner: any off-policy learner, on the observation with the desired goal beside it.

The hindsight itself happens where transitions are sampled: see ``data/her_replay_buffer.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field

from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.algorithms.ddpg import DDPG
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.iql import IQL
from rl_training.algorithms.rlpd import RLPD
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3
from rl_training.algorithms.td3_bc import TD3BC
from rl_training.config import Settings
from rl_training.errors import ConfigError, did_you_mean
from rl_training.types import SpaceSpec

BACKENDS: dict[str, type[Learner]] = {
    "ddpg": DDPG,
    "td3": TD3,
    "sac": SAC,
    "dqn": DQN,
    "rlpd": RLPD,
    "iql": IQL,
    "td3_bc": TD3BC,
}


class BackendSettings(Settings):
    """Which learner hindsight feeds."""

    backend: Literal["ddpg", "td3", "sac", "dqn", "rlpd", "iql", "td3_bc"] = Field(
        "ddpg", description="the learner that hindsight feeds; iql and td3_bc are meant for logged episodes"
    )


class HER:
    """Build the ``backend`` learner for a goal task. What is returned is that learner, with the same ``update``."""

    def __new__(
        cls,
        spec: SpaceSpec,
        settings: LearnerSettings | Mapping[str, Any] | None = None,
        *,
        backend: str = "ddpg",
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> Any:
        """Return a learner of the backend's class."""
        if spec.goal_dim == 0:
            raise ConfigError("HER needs a task with goals: a SpaceSpec with goal_dim above 0")
        if backend not in BACKENDS:
            expected = ", ".join(BACKENDS)
            raise ConfigError(f"backend = {backend!r}: expected one of {expected}{did_you_mean(backend, BACKENDS)}")
        return BACKENDS[backend](spec, settings, device=device, seed=seed)
