"""What steers the loop: its settings, its state, its result, and when to stop early."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from rl_training.config import Settings
from rl_training.runtime.schedules import Schedule
from rl_training.urls import Location, parse_location

INTERRUPTED = "interrupted"
"""The start of ``stop_reason`` if a signal ended the run."""


class EarlyStoppingConfig(Settings):
    """When to stop before the budget is used up; every condition looks at evaluations."""

    patience: int | None = Field(None, ge=1, description="evaluations without improvement after which to stop")
    min_delta: float = Field(0.0, ge=0, description="gain in mean reward or success rate that counts as improvement")
    reward_threshold: float | None = Field(None, description="stop when eval/mean_reward reaches this")
    success_threshold: float | None = Field(None, ge=0, le=1, description="stop when eval/success_rate reaches this")

    @model_validator(mode="after")
    def _some_condition(self) -> EarlyStoppingConfig:
        if self.patience is None and self.reward_threshold is None and self.success_threshold is None:
            raise ValueError("early_stopping needs patience, reward_threshold or success_threshold")
        return self


class CollectionSettings(Settings):
    """How many updates follow the collected transitions, which are counted over all environments."""

    learning_starts: int = Field(1_000, ge=0, description="transitions collected, with random actions, before learning")
    train_frequency: int = Field(1, ge=1, description="transitions between two rounds of updates")
    gradient_updates_per_step: float = Field(1.0, gt=0, description="updates per transition (the update-to-data ratio)")
    overlap_collection: bool = Field(
        False, description="learn while environments in other processes step; updates then miss the newest step"
    )
    max_policy_age: int = Field(
        20_000,
        ge=1,
        description="with num_workers: transitions that the learner may take while an episode is played; older ones are"
        " dropped",
    )


class PriorSettings(Settings):
    """How offline and online data are mixed in an online run with a dataset."""

    offline_batch_ratio: Annotated[float, Field(ge=0, le=1)] | Schedule | None = Field(
        None, description="share of offline rows in a batch: a number or a schedule; unset: 0.5"
    )
    offline_pretrain_updates: int = Field(0, ge=0, description="updates on offline data only, before the first step")

    @model_validator(mode="after")
    def _share(self) -> PriorSettings:
        if max(self.offline_share.start, self.offline_share.end) > 1:
            raise ValueError(
                f"offline_batch_ratio goes from {self.offline_share.start:g} to {self.offline_share.end:g}:"
                " expected at most 1"
            )
        return self

    @property
    def uses_offline_data(self) -> bool:
        """Whether any batch has offline rows."""
        return max(self.offline_share.start, self.offline_share.end) > 0 or self.offline_pretrain_updates > 0

    @property
    def offline_share(self) -> Schedule:
        """The share of offline rows over the course of training."""
        ratio = self.offline_batch_ratio
        return ratio if isinstance(ratio, Schedule) else Schedule(start=0.5 if ratio is None else ratio)


class InitSettings(Settings):
    """What a run starts from, if not from scratch."""

    init_from: Location | None = Field(
        None,
        description="a run or checkpoint whose weights are loaded: all if its algorithm is the same, else its policy",
    )
    init_optimizers: bool = Field(True, description="whether the optimisers' moments are loaded as well")

    @field_validator("init_from", mode="plain")
    @classmethod
    def _path_or_url(cls, value: Any) -> Location | None:
        return None if value is None else parse_location(value)


class LoopSettings(Settings):
    """Settings of the training loop. Steps are environment transitions online and updates offline."""

    max_updates: int | None = Field(
        None, ge=1, description="stop after this many updates; unset: total_timesteps decides"
    )
    eval_interval: int | None = Field(5_000, ge=1, description="steps between evaluations; null: only one, at the end")
    checkpoint_interval: int | None = Field(
        10_000, ge=1, description="steps between checkpoints; null: only at the end"
    )
    keep_checkpoints: int = Field(2, ge=2, description="checkpoints kept, besides the best")
    reference_scores: tuple[float, float] | None = Field(
        None, description="returns that count as 0 and 100 in eval/normalized_score; unset: D4RL's, if it has any"
    )
    log_interval: int = Field(500, ge=1, description="steps between two lines of metrics.csv")
    early_stopping: EarlyStoppingConfig | None = Field(
        None, description="when to stop before the budget is used up; true: after 5 evaluations without improvement"
    )
    lr_schedule: Schedule | None = Field(
        None, description="factor of the learning rates: constant, linear, cosine, warmup"
    )

    @model_validator(mode="before")
    @classmethod
    def _early_stopping_on(cls, values: Any) -> Any:
        """Accept ``early_stopping: true``, which stops after five evaluations without improvement."""
        if isinstance(values, dict) and isinstance(values.get("early_stopping"), bool):
            return {**values, "early_stopping": {"patience": 5} if values["early_stopping"] else None}
        return values

    @model_validator(mode="after")
    def _two_scores(self) -> LoopSettings:
        if self.reference_scores is not None and self.reference_scores[0] >= self.reference_scores[1]:
            raise ValueError(f"reference_scores = {list(self.reference_scores)}: expected the lower one first")
        return self


_RENAMED = {"first_data_step": "last_step_without_data", "handed_over": "pretrained_return"}
"""Names that version 0.1 used for fields of ``TrainerState``."""


@dataclass
class TrainerState:
    """The progress of a run. ``update_count`` counts updates, ``global_step`` transitions over all environments."""

    global_step: int = 0
    update_count: int = 0
    should_stop: bool = False
    stop_reason: str | None = None
    last_step_without_data: int = 0
    """The last step at which there was nothing to sample yet."""
    best_score: tuple[float, float] | None = None
    """Success rate (0 if none is reported) and mean reward of the best evaluation."""
    last_evaluation: dict[str, float] = field(default_factory=dict)
    pretrained_return: float | None = None
    """The mean return of a pretrained policy before its first online step."""

    report_due: tuple[int | None, bool] | None = None
    """The arguments of an evaluation that was cut off. A resumed run repeats it first."""

    def stop(self, reason: str) -> None:
        """Ask the loop to end after the current step; the first reason is kept."""
        if not self.should_stop:
            self.should_stop, self.stop_reason = True, reason

    @property
    def interrupted(self) -> bool:
        """Whether a signal, not the run itself, asked for the stop."""
        return (self.stop_reason or "").startswith(INTERRUPTED)

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a resumed run continues, without the request to stop."""
        state = {**asdict(self), "should_stop": False, "stop_reason": None}
        if self.report_due is None:
            del state["report_due"]  # older checkpoints do not have it
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        for key, value in state.items():
            setattr(self, _RENAMED.get(key, key), tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    run_dir: Path
    status: str
    """``completed``, ``stopped`` (early stopping), ``interrupted`` (a signal) or ``failed``."""
    stop_reason: str
    global_step: int
    update_count: int
    metrics: dict[str, float]
    """The last evaluation, and the best one's score."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "run_dir": str(self.run_dir)}
