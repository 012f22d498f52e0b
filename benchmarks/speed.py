"""Speed beside Stable-Baselines3, in one process and one run: `make bench`.

Both sides hold the same 100,000 transitions of FetchPush's shape (observation 25, goal 3, action 4) and ask the same
environment for rewards. Networks are 2x256, the batch is 256, critics are plain (no LayerNorm), hindsight ratio 0.8.
Rounds alternate between the two sides, so that a slow moment of the machine hits both; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "disabled")

import numpy as np
import torch

from rl_training.algorithms import DDPG, SAC, TD3
from rl_training.data import HERReplayBuffer
from rl_training.envs import GoalFunctions, make_env, space_spec

ENV_ID, EPISODES, LENGTH, BATCH = "FetchPush-v4", 2_000, 50, 256


def episodes():
    """Yield made-up episodes of the environment's shape, the same for both sides."""
    rng = np.random.default_rng(0)
    for _ in range(EPISODES):
        goal = rng.normal(size=3)
        walk = np.array([1.3, 0.75, 0.45]) + np.cumsum(rng.normal(size=(LENGTH + 1, 3), scale=0.02), axis=0)
        observations = rng.normal(size=(LENGTH + 1, 25))
        actions = rng.uniform(-1, 1, size=(LENGTH, 4))
        yield (
            [
                {"observation": observations[t], "achieved_goal": walk[t], "desired_goal": goal}
                for t in range(LENGTH + 1)
            ],
            actions,
        )


def ours(env) -> HERReplayBuffer:
    """Fill our buffer."""
    goals = GoalFunctions(env)
    buffer = HERReplayBuffer(space_spec(env, goals), 1_000_000, goals)
    for observations, actions in episodes():
        for t in range(LENGTH):
            now, after = ({key: value[None] for key, value in observations[t + i].items()} for i in (0, 1))
            ended = np.array([t == LENGTH - 1])
            buffer.add(now, actions[t][None], np.array([-1.0]), after, np.array([False]), ended)
    return buffer


def theirs(algorithm, env):
    """Fill Stable-Baselines3's buffer inside one of its algorithms."""
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.logger import configure

    model = algorithm(
        "MultiInputPolicy",
        env,
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        buffer_size=1_000_000,
        batch_size=BATCH,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
    )
    model.set_logger(configure(None, []))
    buffer = model.replay_buffer
    for observations, actions in episodes():
        for t in range(LENGTH):
            now, after = ({key: value[None] for key, value in observations[t + i].items()} for i in (0, 1))
            buffer.add(now, after, actions[t][None], np.array([-1.0]), np.array([t == LENGTH - 1]), [{}])
    return model


def rate(work: Callable[[], object], repeats: int) -> float:
    """Return how often per second ``work`` runs."""
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    return repeats / (time.perf_counter() - started)


def compare(name: str, mine: Callable[[], object], other: Callable[[], object], repeats: int, rounds: int) -> dict:
    """Time the two sides in turn and return the medians and their ratio."""
    for _ in range(repeats // 4):
        mine()
        other()
    pairs = [(rate(mine, repeats), rate(other, repeats)) for _ in range(rounds)]
    left, right = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{name:34} rl_training {left:9,.0f}/s   Stable-Baselines3 {right:9,.0f}/s   ratio {ratio:6.2f}", flush=True)
    return {"name": name, "rl_training": left, "stable_baselines3": right, "ratio": ratio}


def main() -> None:
    """Run all comparisons."""
    import stable_baselines3

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads, Stable-Baselines3 {stable_baselines3.__version__}")
    env = make_env(ENV_ID)
    buffer = ours(env)
    rows = []
    for learner_type in (DDPG, TD3, SAC):
        name = learner_type.__name__
        model = theirs(getattr(stable_baselines3, name), env)
        learner = learner_type(buffer.spec, {"critic_layer_norm": False})
        if not rows:
            rows.append(
                compare(
                    "sample 256 hindsight transitions",
                    lambda: buffer.sample(BATCH),
                    lambda m=model: m.replay_buffer.sample(BATCH),
                    1000,
                    arguments.rounds,
                )
            )
        rows.append(
            compare(
                f"{name} + HER, sample + update",
                lambda a=learner: a.update(buffer.sample(BATCH)),
                lambda m=model: m.train(1, BATCH),
                100,
                arguments.rounds,
            )
        )
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
