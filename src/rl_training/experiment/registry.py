"""The registry: every algorithm's name and its recipe."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rl_training.config import TrainConfig, load_config
from rl_training.errors import ConfigError, did_you_mean
from rl_training.runtime.awac_trainer import AWAC_RECIPE
from rl_training.runtime.bc_trainer import BC_RECIPE
from rl_training.runtime.cql_trainer import CQL_RECIPE, DISCRETE_CQL_RECIPE
from rl_training.runtime.ddpg_trainer import DDPG_RECIPE
from rl_training.runtime.dqn_trainer import DQN_RECIPE
from rl_training.runtime.her_trainer import HER_RECIPE
from rl_training.runtime.iql_trainer import IQL_RECIPE
from rl_training.runtime.recipe import Recipe
from rl_training.runtime.rlpd_trainer import RLPD_RECIPE
from rl_training.runtime.sac_trainer import SAC_RECIPE
from rl_training.runtime.td3_bc_trainer import TD3_BC_RECIPE
from rl_training.runtime.td3_trainer import TD3_RECIPE

RECIPES: dict[str, Recipe] = {
    "awac": AWAC_RECIPE,
    "bc": BC_RECIPE,
    "cql": CQL_RECIPE,
    "ddpg": DDPG_RECIPE,
    "discrete_cql": DISCRETE_CQL_RECIPE,
    "dqn": DQN_RECIPE,
    "her": HER_RECIPE,
    "iql": IQL_RECIPE,
    "rlpd": RLPD_RECIPE,
    "sac": SAC_RECIPE,
    "td3": TD3_RECIPE,
    "td3_bc": TD3_BC_RECIPE,
}


def recipe_for(algo: str) -> Recipe:
    """Return the recipe of an algorithm."""
    if algo not in RECIPES:
        raise ConfigError(f"algo = {algo!r}: expected one of {', '.join(RECIPES)}{did_you_mean(algo, RECIPES)}")
    return RECIPES[algo]


def read_config(source: str | Path, overrides: Iterable[str] = ()) -> TrainConfig:
    """Read a preset or file and check all of it, the algorithm's settings included."""
    config = load_config(source, overrides)
    recipe_for(config.algo).settings(config)
    return config
