"""``train_her``, from the table of algorithms."""

from rl_training.runtime.run import train_function

train_her = train_function("her")
