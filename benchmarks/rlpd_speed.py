"""Environment steps per second of RLPD beside SBX's SAC with as many critics, in one process and one run.

    python benchmarks/rlpd_speed.py --threads 2

One step is 20 updates of 10 LayerNorm critics on batches of 256 and one of the actor, sampling included; half of our
batches is prior data. SBX evaluates all ten target critics and has one buffer, as it always does; its compilation is
not counted. Rounds alternate between the two sides; the median counts. It needs sbx-rl beside this package.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

OBSERVATION, ACTION, ROWS, BATCH, UTD, CRITICS = 17, 6, 100_000, 256, 20, 10


def rows() -> dict[str, np.ndarray]:
    """Return made-up transitions."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(ROWS, OBSERVATION)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(ROWS, ACTION)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "next_observations": rng.normal(size=(ROWS, OBSERVATION)).astype(np.float32),
        "terminated": np.zeros(ROWS, bool),
        "truncated": np.arange(ROWS) % 1000 == 999,
    }


def ours() -> Callable[[], object]:
    """Return our step."""
    from rl_training.algorithms import RLPD
    from rl_training.data import ReplayBuffer, TransitionDataset
    from rl_training.data.mixture import Mixture
    from rl_training.types import SpaceSpec

    spec, data = SpaceSpec(OBSERVATION, ACTION), rows()
    prior = TransitionDataset.from_dict(data).for_task(spec)
    fresh = ReplayBuffer(spec, ROWS)
    fresh.add(*data.values())
    mixture = Mixture(prior, fresh, 0.5)
    learner = RLPD(spec, {"num_critics": CRITICS, "gradient_updates_per_step": UTD})

    def step() -> None:
        for _ in range(UTD):
            learner.update(mixture.sample(BATCH))

    return step


def theirs() -> Callable[[], object]:
    """Return SBX's step."""
    import gymnasium as gym
    from sbx import SAC
    from stable_baselines3.common.logger import configure

    class Shape(gym.Env):
        observation_space = gym.spaces.Box(-10, 10, (OBSERVATION,), np.float32)
        action_space = gym.spaces.Box(-1, 1, (ACTION,), np.float32)

    model = SAC(
        "MlpPolicy",
        Shape(),
        buffer_size=ROWS,
        policy_delay=UTD,
        policy_kwargs={"n_critics": CRITICS, "layer_norm": True, "net_arch": [256, 256]},
    )
    model.set_logger(configure(None, []))
    data, buffer = rows(), model.replay_buffer
    for name in ("observations", "actions", "rewards", "next_observations"):
        getattr(buffer, name)[:] = data[name].reshape(getattr(buffer, name).shape)
    buffer.full = True
    return lambda: model.train(UTD, BATCH)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="write the result here as JSON")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    import torch

    torch.set_num_threads(arguments.threads)
    sides = {"rl_training": ours(), "sbx": theirs()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for step in sides.values():
        step()  # compilation and first touches
    for _ in range(arguments.rounds):
        for name, step in sides.items():
            started = time.perf_counter()
            step()
            step()
            times[name].append((time.perf_counter() - started) / 2)
    rates = {name: round(1 / statistics.median(values), 2) for name, values in times.items()}
    result = {
        "steps_per_second": rates,
        "ratio": round(rates["rl_training"] / rates["sbx"], 2),
        "threads": arguments.threads,
    }
    print(json.dumps(result))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
