"""How a run ends: completed, stopped, interrupted or failed, and what is written of it."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

from rl_training.errors import CheckpointError, NumericalError, RunFailedError
from rl_training.json_output import to_json
from rl_training.runtime.checkpoint_files import write_durably
from rl_training.runtime.checkpointing import CheckpointStore
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.interrupts import stop_on_signals
from rl_training.runtime.trainer import Trainer

RESULT, POST_MORTEM = "result.json", "post_mortem"


def run_to_end(trainer: Trainer, run_dir: Path) -> TrainResult:
    """Run a trainer and write ``result.json``; a run that fails says so there, and keeps what explains it."""
    try:
        (run_dir / RESULT).unlink(missing_ok=True)  # whatever an earlier part of this run said of its end
        with stop_on_signals(trainer.state):
            trainer.run()
    except RunFailedError as error:
        kept = _keep_what_failed(trainer, run_dir, error)
        _write_result(_result(trainer, run_dir, "failed", str(error)))
        raise type(error)(f"{error}. {kept}") from error
    state = trainer.state
    reason = state.stop_reason or "unknown"
    status = "interrupted" if state.interrupted else "stopped" if reason.startswith("early stopping") else "completed"
    if state.update_count == 0 and status == "completed":
        warnings.warn(
            f"nothing was learned: {state.global_step} steps brought no update (no episode was complete, or"
            " learning_starts, train_frequency and gradient_updates_per_step asked for none)",
            stacklevel=3,
        )
    return _write_result(_result(trainer, run_dir, status, reason))


def read_result(run_dir: Path) -> TrainResult | None:
    """Return how a run ended, or None where it did not, or where that cannot be read."""
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


def _keep_what_failed(trainer: Trainer, run_dir: Path, error: RunFailedError) -> str:
    """Save the state of a failed run and say where: apart from the good checkpoints if its numbers are wrong."""
    step = trainer.state.global_step
    if not isinstance(error, NumericalError):
        trainer.save()
        return f"A checkpoint was saved at step {step}: go on with rl-training resume {run_dir}"
    path = CheckpointStore(run_dir / POST_MORTEM, keep=1).save(*trainer.snapshot(), None)
    good = (run_dir / "checkpoints" / "latest").is_file()
    again = f"the checkpoints before it are good: rl-training resume {run_dir}" if good else "no checkpoint precedes it"
    return f"It was step {step}, whose state is kept in {path}; {again}"
