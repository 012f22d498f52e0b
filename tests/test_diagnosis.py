"""A run that does not learn says so, once, with what to try."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.config import parse_config
from rl_training.runtime import train_her
from rl_training.runtime.diagnosis import Diagnosis

BOUNDS = (-20.0, 0.0)
FINE = {
    "rollout/success_rate": 0.0,
    "train/motion_weight": 0.5,
    "train/trivial_goal_share": 0.1,
    "train/q_mean": -10.0,
    "rollout/saturated_actions": 0.2,
}


@pytest.mark.parametrize(
    ("metric", "value", "words"),
    [
        ("train/motion_weight", 0.004, r"the achieved goal hardly moves \(the mean weight of a stored step is 0.004\)"),
        ("train/trivial_goal_share", 0.97, "97% of the replaced goals were met before their step"),
        ("train/q_mean", -19.9, r"flat at their lower bound \(-19.9\)"),
        ("rollout/saturated_actions", 0.95, "95% of the actions are at their bounds"),
    ],
)
def test_each_sign_is_reported_once_after_three_rows(metric: str, value: float, words: str) -> None:
    diagnosis = Diagnosis()
    row = {**FINE, metric: value}
    assert diagnosis.check(row, 1_999, BOUNDS) == []  # too early
    assert [diagnosis.check(row, 2_000, BOUNDS) for _ in range(2)] == [[], []]
    assert diagnosis.check(FINE, 2_000, BOUNDS) == []  # the third row in a row counts
    found = [diagnosis.check(row, 3_000, BOUNDS) for _ in range(6)]
    (message,) = found[2]
    assert re.search(words, message)
    assert found[:2] + found[3:] == [[]] * 5


def test_a_run_that_succeeds_is_left_alone() -> None:
    diagnosis = Diagnosis()
    row = {**FINE, "rollout/saturated_actions": 0.99, "rollout/success_rate": 0.1}
    assert [diagnosis.check(row, 9_000, BOUNDS) for _ in range(5)] == [[]] * 5


def test_values_without_known_bounds_are_not_judged() -> None:
    diagnosis = Diagnosis()
    assert [diagnosis.check({**FINE, "train/q_mean": -1e9}, 9_000, None) for _ in range(5)] == [[]] * 5


class StuckEnv(gym.Env[Any, Any]):
    """The achieved goal never moves."""

    distance_threshold = 0.1

    def __init__(self) -> None:
        place = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), place))
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.where(np.linalg.norm(achieved - desired, axis=-1) <= 0.1, 0.0, -1.0)[()]

    def _observe(self) -> dict[str, Any]:
        zero = np.zeros(1, np.float32)
        return {"observation": zero, "achieved_goal": zero, "desired_goal": np.ones(1, np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe(), -1.0, False, False, {"is_success": False}


def test_a_run_in_which_the_goal_never_moves_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.diagnosis._LEAST_UPDATES", 50)
    gym.register("rl_training_tests/Stuck-v0", entry_point=StuckEnv, max_episode_steps=10)
    kwargs = {"hidden_sizes": [8], "batch_size": 16, "learning_starts": 20, "log_interval": 20, "eval_interval": None}
    values = {"algo": "her", "env_id": "rl_training_tests/Stuck-v0", "total_timesteps": 200, "algo_kwargs": kwargs}
    try:
        with pytest.warns(UserWarning, match="this run does not learn yet: the achieved goal hardly moves"):
            result = train_her(parse_config({**values, "output_dir": str(tmp_path), "eval_episodes": 1}))
    finally:
        gym.registry.pop("rl_training_tests/Stuck-v0")
    assert result.status == "completed"
    assert "hardly moves" in (result.run_dir / "warnings.jsonl").read_text()
