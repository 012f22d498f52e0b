"""Numbers that go wrong end a run soon, say where they appeared, and never reach a good checkpoint."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import cli
from rl_training.algorithms import DDPG
from rl_training.config import TrainConfig
from rl_training.errors import NumericalError
from rl_training.experiment.manager import load_policy
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import read_checkpoint
from rl_training.runtime.checkpointing import find_checkpoint, resolve_checkpoint
from rl_training.runtime.health import require_finite_step
from rl_training.runtime.run import resume, train


class Glitch(gym.Env):
    """An environment that goes wrong in one place, at one step of one kind of episode."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    steps = 0

    def __init__(self, where: str = "observation", value: float = math.nan, at: int = 120) -> None:
        self.where, self.value, self.at = where, value, at
        self.steps = 0

    def _observe(self):
        observation = self.np_random.normal(size=3)
        if self.where == "observation" and self.steps == self.at:
            observation[1] = self.value
        return observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 40
        return self._observe(), {}

    def step(self, action):
        assert np.isfinite(action).all(), "the environment was given an action that is not finite"
        self.steps, self.left = self.steps + 1, self.left - 1
        wrong = self.where == "reward" and self.steps == self.at
        return self._observe(), self.value if wrong else 0.5, False, self.left == 0, {}


@pytest.fixture(autouse=True)
def glitch():
    gym.register("Glitch-v0", entry_point=Glitch)
    yield
    gym.registry.pop("Glitch-v0")


class Spoil(Callback):
    """Makes one weight of a network NaN, as an optimiser that diverges would."""

    def __init__(self, step: int, network: str) -> None:
        self.step, self.network = step, network

    def on_step(self, trainer) -> None:
        if trainer.state.global_step == self.step:
            weights = next(value for name, value in trainer.learner.named_parameters() if self.network in name)
            with torch.no_grad():
                weights.view(-1)[3] = math.nan


def offline(config: TrainConfig, **settings: object) -> TrainConfig:
    """Turn a tiny configuration into one that learns from data."""
    kept = {
        key: value for key, value in config.algo_kwargs.items() if key not in ("buffer_capacity", "learning_starts")
    }
    return config.model_copy(update={"algo_kwargs": {**kept, **settings}})


def failed_run(config) -> Path:
    """Return the folder of the one run, after checking what every failed run leaves behind."""
    (run_dir,) = config.output_dir.iterdir()
    result = json.loads((run_dir / "result.json").read_text())
    assert result["status"] == "failed"
    kept = find_checkpoint(run_dir / "post_mortem")
    assert read_checkpoint(kept)[0]["global_step"] == result["global_step"]
    load_policy(kept)
    for path in (run_dir / "checkpoints").iterdir():
        if path.is_dir():
            weights = read_checkpoint(path, "learner")[1]["learner"]["module"]
            assert all(tensor.isfinite().all() for tensor in weights.values())
    return run_dir


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300])
@pytest.mark.parametrize("where", ["observation", "reward"])
def test_environments_are_caught_at_once(tiny_config, where, value):
    config = tiny_config("ddpg", env_id="Glitch-v0", num_envs=2, env_kwargs={"where": where, "value": value, "at": 70})
    element = r"observation\[1\]" if where == "observation" else "reward"
    with pytest.raises(NumericalError, match=rf"environment 0 returned {re.escape(str(value))} in {element}"):
        train(config)
    run_dir = failed_run(config)
    assert json.loads((run_dir / "result.json").read_text())["global_step"] == 138  # the steps before it, of both
    assert resolve_checkpoint(run_dir / "checkpoints").name.startswith("000000100-")


def test_the_environment_and_the_part_of_a_goal_observation_are_named():
    parts = {name: np.zeros((4, 2)) for name in ("observation", "achieved_goal", "desired_goal")}
    require_finite_step(parts, np.zeros(4))
    parts["achieved_goal"][2, 1] = np.nan
    with pytest.raises(NumericalError, match=r"environment 2 returned nan in achieved_goal\[1\]"):
        require_finite_step(parts, np.zeros(4))
    with pytest.raises(NumericalError, match="environment 3 returned inf in reward"):
        require_finite_step(np.zeros((4, 2)), np.array([0, 0, 0, np.inf]))


@pytest.mark.parametrize(("algo", "network"), [("dqn", "critic"), ("sac", "critic"), ("bc", "actor")])
def test_weights_are_caught_within_a_logging_interval(tiny_config, algo, network):
    config = tiny_config(algo)
    if algo == "bc":
        config = offline(config, dataset_kind="random", dataset_size=300)
    with pytest.raises(NumericalError, match=r"weight \S+ is nan in \d+ of \d+ values"):
        train(config, callbacks=[Spoil(210, network)])
    run_dir = failed_run(config)
    assert 210 <= json.loads((run_dir / "result.json").read_text())["global_step"] <= 250
    assert resume(run_dir).status == "completed"  # from the last good checkpoint


def test_a_policy_that_chooses_nan_is_caught_before_the_environment_sees_it(tiny_config):
    config = tiny_config("ddpg", env_id="Glitch-v0", env_kwargs={"at": 10**9})
    with pytest.raises(NumericalError, match=r"the policy chose nan for action\[0\] of environment 0; weight .*actor"):
        train(config, callbacks=[Spoil(130, "actor")])
    assert json.loads((failed_run(config) / "result.json").read_text())["global_step"] == 130


def test_a_loss_that_is_infinite_is_named(tiny_config, monkeypatch):
    real = DDPG.update
    monkeypatch.setattr(DDPG, "update", lambda *args: {**real(*args), "train/critic_loss": torch.tensor(math.inf)})
    with pytest.raises(NumericalError, match=r"train/critic_loss is inf\."):
        train(tiny_config("ddpg"))


def test_an_evaluation_that_is_not_finite_is_no_best(tiny_config):
    config = tiny_config("bc", env_id="Glitch-v0", env_kwargs={"where": "reward", "at": 7})
    file, rng = config.output_dir.parent / "data.npz", np.random.default_rng(0)
    config = offline(config, dataset_kind="npz", dataset_path=str(file))
    np.savez(
        file,
        observations=rng.normal(size=(100, 3)),
        next_observations=rng.normal(size=(100, 3)),
        actions=rng.uniform(-1, 1, (100, 1)),
        rewards=np.zeros(100),
        terminals=np.arange(100) % 10 == 9,
    )
    with pytest.raises(NumericalError, match="the environment of the evaluation returned nan in reward"):
        train(config)
    assert not (failed_run(config) / "checkpoints" / "best").exists()


def test_the_command_line_prints_one_paragraph_and_exits_with_1(tiny_config, tmp_path, monkeypatch, capsys):
    file = tmp_path / "glitch.yaml"
    file.write_text(tiny_config("ddpg", env_id="Glitch-v0").to_yaml())
    monkeypatch.setattr(sys, "argv", ["rl-training", "train", str(file), "--json"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    for word in ("environment 0 returned nan in observation[1]", "step 119", "post_mortem", "rl-training resume"):
        assert word in line
