"""The names that stay fixed."""

from __future__ import annotations

import importlib

import pytest

EXPORTS = {
    "rl_training": ["DDPG", "TD3", "SAC", "DQN", "HER", "TrainConfig", "load_config"],
    "rl_training.api": ["DDPG", "TD3", "SAC", "DQN", "HER"],
    "rl_training.algorithms": ["DDPG", "TD3", "SAC", "DQN", "HER"],
    "rl_training.models": ["MLPDDPGModel", "MLPSACModel"],
    "rl_training.data": ["ReplayBuffer", "HERReplayBuffer", "TransitionDataset", "load_transition_dataset"],
    "rl_training.envs.goals": [
        "PointGoal1DEnv",
        "register_goal_envs",
        "flatten_goal_observation",
        "extract_goal_parts",
    ],
    "rl_training.envs.builtin": ["PointReachGoalEnv", "BitFlippingEnv"],
    "rl_training.envs.rewards": [
        "RewardTransformConfig",
        "RewardScaleWrapper",
        "RewardShiftWrapper",
        "RewardClipWrapper",
        "apply_reward_wrappers",
    ],
    "rl_training.runtime": [
        "TrainerState",
        "TrainResult",
        "EarlyStoppingConfig",
        "EarlyStoppingCallback",
        "train_her",
        "train_ddpg",
        "train_td3",
        "train_sac",
        "train_dqn",
    ],
    "rl_training.runtime.her_trainer": ["train_her"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in EXPORTS.items() for name in names])
def test_fixed_name_is_there(module, name):
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize("module", ["rl_training", "rl_training.api", "rl_training.algorithms", "rl_training.runtime"])
def test_everything_in_all_exists(module):
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)


def test_root_classes_are_managed_and_algorithms_are_learners():
    import rl_training
    from rl_training.algorithms.base import Learner
    from rl_training.api import ManagedAlgorithm

    for name in ("DDPG", "TD3", "SAC", "DQN"):
        assert issubclass(getattr(rl_training, name), ManagedAlgorithm)
        assert issubclass(getattr(importlib.import_module("rl_training.algorithms"), name), Learner)
    with pytest.raises(AttributeError, match="no attribute 'PPO'"):
        _ = rl_training.PPO


def test_trainer_state_has_its_fields():
    from rl_training.runtime import TrainerState

    state = TrainerState()
    assert (state.global_step, state.update_count, state.should_stop, state.stop_reason) == (0, 0, False, None)
