"""The managed classes, as a user meets them."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import StopAt
from rl_training import BC, DDPG, DQN, HER, RLPD, SAC
from rl_training.config import preset_names
from rl_training.data import TransitionDataset
from rl_training.errors import CheckpointError, ConfigError, DatasetError

GOAL_OBSERVATION = {
    "observation": np.array([0.1, 0.0], np.float32),
    "achieved_goal": np.array([0.1], np.float32),
    "desired_goal": np.array([0.5], np.float32),
}


def test_learn_predict_evaluate_save_load(tiny_config, tmp_path):
    model = HER(tiny_config("her"))
    result = model.learn()
    assert (result.global_step, model.run_dir) == (300, result.run_dir)
    action, state = model.predict(GOAL_OBSERVATION)
    assert (action.shape, state) == ((1,), None)
    batch = {key: np.stack([value] * 5) for key, value in GOAL_OBSERVATION.items()}
    np.testing.assert_allclose(model.predict(batch)[0], np.stack([action] * 5), atol=1e-6)

    saved = model.save(tmp_path / "policy")
    loaded = HER.load(saved)
    np.testing.assert_array_equal(loaded.predict(GOAL_OBSERVATION)[0], action)
    assert loaded.evaluate(episodes=2) == model.evaluate(episodes=2)
    assert HER.load(result.run_dir).predict(GOAL_OBSERVATION)[0] == pytest.approx(action)
    with pytest.raises(ConfigError, match="exists already"):
        model.save(saved)


def test_total_timesteps_may_be_given_to_learn(tiny_config):
    assert SAC(tiny_config("sac")).learn(total_timesteps=150).global_step == 150
    with pytest.raises(ConfigError, match="total_timesteps = 0"):
        SAC(tiny_config("sac")).learn(total_timesteps=0)


def test_a_mapping_is_a_configuration_and_algo_is_implied(tmp_path):
    model = DQN({"env_id": "CartPole-v1", "total_timesteps": 2000, "output_dir": str(tmp_path)})
    assert model.config.algo == "dqn"
    action, _ = model.predict(np.zeros(4, np.float32))  # untrained, but it acts
    assert int(action) in (0, 1)


def test_from_preset_merges_overrides():
    model = HER.from_preset("point_reach", seed=7, algo_kwargs={"backend": "sac"})
    assert (model.config.seed, model.config.algo_kwargs["backend"]) == (7, "sac")
    assert model.config.algo_kwargs["gamma"] == 0.95
    assert HER.from_preset("her/point_reach").config.env_id == "rl_training/PointReach2D-v0"


def test_wrong_use_is_explained(tiny_config, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'her/point_goal'"):
        HER.from_preset("point_gaol")
    with pytest.raises(ConfigError, match="algo = 'ddpg': expected 'her' here"):
        HER(tiny_config("ddpg"))
    with pytest.raises(ConfigError, match="unknown key 'sed' \\(did you mean 'seed'\\?\\)"):
        HER.from_preset("point_goal", sed=3)
    with pytest.raises(CheckpointError, match="not trained yet"):
        HER(tiny_config("her")).save(tmp_path / "nothing")
    other = DDPG(tiny_config("ddpg")).learn().run_dir
    with pytest.raises(ConfigError, match="algo = 'ddpg': expected 'her' here"):
        HER.load(other)


def test_a_resumed_run_is_adopted(tiny_config):
    config = tiny_config("her")
    first = HER(config)
    broken = first.learn(callbacks=[StopAt(150)])
    assert (broken.status, broken.global_step) == ("interrupted", 150)
    second = HER(config)
    assert second.resume(broken.run_dir).global_step == 300
    assert second.checkpoint is not None


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_has_a_managed_class(preset):
    import rl_training

    algo, _, name = preset.partition("/")
    classes = [getattr(rl_training, export) for export in rl_training.__all__]
    managed = next(item for item in classes if getattr(item, "algo", None) == algo)
    model = managed.from_preset(name)
    assert model.config.total_timesteps > 0


def pendulum_rows(n: int = 200) -> TransitionDataset:
    rng = np.random.default_rng(0)
    return TransitionDataset.from_dict(
        {
            "observations": rng.normal(size=(n, 3)),
            "actions": rng.uniform(-2, 2, (n, 1)),
            "rewards": rng.normal(size=n),
            "next_observations": rng.normal(size=(n, 3)),
            "terminated": np.arange(n) % 50 == 49,
        }
    )


def test_a_dataset_in_memory_takes_the_place_of_a_file(tmp_path):
    values = {"env_id": "Pendulum-v1", "total_timesteps": 20, "eval_episodes": 1, "output_dir": str(tmp_path)}
    small = {"hidden_sizes": [8], "batch_size": 8}
    model = BC({**values, "algo_kwargs": small})
    straight = model.learn(dataset=pendulum_rows())
    broken = model.learn(dataset=pendulum_rows(), callbacks=[StopAt(12)], reset=True)
    assert broken.status == "interrupted"
    with pytest.raises(DatasetError, match="dataset_path"):
        model.resume(broken.run_dir)
    assert model.resume(broken.run_dir, dataset=pendulum_rows()).metrics == straight.metrics

    mixed = RLPD({**values, "algo_kwargs": {**small, "num_critics": 2, "learning_starts": 10}})
    with pytest.raises(ConfigError, match=r"offline_batch_ratio = 0\.5 needs offline data"):
        mixed.learn()
    assert mixed.learn(dataset=pendulum_rows()).update_count == 200
