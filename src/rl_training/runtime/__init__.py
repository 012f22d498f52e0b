"""Running: the loop, what it is made of, and one ``train_<algo>`` for each recipe."""

from rl_training.runtime.awac_trainer import train_awac
from rl_training.runtime.bc_trainer import train_bc
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.controls import EarlyStoppingConfig, TrainerState, TrainResult
from rl_training.runtime.cql_trainer import train_cql, train_discrete_cql
from rl_training.runtime.ddpg_trainer import train_ddpg
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.her_trainer import train_her
from rl_training.runtime.iql_trainer import train_iql
from rl_training.runtime.rlpd_trainer import train_rlpd
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.td3_bc_trainer import train_td3_bc
from rl_training.runtime.td3_trainer import train_td3

__all__ = [
    "Callback",
    "EarlyStoppingCallback",
    "EarlyStoppingConfig",
    "TrainResult",
    "TrainerState",
    "train_awac",
    "train_bc",
    "train_cql",
    "train_ddpg",
    "train_discrete_cql",
    "train_dqn",
    "train_her",
    "train_iql",
    "train_rlpd",
    "train_sac",
    "train_td3",
    "train_td3_bc",
]
