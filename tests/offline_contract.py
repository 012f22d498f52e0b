"""What every offline algorithm must do, from configuration to resumed run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import StopAt
from rl_training.config import parse_config
from rl_training.data import load_transition_dataset
from rl_training.errors import ConfigError, DatasetError, RLTrainingError
from rl_training.experiment.manager import evaluate_experiment, train_experiment
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import find_checkpoint, resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run import load_learner, resume, train


class OfflineTrainerContract:
    """Subclasses name the algorithm."""

    algo: str
    options: dict = {}  # noqa: RUF012
    env_id = "Pendulum-v1"

    @pytest.fixture
    def file(self, tmp_path):
        rng = np.random.default_rng(0)
        n, discrete = 300, self.env_id == "CartPole-v1"
        observations = rng.normal(size=(n, 4 if discrete else 3)).astype(np.float32)
        arrays = {
            "observations": observations,
            "actions": rng.integers(0, 2, n) if discrete else rng.uniform(-2, 2, (n, 1)).astype(np.float32),
            "rewards": rng.normal(size=n).astype(np.float32),
            "next_observations": observations + 0.1,
            "terminals": np.arange(n) % 60 == 59,
            "timeouts": np.arange(n) % 60 == 29,
        }
        np.savez(tmp_path / "data.npz", **arrays)
        return tmp_path / "data.npz"

    def config(self, file, **changes):
        kwargs = {
            "dataset_path": str(file),
            "hidden_sizes": [16, 16],
            "batch_size": 16,
            "eval_interval": 20,
            "checkpoint_interval": 20,
            "log_interval": 10,
            **self.options,
            **changes.pop("algo_kwargs", {}),
        }
        values = {"algo": self.algo, "env_id": self.env_id, "total_timesteps": 50, "eval_episodes": 1}
        return parse_config({**values, "output_dir": str(file.parent / "runs"), **changes, "algo_kwargs": kwargs})

    def test_steps_are_updates_and_the_run_is_complete(self, file):
        result = train_experiment(self.config(file, algo_kwargs={"normalize_observations": True}))
        assert (result.global_step, result.update_count, result.stop_reason) == (50, 50, "total_timesteps")
        rows = read_metrics(result.run_dir / "metrics.csv")
        assert [row["global_step"] for row in rows if "eval/mean_reward" in row] == [20, 40, 50]
        assert np.isfinite(rows[-1].get("train/actor_loss", rows[-1].get("train/critic_loss")))
        assert (result.run_dir / "report.html").is_file()
        assert "eval/mean_reward" in evaluate_experiment(result.run_dir, episodes=1)["metrics"]

    def test_the_scale_of_rewards_is_that_of_the_whole_file_not_of_its_best_episodes(self, file):
        class Look(Callback):
            def on_training_start(self, trainer):
                self.data = trainer.experience

        look, whole = Look(), load_transition_dataset(str(file))
        config = self.config(file, algo_kwargs={"reward_scale": "auto", "dataset_top_fraction": 0.2}, total_timesteps=1)
        train(config, callbacks=[look])
        best = whole.top_episodes(0.2)
        assert 0 < len(best) == len(look.data) < len(whole)
        scale = 1000.0 / (whole.episode_returns.max() - whole.episode_returns.min())
        np.testing.assert_allclose(look.data.arrays["rewards"], best.arrays["rewards"] * scale, rtol=1e-5)

    def test_training_needs_no_environment(self, file):
        with pytest.warns(UserWarning, match="no env_id: nothing will be evaluated"):
            result = train_experiment(self.config(file, env_id=None))
        assert result.update_count == 50
        assert result.metrics == {}
        with pytest.raises(ConfigError, match="without an env_id"):
            evaluate_experiment(result.run_dir)
        learner, _ = load_learner(find_checkpoint(result.run_dir))
        assert np.isfinite(learner.predict(np.zeros(learner.spec.policy_dim, np.float32))).all()

    def test_a_resumed_run_ends_where_an_uninterrupted_one_does(self, file):
        config = self.config(file, algo_kwargs={"lr_schedule": "cosine"})
        straight = train(config)
        broken = train(config, callbacks=[StopAt(33)])
        assert broken.status == "interrupted"
        assert resume(broken.run_dir).metrics == straight.metrics
        weights = [
            load_file(resolve_checkpoint(run.run_dir / "checkpoints") / "learner.safetensors")
            for run in (straight, broken)
        ]
        assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())

    def test_resuming_on_other_data_is_refused(self, file):
        broken = train(self.config(file), callbacks=[StopAt(33)])
        with np.load(file) as archive:
            arrays = dict(archive)
        np.savez(file, **{**arrays, "rewards": arrays["rewards"] + 1})
        with pytest.raises(RLTrainingError, match="not the data the run was started with"):
            resume(broken.run_dir)

    def test_early_stopping_ends_an_offline_run(self, file):
        config = self.config(file, algo_kwargs={"early_stopping": {"reward_threshold": -1e9}})
        result = train(config)
        assert (result.status, result.global_step) == ("stopped", 20)

    def test_data_that_does_not_fit_is_refused_before_anything_is_written(self, file):
        with np.load(file) as archive:
            arrays = dict(archive)
        arrays["observations"] = arrays["next_observations"] = np.zeros((300, 7), np.float32)
        np.savez(file, **arrays)
        with pytest.raises(DatasetError, match="the data has observation_dim 7, the task"):
            train(self.config(file))
        assert not (file.parent / "runs").exists()

    def test_collecting_has_no_place_offline(self, file):
        with pytest.raises(ConfigError, match=r"unknown key 'algo_kwargs\.learning_starts'"):
            train(self.config(file, algo_kwargs={"learning_starts": 10}))

    def test_a_missing_file_is_asked_for(self, file, monkeypatch):
        monkeypatch.delenv("RL_TRAINING_DATA", raising=False)
        with pytest.raises(DatasetError, match=r"dataset_path = 'nowhere\.npz': no such file.*RL_TRAINING_DATA"):
            train(self.config(file, algo_kwargs={"dataset_path": "nowhere.npz"}))
