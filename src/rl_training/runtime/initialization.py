"""Starting a run from another one, for example fine-tuning an offline policy online."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.algorithms.table import find_algorithm
from rl_training.errors import CheckpointError, ConfigError
from rl_training.runtime.checkpoint_files import read_checkpoint
from rl_training.runtime.checkpointing import find_checkpoint
from rl_training.runtime.remote.local_copy import fetch, policy
from rl_training.runtime.settings import RunSettings
from rl_training.types import SpaceSpec


def initialize(learner: Learner, settings: RunSettings) -> None:
    """Load the weights of the run that ``init_from`` names, if it is set.

    From a learner of the same algorithm everything is loaded: networks, targets, statistics and, unless
    ``init_optimizers`` is off, the optimisers' moments. From any other learner, only the policy and the normaliser are
    loaded.
    """
    path = settings.init.init_from
    if path is None:
        return
    try:
        checkpoint = find_checkpoint(fetch(path, policy))
        manifest, state = read_checkpoint(checkpoint, part="learner")
    except CheckpointError as error:
        raise ConfigError(f"algo_kwargs.init_from = {str(path)!r}: {error}") from None
    source = manifest["config"]
    try:
        _require_same_task(SpaceSpec.from_json(manifest["spec"]), learner.spec)
        module, optimizers = state["learner"]["module"], state["learner"]["optimizers"]
        other = find_algorithm(source["algo"], source["algo_kwargs"].get("backend")).learner
        if other is type(learner):
            _require_same_networks(module, learner.state_dict())
            learner.load_state_dict({**module, **_fixed_weights(learner, optimizers)})
            if settings.init.init_optimizers:
                learner.load_optimizers(optimizers)
        else:
            learner.load_policy(module, other.policy_prefix)
            warnings.warn(
                f"init_from: {other.__name__} and {type(learner).__name__} differ, so only the policy is loaded",
                stacklevel=4,
            )
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"algo_kwargs.init_from = {str(path)!r} does not fit this run: {error}") from None


def _require_same_task(there: SpaceSpec, here: SpaceSpec) -> None:
    """Compare sizes and action bounds: the same policy output must mean the same action."""
    for name in ("observation_dim", "goal_dim", "action_dim", "num_actions"):
        if getattr(there, name) != getattr(here, name):
            raise ValueError(f"{name} is {getattr(there, name)} in that run and {getattr(here, name)} in this one")
    if here.is_discrete:
        return
    for name, theirs, ours in zip(("low", "high"), there.action_bounds, here.action_bounds, strict=True):
        if (theirs != ours).any():
            raise ValueError(
                f"the actions' {name} bounds are {theirs.tolist()} in that run and {ours.tolist()} in this one, so its"
                " actions would be rescaled; a run without env_id takes its bounds from algo_kwargs.action_low and"
                " action_high"
            )


def _fixed_weights(learner: Learner, optimizers: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the temperatures that only one of the two runs learns: they keep the values of this run's settings."""
    learned = learner.training_state()["optimizers"].keys() & optimizers.keys()
    state = learner.state_dict()
    return {name: state[name] for name, optimizer in learner.temperatures.items() if optimizer not in learned}


def _require_same_networks(there: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> None:
    """Raise an error that names the first weight whose shape differs between the two runs."""
    for name in {**here, **there}:
        a, b = (list(state[name].shape) if name in state else "not there" for state in (there, here))
        if a != b:
            raise ValueError(
                f"{name} is {a} in that run and {b} in this one: expected the same networks (hidden_sizes,"
                " num_critics, critic_layer_norm)"
            )
