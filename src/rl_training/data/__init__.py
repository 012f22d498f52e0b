"""Replay buffers and offline datasets, all of which have ``sample(batch_size)``."""

from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.her_replay_buffer import HERReplayBuffer
from rl_training.data.hindsight_settings import HindsightSettings
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay_buffer import ReplayBuffer, ReplaySettings

__all__ = [
    "HERReplayBuffer",
    "HindsightSettings",
    "ReplayBuffer",
    "ReplaySettings",
    "TransitionDataset",
    "load_transition_dataset",
]
