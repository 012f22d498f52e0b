"""Updates per second of the offline algorithms beside d3rlpy and plain PyTorch, in one run.

    python benchmarks/offline_speed.py

d3rlpy pins an older Gymnasium; install it beside this package with ``pip install --no-deps d3rlpy`` and, by name, what
it needs: tqdm h5py gym click structlog colorama dataclasses-json scikit-learn. Both sides sample batches of 256 from
the same 100,000 made-up transitions (observation 17, action 6); networks are 2x256. Each algorithm has a process of
its own, as a training run has. Short rounds alternate between the sides; the median of the rounds counts. The plain
loops (``plain_pytorch.py``) stand for implementations in one file, which are faster than d3rlpy at BC, TD3+BC and IQL.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plain_pytorch
import torch

import rl_training.algorithms
from rl_training.data import TransitionDataset

ROWS, BATCH = 100_000, 256
SIDES: dict[str, tuple[str, str, Any]] = {
    "TD3+BC": ("TD3BC", "TD3PlusBCConfig", plain_pytorch.td3_bc),
    "IQL": ("IQL", "IQLConfig", plain_pytorch.iql),
    "CQL": ("CQL", "CQLConfig", None),
    "AWAC": ("AWAC", "AWACConfig", None),
    "BC": ("BC", "BCConfig", plain_pytorch.bc),
}


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


def compare(name: str, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the rates of one algorithm on all sides, and the ratios between them."""
    import d3rlpy

    torch.set_num_threads(threads)
    arrays = transitions()
    dataset = TransitionDataset.from_dict(arrays)
    logged = d3rlpy.dataset.MDPDataset(
        arrays["observations"], arrays["actions"], arrays["rewards"], arrays["terminated"], arrays["truncated"]
    )
    own, config, plain = SIDES[name]
    learner = getattr(rl_training.algorithms, own)(dataset.spec)
    peer = getattr(d3rlpy.algos, config)(batch_size=BATCH).create(device="cpu:0")
    peer.build_with_dataset(logged)
    work: dict[str, Callable[[], object]] = {
        "rl_training": lambda: learner.update(dataset.sample(BATCH)),
        "d3rlpy": lambda: peer.update(logged.sample_transition_batch(BATCH)),
    }
    if plain is not None:
        sample = plain_pytorch.Sampler(arrays, BATCH)
        work["plain"] = plain(sample, dataset.spec.observation_dim, dataset.spec.action_dim)
    for update in work.values():
        for _ in range(5):
            update()
    rates = [{side: rate(update, seconds) for side, update in work.items()} for _ in range(rounds)]
    row: dict[str, Any] = {"name": name}
    for side in work:
        row[side] = statistics.median(each[side] for each in rates)
    for side in list(work)[1:]:
        row[f"ratio_{side}"] = statistics.median(each["rl_training"] / each[side] for each in rates)
    return row


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.algorithms:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(compare, (name, arguments.threads, arguments.rounds, arguments.seconds))
        print(f"{name:7}", *(f"{key} {value:.2f}" for key, value in row.items() if key != "name"), flush=True)
        rows.append(row)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
