"""Starting a run from another one: an offline policy goes online, or a cloned one becomes an actor."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig
from rl_training.errors import CheckpointError, ConfigError
from rl_training.runtime.checkpoint_files import read_checkpoint
from rl_training.runtime.checkpointing import find_checkpoint
from rl_training.runtime.controls import InitSettings


def initialize(learner: Learner, config: TrainConfig, settings: InitSettings) -> None:
    """Take over what the run that ``init_from`` names has learned, if it names one.

    A learner of the same algorithm gives everything: networks, targets, statistics and, unless ``init_optimizers`` is
    off, the optimisers' moments. Any other gives its policy and what normalises its observations.
    """
    if settings.init_from is None:
        return
    try:
        checkpoint = find_checkpoint(settings.init_from)
        manifest, state = read_checkpoint(checkpoint, part="learner")
    except CheckpointError as error:
        raise ConfigError(f"algo_kwargs.init_from = {str(settings.init_from)!r}: {error}") from None
    source = manifest["config"]
    try:
        for name in ("observation_dim", "goal_dim", "action_dim", "num_actions"):
            size, own = manifest["spec"][name], getattr(learner.spec, name)
            if size != own:
                raise ValueError(f"{name} is {size} there and {own} here")
        module, optimizers = state["learner"]["module"], state["learner"]["optimizers"]
        there = _learner_name(source["algo"], source["algo_kwargs"])
        here = _learner_name(config.algo, config.algo_kwargs)
        if there == here:
            _require_same_networks(module, learner.state_dict())
            learner.load_state_dict({**module, **_fixed_weights(learner, optimizers)})
            if settings.init_optimizers:
                learner.load_optimizers(optimizers)
        else:
            learner.load_policy(module)
            warnings.warn(
                f"init_from: {there} and {here} differ, so the policy is taken over and the rest starts anew",
                stacklevel=4,
            )
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"algo_kwargs.init_from = {str(settings.init_from)!r} does not fit this run: {error}"
        ) from None


def _fixed_weights(learner: Learner, optimizers: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the temperatures and the like that only one of the runs learns: they stay as this one's settings say."""
    learned = learner.optimizer_names & optimizers.keys()
    weights = {name: value for name, value in learner.state_dict().items() if name.startswith("log_")}
    return {name: value for name, value in weights.items() if name.removeprefix("log_") not in learned}


def _require_same_networks(there: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> None:
    """Name the first weight that the two runs do not share in this shape."""
    for name in {**here, **there}:
        a, b = (list(state[name].shape) if name in state else "not there" for state in (there, here))
        if a != b:
            raise ValueError(
                f"{name} is {a} in that run and {b} in this one: expected the same networks (hidden_sizes,"
                " num_critics, critic_layer_norm)"
            )


def _learner_name(algo: str, algo_kwargs: dict[str, Any]) -> str:
    """Return the name of the learner alone: with hindsight it is the backend's."""
    return str(algo_kwargs.get("backend", "ddpg")) if algo == "her" else algo
