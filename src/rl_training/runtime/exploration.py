"""Exploration: noise on the actions of a policy, and random actions in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        0.0, ge=0, lt=1, description="correlation of exploration noise from step to step, in some episodes"
    )
    correlated_episodes: float = Field(
        0.5, ge=0, le=1, description="share of the episodes whose noise has noise_correlation"
    )
    correlated_practice: float | None = Field(
        None, ge=0, le=1, description="that share among the episodes that practise; unset: correlated_episodes"
    )

    @model_validator(mode="after")
    def _probabilities(self) -> ExplorationSettings:
        schedule = self.random_action_prob
        if isinstance(schedule, Schedule) and max(schedule.start, schedule.end) > 1:
            raise ValueError(f"random_action_prob goes from {schedule.start:g} to {schedule.end:g}: expected at most 1")
        return self


class Exploration:
    """Explores in E environments that take their steps together.

    Attributes:
        rng: where the random numbers come from.
        drift: the noise of the last step, ``[E, action_dim]``, if it is correlated from step to step.
    """

    def __init__(
        self,
        settings: ExplorationSettings,
        defaults: Mapping[str, float],
        spec: SpaceSpec,
        num_envs: int,
        rng: np.random.Generator,
    ) -> None:
        noise, random = settings.exploration_noise, settings.random_action_prob
        self._noise = defaults.get("exploration_noise", 0.0) if noise is None else noise
        random = defaults.get("random_action_prob", 0.0) if random is None else random
        self._random_prob = random if isinstance(random, Schedule) else Schedule(start=random)
        self._correlation, self._correlated_share = settings.noise_correlation, settings.correlated_episodes
        share = settings.correlated_practice
        self._practice_share = self._correlated_share if share is None else share
        self._spec, self._num_envs, self.rng = spec, num_envs, rng
        self.drift = np.zeros((num_envs, spec.action_dim), np.float32)

    @property
    def correlates(self) -> bool:
        """Whether the noise of a step depends on that of the step before; the learner must then be given it."""
        return self._correlation > 0.0 and not self._spec.is_discrete

    def is_correlated(self, episodes: Array, practising: Array | bool = False) -> Array:
        """Return for which numbers of episodes the noise is correlated; these are evenly spaced.

        ``practising`` says which of the episodes pursue another goal than their own.
        """
        share = np.where(practising, self._practice_share, self._correlated_share)
        later: Array = np.floor((episodes + 1) * share) > np.floor(episodes * share)
        return later

    def draw_noise(self, correlated: Array) -> Array:
        """Draw the standard normal noise of a step, ``[E, action_dim]``; ``correlated`` ``[E]`` says for which."""
        fresh = self.rng.standard_normal(self.drift.shape).astype(np.float32)
        factor = np.where(correlated, self._correlation, 0.0).astype(np.float32)[:, None]
        self.drift = factor * self.drift + np.sqrt(1.0 - factor * factor) * fresh
        return self.drift

    def explore(self, actions: Array, progress: float) -> Array:
        """Return actions ``[E, action_dim]`` with noise added, some of them replaced by random ones.

        ``progress`` is the share of the run's budget that is used up, for schedules.
        """
        if self._noise > 0 and not self._spec.is_discrete:
            noise = self.rng.standard_normal(actions.shape) if self._correlation == 0.0 else self.drift
            actions = np.clip(actions + self._noise * noise, -1.0, 1.0).astype(np.float32)
        probability = self._random_prob(progress)
        if probability > 0:
            chosen = self.rng.random(self._num_envs) < probability
            actions = np.where(chosen[:, None], self.random_actions(), actions)
        return actions

    def random_actions(self) -> Array:
        """Return ``[E, action_dim]`` random actions."""
        return random_actions(self._spec, self.rng, self._num_envs)

    def undo_point(self) -> Callable[[], None]:
        """Return a function that restores the state of this moment."""
        random_state, drift = self.rng.bit_generator.state, self.drift

        def undo() -> None:
            self.rng.bit_generator.state, self.drift = random_state, drift

        return undo

    def state_dict(self) -> dict[str, Any]:
        """Return the random state and the last noise."""
        drift = {} if self._correlation == 0.0 else {"drift": self.drift.copy()}
        return {"rng": self.rng.bit_generator.state, **drift}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.rng.bit_generator.state = state["rng"]
        if "drift" in state:
            self.drift = state["drift"].copy()


def random_actions(spec: SpaceSpec, rng: np.random.Generator, count: int) -> Array:
    """Return ``[count, action_dim]`` actions, uniform over the policy's range."""
    shape = (count, spec.action_dim)
    if spec.num_actions is not None:
        return rng.integers(spec.num_actions, size=shape).astype(np.float32)
    return rng.uniform(-1.0, 1.0, size=shape).astype(np.float32)
