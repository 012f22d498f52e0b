"""Putting a run together from a recipe and a configuration: train, resume, and rebuilding a trained learner."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig, load_config, parse_config
from rl_training.data import TransitionDataset
from rl_training.data.mixture import Mixture
from rl_training.errors import CheckpointError, ConfigError
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.checkpoint_files import read_checkpoint
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.experience import build_parts
from rl_training.runtime.initialization import initialize
from rl_training.runtime.logging import MetricsLogger
from rl_training.runtime.machine import machine_facts, package_version
from rl_training.runtime.outcome import run_to_end
from rl_training.runtime.recipe import OnlineSettings, Recipe
from rl_training.runtime.run_lock import lock_run
from rl_training.runtime.trainer import Trainer
from rl_training.types import SpaceSpec


def train(
    recipe: Recipe,
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    run_name: str | None = None,
    dataset: TransitionDataset | None = None,
) -> TrainResult:
    """Train from the start in a new folder below ``config.output_dir``; a ``dataset`` replaces the one named there."""
    config, settings = complete_config(recipe, config), recipe.settings(config)
    trainer, run_dir = _assemble(recipe, config, settings, callbacks, dataset, run_name=run_name)
    with lock_run(run_dir):
        return run_to_end(trainer, run_dir)


def resume(
    recipe: Recipe, run_dir: Path, *, callbacks: Sequence[Callback] = (), dataset: TransitionDataset | None = None
) -> TrainResult:
    """Go on with a run where its latest checkpoint stands; one on a ``dataset`` in memory needs it again."""
    config = load_config(run_dir / "config.yaml")
    trainer, _ = _assemble(recipe, config, recipe.settings(config), callbacks, dataset, run_dir=run_dir)
    with lock_run(run_dir):
        trainer.restore()
        return run_to_end(trainer, run_dir)


def complete_config(recipe: Recipe, config: TrainConfig) -> TrainConfig:
    """Write every default out: a run's kept configuration then means the same under later versions."""
    return config.model_copy(update={"algo_kwargs": recipe.settings(config).model_dump(mode="json")})


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
        # The policy alone: optimisers and generators belong to training, and to the device it ran on.
        learner.load_state_dict(state["learner"]["module"])
        learner.update_count = int(state["learner"]["update_count"])
    except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
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


def _assemble(
    recipe: Recipe,
    config: TrainConfig,
    settings: Any,
    callbacks: Sequence[Callback],
    dataset: TransitionDataset | None = None,
    *,
    run_name: str | None = None,
    run_dir: Path | None = None,
) -> tuple[Trainer, Path]:
    """Build everything a run consists of. Nothing is written until all of it could be built."""
    torch.set_num_threads(config.num_threads)
    parts = build_parts(recipe, config, settings, resolve_device(config.device), dataset)
    if run_dir is None:  # a run that is resumed has weights of its own
        initialize(parts.learner, config, settings)
    evaluator = None
    if config.env_id is not None:
        evaluator = Evaluator(
            config.env_id,
            config.env_kwargs,
            episodes=config.eval_episodes,
            seed=config.seed,
            reference=settings.reference_scores,
        )
    elif settings.early_stopping is not None:
        raise ConfigError("algo_kwargs.early_stopping looks at evaluations: expected an env_id to evaluate in")
    else:
        warnings.warn("no env_id: nothing will be evaluated, and there is no best checkpoint", stacklevel=3)
    run_dir = run_dir or _new_run_dir(config, run_name)
    early = [EarlyStoppingCallback(settings.early_stopping)] if settings.early_stopping is not None else []
    trainer = Trainer(
        name=run_name or config.algo,
        **parts._asdict(),
        evaluator=evaluator,
        settings=settings,
        collection=settings if isinstance(settings, OnlineSettings) else None,
        prior=settings if isinstance(parts.experience, Mixture) else None,
        starts_trained=settings.init_from is not None,
        batch_size=settings.batch_size,
        total_steps=config.total_timesteps,
        store=CheckpointStore(run_dir, keep=settings.keep_checkpoints),
        logger=MetricsLogger(run_dir),
        about={
            "package_version": package_version(),
            "config": config.model_dump(mode="json"),
            "spec": parts.learner.spec.to_json(),
            "machine": machine_facts(parts.learner.device),
        },
        callbacks=[*early, *callbacks],
    )
    return trainer, run_dir


def _new_run_dir(config: TrainConfig, run_name: str | None) -> Path:
    """Make ``<output_dir>/<name>-s<seed>-<time>`` with the configuration in it."""
    name = re.sub(r"[^\w.-]+", "-", run_name or f"{config.algo}-{config.env_id or 'offline'}")
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
