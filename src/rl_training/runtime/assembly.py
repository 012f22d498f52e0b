"""A run put together: its device, its folder, and the trainer of the parts that ``build.py`` makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from rl_training.config import TrainConfig
from rl_training.data import TransitionDataset
from rl_training.errors import ConfigError
from rl_training.runtime.build import build_run
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.checkpoint_files import sync_folder, write_durably
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.free_cores import may_use_free_cores
from rl_training.runtime.heap import keep_freed_memory
from rl_training.runtime.initialization import initialize
from rl_training.runtime.logging import MetricsLogger
from rl_training.runtime.machine import machine_facts, package_version
from rl_training.runtime.run_names import new_run_names
from rl_training.runtime.settings import parse_run
from rl_training.runtime.tracking import TrackedRun, make_trackers
from rl_training.runtime.trainer import Trainer


def assemble(
    config: TrainConfig,
    callbacks: Sequence[Callback],
    dataset: TransitionDataset | None = None,
    *,
    run_name: str | None = None,
    run_dir: Path | None = None,
    new_dir: Path | None = None,
    runs: int = 1,
) -> Trainer:
    """Build the trainer of a run, one of ``runs`` together. Nothing is written before all parts are built."""
    output_dir = Path(config.output_dir).absolute()  # an environment may change the working folder
    new_dir = new_dir.absolute() if new_dir is not None else None
    torch.set_num_threads(config.num_threads)
    device = resolve_device(config.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    settings, trackers = parse_run(config), make_trackers(config.loggers)
    components = build_run(config, settings, device, dataset, runs=runs)
    if run_dir is None:  # a resumed run loads its own weights
        initialize(components.learner, settings)
    run_dir = run_dir or _new_run_dir(config, output_dir, run_name, new_dir)
    early_stopping = settings.loop.early_stopping
    early = [EarlyStoppingCallback(early_stopping)] if early_stopping is not None else []
    trainer = Trainer(
        name=run_name or config.algo,
        components=components,
        settings=settings,
        total_steps=config.total_timesteps,
        store=CheckpointStore(run_dir, keep=settings.loop.keep_checkpoints),
        logger=MetricsLogger(
            run_dir,
            tensorboard="tensorboard" in config.loggers,
            tracked=TrackedRun(run_dir, trackers, config.model_dump(mode="json")),
        ),
        metadata={
            "package_version": package_version(),
            "config": config.model_dump(mode="json"),
            "spec": components.learner.spec.to_json(),
            "machine": machine_facts(components.learner.device),
        },
        callbacks=[*early, *callbacks],
    )
    if device.type == "cpu":
        keep_freed_memory()
        if config.use_free_cores and config.num_threads == 1 and may_use_free_cores():
            trainer.use_free_cores()
    return trainer


def resolve_device(name: str) -> torch.device:
    """Turn ``cpu``, ``cuda``, ``cuda:N`` or ``auto`` into an available device."""
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


def require_longer(config: TrainConfig, trainer: Trainer) -> None:
    """Refuse to resume a run with fewer steps than it has."""
    if config.total_timesteps < (step := trainer.state.global_step):
        raise ConfigError(
            f"total_timesteps = {config.total_timesteps}: the run has {step} steps already; expected more"
        )


def _new_run_dir(config: TrainConfig, output_dir: Path, run_name: str | None, exact: Path | None = None) -> Path:
    """Make ``<output_dir>/<name>-s<seed>-<time>``, or the ``exact`` folder, with the configuration in it."""
    names = new_run_names(config, run_name)
    try:
        for run_dir in [output_dir / name for name in names] if exact is None else [exact]:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            if not run_dir.exists():
                run_dir.mkdir()
                write_durably(run_dir / "config.yaml", config.to_yaml())
                sync_folder(run_dir.parent)
                return run_dir
    except OSError as error:
        where = f"output_dir = {str(config.output_dir)!r}" if exact is None else str(exact)
        raise ConfigError(f"{where}: cannot be written to: {error}") from None
    if exact is not None:
        raise ConfigError(f"{exact}: exists already; expected the path of a new folder")
    raise ConfigError(f"output_dir = {str(config.output_dir)!r}: too many runs named {names[0]}")
