"""The budget of a run, and how many updates are due. Both follow from the run's counters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rl_training.runtime.controls import CollectionSettings, TrainerState


@dataclass(frozen=True)
class Budget:
    """Reads the counters of a run and changes nothing, so a resumed run loses no update and repeats none."""

    state: TrainerState
    total_steps: int
    max_updates: int | None
    pretrain_updates: int
    """Updates on offline data before the first environment step."""
    collection: CollectionSettings | None
    """None offline: every update counts as a step."""

    @property
    def progress(self) -> float:
        """The share of the budget that is used up, from 0 to 1."""
        share = self.state.global_step / self.total_steps
        if self.max_updates is not None:
            share = max(share, self.state.update_count / self.max_updates)
        return min(1.0, share)

    @property
    def learning_progress(self) -> float:
        """The progress of the learning-rate schedule. Pretraining runs through the schedule once, by itself."""
        if self.pretraining:
            return (self.state.update_count + 1) / self.pretrain_updates
        return self.progress

    @property
    def pretraining(self) -> bool:
        """Whether the run still learns from offline data only."""
        return self.state.update_count < self.pretrain_updates and self.state.global_step == 0

    @property
    def position(self) -> int:
        """The counter that intervals use: transitions, or updates while pretraining."""
        return self.state.update_count if self.pretraining else self.state.global_step

    def completed(self, before: int | None, interval: int | None) -> bool:
        """Return whether an interval was completed since the position ``before``."""
        return interval is not None and before is not None and self.position // interval > before // interval

    def updates_due(self) -> int:
        """Return how many updates the transitions so far require, minus those done; fractions add up."""
        wanted, collection = self.state.global_step, self.collection
        if self.pretraining:  # one at a time, so that a signal is handled between any two
            wanted = self.state.update_count + 1
        elif collection is not None:
            start = max(collection.learning_starts, self.state.last_step_without_data)
            trained_until = wanted - wanted % collection.train_frequency
            wanted = math.floor(max(0, trained_until - start) * collection.gradient_updates_per_step)
            wanted += self.pretrain_updates
        if self.max_updates is not None:
            wanted = min(wanted, self.max_updates)
        return max(0, wanted - self.state.update_count)

    def stop_reason(self) -> str | None:
        """Return which budget is used up; None while none is."""
        if self.max_updates is not None and self.state.update_count >= self.max_updates:
            return "max_updates"
        return "total_timesteps" if self.state.global_step >= self.total_steps else None
