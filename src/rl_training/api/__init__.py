"""The managed classes."""

from rl_training.api.algorithms import (
    AWAC,
    BC,
    CQL,
    DDPG,
    DQN,
    HER,
    IQL,
    RLPD,
    SAC,
    TD3,
    TD3BC,
    DiscreteCQL,
    ManagedAlgorithm,
)

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
    "ManagedAlgorithm",
]
