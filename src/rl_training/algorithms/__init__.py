"""Learners: each turns a batch into a better policy."""

from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.algorithms.ddpg import DDPG, DDPGSettings
from rl_training.algorithms.dqn import DQN, DQNSettings
from rl_training.algorithms.her import HER
from rl_training.algorithms.sac import SAC, SACSettings
from rl_training.algorithms.td3 import TD3, TD3Settings

__all__ = [
    "DDPG",
    "DQN",
    "HER",
    "SAC",
    "TD3",
    "DDPGSettings",
    "DQNSettings",
    "Learner",
    "LearnerSettings",
    "SACSettings",
    "TD3Settings",
]
