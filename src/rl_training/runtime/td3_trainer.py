"""``train_td3``, from the table of algorithms."""

from rl_training.runtime.run import train_function

train_td3 = train_function("td3")
