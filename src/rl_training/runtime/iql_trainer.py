"""``train_iql``, from the table of algorithms."""

from rl_training.runtime.run import train_function

train_iql = train_function("iql")
