"""Recipes: which learner and which experience a name stands for, and what a run of it can be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.config import TrainConfig, parse_settings
from rl_training.data.dataset_loaders import DatasetSettings, RewardSettings
from rl_training.data.replay_buffer import ReplaySettings
from rl_training.envs.factory import split_env_kwargs
from rl_training.errors import ConfigError
from rl_training.runtime.collector import ExplorationSettings
from rl_training.runtime.controls import CollectionSettings, InitSettings, LoopSettings, PriorSettings


class OnlineSettings(
    LoopSettings,
    CollectionSettings,
    ExplorationSettings,
    ReplaySettings,
    PriorSettings,
    InitSettings,
    DatasetSettings,
    LearnerSettings,
):
    """What every run that collects its own data can be told, beside its learner's settings."""

    online: bool = Field(True, description="whether the run plays in env_id to collect data")

    @model_validator(mode="after")
    def _batch_fits(self) -> OnlineSettings:
        if self.batch_size > self.buffer_capacity:
            raise ValueError(
                f"batch_size = {self.batch_size} is larger than the buffer:"
                f" expected at most algo_kwargs.buffer_capacity = {self.buffer_capacity}"
            )
        return self


class OfflineSettings(LoopSettings, InitSettings, DatasetSettings, LearnerSettings):
    """What every run on logged data alone can be told, beside its learner's settings."""

    online: bool = Field(False, description="whether the run plays in env_id to collect data")


RunSettings = OnlineSettings | OfflineSettings


@dataclass(frozen=True)
class Recipe:
    """A learner and where its batches come from."""

    name: str
    learner: Callable[[Mapping[str, Any]], type[Learner]]
    """Chooses the learner from ``algo_kwargs`` (HER's depends on ``backend``)."""
    hindsight: bool = False
    """Whether goals are replaced as transitions are sampled."""
    online: bool = True
    """Whether a run collects data unless its settings say otherwise."""
    own_settings: tuple[type[Any], ...] = ()
    """Settings beyond the loop's and the learner's."""

    def settings(self, config: TrainConfig) -> Any:
        """Check ``algo_kwargs`` against everything this recipe can be told."""
        learner, online = self.learner(config.algo_kwargs), config.algo_kwargs.get("online", self.online)
        if not isinstance(online, bool):
            raise ConfigError(f"algo_kwargs.online = {online!r}: expected true or false")
        shared = OnlineSettings if online else OfflineSettings
        # With hindsight the environment says what every reward is. Of several defaults the first one counts.
        rewards = () if self.hindsight else (RewardSettings,)
        bases: tuple[type[Any], ...] = (*self.own_settings, learner.Settings, shared, *rewards)
        settings_type: type[Any] = type(f"{self.name.upper()}Run", bases, {"__module__": __name__})
        for key in config.algo_kwargs:
            if key not in settings_type.model_fields and key in OnlineSettings.model_fields:
                raise ConfigError(f"{self.name}: unknown key 'algo_kwargs.{key}' offline: it needs online: true")
        settings: Any = parse_settings(settings_type, config.algo_kwargs, where=self.name, prefix="algo_kwargs.")
        split_env_kwargs(config.env_kwargs)
        if isinstance(settings, OnlineSettings):
            if config.env_id is None:
                raise ConfigError(f"{self.name}: key 'env_id' is required and missing")
            if settings.buffer_capacity < config.num_envs:
                raise ConfigError(
                    f"algo_kwargs.buffer_capacity = {settings.buffer_capacity} holds less than one step of all"
                    f" environments: expected at least num_envs = {config.num_envs}"
                )
            if settings.learning_starts >= config.total_timesteps:
                raise ConfigError(
                    f"algo_kwargs.learning_starts = {settings.learning_starts} leaves nothing to learn from:"
                    f" expected less than total_timesteps = {config.total_timesteps}"
                )
        elif config.num_envs != 1:
            raise ConfigError(f"num_envs = {config.num_envs} collect nothing offline: expected 1, or online: true")
        return settings
