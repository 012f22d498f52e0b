"""Networks."""

from rl_training.models.actor_critic import MLPDDPGModel, MLPDQNModel, MLPSACModel
from rl_training.models.actors import DeterministicActor, SquashedGaussianActor
from rl_training.models.mlp import MLP, CriticEnsemble

__all__ = [
    "MLP",
    "CriticEnsemble",
    "DeterministicActor",
    "MLPDDPGModel",
    "MLPDQNModel",
    "MLPSACModel",
    "SquashedGaussianActor",
]
