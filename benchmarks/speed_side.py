"""One side of ``benchmarks/speed.py``, in a process of its own.

It prepares one kind of work and then answers lines on its standard input: each line is a number of repetitions, and the
answer is the time that they took. So the sides can take turns, and the one that waits uses no processor.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

os.environ.setdefault("MUJOCO_GL", "disabled")

import numpy as np

ENV_ID, EPISODES, LENGTH, BATCH = "FetchPush-v4", 2_000, 50, 256
OBSERVATION, GOAL, ACTION = 25, 3, 4
PACKAGES = {"rl_training": "torch", "sb3": "stable-baselines3", "sbx": "sbx-rl"}
Work = Callable[[], object]


def episodes() -> Iterator[tuple[list[dict[str, np.ndarray]], np.ndarray]]:
    """Yield made-up episodes of the environment's shape, the same for all sides."""
    rng = np.random.default_rng(0)
    for _ in range(EPISODES):
        goal = rng.normal(size=GOAL)
        walk = np.array([1.3, 0.75, 0.45]) + np.cumsum(rng.normal(size=(LENGTH + 1, GOAL), scale=0.02), axis=0)
        observations = rng.normal(size=(LENGTH + 1, OBSERVATION))
        steps = [
            {"observation": observations[t], "achieved_goal": walk[t], "desired_goal": goal} for t in range(LENGTH + 1)
        ]
        yield steps, rng.uniform(-1, 1, size=(LENGTH, ACTION))


def plain_env() -> Any:
    """Return an environment without goals, of the same size as the one with goals."""
    import gymnasium as gym

    class Shape(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-10, 10, (OBSERVATION + GOAL,), np.float32)
        action_space = gym.spaces.Box(-1, 1, (ACTION,), np.float32)

    return Shape()


def plain_columns() -> dict[str, np.ndarray]:
    """Return made-up transitions without goals."""
    rng, rows = np.random.default_rng(0), EPISODES * LENGTH
    return {
        "observations": rng.normal(size=(rows, OBSERVATION + GOAL)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(rows, ACTION)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "next_observations": rng.normal(size=(rows, OBSERVATION + GOAL)).astype(np.float32),
    }


def our_buffer(goals: bool, device: str) -> Any:
    """Return our buffer, filled."""
    from rl_training.data import HERReplayBuffer, ReplayBuffer
    from rl_training.envs import GoalFunctions, make_env, space_spec
    from rl_training.types import SpaceSpec

    if not goals:
        columns = plain_columns()
        rows = len(columns["rewards"])
        plain = ReplayBuffer(SpaceSpec(OBSERVATION + GOAL, ACTION), 1_000_000, device=device)
        plain.add(*columns.values(), np.zeros(rows, bool), np.arange(rows) % LENGTH == LENGTH - 1)
        return plain
    env = make_env(ENV_ID)
    functions = GoalFunctions(env)
    buffer = HERReplayBuffer(space_spec(env, functions), 1_000_000, functions, device=device)
    for observations, actions in episodes():
        parts = {key: np.stack([step[key] for step in observations]) for key in observations[0]}
        buffer.add_episode(parts, actions, np.full(LENGTH, -1.0))
    return buffer


def our_work(work: str, device: str) -> Work:
    """Return our sampling, or our sampling and update."""
    from rl_training.algorithms.table import ALGORITHMS
    from rl_training.runtime.acceleration import accelerated_updates
    from rl_training.runtime.heap import keep_freed_memory

    keep_freed_memory()  # as every run does
    kind, _, algorithm = work.partition(":")
    name, goals = algorithm.removesuffix("+her"), algorithm.endswith("+her")
    buffer = our_buffer(goals, device)
    if kind == "sample":
        return lambda: buffer.sample(BATCH)
    learner = ALGORITHMS[name].learner(buffer.spec, {"critic_layer_norm": False}, device=device)
    learner.fuses_kernels = device == "cpu"  # as a run of 50,000 updates does
    update = accelerated_updates(learner, buffer, BATCH)
    for _ in range(2):  # every second update of TD3 moves the actor
        update()
    return update


def peer_work(side: str, work: str, device: str) -> Work:
    """Return a peer's sampling, or its sampling and update."""
    import gymnasium as gym
    import gymnasium_robotics
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.logger import configure

    gym.register_envs(gymnasium_robotics)
    kind, _, algorithm = work.partition(":")
    name, goals = algorithm.removesuffix("+her"), algorithm.endswith("+her")
    options: dict[str, Any] = {"buffer_size": 1_000_000, "batch_size": BATCH, "policy_kwargs": {"net_arch": [256, 256]}}
    if goals:
        options |= {"replay_buffer_class": HerReplayBuffer}
        options |= {"replay_buffer_kwargs": {"n_sampled_goal": 4, "goal_selection_strategy": "future"}}
    env = gym.make(ENV_ID) if goals else plain_env()
    model = peer_algorithm(side, name)("MultiInputPolicy" if goals else "MlpPolicy", env, device=device, **options)
    model.set_logger(configure(None, []))
    buffer = model.replay_buffer
    if goals:
        for observations, actions in episodes():
            for t in range(LENGTH):
                now, after = ({key: value[None] for key, value in observations[t + i].items()} for i in (0, 1))
                buffer.add(now, after, actions[t][None], np.array([-1.0]), np.array([t == LENGTH - 1]), [{}])
    else:
        for column, values in plain_columns().items():
            stored = getattr(buffer, column)
            stored[: len(values)] = values.reshape(len(values), *stored.shape[1:])
        buffer.pos = EPISODES * LENGTH
    if kind == "sample":
        return lambda: buffer.sample(BATCH)
    return lambda: model.train(1, BATCH)


def peer_algorithm(side: str, name: str) -> Any:
    """Return a peer's class."""
    import importlib

    module = importlib.import_module("stable_baselines3" if side == "sb3" else "sbx")
    return getattr(module, name.upper())


class Rounds:
    """Answers the lines of the standard input. ``step`` is called after every repetition by a loop that is not ours."""

    def __init__(self, side: str, answers: Any) -> None:
        self.side, self._answers = side, answers
        self._left, self._started = 0, 0.0

    def say(self, **answer: Any) -> None:
        """Write an answer."""
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def next(self) -> int | None:
        """Return the number of repetitions of the next round; None when there are no more."""
        line = sys.stdin.readline()
        return int(line) if line.strip() else None

    def repeat(self, work: Work, wait: Callable[[], None]) -> None:
        """Do the work in rounds until there are no more."""
        while (count := self.next()) is not None:
            started = time.perf_counter()
            for _ in range(count):
                work()
            wait()
            self.say(seconds=time.perf_counter() - started)

    def step(self) -> bool:
        """Count a repetition and return whether to go on; between rounds this waits for the next line."""
        self._left -= 1
        if self._left > 0:
            return True
        if self._started:
            self.say(seconds=time.perf_counter() - self._started)
        else:
            self.say(ready=self.side, **facts(self.side))  # the first step has been taken
        count = self.next()
        self._left, self._started = count or 0, time.perf_counter()
        return count is not None


def train_ours(env_id: str, rounds: Rounds) -> None:
    """Train with our defaults, and without evaluations and checkpoints, which the peers do not make by default."""
    from rl_training import Callback, train

    class Turn(Callback):
        def on_step(self, trainer: Any) -> None:
            if not rounds.step():
                trainer.state.stop("the benchmark is over")

    options = {"backend": "sac", "eval_interval": None, "checkpoint_interval": None}
    with tempfile.TemporaryDirectory() as folder:
        config = {"algo": "her", "env_id": env_id, "total_timesteps": 1_000_000, "eval_episodes": 1}
        train({**config, "output_dir": folder, "algo_kwargs": options}, [Turn()])


def train_peer(side: str, env_id: str, rounds: Rounds) -> None:
    """Train with a peer's defaults."""
    import gymnasium as gym
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.callbacks import BaseCallback

    if env_id.startswith("rl_training/"):
        import rl_training  # noqa: F401  # it registers its environments
    else:
        import gymnasium_robotics

        gym.register_envs(gymnasium_robotics)

    class Turn(BaseCallback):
        def _on_step(self) -> bool:
            return rounds.step()

    algorithm = peer_algorithm(side, "sac")
    model = algorithm("MultiInputPolicy", gym.make(env_id), replay_buffer_class=HerReplayBuffer, device="cpu")
    model.learn(1_000_000, callback=Turn())


def facts(side: str) -> dict[str, Any]:
    """Return versions and the number of threads that the process computes with."""
    import torch

    return {"python": platform.python_version(), PACKAGES[side]: version(PACKAGES[side])} | (
        {"threads": torch.get_num_threads()} if side != "sbx" else {"jax": version("jax")}
    )


def main() -> None:
    """Prepare the work and answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("side", choices=list(PACKAGES))
    parser.add_argument("work", help="sample:sac+her, update:ddpg+her, train:ENV_ID")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="torch threads; unset: the default of the side")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the standard error
    if options.threads is not None and options.side != "sbx":
        import torch

        torch.set_num_threads(options.threads)
    rounds = Rounds(options.side, answers)
    kind, _, what = options.work.partition(":")
    if kind == "train":
        train_ours(what, rounds) if options.side == "rl_training" else train_peer(options.side, what, rounds)
    else:
        if options.side == "rl_training":
            work = our_work(options.work, options.device)
        else:
            work = peer_work(options.side, options.work, options.device)
        import torch

        rounds.say(ready=options.side, **facts(options.side))
        rounds.repeat(work, torch.cuda.synchronize if options.device.startswith("cuda") else lambda: None)
    rounds.say(peak_megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
