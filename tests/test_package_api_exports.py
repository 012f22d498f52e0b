"""The names that stay fixed."""

from __future__ import annotations

import importlib

import pytest

LEARNERS = ["DDPG", "TD3", "SAC", "DQN", "HER", "BC", "TD3BC", "IQL", "CQL", "AWAC", "RLPD"]
ALGORITHMS = ["ddpg", "td3", "sac", "dqn", "her", "bc", "td3_bc", "iql", "cql", "awac", "rlpd"]

EXPORTS = {
    "rl_training": [*LEARNERS, "TrainConfig", "load_config"],
    "rl_training.api": LEARNERS,
    "rl_training.algorithms": [*LEARNERS, "RLPDAlgorithm", "rlpd_loss"],
    "rl_training.models": ["MLPDDPGModel", "MLPSACModel"],
    "rl_training.data": ["ReplayBuffer", "HERReplayBuffer", "TransitionDataset", "load_transition_dataset"],
    "rl_training.envs.goals": [
        "PointGoal1DEnv",
        "register_goal_envs",
        "flatten_goal_observation",
        "extract_goal_parts",
        "recompute_rewards",
        "recompute_terminated",
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
        *(f"train_{algo}" for algo in ALGORITHMS),
    ],
    **{f"rl_training.runtime.{algo}_trainer": [f"train_{algo}"] for algo in ALGORITHMS},
}

METHODS = {
    "rl_training.data.TransitionDataset": ["from_dict", "with_reward_transform", "state_dict", "load_state_dict"],
    "rl_training.data.ReplayBuffer": ["add", "sample", "state_dict", "load_state_dict"],
    "rl_training.data.HERReplayBuffer": ["add", "sample", "state_dict", "load_state_dict"],
    "rl_training.api.HER": ["learn", "predict", "save", "load", "evaluate", "from_preset"],
    **{f"rl_training.algorithms.{name}": ["update"] for name in LEARNERS if name != "HER"},
}

HER_SETTINGS = {"backend", "her_ratio", "n_sampled_goal", "goal_selection_strategy", "episode_priority"}
RLPD_SETTINGS = {
    "offline_pretrain_updates",
    "offline_batch_ratio",
    "alpha",
    "num_critics",
    "num_min_critics",
    "critic_layer_norm",
    "backup_entropy",
}
SHARED_SETTINGS = {
    "eval_interval",
    "early_stopping",
    "lr_schedule",
    "checkpoint_interval",
    "keep_checkpoints",
    "buffer_capacity",
    "learning_starts",
    "train_frequency",
    "gradient_updates_per_step",
    "max_updates",
    "hidden_sizes",
    "batch_size",
    "gamma",
    "tau",
    "learning_rate",
    "actor_lr",
    "critic_lr",
    "exploration_noise",
    "random_action_prob",
    "max_grad_norm",
    "critic_layer_norm",
    "normalize_observations",
    "dataset_kind",
    "dataset_path",
    "dataset_id",
    "dataset_download",
}
REWARD_SETTINGS = {"reward_scale", "reward_shift", "reward_clip_min", "reward_clip_max"}
TOP_LEVEL = {
    "algo",
    "env_id",
    "seed",
    "total_timesteps",
    "output_dir",
    "device",
    "num_threads",
    "num_envs",
    "eval_episodes",
    "env_kwargs",
    "algo_kwargs",
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in EXPORTS.items() for name in names])
def test_fixed_name_is_there(module, name):
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in METHODS.items() for name in names])
def test_fixed_method_is_there(owner, name):
    module, _, attribute = owner.rpartition(".")
    assert callable(getattr(getattr(importlib.import_module(module), attribute), name))


def test_rlpd_has_two_names():
    from rl_training.algorithms import RLPD, RLPDAlgorithm

    assert RLPDAlgorithm is RLPD


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("her/point_goal", SHARED_SETTINGS | HER_SETTINGS),
        ("sac/pendulum", SHARED_SETTINGS | REWARD_SETTINGS),
        ("rlpd/pendulum", SHARED_SETTINGS | REWARD_SETTINGS | RLPD_SETTINGS),
    ],
)
def test_fixed_settings_are_known(preset, settings):
    from rl_training.config import TrainConfig
    from rl_training.errors import ConfigError
    from rl_training.runtime.settings import read_config

    assert set(TrainConfig.model_fields) >= TOP_LEVEL
    # No setting is an object of this kind, so a known name is refused for its value.
    for name in settings:
        with pytest.raises(ConfigError) as refused:
            read_config(preset, [f"algo_kwargs.{name}={{no_such_key: [1]}}"])
        assert f"unknown key 'algo_kwargs.{name}'" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"unknown key 'algo_kwargs\.no_such_name'"):
        read_config(preset, ["algo_kwargs.no_such_name={no_such_key: [1]}"])


@pytest.mark.parametrize("module", ["rl_training", "rl_training.api", "rl_training.algorithms", "rl_training.runtime"])
def test_everything_in_all_exists(module):
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in loaded.__all__)


def test_root_classes_are_managed_and_algorithms_are_learners():
    import rl_training
    from rl_training.algorithms.base import Learner
    from rl_training.api import ManagedAlgorithm

    for name in LEARNERS:
        if name == "HER":  # a function of the backend, in the form of a class
            continue
        assert issubclass(getattr(rl_training, name), ManagedAlgorithm)
        assert issubclass(getattr(importlib.import_module("rl_training.algorithms"), name), Learner)
    with pytest.raises(AttributeError, match="no attribute 'PPO'"):
        _ = rl_training.PPO


def test_trainer_state_has_its_fields():
    from rl_training.runtime import TrainerState

    state = TrainerState()
    assert (state.global_step, state.update_count, state.should_stop, state.stop_reason) == (0, 0, False, None)
