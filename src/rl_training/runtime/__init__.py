"""The training loop and its parts, and one ``train_<algo>`` for each row of the table of algorithms."""

from rl_training.algorithms.table import ALGORITHMS
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.controls import EarlyStoppingConfig, TrainerState, TrainResult
from rl_training.runtime.run import TrainFunction, train, train_function

_TRAIN_FUNCTIONS = {f"train_{algo}": train_function(algo) for algo in ALGORITHMS}
globals().update(_TRAIN_FUNCTIONS)

__all__ = ["Callback", "EarlyStoppingCallback", "EarlyStoppingConfig", "TrainResult", "TrainerState", "train"]
__all__ += list(_TRAIN_FUNCTIONS)


def __getattr__(name: str) -> TrainFunction:  # so that type checkers know of the derived names
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
