"""``train_ddpg``, from the table of algorithms."""

from rl_training.runtime.run import train_function

train_ddpg = train_function("ddpg")
