"""rl_training: policies from sparse rewards and logged data.

The managed classes are here (``from rl_training import HER``), and so are the training functions (``train_her``) and
the data structures. The learners are in ``rl_training.algorithms``.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from rl_training.gym_ids import register_with_gymnasium

_HOMES = {
    "TrainConfig": "rl_training.config",
    "load_config": "rl_training.config",
    "HERReplayBuffer": "rl_training.data",
    "ReplayBuffer": "rl_training.data",
    "TransitionDataset": "rl_training.data",
    "load_transition_dataset": "rl_training.data",
    "Callback": "rl_training.runtime",
    "TrainResult": "rl_training.runtime",
    "train": "rl_training.runtime",
}
_DERIVED = ("rl_training.api", "rl_training.runtime")  # they hold a class and a function for each algorithm

register_with_gymnasium()


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that ``import rl_training`` itself takes no time."""
    if name == "__all__":
        return __dir__()
    with _paused_garbage_collector():
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        for home in () if name.startswith("_") else _DERIVED:
            module = import_module(home)
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'rl_training' has no attribute {name!r}")


def __dir__() -> list[str]:
    derived = (name for home in _DERIVED for name in import_module(home).__all__)
    return sorted({*_HOMES, *derived})


@contextlib.contextmanager
def _paused_garbage_collector() -> Iterator[None]:
    """Pause the garbage collector. It would search the objects of torch several times, a sixth of the import's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
