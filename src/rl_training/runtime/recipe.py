"""Recipes: which learner and which experience a name stands for, and putting a run together from one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from pydantic import model_validator

from rl_training.algorithms.base import Learner, LearnerSettings
from rl_training.config import TrainConfig, load_config, parse_config, parse_settings
from rl_training.data import HERReplayBuffer, HindsightSettings, ReplayBuffer, ReplaySettings
from rl_training.envs.factory import make_env, make_vector_env, space_spec, split_env_kwargs
from rl_training.envs.goals import GoalFunctions
from rl_training.errors import CheckpointError, ConfigError
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.checkpointing import CheckpointStore, read_checkpoint, read_manifest, resolve_checkpoint
from rl_training.runtime.collector import Collector, ExplorationSettings
from rl_training.runtime.controls import LoopSettings, TrainResult
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.interrupts import stop_on_signals
from rl_training.runtime.logging import MetricsLogger
from rl_training.runtime.trainer import Trainer
from rl_training.types import SpaceSpec


class RunSettings(LoopSettings, ExplorationSettings, ReplaySettings, LearnerSettings):
    """What every run can be told; each recipe adds its learner's settings and its experience's."""

    @model_validator(mode="after")
    def _batch_fits(self) -> RunSettings:
        if self.batch_size > self.buffer_capacity:
            raise ValueError(
                f"batch_size = {self.batch_size} is larger than the buffer:"
                f" expected at most algo_kwargs.buffer_capacity = {self.buffer_capacity}"
            )
        return self


@dataclass(frozen=True)
class Recipe:
    """A learner and where its batches come from."""

    name: str
    learner: Callable[[Mapping[str, Any]], type[Learner]]
    """Chooses the learner from ``algo_kwargs`` (HER's depends on ``backend``)."""
    own_settings: tuple[type[Any], ...] = ()
    """Settings beyond the loop's and the learner's."""
    hindsight: bool = False

    def settings(self, config: TrainConfig) -> RunSettings:
        """Check ``algo_kwargs`` against everything this recipe can be told."""
        learner = self.learner(config.algo_kwargs)
        bases: tuple[type[Any], ...] = (
            *self.own_settings,
            learner.Settings,
            RunSettings,
        )  # the first one decides a default
        settings_type = type(f"{self.name.upper()}Run", bases, {"__module__": __name__})
        settings: RunSettings = parse_settings(
            settings_type, config.algo_kwargs, where=self.name, prefix="algo_kwargs."
        )
        if settings.learning_starts >= config.total_timesteps:
            raise ConfigError(
                f"algo_kwargs.learning_starts = {settings.learning_starts} leaves nothing to learn from:"
                f" expected less than total_timesteps = {config.total_timesteps}"
            )
        split_env_kwargs(config.env_kwargs)
        return settings


def train(
    recipe: Recipe,
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    run_name: str | None = None,
) -> TrainResult:
    """Train from the start in a new folder below ``config.output_dir``."""
    settings = recipe.settings(config)
    # The file that is kept has every default written out, so that a run means the same under later versions.
    config = config.model_copy(update={"algo_kwargs": settings.model_dump(mode="json")})
    trainer, run_dir = _assemble(recipe, config, settings, callbacks, run_name=run_name)
    return _run(trainer, run_dir)


def resume(recipe: Recipe, run_dir: Path, *, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Go on with a run where its latest checkpoint stands."""
    config = load_config(run_dir / "config.yaml")
    trainer, _ = _assemble(recipe, config, recipe.settings(config), callbacks, run_dir=run_dir)
    trainer.restore()
    return _run(trainer, run_dir)


def build_learner(recipe: Recipe, config: TrainConfig, spec: SpaceSpec) -> Learner:
    """Make the untrained learner of a configuration."""
    learner_type = recipe.learner(config.algo_kwargs)
    return learner_type(spec, recipe.settings(config), device=resolve_device(config.device), seed=config.seed)


def load_learner(recipe: Recipe, checkpoint: Path, device: str = "cpu") -> tuple[Learner, TrainConfig]:
    """Rebuild the learner of a checkpoint, without its environment, and the configuration it was trained with."""
    manifest, state = read_checkpoint(checkpoint, part="learner")
    try:
        config = parse_config({**manifest["config"], "device": device}, where=str(checkpoint / "manifest.json"))
        learner = build_learner(recipe, config, SpaceSpec.from_json(manifest["spec"]))
        learner.load_training_state(state["learner"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint}: config, spec and weights do not fit together: {error}") from error
    return learner, config


def resolve_device(name: str) -> torch.device:
    """Turn ``cpu``, ``cuda``, ``cuda:N`` or ``auto`` into a device that is there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device = {name!r}: expected cpu, cuda, cuda:N or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device = {name!r}: expected cpu, cuda, cuda:N or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device = {name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def package_version() -> str:
    """Return the installed version of this package."""
    try:
        return version("rl-training")
    except PackageNotFoundError:
        return "unknown"


def _assemble(
    recipe: Recipe,
    config: TrainConfig,
    settings: RunSettings,
    callbacks: Sequence[Callback],
    *,
    run_name: str | None = None,
    run_dir: Path | None = None,
) -> tuple[Trainer, Path]:
    """Build everything a run consists of. Nothing is written until all of it could be built."""
    device = resolve_device(config.device)
    torch.set_num_threads(config.num_threads)
    env = make_env(config.env_id, config.env_kwargs)
    spec = space_spec(env)
    goals = None
    if recipe.hindsight:
        goals = GoalFunctions(env, split_env_kwargs(config.env_kwargs)[0].wrappers.reward)
        spec = space_spec(env, goals)
        _require_room_for_an_episode(env, settings.buffer_capacity)
    try:
        learner = build_learner(recipe, config, spec)
    except ConfigError as error:
        key = "algo_kwargs.backend" if recipe.hindsight else "algo"
        raise ConfigError(f"{key} does not suit env_id = {config.env_id!r}: {error}") from None
    experience: ReplayBuffer | HERReplayBuffer
    if goals is not None and isinstance(settings, HindsightSettings):
        experience = HERReplayBuffer(
            spec,
            settings.buffer_capacity,
            goals,
            settings=settings,
            num_envs=config.num_envs,
            device=device,
            seed=config.seed,
        )
    else:
        env.close()
        experience = ReplayBuffer(spec, settings.buffer_capacity, device=device, seed=config.seed)
    collector = Collector(
        make_vector_env(config.env_id, config.env_kwargs, config.num_envs), learner, settings, config.seed
    )
    evaluator = Evaluator(config.env_id, config.env_kwargs, episodes=config.eval_episodes, seed=config.seed)
    resume_at = None
    if run_dir is None:
        run_dir = _new_run_dir(config, run_name)
    else:
        resume_at = _latest_step(run_dir)
    early = [EarlyStoppingCallback(settings.early_stopping)] if settings.early_stopping is not None else []
    trainer = Trainer(
        name=run_name or config.algo,
        learner=learner,
        experience=experience,
        collector=collector,
        evaluator=evaluator,
        settings=settings,
        batch_size=settings.batch_size,
        total_steps=config.total_timesteps,
        store=CheckpointStore(run_dir, keep=settings.keep_checkpoints),
        logger=MetricsLogger(run_dir, resume_at=resume_at),
        about={
            "package_version": package_version(),
            "config": config.model_dump(mode="json"),
            "spec": spec.to_json(),
        },
        callbacks=[*early, *callbacks],
    )
    return trainer, run_dir


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


def _run(trainer: Trainer, run_dir: Path) -> TrainResult:
    with stop_on_signals(trainer.state):
        trainer.run()
    state = trainer.state
    if state.update_count == 0 and not state.interrupted:
        warnings.warn(
            f"nothing was learned: {state.global_step} steps brought no update (no episode was complete, or"
            " learning_starts, train_frequency and gradient_updates_per_step asked for none)",
            stacklevel=3,
        )
    reason = state.stop_reason or "unknown"
    status = "interrupted" if state.interrupted else "stopped" if reason.startswith("early stopping") else "completed"
    metrics = dict(state.last_evaluation)
    if state.best_score is not None:
        best_success, metrics["best/mean_reward"] = state.best_score
        if "eval/success_rate" in metrics:
            metrics["best/success_rate"] = best_success
    return TrainResult(run_dir, status, reason, state.global_step, state.update_count, metrics)


def _new_run_dir(config: TrainConfig, run_name: str | None) -> Path:
    """Make ``<output_dir>/<name>-s<seed>-<time>`` with the configuration in it."""
    name = re.sub(r"[^\w.-]+", "-", run_name or f"{config.algo}-{config.env_id}")
    stem = f"{name}-s{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        config.output_dir.mkdir(parents=True, exist_ok=True)
        for attempt in range(100):
            run_dir = config.output_dir / (stem if attempt == 0 else f"{stem}-{attempt}")
            if not run_dir.exists():
                run_dir.mkdir()
                (run_dir / "config.yaml").write_text(config.to_yaml())
                return run_dir
    except OSError as error:
        raise ConfigError(f"output_dir = {str(config.output_dir)!r}: cannot be written to: {error}") from None
    raise ConfigError(f"output_dir = {str(config.output_dir)!r}: too many runs named {stem}")


def _latest_step(run_dir: Path) -> int:
    folder = run_dir / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"{run_dir}: there is no checkpoint to resume from")
    return int(read_manifest(resolve_checkpoint(folder))["global_step"])
