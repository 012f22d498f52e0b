"""Runs: start one, resume one, and load its learner. ``stack_runs.py`` does so for several runs together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig, load_config, parse_config
from rl_training.data import TransitionDataset
from rl_training.envs.consent import approve, judge_run, mark_own_run
from rl_training.errors import CheckpointError
from rl_training.runtime.assembly import assemble, require_longer, resolve_device
from rl_training.runtime.build import build_learner
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import read_checkpoint, write_durably
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.outcome import run_to_end
from rl_training.runtime.remote.mirror import new_run_folders, run_folder
from rl_training.runtime.run_lock import lock_run
from rl_training.runtime.settings import ConfigSource, complete_config, parse_run, read_config
from rl_training.runtime.stack_runs import resume_stack, stack_folder, stack_members, train_stack
from rl_training.runtime.warning_log import recorded_warnings
from rl_training.types import SpaceSpec
from rl_training.urls import Location

__all__ = [
    "TrainFunction",
    "load_learner",
    "resolve_device",
    "resume",
    "resume_stack",
    "stack_folder",
    "stack_members",
    "train",
    "train_function",
    "train_stack",
]

TrainFunction = Callable[..., TrainResult]


def train(
    config: ConfigSource,
    callbacks: Sequence[Callback] = (),
    *,
    run_name: str | None = None,
    dataset: TransitionDataset | None = None,
    new_dir: Path | None = None,
) -> TrainResult:
    """Train from the start in a new folder below ``output_dir``.

    Args:
        config: a ``TrainConfig``, a mapping with its keys, a preset's name, or a YAML file.
        callbacks: called by the loop.
        run_name: the name of the run's folder; unset: the algorithm and the environment.
        dataset: offline data in memory; it replaces what the configuration names.
        new_dir: the run's folder itself, which must not exist; unset: one with a name of its own.
    """
    config = complete_config(read_config(config))
    approve(config.env_id)
    new_dirs = None if new_dir is None else [new_dir]
    with new_run_folders([config], run_name, new_dirs) as folders, recorded_warnings() as warning_log:
        new_dir = None if folders is None else folders[0]
        trainer = assemble(config, callbacks, dataset, run_name=run_name, new_dir=new_dir)
        mark_own_run(trainer.run_dir, config.env_id)
        with lock_run(trainer.run_dir):
            warning_log.attach(trainer.run_dir, lambda: trainer.state.global_step)
            return run_to_end(trainer)


def train_function(algo: str) -> TrainFunction:
    """Return ``train`` for one algorithm; a configuration of another one is refused."""

    def train_algorithm(
        config: ConfigSource, callbacks: Sequence[Callback] = (), *, dataset: TransitionDataset | None = None
    ) -> TrainResult:
        return train(read_config(config, algo=algo), callbacks, dataset=dataset)

    train_algorithm.__name__ = train_algorithm.__qualname__ = f"train_{algo}"
    train_algorithm.__doc__ = (
        f"Train ``{algo}`` in a new run folder, from a ``TrainConfig``, a mapping, a preset or a YAML file."
    )
    return train_algorithm


def resume(
    run_dir: Location,
    callbacks: Sequence[Callback] = (),
    *,
    overrides: Iterable[str] = (),
    dataset: TransitionDataset | None = None,
) -> TrainResult:
    """Continue a run from its latest checkpoint.

    Args:
        run_dir: the run's folder, or its URL.
        callbacks: called by the loop.
        overrides: ``key.path=value`` changes of the configuration, such as ``total_timesteps=20000``. They are stored
            in the run's ``config.yaml`` once the checkpoint has been loaded with them.
        dataset: offline data in memory, if the run was started with such data.
    """
    overrides = list(overrides)
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(run_folder(run_dir)).absolute()  # an environment may change the working folder
        config = load_config(run_dir / "config.yaml", overrides)
        judge_run(run_dir, config.env_id)
        warning_log = stack.enter_context(recorded_warnings())
        trainer = assemble(config, callbacks, dataset, run_dir=run_dir)
        stack.enter_context(lock_run(run_dir))
        trainer.restore()
        warning_log.attach(run_dir, lambda: trainer.state.global_step, resumed=True)
        if overrides:
            require_longer(config, trainer)
            write_durably(run_dir / "config.yaml", config.to_yaml())
        return run_to_end(trainer)


def load_learner(checkpoint: Path, device: str = "cpu") -> tuple[Learner, TrainConfig]:
    """Rebuild the learner of a checkpoint, without its environment, and the configuration it was trained with."""
    manifest, state = read_checkpoint(checkpoint, part="learner")
    try:
        config = parse_config({**manifest["config"], "device": device}, where=str(checkpoint / "manifest.json"))
        judge_run(checkpoint, config.env_id)
        spec = SpaceSpec.from_json(manifest["spec"])
        learner = build_learner(config, parse_run(config), spec, resolve_device(device))
        # Load only the networks: optimisers and generators belong to training, and to the device it ran on.
        learner.load_state_dict(state["learner"]["module"])
        learner.update_count = int(state["learner"]["update_count"])
    except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint}: config, spec and weights do not fit together: {error}") from error
    return learner, config
