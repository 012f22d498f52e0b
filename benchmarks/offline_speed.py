"""Updates per second of the offline algorithms beside d3rlpy and plain PyTorch, in one process and one run.

    python benchmarks/offline_speed.py

d3rlpy pins an older Gymnasium; install it beside this package with ``pip install --no-deps d3rlpy`` and, by name, what
it needs: tqdm h5py gym click structlog colorama dataclasses-json scikit-learn. Both sides sample batches of 256 from
the same 100,000 made-up transitions (observation 17, action 6); networks are 2x256. Rounds alternate between the
sides; the median of the rounds counts. The plain loops (``plain_pytorch.py``) stand for implementations in one file,
which are faster than d3rlpy at BC, TD3+BC and IQL.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plain_pytorch
import torch

from rl_training.algorithms import AWAC, BC, CQL, IQL, TD3BC
from rl_training.data import TransitionDataset

ROWS, BATCH = 100_000, 256


def transitions() -> dict[str, np.ndarray]:
    """Return made-up transitions in episodes of 1,000 steps."""
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(ROWS, 17)).astype(np.float32)
    return {
        "observations": observations,
        "actions": rng.uniform(-1, 1, size=(ROWS, 6)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "next_observations": np.roll(observations, -1, axis=0),
        "terminated": np.zeros(ROWS, bool),
        "truncated": np.arange(ROWS) % 1000 == 999,
    }


def rate(work: Callable[[], object], seconds: float) -> float:
    """Return how often per second ``work`` runs."""
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        work()
        count += 1
    return count / elapsed


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    import d3rlpy

    torch.set_num_threads(arguments.threads)
    arrays = transitions()
    dataset = TransitionDataset.from_dict(arrays)
    logged = d3rlpy.dataset.MDPDataset(
        arrays["observations"], arrays["actions"], arrays["rewards"], arrays["terminated"], arrays["truncated"]
    )
    sample = plain_pytorch.Sampler(arrays, BATCH)
    configs = d3rlpy.algos
    sides = {
        "TD3+BC": (TD3BC, configs.TD3PlusBCConfig, plain_pytorch.td3_bc),
        "IQL": (IQL, configs.IQLConfig, plain_pytorch.iql),
        "CQL": (CQL, configs.CQLConfig, None),
        "AWAC": (AWAC, configs.AWACConfig, None),
        "BC": (BC, configs.BCConfig, plain_pytorch.bc),
    }
    rows = []
    for name, (learner_type, config_type, plain) in sides.items():
        learner = learner_type(dataset.spec)
        peer = config_type(batch_size=BATCH).create(device="cpu:0")
        peer.build_with_dataset(logged)
        work: dict[str, Callable[[], object]] = {
            "rl_training": lambda learner=learner: learner.update(dataset.sample(BATCH)),
            "d3rlpy": lambda peer=peer: peer.update(logged.sample_transition_batch(BATCH)),
        }
        if plain is not None:
            work["plain"] = plain(sample, dataset.spec.observation_dim, dataset.spec.action_dim)
        for update in work.values():
            for _ in range(5):
                update()
        rounds = [
            {side: rate(update, arguments.seconds) for side, update in work.items()} for _ in range(arguments.rounds)
        ]
        row: dict[str, object] = {"name": name}
        for side in work:
            row[side] = statistics.median(each[side] for each in rounds)
        for side in list(work)[1:]:
            row[f"ratio_{side}"] = statistics.median(each["rl_training"] / each[side] for each in rounds)
        print(f"{name:7}", *(f"{key} {value:.2f}" for key, value in row.items() if key != "name"), flush=True)
        rows.append(row)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
