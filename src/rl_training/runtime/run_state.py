"""What the checkpoint of a run holds, and how a run is restored from it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from rl_training.config import differences
from rl_training.errors import CheckpointError, DatasetError

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.trainer import Trainer


def snapshot(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state of a run, without replay rows, and the metadata of its manifest."""
    state = {
        "learner": trainer.learner.training_state(),
        "experience": trainer.experience.state_dict(with_rows=False),
        "collector": trainer.collector.state_dict() if trainer.collector is not None else {},
        "trainer": {
            "state": trainer.state.state_dict(),
            **trainer.train_metrics.state_dict(),
            "callbacks": {name: callback.state_dict() for name, callback in _named_callbacks(trainer).items()},
        },
    }
    counters = {"global_step": trainer.state.global_step, "update_count": trainer.state.update_count}
    return state, {**trainer.metadata, **counters}


def restore_run(trainer: Trainer, last: tuple[int, int] | None) -> None:
    """Load the newest checkpoint that is intact, and discard those after it.

    ``last`` names the newest checkpoint that counts, by its steps and updates.
    """
    state, manifest = trainer.store.load_newest_intact(last)
    then, now = manifest["config"].get("seed"), trainer.metadata["config"]["seed"]
    edited_seed = f"seed = {now} in config.yaml, the checkpoint has {then}" if then != now else ""
    try:
        changed = _load(trainer, state)
    except DatasetError as error:
        reason = f" ({edited_seed})" if edited_seed else ""
        raise DatasetError(f"{trainer.settings.dataset.source}: {error}{reason}") from None
    except (AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        edited = differences(manifest["config"], trainer.metadata["config"])
        reason = "; ".join(f"{key} = {now!r}, the checkpoint has {then!r}" for key, then, now in edited)
        raise CheckpointError(f"the checkpoint does not fit config.yaml: {reason or error}") from error
    trainer.store.discard_newer()
    if changed and trainer.replay is not None:
        for index in changed:
            trainer.replay.discard_open_episode(index)
    idle_then, idle_now = (spec.get("idle_actions", ()) for spec in (manifest["spec"], trainer.metadata["spec"]))
    if manifest["config"]["algo_kwargs"].get("entropy_per_action") is not None and list(idle_then) != list(idle_now):
        warnings.warn(
            f"the components of the action without effect were {list(idle_then)} and are {list(idle_now)} now, so the"
            " target entropy differs: this resume is not exact",
            stacklevel=3,
        )
    if edited_seed:
        warnings.warn(f"{edited_seed}: this resume is not exact", stacklevel=3)
    elif changed:
        warnings.warn(
            f"environments {changed} did not repeat their unfinished episode, so they are not deterministic: this"
            " resume is not exact, and a new episode was started there",
            stacklevel=3,
        )


def _load(trainer: Trainer, state: dict[str, Any]) -> list[int]:
    """Load the state into the parts of a run; return the environments that did not repeat their open episode."""
    trainer.learner.load_training_state(state["learner"])
    if (trainer.mixture is not None) != ("prior" in state["experience"]):
        started, now = ("with", "without") if "prior" in state["experience"] else ("without", "with")
        raise DatasetError(
            f"the run was started {started} offline data and is resumed {now}: expected the same (dataset=)"
        )
    trainer.experience.load_state_dict(state["experience"])
    if trainer.replay is not None:
        trainer.store.load_rows(trainer.replay.ring)
    trainer.state.load_state_dict(state["trainer"]["state"])
    trainer.train_metrics.load_state_dict(state["trainer"])
    for name, callback in _named_callbacks(trainer).items():
        if name in state["trainer"]["callbacks"]:
            callback.load_state_dict(state["trainer"]["callbacks"][name])
    return trainer.collector.load_state_dict(state["collector"]) if trainer.collector is not None else []


def _named_callbacks(trainer: Trainer) -> dict[str, Callback]:
    return {f"{index}-{type(callback).__name__}": callback for index, callback in enumerate(trainer.callbacks)}
