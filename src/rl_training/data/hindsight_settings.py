"""The settings of hindsight replay."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl_training.config import Settings


class HindsightSettings(Settings):
    """Settings of hindsight replay."""

    her_ratio: float | None = Field(
        None, ge=0, le=1, description="share of a batch whose goal is replaced; smaller while few episodes moved"
    )
    n_sampled_goal: int | None = Field(
        None,
        ge=0,
        description="k replaced goals for each original one: a her_ratio of k/(k+1); 4 if neither is given",
    )
    goal_selection_strategy: Literal["future", "final", "episode"] = Field(
        "future", description="source of the new goal: later in the episode, its end, or anywhere in it"
    )
    episode_priority: Literal["motion", "uniform"] = Field(
        "motion",
        description="for replaced goals: prefer episodes whose achieved goal moved and goals that are not met yet, or"
        " draw all steps and goals equally",
    )
    motion_priority: float = Field(
        0.995,
        ge=0,
        lt=1,
        description="p: a step of an episode without motion of the achieved goal gets the weight 1-p",
    )
    motion_scale: float | None = Field(
        None, gt=0, description="distance from which on a goal counts as moved; unset: env's distance_threshold"
    )

    goal_priority: Literal["uniform", "pursued"] = Field(
        "uniform",
        description="for replaced goals: draw all equally, or prefer goals like those that are pursued; the latter only"
        " where outcomes are not left to chance",
    )
    practice_goals: bool = Field(
        False, description="whether an episode whose goal was never achieved pursues the nearest achieved goal instead"
    )

    next_goal_after: int | None = Field(
        None,
        ge=1,
        description="steps for which an episode holds its goal before it pursues that of an earlier episode; unset: to"
        " its end",
    )

    @model_validator(mode="after")
    def _one_ratio(self) -> HindsightSettings:
        if self.her_ratio is not None and self.n_sampled_goal is not None:
            raise ValueError(
                f"her_ratio = {self.her_ratio} and n_sampled_goal = {self.n_sampled_goal} set the same share:"
                " expected only one of them"
            )
        return self

    @property
    def replaces_pursued(self) -> bool:
        """Whether episodes may pursue other goals than the environment's."""
        return self.practice_goals or self.next_goal_after is not None

    @property
    def relabel_ratio(self) -> float:
        """The share of a batch whose goal is replaced."""
        if self.her_ratio is not None:
            return self.her_ratio
        k = 4 if self.n_sampled_goal is None else self.n_sampled_goal
        return k / (k + 1)
