"""``train_dqn``, from the table of algorithms."""

from rl_training.runtime.run import train_function

train_dqn = train_function("dqn")
