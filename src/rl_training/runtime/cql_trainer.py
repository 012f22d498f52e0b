"""``train_cql``, from the table of algorithms."""

from rl_training.runtime.run import train_function

train_cql = train_function("cql")
train_discrete_cql = train_function("discrete_cql")
