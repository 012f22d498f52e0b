"""Running: the loop, what it is made of, and one ``train_<algo>`` for each recipe."""

from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.controls import EarlyStoppingConfig, TrainerState, TrainResult
from rl_training.runtime.ddpg_trainer import train_ddpg
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.her_trainer import train_her
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.td3_trainer import train_td3

__all__ = [
    "Callback",
    "EarlyStoppingCallback",
    "EarlyStoppingConfig",
    "TrainResult",
    "TrainerState",
    "train_ddpg",
    "train_dqn",
    "train_her",
    "train_sac",
    "train_td3",
]
