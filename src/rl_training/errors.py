"""The errors this package raises on purpose. The command line prints them in a line or two, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class RLTrainingError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code: ClassVar[int] = 2
    """With what the command line ends: 2 where the input is wrong, 1 where a run failed."""


class ConfigError(RLTrainingError, ValueError):
    """A configuration key or value is wrong."""


class EnvError(RLTrainingError, ValueError):
    """An environment does not exist, or does not suit the algorithm."""


class DatasetError(RLTrainingError, ValueError):
    """A file of transitions is missing, damaged, or does not suit the task."""


class CheckpointError(RLTrainingError):
    """A checkpoint is missing, damaged or of another format."""


class DamagedCheckpointError(CheckpointError):
    """A file of a checkpoint is missing, cut off or changed; an earlier checkpoint may be intact."""


class RunLockedError(RLTrainingError):
    """Another process is training in the same folder."""


class RunFailedError(RLTrainingError):
    """A run that had begun cannot go on."""

    exit_code = 1


class NumericalError(RunFailedError, ArithmeticError):
    """An observation, a reward, a loss or a weight is NaN or infinite."""


class WorkerError(RunFailedError):
    """The process of an environment died, or does not answer."""


class MissingExtraError(RLTrainingError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an optional package: pip install "rl-training[{extra}]"')


def did_you_mean(name: object, options: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the option nearest to ``name``, or an empty string."""
    close = difflib.get_close_matches(str(name), list(options), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
