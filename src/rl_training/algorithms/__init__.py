"""Learners, which improve a policy from batches. All learners of the table and their settings are exported here."""

from typing import Any

from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.algorithms.her import HER
from rl_training.algorithms.rlpd import RLPDAlgorithm, rlpd_loss
from rl_training.algorithms.table import ALGORITHMS, Algorithm

_LEARNERS = [row.learner for row in ALGORITHMS.values()]
_DERIVED: dict[str, Any] = {cls.__name__: cls for learner in _LEARNERS for cls in (learner, learner.Settings)}
globals().update(_DERIVED)

__all__ = ["ALGORITHMS", "HER", "Algorithm", "Learner", "LearnerSettings", "RLPDAlgorithm", "rlpd_loss"]
__all__ += list(_DERIVED)


def __getattr__(name: str) -> Any:  # so that type checkers know of the derived names
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
