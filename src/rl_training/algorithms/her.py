"""HER's learner: any off-policy learner, applied to the observation concatenated with the desired goal.

The replay buffer relabels transitions when it samples them: see ``data/her_replay_buffer.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.algorithms.table import DEFAULT_BACKEND, find_algorithm
from rl_training.errors import ConfigError
from rl_training.types import SpaceSpec


class HER:
    """Builds the ``backend`` learner for a goal task. The result is that learner, with the same ``update``."""

    def __new__(  # type: ignore[misc]  # returns a learner of another class on purpose
        cls,
        spec: SpaceSpec,
        settings: LearnerSettings | Mapping[str, Any] | None = None,
        *,
        backend: str = DEFAULT_BACKEND,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> Learner:
        """Return a learner of the backend's class."""
        if spec.goal_dim == 0:
            raise ConfigError("HER needs a task with goals: goal_dim is 0, expected at least 1")
        return find_algorithm("her", backend).learner(spec, settings, device=device, seed=seed)
