"""``train_rlpd``, from the table of algorithms."""

from rl_training.runtime.run import train_function

train_rlpd = train_function("rlpd")
