"""How data is explored: the settings of noise and random actions, and random actions themselves."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rl_training.config import Settings
from rl_training.runtime.schedules import Schedule
from rl_training.types import SpaceSpec

Array = NDArray[Any]


class ExplorationSettings(Settings):
    """Exploration while collecting data. Unset values are the learner's defaults."""

    exploration_noise: float | None = Field(None, ge=0, description="std of Gaussian noise on actions in [-1, 1]")
    random_action_prob: Annotated[float, Field(ge=0, le=1)] | Schedule | None = Field(
        None, description="probability of a uniformly random action: a number, or a schedule of one"
    )
    noise_correlation: float = Field(
        0.0, ge=0, lt=1, description="correlation of exploration noise from step to step, in every second episode"
    )

    @model_validator(mode="after")
    def _probabilities(self) -> ExplorationSettings:
        schedule = self.random_action_prob
        if isinstance(schedule, Schedule) and max(schedule.start, schedule.end) > 1:
            raise ValueError(f"random_action_prob goes from {schedule.start:g} to {schedule.end:g}: expected at most 1")
        return self


def random_actions(spec: SpaceSpec, rng: np.random.Generator, count: int) -> Array:
    """Return ``[count, action_dim]`` actions, uniform over the policy's range."""
    shape = (count, spec.action_dim)
    if spec.num_actions is not None:
        return rng.integers(spec.num_actions, size=shape).astype(np.float32)
    return rng.uniform(-1.0, 1.0, size=shape).astype(np.float32)
