"""Check, on a user's own run, that resuming it is exact."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.config import TrainConfig, differences, parse_config
from rl_training.envs.consent import judge_run
from rl_training.envs.factory import make_env
from rl_training.envs.goals import flatten_goal_observation
from rl_training.envs.play import play
from rl_training.errors import CheckpointError, DamagedCheckpointError
from rl_training.interrupts import Interrupted
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import read_manifest
from rl_training.runtime.checkpointing import CheckpointStore, read_whole, resolve_checkpoint
from rl_training.runtime.controls import INTERRUPTED
from rl_training.runtime.run import resume
from rl_training.runtime.trainer import Trainer
from rl_training.tools.comparison import full_state, state_differences, state_hash

_STRETCH = 400
"""Steps that are run twice if two checkpoints cannot be compared."""


@dataclass(frozen=True)
class Verification:
    """The result of running part of a run again."""

    run_dir: Path
    method: str
    """``checkpoints``: from one to the next again; ``stretch``: beyond the newest one, straight and with a stop."""
    start: str
    """The checkpoint that was resumed."""
    end: str
    """Where the two states were compared."""
    sha256: str
    """Hash of the expected state: weights, optimisers, replay, counters, generators."""
    differences: tuple[str, ...]
    reasons: tuple[str, ...]
    damage: tuple[str, ...] = ()
    """The problems of newer checkpoints, which were skipped."""

    @property
    def grade(self) -> str:
        """``exact`` or ``different``."""
        return "different" if self.differences else "exact"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {"run_dir": str(self.run_dir), "grade": self.grade, **{**asdict(self), "run_dir": str(self.run_dir)}}


def verify_run(run_dir: Path) -> Verification:
    """Resume a copy of a run from its last checkpoint but one and compare the result with the last one.

    If there are not two of one configuration, a stretch beyond the newest checkpoint is run twice: straight, and with a
    stop and a resume in the middle. The run itself is only read. Damaged checkpoints are named and skipped.
    """
    run_dir = run_dir.absolute()  # an environment may change the working folder
    newest, damage = _newest_intact(run_dir)
    judge_run(run_dir, read_manifest(newest[0])["config"].get("env_id"))  # before the run is copied
    if damage:
        warnings.warn(f"{'; '.join(damage)}; verifying {newest[0].name}, the newest intact one", stacklevel=2)
    found = None
    if len(newest) == 2:
        end, start = newest
        before, after = read_manifest(start), read_manifest(end)
        if not differences(before["config"], after["config"]):
            found = _between(run_dir, start, end)
    return replace(found or _beyond(run_dir, newest[0]), damage=tuple(damage))


def _between(run_dir: Path, start: Path, end: Path) -> Verification:
    manifest = read_manifest(end)
    config = parse_config(manifest["config"], where=str(end))
    with _temporary_folder() as folder:
        copy = _copy(run_dir / "replay", start, config, folder)
        _continue_run(copy, config, manifest["global_step"], manifest["update_count"])
        again = resolve_checkpoint(copy / "checkpoints")
        expected, found = full_state(end), full_state(again)
        unlike = state_differences(expected, found)
        reasons = _reasons(config, manifest, read_manifest(again)) if unlike else []
    return Verification(
        run_dir, "checkpoints", start.name, end.name, state_hash(expected), tuple(unlike), tuple(reasons)
    )


def _beyond(run_dir: Path, start: Path) -> Verification:
    manifest = read_manifest(start)
    step, config = manifest["global_step"], parse_config(manifest["config"], where=str(start))
    # Both sides get this budget, so that a finished run can be continued for a while.
    budget = {"total_timesteps": step + max(_STRETCH, 2 * config.num_envs)}
    config = config.model_copy(update={**budget, "algo_kwargs": {**config.algo_kwargs, "max_updates": None}})
    with _temporary_folder() as folder:
        straight = _copy(run_dir / "replay", start, config, folder / "straight")
        broken = _copy(straight / "replay", start, config, folder / "broken")
        _continue_run(straight, config)
        _continue_run(broken, config, step + (config.total_timesteps - step) // 2)
        _continue_run(broken, config)
        end, again = (resolve_checkpoint(copy / "checkpoints") for copy in (straight, broken))
        expected, found = full_state(end), full_state(again)
        unlike = state_differences(expected, found)
        reasons = _reasons(config, read_manifest(end), read_manifest(again)) if unlike else []
        return Verification(
            run_dir, "stretch", start.name, end.name, state_hash(expected), tuple(unlike), tuple(reasons)
        )


class _StopAt(Callback):
    """Stops a run, as a signal would, at the step and update of a checkpoint."""

    def __init__(self, global_step: int, update_count: int) -> None:
        self.target = (global_step, update_count)

    def on_step(self, trainer: Trainer) -> None:
        if trainer.state.global_step >= self.target[0] and trainer.state.update_count >= self.target[1]:
            trainer.state.stop(f"{INTERRUPTED} by verification")


def _continue_run(copy: Path, config: TrainConfig, step: int | None = None, updates: int = 0) -> None:
    """Resume a copy until it is done, or has reached ``step``."""
    stop = [] if step is None else [_StopAt(step, updates)]
    result = resume(copy, stop)
    if result.status == "interrupted" and "verification" not in result.stop_reason:
        raise Interrupted(result.stop_reason.rpartition(" ")[2])  # a signal interrupted the verification


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        folder = tempfile.mkdtemp(prefix="rl-training-verify-")
    except OSError as error:
        raise CheckpointError(f"--verify needs a temporary folder, which cannot be made: {error}") from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _newest_intact(run_dir: Path) -> tuple[list[Path], list[str]]:
    """Return up to two checkpoints, the newest first, and the problems of those that were skipped."""
    found: list[Path] = []
    damage: list[str] = []
    for path in CheckpointStore(run_dir).candidates(damage):
        try:
            read_whole(path)
        except DamagedCheckpointError as error:
            damage.append(str(error))
            continue
        found.append(path)
        if len(found) == 2:
            break
    if not found:
        raise CheckpointError(f"{run_dir}: there is no checkpoint to verify{': ' if damage else ''}{'; '.join(damage)}")
    return found, damage


def _copy(segments: Path, checkpoint: Path, config: TrainConfig, target: Path) -> Path:
    """Make a run folder that consists of ``checkpoint`` and of its replay segments, taken from the folder ``segments``.

    Segments never change, so they are hard links where the file system allows it, and copies otherwise.
    """
    folder, replay = target / "checkpoints", target / "replay"
    try:
        folder.mkdir(parents=True)
        replay.mkdir()
        shutil.copytree(checkpoint, folder / checkpoint.name)
        (folder / "latest").write_text(checkpoint.name + "\n")
        for segment in read_manifest(checkpoint)["segments"]:
            name = Path(segment["name"]).name
            try:
                os.link(segments / name, replay / name)
            except OSError:
                shutil.copyfile(segments / name, replay / name)
        untracked = config.model_copy(update={"loggers": ("csv",)})  # no tracking service may see the copy
        (target / "config.yaml").write_text(untracked.to_yaml(), encoding="utf-8")
    except OSError as error:  # shutil.Error is one, too
        raise CheckpointError(f"{target}: --verify needs a copy of the run, which cannot be written: {error}") from None
    return target


def _reasons(config: TrainConfig, then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the reasons why a run did not repeat itself, as far as they are known."""
    reasons = [
        f"{key} is {after or 'missing'}, and was {before or 'missing'} when the checkpoint was written"
        for key, before, after in differences(then.get("machine", {}), now.get("machine", {}))
    ]
    if config.num_workers:
        reasons.append(f"num_workers = {config.num_workers}: the order in which episodes arrive is not repeated")
    if config.env_id is not None and not _repeats(config.env_id, config.env_kwargs, config.seed):
        reasons.append(f"{config.env_id} is not deterministic: the same seed and actions give other observations")
    return reasons or [
        "not found: versions, device and threads are the same, and the environment is deterministic over 200 steps"
    ]


def _repeats(env_id: str, env_kwargs: dict[str, Any], seed: int, steps: int = 200) -> bool:
    """Play the same actions from the same seed twice and return whether the results are equal."""
    one, two = (_random_steps(env_id, env_kwargs, seed, steps) for _ in range(2))
    return np.array_equal(one, two, equal_nan=True)


def _random_steps(env_id: str, env_kwargs: dict[str, Any], seed: int, steps: int) -> NDArray[np.float64]:
    """Return the observations, rewards and terminations of random play, one after another."""
    rows: list[Any] = []
    with contextlib.closing(make_env(env_id, env_kwargs)) as env:
        env.action_space.seed(seed)
        played = play(env, lambda _: env.action_space.sample(), itertools.repeat(seed))
        for step in itertools.islice(played, steps):
            observation = step.observation
            flat = flatten_goal_observation(observation) if isinstance(observation, dict) else observation
            rows += [*np.ravel(flat), step.reward, step.terminated]
    return np.asarray(rows, dtype=np.float64)
