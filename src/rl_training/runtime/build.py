"""Building a run: the learner, the data it samples, and the collector, from a configuration and its settings."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch

from rl_training.algorithms.actor_critic import DemonstrationSettings
from rl_training.algorithms.base import CriticSettings, Learner
from rl_training.algorithms.sac import SACSettings
from rl_training.algorithms.table import algorithms_for
from rl_training.config import TrainConfig
from rl_training.data import HERReplayBuffer, ReplayBuffer, TransitionDataset
from rl_training.data.dataset_loaders import load_transition_dataset, warn_of_terminations_at_limit
from rl_training.data.hindsight_dataset import HindsightDataset
from rl_training.data.mixture import Mixture, Source
from rl_training.envs.factory import make_raw_env, make_vector_env, space_spec
from rl_training.envs.goals import GoalRewards
from rl_training.envs.idle_actions import find_idle_actions
from rl_training.envs.rewards import RewardTransform
from rl_training.errors import ConfigError, DatasetError
from rl_training.runtime.collector import Collector
from rl_training.runtime.compile_rule import compiles_updates
from rl_training.runtime.distributed.collection import RemoteCollector, start_remote_collection
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.practice import Practice
from rl_training.runtime.random_play import play_at_random
from rl_training.runtime.run_records import summarize_data
from rl_training.runtime.settings import RunSettings
from rl_training.seeding import Stream, stream_seed
from rl_training.types import SpaceSpec

OfflineData = TransitionDataset | HindsightDataset
Replay = ReplayBuffer | HERReplayBuffer


@dataclass(frozen=True)
class RunComponents:
    """The parts of a run. Offline there is neither ``replay`` nor ``collector``."""

    learner: Learner
    experience: Source
    """What the learner samples: offline data, the replay buffer, or a mixture of both."""
    mixture: Mixture | None
    """``experience``, if it is a mixture."""
    replay: Replay | None
    collector: Collector | RemoteCollector | None
    evaluator: Evaluator | None
    """None without an environment."""
    goals: GoalRewards | None
    """Rewards of relabelled goals; None without hindsight."""
    data_summary: dict[str, Any] | None = None
    """Size and raw returns of the offline data, for the report."""


def build_run(
    config: TrainConfig,
    settings: RunSettings,
    device: torch.device,
    dataset: TransitionDataset | None = None,
    *,
    runs: int = 1,
) -> RunComponents:
    """Build the parts of a run. Nothing is written, and wrong input is refused.

    ``runs`` is the number of runs that are trained together and share the cores of this machine.
    A ``dataset`` in memory replaces the one that the settings name.
    """
    if dataset is None and (settings.dataset.names_dataset or not settings.online):
        dataset = _load_dataset(config, settings)
    _require_sources(settings, dataset)
    transform = _reward_transform(settings, dataset)
    spec, goals = _task(config, settings, dataset, transform)
    learner = build_learner(config, settings, spec, device)
    learner.fuses_kernels = compiles_updates(config, settings, device, runs=runs)
    offline_data, summary = None, None
    if dataset is not None:
        if settings.dataset.dataset_rows == "interventions":
            dataset = dataset.only_interventions(where=settings.dataset.source)
        if settings.dataset.dataset_top_fraction < 1:  # after reward_scale: auto has seen all returns
            dataset = dataset.top_episodes(settings.dataset.dataset_top_fraction)
        summary = {"source": settings.dataset.source, **summarize_data(dataset)}
        offline_data = _offline_data(dataset, learner, goals, config, settings, transform)
    evaluator = _evaluator(config, settings)
    if not settings.online:
        assert offline_data is not None  # _require_sources: an offline run has a dataset
        return RunComponents(learner, offline_data, None, None, None, evaluator, goals, summary)
    replay = _replay(config, settings, spec, goals, transform, device)
    mixture = None
    if offline_data is not None:
        mixture = Mixture(offline_data, replay, settings.prior.offline_share(0.0))
    collector: Collector | RemoteCollector
    env_id = required_env_id(config)
    if config.num_workers:
        collector = start_remote_collection(config, settings, env_id, learner, hindsight=goals is not None)
    else:
        envs = make_vector_env(env_id, config.env_kwargs, config.num_envs, runs=runs)
        practice = None
        hindsight = settings.hindsight
        if goals is not None and hindsight.replaces_pursued:
            assert isinstance(replay, HERReplayBuffer)
            assert replay.cells is not None  # it counts goals for this
            nearest, hold = hindsight.practice_goals, hindsight.next_goal_after
            practice = Practice(replay.cells, goals, config.num_envs, nearest=nearest, hold=hold)
        collector = Collector(envs, learner, settings.exploration, config.seed, practice)
    return RunComponents(learner, mixture or replay, mixture, replay, collector, evaluator, goals, summary)


def build_learner(config: TrainConfig, settings: RunSettings, spec: SpaceSpec, device: torch.device) -> Learner:
    """Build the untrained learner, or raise an error that names the algorithms for the task."""
    learner_type = settings.algorithm.learner
    if not learner_type.supports(spec):
        key, name = ("algo", config.algo) if settings.backend is None else ("algo_kwargs.backend", settings.backend)
        task = f"env_id = {config.env_id!r}" if config.env_id is not None else "the data"
        found = "discrete" if spec.is_discrete else "continuous"
        raise ConfigError(
            f"{key} = {name!r} does not suit {task}: it needs {learner_type.actions} actions and these are {found};"
            f" expected one of {', '.join(algorithms_for(found))}"
        )
    learner = learner_type(spec, settings.learner, device=device, seed=config.seed)
    learner.computes_in_bfloat16 = config.precision == "bf16"
    return learner


def required_env_id(config: TrainConfig) -> str:
    """Return the environment's id, or raise an error if there is none."""
    if config.env_id is None:
        raise ConfigError(f"{config.algo}: key 'env_id' is required here and missing")
    return config.env_id


def _reward_transform(settings: RunSettings, dataset: TransitionDataset | None) -> RewardTransform:
    """Return the transform of all rewards that are learned from: the environment's, then the algorithm's.

    Collected, relabelled and offline rewards all pass through it. Evaluations and curves show raw rewards.
    """
    env_transform = settings.env.wrappers.reward
    if settings.algorithm.hindsight:
        return RewardTransform(env_transform)
    if dataset is not None and env_transform is not None:
        dataset = dataset.with_reward_transform(env_transform)  # reward_scale: auto uses the result
    return RewardTransform(env_transform, settings.rewards.reward_transform(dataset))


def _task(
    config: TrainConfig, settings: RunSettings, dataset: TransitionDataset | None, transform: RewardTransform
) -> tuple[SpaceSpec, GoalRewards | None]:
    """Return the sizes of the task and, with hindsight, its reward functions; without ``env_id``, from the data."""
    hindsight = settings.algorithm.hindsight
    if config.env_id is None and dataset is not None and not (hindsight or settings.online):
        return _spec_of_data(dataset, settings), None
    if settings.dataset.action_low is not None:
        raise ConfigError("algo_kwargs.action_low and action_high are for data without an env_id: expected neither")
    env = make_raw_env(required_env_id(config), config.env_kwargs)
    if not hindsight:
        with contextlib.closing(env):
            return _with_idle_actions(space_spec(env), env, settings), None
    # Hindsight keeps this environment, to ask it for rewards.
    goals = GoalRewards(env, transform)
    if settings.online:
        _require_room_for_an_episode(env, settings.replay.buffer_capacity)
    return _with_idle_actions(space_spec(env, goals), env, settings), goals


def _with_idle_actions(spec: SpaceSpec, env: gym.Env[Any, Any], settings: RunSettings) -> SpaceSpec:
    """Add the components of the action without effect, if the target entropy depends on them."""
    learner = settings.learner
    if not isinstance(learner, SACSettings) or learner.entropy_per_action is None or learner.alpha != "auto":
        return spec
    idle = find_idle_actions(env, spec)
    if idle is None:
        warnings.warn(
            "a seed and actions do not repeat an episode of this environment: entropy_per_action counts all components"
            " of the action, also those without effect",
            stacklevel=4,
        )
    return dataclasses.replace(spec, idle_actions=idle or ())


def _spec_of_data(dataset: TransitionDataset, settings: RunSettings) -> SpaceSpec:
    """Return the sizes of a dataset, with the action bounds that the settings name."""
    spec, low = dataset.spec, settings.dataset.action_low
    if low is None:
        return spec
    if spec.is_discrete or len(low) != spec.action_dim:
        kind = "discrete actions" if spec.is_discrete else f"{spec.action_dim} actions"
        raise ConfigError(f"algo_kwargs.action_low = {list(low)}: the data has {kind}; expected one bound per action")
    return dataclasses.replace(spec, action_low=low, action_high=settings.dataset.action_high)


def _load_dataset(config: TrainConfig, settings: RunSettings) -> TransitionDataset:
    """Read the transitions of a run, or play them at random."""
    source = settings.dataset
    if source.dataset_kind == "random":
        return play_at_random(required_env_id(config), config.env_kwargs, source.dataset_size, config.seed)
    dataset = load_transition_dataset(
        source.dataset_path, source.dataset_kind, dataset_id=source.dataset_id, download=source.dataset_download
    )
    warn_of_terminations_at_limit(dataset, where=source.source)
    return dataset


def _require_sources(settings: RunSettings, dataset: TransitionDataset | None) -> None:
    """Refuse settings for offline data, or for its mixture with online data, if there is no such data."""
    learner, mixing = settings.learner, settings.prior
    cloning = learner.bc_weight if isinstance(learner, DemonstrationSettings) else 0.0
    if dataset is not None and settings.online:
        if cloning > 0 and not mixing.uses_offline_data:
            raise ConfigError(
                f"algo_kwargs.bc_weight = {cloning:g} has no offline rows to imitate: expected offline_batch_ratio or"
                " offline_pretrain_updates above 0 (or bc_weight: 0)"
            )
        return
    if dataset is not None:
        return
    share = mixing.offline_share if mixing.offline_batch_ratio is not None else None
    given = {
        "bc_weight": cloning,
        "offline_batch_ratio": max(share.start, share.end) if share is not None else 0.0,
        "offline_pretrain_updates": mixing.offline_pretrain_updates,
    }
    for key, value in given.items():
        if value > 0:
            raise ConfigError(
                f"algo_kwargs.{key} = {value:g} needs offline data: expected dataset_path, dataset_id or dataset_kind"
                f" (or {key}: 0)"
            )


def _offline_data(
    dataset: TransitionDataset,
    learner: Learner,
    goals: GoalRewards | None,
    config: TrainConfig,
    settings: RunSettings,
    transform: RewardTransform,
) -> OfflineData:
    """Return a dataset in the form that this learner samples, and add its observations to the normaliser."""
    seed = stream_seed(config.seed, Stream.OFFLINE_DATA)
    data: OfflineData
    _warn_of_clipping(
        dataset,
        learner.spec,
        "bounds of the task" if config.env_id or settings.dataset.action_low else "assumed bounds",
    )
    try:
        if goals is not None:
            data = HindsightDataset(
                dataset, learner.spec, goals, settings=settings.hindsight, device=learner.device, seed=seed
            )
        else:
            for step in transform.steps:
                dataset = dataset.with_reward_transform(step)
            data = dataset.for_task(learner.spec, device=learner.device, seed=seed)
            if learner.needs_returns and isinstance(settings.learner, CriticSettings):
                data.returns = data.returns_to_go(settings.learner.gamma, learner.spec.reward_range)
    except DatasetError as error:
        raise DatasetError(f"{settings.dataset.source}: {error}") from None
    for part in torch.split(data.policy_observations(), 65_536):
        learner.observe(part)
    return data


def _replay(
    config: TrainConfig,
    settings: RunSettings,
    spec: SpaceSpec,
    goals: GoalRewards | None,
    transform: RewardTransform,
    device: torch.device,
) -> Replay:
    capacity, seed = settings.replay.buffer_capacity, stream_seed(config.seed, Stream.REPLAY)
    if goals is None:
        return ReplayBuffer(spec, capacity, device=device, seed=seed, reward_transform=transform)
    return HERReplayBuffer(
        spec,
        capacity,
        goals,
        settings=settings.hindsight,
        num_envs=config.num_envs,
        device=device,
        seed=seed,
        reward_transform=transform,
    )


def _evaluator(config: TrainConfig, settings: RunSettings) -> Evaluator | None:
    if config.env_id is not None:
        return Evaluator(
            config.env_id,
            config.env_kwargs,
            episodes=config.eval_episodes,
            seed=config.seed,
            reference=settings.loop.reference_scores,
        )
    if settings.loop.early_stopping is not None:
        raise ConfigError("algo_kwargs.early_stopping needs evaluations: expected an env_id")
    warnings.warn("no env_id: nothing will be evaluated, and there is no best checkpoint", stacklevel=4)
    return None


def _warn_of_clipping(dataset: TransitionDataset, spec: SpaceSpec, bounds: str) -> None:
    """Warn if actions are outside their bounds and will be clipped; without ``env_id`` the bounds are assumed."""
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


def _require_room_for_an_episode(env: gym.Env[Any, Any], capacity: int) -> None:
    """Refuse a buffer that cannot hold one episode, if the environment has a time limit."""
    limit = env.spec.max_episode_steps if env.spec is not None else None
    if limit is None and env.has_wrapper_attr("max_steps"):
        limit = env.get_wrapper_attr("max_steps")
    if isinstance(limit, int) and capacity <= limit:
        raise ConfigError(
            f"algo_kwargs.buffer_capacity = {capacity} cannot hold an episode of {limit} steps:"
            f" expected at least {limit + 1}"
        )
