"""Learners: each turns a batch into a better policy."""

from rl_training.algorithms.awac import AWAC, AWACSettings
from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.algorithms.bc import BC, BCSettings
from rl_training.algorithms.cql import CQL, CQLSettings, DiscreteCQL, DiscreteCQLSettings
from rl_training.algorithms.ddpg import DDPG, DDPGSettings
from rl_training.algorithms.dqn import DQN, DQNSettings
from rl_training.algorithms.her import HER
from rl_training.algorithms.iql import IQL, IQLSettings
from rl_training.algorithms.rlpd import RLPD, RLPDAlgorithm, RLPDSettings, rlpd_loss
from rl_training.algorithms.sac import SAC, SACSettings
from rl_training.algorithms.td3 import TD3, TD3Settings
from rl_training.algorithms.td3_bc import TD3BC, TD3BCSettings

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
    "AWACSettings",
    "BCSettings",
    "CQLSettings",
    "DDPGSettings",
    "DQNSettings",
    "DiscreteCQL",
    "DiscreteCQLSettings",
    "IQLSettings",
    "Learner",
    "LearnerSettings",
    "RLPDAlgorithm",
    "RLPDSettings",
    "SACSettings",
    "TD3BCSettings",
    "TD3Settings",
    "rlpd_loss",
]
