"""Networks."""

from rl_training.models.actor_critic import MLPAWACModel, MLPDDPGModel, MLPDQNModel, MLPIQLModel, MLPSACModel
from rl_training.models.actors import DeterministicActor, GaussianActor, SquashedGaussianActor
from rl_training.models.mlp import MLP, CriticEnsemble

__all__ = [
    "MLP",
    "CriticEnsemble",
    "DeterministicActor",
    "GaussianActor",
    "MLPAWACModel",
    "MLPDDPGModel",
    "MLPDQNModel",
    "MLPIQLModel",
    "MLPSACModel",
    "SquashedGaussianActor",
]
