"""The errors this package raises on purpose. The command line prints them in a line or two, without a traceback."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import ClassVar


def shown(text: object) -> str:
    """Return text from outside so that it is safe in a message: control characters and newlines appear escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))


class RLTrainingError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code: ClassVar[int] = 2
    """With what the command line ends: 2 where the input is wrong, 1 where a run failed."""


class ConfigError(RLTrainingError, ValueError):
    """A configuration key or value is wrong."""


class EnvError(RLTrainingError, ValueError):
    """An environment does not exist, or does not suit the algorithm."""


class DatasetError(RLTrainingError, ValueError):
    """A file of transitions is missing, damaged, or does not suit the task.

    Its message quotes names and keys from files, so all of it is escaped.
    """

    def __init__(self, message: object) -> None:
        super().__init__(shown(message))


class CheckpointError(RLTrainingError):
    """A checkpoint is missing, damaged or of another format."""


class DamagedCheckpointError(CheckpointError):
    """A file of a checkpoint is missing, cut off or changed; an earlier checkpoint may be intact."""


class BundleError(RLTrainingError):
    """A policy bundle is missing, damaged or of another format.

    Its message quotes names and values from files, so all of it is escaped.
    """

    def __init__(self, message: object) -> None:
        super().__init__(shown(message))


class RunLockedError(RLTrainingError):
    """Another process is training in the same folder."""


class RemoteError(RLTrainingError):
    """What is at a URL cannot be read or written."""


class RunFailedError(RLTrainingError):
    """A run that had begun cannot go on."""

    exit_code = 1


class NumericalError(RunFailedError, ArithmeticError):
    """An observation, a reward, a loss or a weight is NaN or infinite."""


class EnvFailedError(RunFailedError):
    """An environment raised an error, returned what it must not, or did not answer in time."""

    trace: str = ""
    """The traceback in the process of the environment, if that is another one."""


class WorkerError(EnvFailedError):
    """The process of an environment died, does not answer, or reported a failure."""


class MissingExtraError(RLTrainingError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional package: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that adds an extra, from where this package was installed.

    pip records that in ``direct_url.json`` for a checkout, a wheel and a git URL, and writes no such file for an index.
    """
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(distribution("rl-training").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return f'pip install -e ".[{extra}]" in a checkout of rl_training'
    if not origin:
        return f'pip install "rl-training[{extra}]"'
    url = origin["url"]
    if "dir_info" in origin:
        option = "-e " if origin["dir_info"].get("editable") else ""
        return f'pip install {option}"{url2pathname(urlsplit(url).path)}[{extra}]"'
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f'pip install "rl-training[{extra}] @ {url}"'


def did_you_mean(name: object, options: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the option nearest to ``name``, or an empty string."""
    close = difflib.get_close_matches(str(name), list(options), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
