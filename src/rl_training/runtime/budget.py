"""How far a run may go, and what is due where it stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rl_training.runtime.controls import CollectionSettings, TrainerState


@dataclass(frozen=True)
class Budget:
    """Follows from the counters alone, so nothing is lost or done twice when a run is resumed.

    Offline there is no ``collection``: every update is a step.
    """

    state: TrainerState
    total_steps: int
    max_updates: int | None
    pretrain_updates: int
    collection: CollectionSettings | None

    @property
    def progress(self) -> float:
        """The share of the budget that is used up."""
        share = self.state.global_step / self.total_steps
        if self.max_updates is not None:
            share = max(share, self.state.update_count / self.max_updates)
        return min(1.0, share)

    @property
    def pretraining(self) -> bool:
        """Whether the run still learns from prior data alone."""
        return self.state.update_count < self.pretrain_updates and self.state.global_step == 0

    @property
    def position(self) -> int:
        """What intervals count: transitions, and updates while there are no transitions yet."""
        return self.state.update_count if self.pretraining else self.state.global_step

    def updates_due(self, *, has_data: bool) -> int:
        """Return how far the updates are behind what the transitions so far ask for; fractions of one add up."""
        wanted, collection = self.state.global_step, self.collection
        if self.pretraining:  # one at a time, so that a signal is heard between any two
            wanted = self.state.update_count + 1
        elif collection is not None:
            if not has_data:  # hindsight has nothing to offer before the first episode is complete
                self.state.first_data_step = wanted
                return 0
            start = max(collection.learning_starts, self.state.first_data_step)
            trained_until = wanted - wanted % collection.train_frequency
            wanted = math.floor(max(0, trained_until - start) * collection.gradient_updates_per_step)
            wanted += self.pretrain_updates
        if self.max_updates is not None:
            wanted = min(wanted, self.max_updates)
        return max(0, wanted - self.state.update_count)

    def check(self) -> None:
        """Stop where a budget is used up; a run that is done is done, even if a signal came at its last step."""
        reason = None
        if self.max_updates is not None and self.state.update_count >= self.max_updates:
            reason = "max_updates"
        elif self.state.global_step >= self.total_steps:
            reason = "total_timesteps"
        if reason is not None and (not self.state.should_stop or self.state.interrupted):
            self.state.should_stop, self.state.stop_reason = True, reason
