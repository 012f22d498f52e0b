"""How a run ends: completed, stopped, interrupted or failed, and the files that are written then."""

from __future__ import annotations

import contextlib
import json
import math
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym

from rl_training.envs.guarded import describe
from rl_training.errors import CheckpointError, EnvFailedError, NumericalError, RLTrainingError, RunFailedError
from rl_training.interrupts import stop_on_signals
from rl_training.json_output import to_json
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import write_durably
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.controls import INTERRUPTED, TrainResult
from rl_training.runtime.run_state import snapshot
from rl_training.runtime.trainer import Trainer

RESULT, TRACEBACK, POST_MORTEM = "result.json", "traceback.txt", "post_mortem"

_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = [Path(folder) for folder in {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))}]


def run_to_end(trainer: Trainer) -> TrainResult:
    """Run a trainer and write ``result.json``.

    A run that fails keeps a checkpoint, ``result.json`` with status ``failed`` and the traceback in ``traceback.txt``.
    """
    state = trainer.state
    remove_old_outcome(trainer.run_dir)
    with recorded_failure(trainer), stop_on_signals(lambda name: state.stop(f"{INTERRUPTED} by {name}")):
        trainer.run()
    return finished(trainer)


def remove_old_outcome(run_dir: Path) -> None:
    """Remove what an earlier part of this run said about its end."""
    try:
        for name in (RESULT, TRACEBACK):
            (run_dir / name).unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{run_dir}: cannot be written to: {error.strerror}") from error


@contextlib.contextmanager
def recorded_failure(trainer: Trainer) -> Iterator[None]:
    """Write down a failure of a run in its folder, keep a checkpoint if that makes sense, and raise it again."""
    run_dir = trainer.run_dir
    try:
        yield
    except CheckpointError:
        raise  # the disk is full or gone, so nothing more can be written
    except RLTrainingError as error:
        error.args = (_record_failure(trainer, run_dir, error, str(error), keep=True),)
        raise
    except (Exception, SystemExit) as error:  # callbacks, rewards and other foreign code may raise anything
        culprit = _culprit(error)
        message = f"{culprit or 'training'} failed with {describe(error)}"
        raise RunFailedError(_record_failure(trainer, run_dir, error, message, keep=culprit is not None)) from error


def finished(trainer: Trainer) -> TrainResult:
    """Write the result of a run that has not failed, and return it."""
    state, run_dir = trainer.state, trainer.run_dir
    reason = state.stop_reason or "unknown"
    status = "interrupted" if state.interrupted else "stopped" if reason.startswith("early stopping") else "completed"
    if state.update_count == 0 and status == "completed":
        warnings.warn(
            f"nothing was learned: there was no update in {state.global_step} steps (no episode was complete, or"
            " learning_starts, train_frequency and gradient_updates_per_step allowed none)",
            stacklevel=3,
        )
    return _write_result(_result(trainer, run_dir, status, reason))


def read_result(run_dir: Path) -> TrainResult | None:
    """Return how a run ended, or None if it did not end or its result cannot be read."""
    try:
        values = json.loads((run_dir / RESULT).read_text(encoding="utf-8"))
        metrics = {name: math.nan if value is None else float(value) for name, value in values["metrics"].items()}
        return TrainResult(**{**values, "run_dir": run_dir, "metrics": metrics})
    except (AttributeError, LookupError, OSError, OverflowError, RecursionError, TypeError, ValueError):
        return None


def _result(trainer: Trainer, run_dir: Path, status: str, reason: str) -> TrainResult:
    state = trainer.state
    metrics = dict(state.last_evaluation)
    if state.best_score is not None:
        best_success, metrics["best/mean_reward"] = state.best_score
        if "eval/success_rate" in metrics:
            metrics["best/success_rate"] = best_success
    return TrainResult(run_dir, status, reason, state.global_step, state.update_count, metrics)


def _write_result(result: TrainResult) -> TrainResult:
    file = result.run_dir / RESULT
    try:
        write_durably(file, to_json(result.to_json(), indent=1) + "\n")
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be written: {error.strerror}") from error
    return result


def _record_failure(trainer: Trainer, run_dir: Path, error: BaseException, message: str, *, keep: bool) -> str:
    """Write the result and the traceback of a failed run, and return the whole message; ``keep`` saves a checkpoint."""
    if isinstance(error, NumericalError):
        kept = _post_mortem(trainer, run_dir)
    else:
        kept = _save(trainer, run_dir) if keep else _earlier(run_dir)
    trace = error.trace if isinstance(error, EnvFailedError) else ""
    with contextlib.suppress(OSError):
        text = "".join([trace, *traceback.format_exception(type(error), error, error.__traceback__)])
        (run_dir / TRACEBACK).write_text(text, encoding="utf-8", errors="backslashreplace")
        kept += f". The traceback is in {run_dir / TRACEBACK}"
    _write_result(_result(trainer, run_dir, "failed", message))
    return f"{message}. {kept}"


def _save(trainer: Trainer, run_dir: Path) -> str:
    """Save a checkpoint of a failed run whose numbers are finite, and return a sentence about it."""
    try:
        trainer.save()
    except Exception as error:  # the state of a callback, or a full disk
        return f"No checkpoint could be saved: {describe(error)}; {_earlier(run_dir)}"
    return f"A checkpoint was saved at step {trainer.state.global_step}: continue with rl-training resume {run_dir}"


def _post_mortem(trainer: Trainer, run_dir: Path) -> str:
    """Save a state with wrong numbers apart from the intact checkpoints, and return a sentence about it."""
    path = CheckpointStore(run_dir / POST_MORTEM, keep=1).save(*snapshot(trainer), None)
    return f"This was step {trainer.state.global_step}. Its state is kept in {path}; {_earlier(run_dir)}"


def _earlier(run_dir: Path) -> str:
    good = (run_dir / "checkpoints" / "latest").is_file()
    return f"earlier checkpoints are intact: rl-training resume {run_dir}" if good else "there is no earlier checkpoint"


def _culprit(error: BaseException) -> str | None:
    """Return whose code this package called when an error was raised, or None if it was its own or a library's."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file, owner = Path(frame.f_code.co_filename), frame.f_locals.get("self")
        if isinstance(owner, Callback):
            return f"callback {type(owner).__name__}"
        if _PACKAGE in file.parents:
            continue
        if isinstance(owner, gym.Env):
            return f"environment {type(owner.unwrapped).__name__}"
        if not any(folder in file.parents for folder in _LIBRARIES):
            return f"{frame.f_code.co_name} in {file}"
    return None
