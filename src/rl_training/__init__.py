"""rl_training: policies from sparse rewards and logged data.

The managed classes are here (``from rl_training import HER``); the learners are in ``rl_training.algorithms``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.api import AWAC, BC, CQL, DDPG, DQN, HER, IQL, RLPD, SAC, TD3, TD3BC, DiscreteCQL
    from rl_training.config import TrainConfig, load_config

__all__ = [
    "AWAC",
    "BC",
    "CQL",
    "DDPG",
    "DQN",
    "HER",
    "IQL",
    "RLPD",
    "SAC",
    "TD3",
    "TD3BC",
    "DiscreteCQL",
    "TrainConfig",
    "load_config",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for, so that ``import rl_training`` itself takes no time."""
    if name in ("TrainConfig", "load_config"):
        from rl_training import config

        return getattr(config, name)
    if name in __all__:
        from rl_training import api

        return getattr(api, name)
    raise AttributeError(f"module 'rl_training' has no attribute {name!r}")
