"""Runs: start one, resume one, and load its learner."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import torch

from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig, differences, load_config, parse_config
from rl_training.data import TransitionDataset
from rl_training.envs.consent import approve, judge_run, mark_own_run
from rl_training.errors import CheckpointError, ConfigError
from rl_training.json_output import to_json
from rl_training.runtime.build import build_learner, build_run
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.checkpoint_files import read_checkpoint, sync_folder, write_durably
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.free_cores import may_use_free_cores
from rl_training.runtime.heap import keep_freed_memory
from rl_training.runtime.initialization import initialize
from rl_training.runtime.logging import MetricsLogger
from rl_training.runtime.machine import machine_facts, package_version
from rl_training.runtime.outcome import read_result, run_to_end
from rl_training.runtime.run_lock import lock_run
from rl_training.runtime.settings import ConfigSource, complete_config, parse_run, read_config
from rl_training.runtime.stack import RunStack
from rl_training.runtime.tracking import TrackedRun, make_trackers
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.warning_log import WarningLog, recorded_warnings
from rl_training.types import SpaceSpec

TrainFunction = Callable[..., TrainResult]

STACK = "stack.json"
"""The file of a run that names the runs it was trained together with."""


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
    with recorded_warnings() as warning_log:
        trainer, run_dir = _assemble(config, callbacks, dataset, run_name=run_name, new_dir=new_dir)
        mark_own_run(run_dir, config.env_id)
        with lock_run(run_dir):
            warning_log.attach(run_dir, lambda: trainer.state.global_step)
            return run_to_end(trainer, run_dir)


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
    run_dir: Path,
    callbacks: Sequence[Callback] = (),
    *,
    overrides: Iterable[str] = (),
    dataset: TransitionDataset | None = None,
) -> TrainResult:
    """Continue a run from its latest checkpoint.

    Args:
        run_dir: the run's folder.
        callbacks: called by the loop.
        overrides: ``key.path=value`` changes of the configuration, such as ``total_timesteps=20000``. They are stored
            in the run's ``config.yaml`` once the checkpoint has been loaded with them.
        dataset: offline data in memory, if the run was started with such data.
    """
    overrides, run_dir = list(overrides), run_dir.absolute()  # an environment may change the working folder
    config = load_config(run_dir / "config.yaml", overrides)
    judge_run(run_dir, config.env_id)
    with contextlib.ExitStack() as stack:
        warning_log = stack.enter_context(recorded_warnings())
        trainer, _ = _assemble(config, callbacks, dataset, run_dir=run_dir)
        stack.enter_context(lock_run(run_dir))
        trainer.restore()
        warning_log.attach(run_dir, lambda: trainer.state.global_step, resumed=True)
        if overrides:
            _require_longer(config, trainer)
            write_durably(run_dir / "config.yaml", config.to_yaml())
        return run_to_end(trainer, run_dir)


def train_stack(
    configs: Sequence[TrainConfig],
    callbacks: Sequence[Callback] = (),
    *,
    run_name: str | None = None,
    new_dirs: Sequence[Path] | None = None,
) -> list[TrainResult]:
    """Train several runs together on one device, each in a new folder; ``callbacks`` follow the first run.

    The configurations may differ in their seeds and in numbers that change no shape, such as learning rates.
    ``new_dirs`` are the folders themselves, which must not exist; unset: they get names of their own.
    """
    configs = [complete_config(config) for config in configs]
    _require_same(configs)
    if configs[0].num_workers:
        raise ConfigError(
            f"num_workers = {configs[0].num_workers}: a stack of runs collects in one process; expected 0, or one run"
            " after another (--no-stack)"
        )
    approve(configs[0].env_id)
    with _recorded_for_all(len(configs)) as warning_logs:
        trainers = []
        for index, config in enumerate(configs):
            new_dir = new_dirs[index] if new_dirs is not None else None
            trainer, run_dir = _assemble(config, callbacks if index == 0 else (), run_name=run_name, new_dir=new_dir)
            mark_own_run(run_dir, config.env_id)
            trainers.append(trainer)
        members = [trainer.run_dir.name for trainer in trainers]
        for trainer in trainers:
            write_durably(trainer.run_dir / STACK, to_json({"members": members}, indent=1) + "\n")
        stack = RunStack(trainers)
        with _locked(trainers):
            _attach(warning_logs, trainers)
            return stack.run()


def stack_members(run_dir: Path) -> list[Path]:
    """Return the folders of the stack that a run belongs to, itself included; empty if it was trained alone."""
    try:
        names = json.loads((run_dir / STACK).read_text(encoding="utf-8"))["members"]
        folders = [run_dir.parent / Path(str(name)).name for name in names]
    except FileNotFoundError:
        return []
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{run_dir / STACK}: cannot be read: {error}") from None
    return folders


def resume_stack(
    run_dir: Path, callbacks: Sequence[Callback] = (), *, overrides: Iterable[str] = ()
) -> list[TrainResult]:
    """Continue all runs of a stack from the newest checkpoint that those have in common which have not ended."""
    overrides, folders = list(overrides), [folder.absolute() for folder in stack_members(run_dir.absolute())]
    missing = [folder for folder in folders if not (folder / "config.yaml").is_file()]
    if missing:
        raise CheckpointError(f"{run_dir}: the run was trained together with {missing[0]}, which is not there")
    configs = [load_config(folder / "config.yaml", overrides) for folder in folders]
    for folder, config in zip(folders, configs, strict=True):
        judge_run(folder, config.env_id)
    with _recorded_for_all(len(configs)) as warning_logs:
        return _resume_stack(run_dir, configs, folders, callbacks, warning_logs, changed=bool(overrides))


def _resume_stack(
    run_dir: Path,
    configs: Sequence[TrainConfig],
    folders: Sequence[Path],
    callbacks: Sequence[Callback],
    warning_logs: Sequence[WarningLog],
    *,
    changed: bool,
) -> list[TrainResult]:
    """Restore the runs of a stack and go on; ``changed`` configurations are stored."""
    parts = zip(configs, folders, strict=True)
    trainers = [
        _assemble(config, callbacks if index == 0 else (), run_dir=folder)[0]
        for index, (config, folder) in enumerate(parts)
    ]
    outcomes = [read_result(folder) for folder in folders]
    ended = {i for i, result in enumerate(outcomes) if result is not None and result.status in ("stopped", "failed")}
    going_on = [trainer for index, trainer in enumerate(trainers) if index not in ended]
    common = set[tuple[int, int]].intersection(*(trainer.store.orders() for trainer in going_on)) if going_on else set()
    if going_on and not common:
        raise CheckpointError(f"{run_dir}: the runs of its stack have no checkpoint in common to resume from")
    stack = RunStack(trainers, ended)
    with _locked(trainers):
        for index, trainer in enumerate(trainers):
            trainer.restore(None if index in ended else max(common))
            if changed:
                _require_longer(configs[index], trainer)
        for config, folder in zip(configs, folders, strict=True) if changed else ():
            write_durably(folder / "config.yaml", config.to_yaml())
        _attach(warning_logs, trainers, resumed=True)
        return stack.run()


def _require_longer(config: TrainConfig, trainer: Trainer) -> None:
    """Refuse to resume a run with fewer steps than it has."""
    if config.total_timesteps < (step := trainer.state.global_step):
        raise ConfigError(
            f"total_timesteps = {config.total_timesteps}: the run has {step} steps already; expected more"
        )


@contextlib.contextmanager
def _recorded_for_all(count: int) -> Iterator[list[WarningLog]]:
    with contextlib.ExitStack() as logs:
        yield [logs.enter_context(recorded_warnings()) for _ in range(count)]


def _attach(logs: Sequence[WarningLog], trainers: Sequence[Trainer], *, resumed: bool = False) -> None:
    for log, trainer in zip(logs, trainers, strict=True):
        log.attach(trainer.run_dir, partial(getattr, trainer.state, "global_step"), resumed=resumed)


@contextlib.contextmanager
def _locked(trainers: Sequence[Trainer]) -> Iterator[None]:
    with contextlib.ExitStack() as locks:
        for trainer in trainers:
            locks.enter_context(lock_run(trainer.run_dir))
        yield


def _require_same(configs: Sequence[TrainConfig]) -> None:
    """Refuse members of a stack that differ in more than seeds and numbers of the learner, hindsight and exploration.

    The runs of a stack take the same steps and updates, so all settings of the loop must be the same.
    """
    settings = parse_run(configs[0])
    groups = settings.learner, settings.hindsight, settings.exploration, settings.rewards
    free = {key for group in groups for key in type(group).model_fields}
    first = configs[0].model_dump(mode="json")
    for config in configs[1:]:
        for key, one, other in differences(first, config.model_dump(mode="json")):
            name = key.removeprefix("algo_kwargs.")
            numbers = (type(one) is float and type(other) is float) or name == "n_sampled_goal"  # a ratio in disguise
            if key != "seed" and not (numbers and name in free):
                raise ConfigError(f"{key} = {one!r} and {other!r}: runs of one stack must have the same {key}")


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


def _assemble(
    config: TrainConfig,
    callbacks: Sequence[Callback],
    dataset: TransitionDataset | None = None,
    *,
    run_name: str | None = None,
    run_dir: Path | None = None,
    new_dir: Path | None = None,
) -> tuple[Trainer, Path]:
    """Build the trainer of a run. Nothing is written before all parts are built."""
    output_dir = config.output_dir.absolute()  # an environment may change the working folder
    new_dir = new_dir.absolute() if new_dir is not None else None
    torch.set_num_threads(config.num_threads)
    device = resolve_device(config.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if config.precision == "fp32" else "high")
    settings, trackers = parse_run(config), make_trackers(config.loggers)
    components = build_run(config, settings, device, dataset)
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
    return trainer, run_dir


def _new_run_dir(config: TrainConfig, output_dir: Path, run_name: str | None, exact: Path | None = None) -> Path:
    """Make ``<output_dir>/<name>-s<seed>-<time>``, or the ``exact`` folder, with the configuration in it."""
    name = re.sub(r"[^\w.=+-]+", "-", run_name or f"{config.algo}-{config.env_id or 'offline'}")
    stem = f"{name}-s{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    tries = [f"{stem}-{attempt}" if attempt else stem for attempt in range(100)]
    try:
        for run_dir in [output_dir / attempt for attempt in tries] if exact is None else [exact]:
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
    raise ConfigError(f"output_dir = {str(config.output_dir)!r}: too many runs named {stem}")
