"""Values that change during training: learning rates and exploration."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from rl_training.config import Settings


class Schedule(Settings):
    """A value as a function of progress, from 0 at the start of training to 1 at its end.

    For the learning rates the kind is enough: ``lr_schedule: cosine``.
    """

    kind: Literal["constant", "linear", "cosine", "warmup"] = Field(
        "constant", description="how the value changes from start to end; warmup is constant after the warm-up"
    )
    start: float = Field(1.0, ge=0, description="value at the start, or after the warm-up")
    end: float = Field(0.0, ge=0, description="value at the end (linear and cosine)")
    hold: float = Field(
        0.0, ge=0, lt=1, description="share of training in which the value stays at its start (linear and cosine)"
    )
    fraction: float = Field(1.0, gt=0, le=1, description="share of training after which the end value is reached")
    warmup: float | None = Field(
        None, ge=0, lt=1, description="share of training in which the value rises from 0; unset: 0, or 0.05 for warmup"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_kind(cls, values: Any) -> Any:
        return {"kind": values} if isinstance(values, str) else values

    @model_validator(mode="after")
    def _shares_in_order(self) -> Schedule:
        for name, share in (("warmup", self._warmup), ("hold", self.hold)):
            if share >= self.fraction:
                raise ValueError(f"{name} = {share}: expected less than fraction = {self.fraction}")
        return self

    @property
    def _warmup(self) -> float:
        return (0.05 if self.kind == "warmup" else 0.0) if self.warmup is None else self.warmup

    def __call__(self, progress: float) -> float:
        """Return the value at ``progress``."""
        warmup = self._warmup
        if progress < warmup:
            return self.start * progress / warmup
        if self.kind in ("constant", "warmup"):
            return self.start
        leaving = max(warmup, self.hold)
        done = min(1.0, max(0.0, progress - leaving) / (self.fraction - leaving))
        if self.kind == "cosine":
            done = 0.5 * (1.0 - math.cos(math.pi * done))
        return self.start + (self.end - self.start) * done
