"""The errors a user can cause. The command line prints them in a line or two and exits with 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RLTrainingError(Exception):
    """Base of every error this package raises on purpose."""


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


class MissingExtraError(RLTrainingError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} needs an optional package: pip install "rl-training[{extra}]"')


def did_you_mean(name: object, options: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the option nearest to ``name``, or an empty string."""
    close = difflib.get_close_matches(str(name), list(options), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
