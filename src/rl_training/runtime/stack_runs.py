"""Start and resume a stack of runs, each in its own folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rl_training.config import TrainConfig, differences, load_config
from rl_training.envs.consent import approve, judge_run, mark_own_run
from rl_training.errors import CheckpointError, ConfigError
from rl_training.json_output import to_json
from rl_training.runtime.assembly import assemble, require_longer
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import write_durably
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.outcome import read_result
from rl_training.runtime.remote.local_copy import url_of
from rl_training.runtime.remote.mirror import new_run_folders, run_folder
from rl_training.runtime.run_lock import lock_run
from rl_training.runtime.settings import complete_config, parse_run
from rl_training.runtime.stack import RunStack
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.warning_log import WarningLog, recorded_warnings
from rl_training.urls import Location, join, parent

STACK = "stack.json"
"""The file of a run that names the runs it was trained together with."""


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
    with (
        new_run_folders(configs, run_name, new_dirs) as new_dirs,
        _recorded_for_all(len(configs)) as warning_logs,
    ):
        trainers = []
        for index, config in enumerate(configs):
            new_dir = new_dirs[index] if new_dirs is not None else None
            own_callbacks = callbacks if index == 0 else ()
            trainers.append(assemble(config, own_callbacks, run_name=run_name, new_dir=new_dir, runs=len(configs)))
            mark_own_run(trainers[-1].run_dir, config.env_id)
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


@contextlib.contextmanager
def stack_folder(run_dir: Location) -> Iterator[Path]:
    """Return the folder of a run. If it is at a URL, it is mirrored, and so are the other runs of its stack."""
    with contextlib.ExitStack() as entered:
        folder = entered.enter_context(run_folder(run_dir))
        url = url_of(folder)
        for member in stack_members(folder) if url is not None else ():
            entered.enter_context(run_folder(join(parent(url or ""), member.name)))
        yield folder


def resume_stack(
    run_dir: Location, callbacks: Sequence[Callback] = (), *, overrides: Iterable[str] = ()
) -> list[TrainResult]:
    """Continue all runs of a stack from the newest checkpoint that those have in common which have not ended."""
    with stack_folder(run_dir) as folder:
        return _resume_stack_in(folder.absolute(), list(overrides), callbacks)


def _resume_stack_in(run_dir: Path, overrides: list[str], callbacks: Sequence[Callback]) -> list[TrainResult]:
    folders = stack_members(run_dir)
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
        assemble(config, callbacks if index == 0 else (), run_dir=folder, runs=len(configs))
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
                require_longer(configs[index], trainer)
        for config, folder in zip(configs, folders, strict=True) if changed else ():
            write_durably(folder / "config.yaml", config.to_yaml())
        _attach(warning_logs, trainers, resumed=True)
        return stack.run()


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
