"""``train_awac``, from the table of algorithms."""

from rl_training.runtime.run import train_function

train_awac = train_function("awac")
