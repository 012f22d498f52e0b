"""The managed classes, one for each row of the table of algorithms."""

from rl_training.api.algorithms import MANAGED_CLASSES, ManagedAlgorithm

globals().update(MANAGED_CLASSES)

__all__ = ["ManagedAlgorithm"]
__all__ += list(MANAGED_CLASSES)


def __getattr__(name: str) -> type[ManagedAlgorithm]:  # so that type checkers know of the derived names
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
