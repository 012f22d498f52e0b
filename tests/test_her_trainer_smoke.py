"""HER from configuration to run folder, with every backend and several environments."""

from __future__ import annotations

import pytest

from rl_training.config import parse_config
from rl_training.errors import ConfigError, EnvError
from rl_training.runtime import Callback, train_her
from rl_training.runtime.checkpointing import find_checkpoint
from rl_training.runtime.run import load_learner


class Watch(Callback):
    """Looks at what the loop put together."""

    def on_training_end(self, trainer):
        self.learner, self.experience = trainer.learner, trainer.experience
        self.batch = trainer.experience.sample(64)


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize(
    ("backend", "env_id", "env_kwargs"),
    [
        ("ddpg", "rl_training/PointGoal1D-v0", {}),
        ("td3", "rl_training/PointReach2D-v0", {}),
        ("sac", "rl_training/BitFlipping-v0", {"continuous": True, "n_bits": 4}),
        ("dqn", "rl_training/BitFlipping-v0", {"n_bits": 4}),
    ],
)
def test_every_backend_trains_and_leaves_a_complete_run(tiny_config, backend, env_id, env_kwargs, num_envs):
    watch = Watch()
    config = tiny_config("her", env_id, env_kwargs=env_kwargs, num_envs=num_envs, algo_kwargs={"backend": backend})
    result = train_her(config, callbacks=[watch])
    assert result.global_step == 300
    # Updates keep pace from 100 steps on, or from when the first episode is complete.
    assert result.update_count <= 200
    assert result.update_count >= 300 - max(100, 50 * num_envs)
    assert 0.0 <= result.metrics["eval/success_rate"] <= 1.0
    assert watch.learner.value_bounds == pytest.approx((-100.0, 0.0))  # from the reward, -1 or 0, and gamma 0.99
    assert watch.learner.critic_layer_norm
    assert (watch.batch.rewards == 0).any()  # hindsight found successes
    for name in ("config.yaml", "metrics.csv", "checkpoints/latest", "checkpoints/best"):
        assert (result.run_dir / name).is_file()
    assert list(result.run_dir.glob("events.out.tfevents.*"))


def test_without_relabelling_no_reward_is_seen(tiny_config):
    watch = Watch()
    env_kwargs = {"n_bits": 16}
    config = tiny_config(
        "her", "rl_training/BitFlipping-v0", env_kwargs=env_kwargs, algo_kwargs={"backend": "dqn", "her_ratio": 0.0}
    )
    train_her(config, callbacks=[watch])
    assert (watch.batch.rewards == -1).all()


def test_the_reward_transform_reaches_relabelled_rewards_and_the_clamp(tiny_config):
    watch = Watch()
    config = tiny_config(
        "her", env_kwargs={"wrappers": {"reward": {"scale": 2.0, "shift": 1.0}}}, algo_kwargs={"gamma": 0.5}
    )
    result = train_her(config, callbacks=[watch])
    assert set(watch.batch.rewards.tolist()) == {-1.0, 1.0}
    assert watch.learner.value_bounds == pytest.approx((-2.0, 2.0))
    assert -50.0 <= result.metrics["eval/mean_reward"] <= 0.0  # evaluation speaks of the task's own reward


def test_the_trained_policy_can_be_loaded_without_its_environment(tiny_config):
    watch = Watch()
    result = train_her(tiny_config("her"), callbacks=[watch])
    learner, config = load_learner(find_checkpoint(result.run_dir / "checkpoints" / "latest"))
    observations = watch.batch.observations
    assert (learner.act(observations) == watch.learner.act(observations)).all()
    assert config.algo_kwargs["batch_size"] == 16


def test_hindsight_needs_goals(tiny_config, tmp_path):
    with pytest.raises(EnvError, match="env_id 'Pendulum-v1': hindsight needs observations with the keys"):
        train_her(tiny_config("her", "Pendulum-v1"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"her_ratio": 1.5}, r"algo_kwargs\.her_ratio = 1\.5: expected less than or equal to 1"),
        (
            {"backend": "sacc"},
            r"algo_kwargs\.backend = 'sacc': expected one of ddpg, td3, sac, .* \(did you mean 'sac'\?\)",
        ),
        ({"batch_size": 4000}, "larger than the buffer"),
        ({"learning_starts": 300}, "leaves nothing to learn from"),
        ({"her_ration": 0.5}, r"unknown key 'algo_kwargs\.her_ration' \(did you mean 'her_ratio'\?\)"),
        ({"backend": "dqn", "alpha": 0.1}, "unknown key 'algo_kwargs.alpha'"),
    ],
)
def test_wrong_settings_are_named(tiny_config, changes, message):
    with pytest.raises(ConfigError, match=message):
        train_her(tiny_config("her", algo_kwargs=changes))


def test_settings_of_the_backend_are_used(tiny_config):
    import torch

    from rl_training.runtime.build import build_learner
    from rl_training.runtime.settings import parse_run
    from rl_training.types import SpaceSpec

    config = parse_config(
        {"algo": "her", "env_id": "x", "total_timesteps": 9000, "algo_kwargs": {"backend": "td3", "num_critics": 3}}
    )
    learner = build_learner(config, parse_run(config), SpaceSpec(2, 1, 1), torch.device("cpu"))
    assert learner.model.critic.members == 3
    assert learner.settings.policy_delay == 2  # TD3's own default, not the shared one
