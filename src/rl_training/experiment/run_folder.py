"""Runs in folders that the caller names: start one there, or go on with the run that is there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rl_training.config import TrainConfig, differences, load_config
from rl_training.envs.consent import approve
from rl_training.errors import ConfigError, RunLockedError
from rl_training.experiment.manager import (
    report_is_missing,
    report_run,
    resume_experiment,
    same_working_folder,
    train_experiment,
)
from rl_training.experiment.same_runs import run_identity
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import remove_unstarted_run
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.outcome import read_result
from rl_training.runtime.remote.mirror import mirrored
from rl_training.runtime.run import resume_stack, stack_members, train_stack
from rl_training.runtime.run_lock import is_locked, lock_configuration
from rl_training.urls import Location, parent


def train_in_folder(
    config: TrainConfig,
    run_dir: Location,
    *,
    name: str | None = None,
    progress_bar: bool = False,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Go on with the run in this very folder, or at this URL, or start it there.

    A run that is finished is returned as it ended, unless ``total_timesteps`` is larger now: then it goes on. A folder
    with a run of another configuration is refused. While one process trains there, a second one is refused.
    """
    approve(config.env_id)
    with contextlib.ExitStack() as entered:
        config, run_dir = _enter(entered, config, run_dir)
        entered.enter_context(lock_configuration(run_dir.parent, {"run_dir": run_dir.name}))
        if not run_dir.exists():
            return train_experiment(config, name=name, progress_bar=progress_bar, callbacks=callbacks, new_dir=run_dir)
        if (run_dir / "config.yaml").is_file():
            require_same_run(run_dir, config)
        if not CheckpointStore(run_dir).candidates([]):
            if is_locked(run_dir):
                raise RunLockedError(f"{run_dir}: another process is training this run")
            remove_unstarted_run(run_dir)
            return train_experiment(config, name=name, progress_bar=progress_bar, callbacks=callbacks, new_dir=run_dir)
        result = finished_result(run_dir, config.total_timesteps)
        if result is not None:
            if report_is_missing(run_dir):
                report_run(result)
            return result
        same = load_config(run_dir / "config.yaml").total_timesteps == config.total_timesteps
        changes = [] if same else [f"total_timesteps={config.total_timesteps}"]
        return resume_experiment(run_dir, progress_bar=progress_bar, callbacks=callbacks, overrides=changes)


def _enter(entered: contextlib.ExitStack, config: TrainConfig, run_dir: Location) -> tuple[TrainConfig, Path]:
    """Return the configuration of a run in a folder, and the folder; that of a URL is mirrored until the end."""
    if isinstance(run_dir, Path):
        run_dir = run_dir.absolute()
    config = config.model_copy(update={"output_dir": parent(run_dir)})
    return config, run_dir if isinstance(run_dir, Path) else entered.enter_context(mirrored(run_dir))


def train_stack_in_folders(configs: Sequence[TrainConfig], run_dirs: Sequence[Location]) -> list[TrainResult]:
    """Go on with the stack of runs in these very folders, or start it there, as ``train_in_folder`` for one run."""
    approve(configs[0].env_id)
    with contextlib.ExitStack() as entered:
        pairs = [_enter(entered, config, run_dir) for config, run_dir in zip(configs, run_dirs, strict=True)]
        return _train_stack_there([config for config, _ in pairs], [folder for _, folder in pairs])


def _train_stack_there(configs: Sequence[TrainConfig], run_dirs: list[Path]) -> list[TrainResult]:
    with lock_configuration(run_dirs[0].parent, {"run_dirs": [run_dir.name for run_dir in run_dirs]}):
        pairs = list(zip(run_dirs, configs, strict=True))
        there = [run_dir for run_dir in run_dirs if run_dir.exists()]
        begun = [run_dir for run_dir in there if CheckpointStore(run_dir).candidates([])]
        for run_dir, config in pairs:
            if (run_dir / "config.yaml").is_file():
                require_same_run(run_dir, config)
        for run_dir in begun:
            if stack_members(run_dir) != run_dirs:
                raise ConfigError(f"{run_dir}: its run was not trained in this stack; expected a new folder")
        if len(begun) < len(run_dirs):  # there is no common checkpoint yet
            for run_dir in there:
                if is_locked(run_dir):
                    raise RunLockedError(f"{run_dir}: another process is training this run")
                remove_unstarted_run(run_dir)
            with same_working_folder():
                results = train_stack(configs, new_dirs=run_dirs)
        else:
            ended = [finished_result(run_dir, config.total_timesteps) for run_dir, config in pairs]
            results = [result for result in ended if result is not None]
            if len(results) < len(run_dirs):
                total = configs[0].total_timesteps
                same = all(load_config(run_dir / "config.yaml").total_timesteps == total for run_dir in run_dirs)
                with same_working_folder():
                    results = resume_stack(run_dirs[0], overrides=[] if same else [f"total_timesteps={total}"])
    for result in results:
        report_run(result)
    return results


def finished_result(run_dir: Path, total_timesteps: int) -> TrainResult | None:
    """Return how a run ended, or None if it is not finished, or is complete with fewer steps than that."""
    result = read_result(run_dir)
    if result is None or result.status not in ("completed", "stopped"):
        return None
    if result.status == "completed" and load_config(run_dir / "config.yaml").total_timesteps < total_timesteps:
        return None
    return result


def require_same_run(run_dir: Path, config: TrainConfig) -> None:
    """Refuse a folder whose run differs from ``config`` in more than its number of steps, or has more steps."""
    there, wanted = run_identity(load_config(run_dir / "config.yaml")), config.total_timesteps
    for key, then, now in differences(there, run_identity(config)):
        if key != "total_timesteps":
            raise ConfigError(f"{run_dir}: its run has {key} = {then!r}, not {now!r}; expected a new folder")
    result = read_result(run_dir)
    if result is not None and there["total_timesteps"] > wanted and result.global_step > wanted:
        raise ConfigError(
            f"total_timesteps = {wanted}: the run in {run_dir} has {result.global_step} steps already;"
            " expected as many or more"
        )
