"""The managed classes."""

from rl_training.api.algorithms import DDPG, DQN, HER, SAC, TD3, ManagedAlgorithm

__all__ = ["DDPG", "DQN", "HER", "SAC", "TD3", "ManagedAlgorithm"]
