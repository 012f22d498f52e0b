"""Where a run's batches come from: logged data, what it collects, or a mixture of both."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.actor_critic import DemonstrationSettings
from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig
from rl_training.data import HERReplayBuffer, ReplayBuffer, TransitionDataset
from rl_training.data.dataset_loaders import DatasetSettings, load_transition_dataset
from rl_training.data.hindsight_dataset import HindsightDataset
from rl_training.data.mixture import Mixture
from rl_training.envs.factory import make_env, make_vector_env, space_spec, split_env_kwargs
from rl_training.envs.goals import GoalFunctions
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import ConfigError, DatasetError
from rl_training.runtime.collector import Collector
from rl_training.runtime.controls import PriorSettings
from rl_training.runtime.random_play import play_at_random
from rl_training.runtime.recipe import OnlineSettings, Recipe
from rl_training.runtime.schedules import Schedule
from rl_training.types import SpaceSpec

_PRIOR = 2**22  # the place of prior data among the seeds

Prior = TransitionDataset | HindsightDataset
Replay = ReplayBuffer | HERReplayBuffer


class Parts(NamedTuple):
    """What a run consists of: a learner, what it samples, and, where it collects, the collector and its buffer."""

    learner: Learner
    experience: Prior | Replay | Mixture
    replay: Replay | None
    collector: Collector | None


def build_parts(
    recipe: Recipe,
    config: TrainConfig,
    settings: Any,
    device: torch.device,
    dataset: TransitionDataset | None = None,
) -> Parts:
    """Put together what a recipe and its settings ask for; nothing is written, and wrong input is refused.

    A ``dataset`` in memory takes the place of the one that the settings name.
    """
    online = isinstance(settings, OnlineSettings)
    if dataset is not None or settings.names_dataset or not online:
        dataset = _logged_data(config, settings, dataset)
    _require_sources(settings, dataset is not None, online)
    spec, goals = _task(recipe, config, settings, dataset)
    learner = _fitting_learner(recipe, config, settings, spec, device)
    transform = None if recipe.hindsight else settings.reward_transform(dataset)
    if dataset is not None and settings.dataset_top_fraction < 1:  # after 'auto' has seen how far returns lie apart
        dataset = dataset.top_episodes(settings.dataset_top_fraction)
    prior = None if dataset is None else _prior(dataset, learner, goals, settings, transform, config)
    if not isinstance(settings, OnlineSettings):
        assert prior is not None  # an offline run always has a dataset
        return Parts(learner, prior, None, None)
    replay: Replay
    if goals is not None:
        replay = HERReplayBuffer(
            spec,
            settings.buffer_capacity,
            goals,
            settings=cast(Any, settings),  # the recipe's settings hold hindsight's as well
            num_envs=config.num_envs,
            device=device,
            seed=config.seed,
        )
    else:
        capacity = settings.buffer_capacity
        replay = ReplayBuffer(spec, capacity, device=device, seed=config.seed, reward_transform=transform)
    experience = replay if prior is None else Mixture(prior, replay, settings.prior_share(0.0))
    envs = make_vector_env(required_env_id(config), config.env_kwargs, config.num_envs)
    return Parts(learner, experience, replay, Collector(envs, learner, settings, config.seed))


def _task(
    recipe: Recipe, config: TrainConfig, settings: Any, dataset: TransitionDataset | None
) -> tuple[SpaceSpec, GoalFunctions | None]:
    """Return the sizes of the task and, with hindsight, who judges its goals; without an environment the data tells."""
    online = isinstance(settings, OnlineSettings)
    if config.env_id is None and dataset is not None and not (recipe.hindsight or online):
        return dataset.spec, None
    env = make_env(required_env_id(config), config.env_kwargs)
    if not recipe.hindsight:
        env.close()
        return space_spec(env), None
    # Hindsight keeps this environment for itself, to ask it for rewards.
    goals = GoalFunctions(env, split_env_kwargs(config.env_kwargs)[0].wrappers.reward)
    if online:
        _require_room_for_an_episode(env, settings.buffer_capacity)
    return space_spec(env, goals), goals


def _logged_data(
    config: TrainConfig, settings: DatasetSettings, dataset: TransitionDataset | None
) -> TransitionDataset:
    """Take, read or play the transitions of a run, with the rewards that ``env_kwargs`` ask for."""
    if dataset is None and settings.dataset_kind == "random":
        dataset = play_at_random(required_env_id(config), config.env_kwargs, settings.dataset_size, config.seed)
    else:
        dataset = dataset or load_transition_dataset(
            settings.dataset_path,
            settings.dataset_kind,
            dataset_id=settings.dataset_id,
            download=settings.dataset_download,
        )
        transform = split_env_kwargs(config.env_kwargs)[0].wrappers.reward
        if transform != RewardTransformConfig():
            dataset = dataset.with_reward_transform(transform)
    return dataset


def required_env_id(config: TrainConfig) -> str:
    """Return the environment's id, or say that there must be one."""
    if config.env_id is None:
        raise ConfigError(f"{config.algo}: key 'env_id' is required here and missing")
    return config.env_id


def _require_sources(settings: Any, has_prior: bool, online: bool) -> None:
    """Refuse settings for prior data, or for its mixture with fresh data, where there is no such thing."""
    cloning = settings.bc_weight if isinstance(settings, DemonstrationSettings) else 0.0
    if has_prior and online:
        if cloning > 0 and not settings.uses_prior:
            raise ConfigError(
                f"algo_kwargs.bc_weight = {cloning:g} has no prior rows to imitate: expected offline_batch_ratio or"
                " offline_pretrain_updates above 0 (or bc_weight: 0)"
            )
        return
    asked: dict[str, float] = {} if has_prior else {"bc_weight": cloning}
    if isinstance(settings, PriorSettings):
        share = settings.prior_share if settings.offline_batch_ratio is not None else Schedule(start=0.0)
        asked["offline_batch_ratio"] = max(share.start, share.end)
        asked["offline_pretrain_updates"] = settings.offline_pretrain_updates
    for key, value in asked.items():
        if value > 0:
            missing = "an environment to play in" if has_prior else "prior data"
            expected = "online: true" if has_prior else "dataset_path, dataset_id or dataset_kind"
            raise ConfigError(f"algo_kwargs.{key} = {value:g} needs {missing}: expected {expected} (or {key}: 0)")


def _prior(
    dataset: TransitionDataset,
    learner: Learner,
    goals: GoalFunctions | None,
    settings: Any,
    transform: RewardTransformConfig | None,
    config: TrainConfig,
) -> Prior:
    """Return logged data in the form that this learner samples, after showing it the observations."""
    # A stream of its own: the replay buffer draws with the run's seed.
    seed = int(np.random.SeedSequence([config.seed, _PRIOR]).generate_state(1)[0])
    prior: Prior
    _warn_of_clipping(dataset, learner.spec, "bounds of the task" if config.env_id else "assumed bounds")
    try:
        if goals is not None:
            prior = HindsightDataset(dataset, learner.spec, goals, settings=settings, device=learner.device, seed=seed)
        else:
            dataset = dataset if transform is None else dataset.with_reward_transform(transform)
            prior = dataset.for_task(learner.spec, device=learner.device, seed=seed)
            if learner.needs_returns:
                prior.returns = prior.returns_to_go(settings.gamma)
    except DatasetError as error:
        raise DatasetError(f"{settings.dataset_path or settings.dataset_id or 'dataset'}: {error}") from None
    for part in torch.split(prior.policy_observations(), 65_536):
        learner.observe(part)
    return prior


def _warn_of_clipping(dataset: TransitionDataset, spec: SpaceSpec, bounds: str) -> None:
    """Say how many actions are changed because they lie outside their bounds, which without ``env_id`` are assumed."""
    if spec.is_discrete or dataset.actions.shape[-1] != spec.action_dim:
        return
    low, high = spec.action_bounds
    margin = 1e-4 * (high - low)
    outside = ((dataset.actions < low - margin) | (dataset.actions > high + margin)).any(axis=1)
    if outside.any():
        warnings.warn(
            f"{outside.mean():.1%} of the rows have actions outside the {bounds}, [{low.min():g}, {high.max():g}]: they"
            " are clipped",
            stacklevel=2,
        )


def _fitting_learner(
    recipe: Recipe, config: TrainConfig, settings: Any, spec: SpaceSpec, device: torch.device
) -> Learner:
    try:
        return recipe.learner(config.algo_kwargs)(spec, settings, device=device, seed=config.seed)
    except ConfigError as error:
        key = "algo_kwargs.backend" if recipe.hindsight else "algo"
        task = f"env_id = {config.env_id!r}" if config.env_id is not None else "the data"
        raise ConfigError(f"{key} does not suit {task}: {error}") from None


def _require_room_for_an_episode(env: gym.Env[Any, Any], capacity: int) -> None:
    """Refuse a buffer that cannot hold one episode, where the environment says how long one may get."""
    limit = env.spec.max_episode_steps if env.spec is not None else None
    if limit is None and env.has_wrapper_attr("max_steps"):
        limit = env.get_wrapper_attr("max_steps")
    if isinstance(limit, int) and capacity <= limit:
        raise ConfigError(
            f"algo_kwargs.buffer_capacity = {capacity} cannot hold an episode of {limit} steps:"
            f" expected at least {limit + 1}"
        )
