"""A goal task with chance in it: replay must not make a rare outcome look common, and the default still learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.config import parse_config
from rl_training.data import HERReplayBuffer, HindsightSettings
from rl_training.envs import GoalRewards, space_spec
from rl_training.envs.play import play
from rl_training.runtime import Callback, train_her

PARCEL = "rl_training_tests/Parcel-v0"
SEND, THROW = 0, 1
CHANCE = 0.1


class ParcelEnv(gym.Env[Any, Any]):
    """Bring a parcel to -1 or 1. The first action decides: SEND takes 8 steps; THROW works once in ten times, at once.

    A throw that misses leaves the parcel where it was for the rest of the episode, so its achieved goal never moves.
    """

    distance_threshold = 0.1

    def __init__(self) -> None:
        place = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = spaces.Dict(
            {"observation": spaces.Box(-1, 1, (3,), np.float32), "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = spaces.Discrete(2)

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.where(np.linalg.norm(achieved - desired, axis=-1) <= self.distance_threshold, 0.0, -1.0)[()]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.sent, self.thrown = 0.0, False, False
        self.goal = float(self.np_random.choice([-1.0, 1.0]))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        lucky = self.np_random.random() < CHANCE
        if not (self.sent or self.thrown):
            self.sent, self.thrown = action == SEND, action == THROW
            self.place = self.goal if self.thrown and lucky else 0.0
        if self.sent and self.place != self.goal:
            self.place += 0.125 * self.goal
        observation = self._observe()
        reward = float(self.compute_reward(observation["achieved_goal"], observation["desired_goal"], {}))
        return observation, reward, False, False, {"is_success": reward == 0.0}

    def _observe(self) -> dict[str, Any]:
        return {
            "observation": np.array([self.place, self.sent, self.thrown], np.float32),
            "achieved_goal": np.array([self.place], np.float32),
            "desired_goal": np.array([self.goal], np.float32),
        }


@pytest.fixture(autouse=True)
def registered() -> Any:
    gym.register(PARCEL, entry_point=ParcelEnv, max_episode_steps=12)
    yield
    gym.registry.pop(PARCEL)


def played(episodes: int = 1000, **settings: Any) -> HERReplayBuffer:
    """Return a buffer with episodes of random play."""
    env = gym.make(PARCEL)
    goals = GoalRewards(gym.make(PARCEL))
    buffer = HERReplayBuffer(space_spec(env, goals), 20_000, goals, settings=HindsightSettings(**settings))
    rng = np.random.default_rng(0)
    steps = []
    for step in play(env, lambda _: rng.integers(2), range(episodes)):
        steps.append(step)
        if step.done:
            seen: list[Any] = [steps[0].observation, *(each.next_observation for each in steps)]
            places = {key: np.array([each[key] for each in seen]) for key in seen[0]}
            buffer.add_episode(places, [each.action for each in steps], [each.reward for each in steps])
            steps = []
    return buffer


def share_of_hits(buffer: HERReplayBuffer) -> tuple[float, float]:
    """Return how often throws hit, in rows with their own goal and in all rows whose goal is a place to hit."""
    size = 300_000
    batch = buffer.sample(size)
    before = batch.observations
    throws = (before[:, 1:3] == 0).all(dim=1) & (batch.actions[:, 0] == THROW) & (before[:, 3].abs() == 1)
    hits = batch.next_observations[:, 0].abs() == 1
    own = throws & (torch.arange(size) >= round(buffer.relabelled_share * size))
    return hits[own].float().mean().item(), hits[throws].float().mean().item()


def test_replay_shows_chance_as_it_is_but_for_the_bounded_bias_of_hindsight():
    truth, _ = share_of_hits(played(her_ratio=0.0, episode_priority="uniform"))
    assert truth == pytest.approx(CHANCE, abs=0.03)
    assert share_of_hits(played(her_ratio=0.0))[0] == pytest.approx(truth, abs=0.01)
    own, plain = share_of_hits(played(episode_priority="uniform"))
    assert own == pytest.approx(truth, abs=0.02)
    own, motion = share_of_hits(played())
    assert own == pytest.approx(truth, abs=0.02)

    # A goal that was relabelled was reached, so hindsight adds r / (1 - r) = 4 hits to each with its own goal, and no
    # miss. Motion priority adds nothing to that.
    assert plain == pytest.approx(5 * truth / (1 + 4 * truth), abs=0.02)
    assert truth < motion <= plain + 0.02


class Values(Callback):
    """Looks at the learned values of the two first actions."""

    def on_training_end(self, trainer: Any) -> None:
        start = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, -1.0]])
        self.send, self.throw = trainer.learner.model.critic(start).mean(dim=0).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "seed"), [(None, 3), (None, 4), (0.0, 3)], ids=["default-3", "default-4", "no hindsight-3"]
)
def test_the_default_learns_that_a_lucky_throw_is_not_worth_it(tmp_path: Path, ratio: float | None, seed: int):
    kwargs: dict[str, Any] = {"backend": "dqn", "gamma": 0.95, "tau": 0.05, "learning_rate": 1e-3, "batch_size": 128}
    kwargs |= {"hidden_sizes": [64, 64], "learning_starts": 500, "random_action_prob": 0.3, "her_ratio": ratio}
    values = {"algo": "her", "env_id": PARCEL, "total_timesteps": 3000, "eval_episodes": 30, "algo_kwargs": kwargs}
    values["seed"] = seed
    seen = Values()
    result = train_her(parse_config({**values, "output_dir": str(tmp_path)}), callbacks=[seen])
    assert result.metrics["eval/success_rate"] >= 0.95
    assert seen.send == pytest.approx(-(1 - 0.95**7) / 0.05, abs=1.0)
    assert seen.throw < -10  # the truth is -18; drawing rows by their outcome made it -0.1
