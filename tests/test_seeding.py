"""Random streams: each has numbers of its own, which depend on the run's seed alone."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

from rl_training.algorithms import SAC
from rl_training.runtime import Callback, train_sac
from rl_training.seeding import Stream, episode_seeds, stream_generator, stream_seed
from rl_training.types import SpaceSpec
from scripted_env import ENV_ID
from test_loop import offline_rows


def test_no_two_streams_meet() -> None:
    numbers = [int(stream) for stream in Stream.__members__.values()]  # an equal number would be an alias
    assert len(set(numbers)) == len(numbers)
    streams = [*numbers, 0, 1, 3, 4, 5]  # the environments have their index
    seeds = {stream_seed(seed, stream, number) for seed in (0, 1) for stream in streams for number in (0, 1)}
    assert len(seeds) == 2 * len(streams) * 2
    draws = {stream_generator(seed, stream).random() for seed in (0, 1) for stream in numbers}
    assert len(draws) == 2 * len(numbers)


def test_the_numbers_that_a_resumed_run_derives_again_stay_as_they_are() -> None:
    assert (Stream.RANDOM_ACTIONS, Stream.EVALUATION, Stream.RANDOM_PLAY) == (2, 2**20, 2**21)
    assert list(islice(episode_seeds(7, 0), 3)) == [stream_seed(7, 0, number) for number in range(3)]
    assert [stream_seed(7, 0, 0), stream_seed(7, Stream.EVALUATION, 1)] == [2083679832, 2520724538]


def test_weights_and_noise_are_drawn_from_streams_of_their_own() -> None:
    learner = SAC(SpaceSpec(observation_dim=3, action_dim=2), {"hidden_sizes": [8]}, seed=5)
    for generator in (learner.generator, torch.Generator().manual_seed(5)):
        other = SAC.Model(learner.spec, (8,), generator.clone_state(), num_critics=2, critic_layer_norm=False)
        assert not torch.equal(learner.model.actor.mlp.output.weight, other.actor.mlp.output.weight)


def test_the_parts_of_a_run_share_no_stream(tiny_config) -> None:
    class Seeds(Callback):
        def on_training_start(self, trainer: Any) -> None:
            parts = (trainer.learner, trainer.replay, trainer.experience.offline)
            self.seeds = [part.generator.initial_seed() for part in parts]

    watch = Seeds()
    kwargs = {"offline_batch_ratio": 0.5, "learning_starts": 5}
    config = tiny_config("sac", ENV_ID, total_timesteps=10, seed=3, algo_kwargs=kwargs)
    train_sac(config, callbacks=[watch], dataset=offline_rows())
    streams = (Stream.POLICY_NOISE, Stream.REPLAY, Stream.OFFLINE_DATA)
    assert watch.seeds == [stream_seed(3, stream) for stream in streams]
