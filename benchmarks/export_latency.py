"""What an exported policy costs and how exact it is: size, latency on one core, and parity with the learner.

    python benchmarks/export_latency.py
    python benchmarks/export_latency.py --run RUN

Policies of two layers of 256 units with the sizes of a Fetch task (observation 25, goal 3, action 4; discrete: 4
actions), with random weights and a normaliser. Each is exported and loaded as ``example.py`` does. One call is one
observation to one action, through ``act`` of ``example.py``, in this process, on one core.

With ``--run``, the policy of a trained run is compared with its export on random inputs, and with itself: the learner's
actions for a batch beside those for single rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.table import ALGORITHMS
from rl_training.config import parse_config
from rl_training.experiment.manager import load_policy
from rl_training.export import BundlePolicy, export_policy
from rl_training.export.bundle import golden_inputs, learner_files, write_folder
from rl_training.export.graph import learner_outputs
from rl_training.types import SpaceSpec

NAMES = ("ddpg", "td3", "sac", "dqn", "bc", "iql", "rlpd")


def measure(name: str, goals: bool, calls: int, folder: Path) -> dict[str, Any]:
    """Export one policy and return its figures."""
    discrete = name == "dqn"
    spec = SpaceSpec(25, 1 if discrete else 4, 3 if goals else 0, num_actions=4 if discrete else None)
    learner = ALGORITHMS[name].learner(spec, {"hidden_sizes": (256, 256), "normalize_observations": True})
    learner.observe(torch.randn(1_000, spec.policy_dim, generator=torch.Generator().manual_seed(0)) * 3 + 1)
    config = parse_config({"algo": name, "total_timesteps": 1})
    facts = {"algorithm": name, "learner": name, "seed": 0, "global_step": 0, "update_count": 0, "evaluation": {}}
    write_folder(folder, learner_files(learner, config, {**facts, "config": config.model_dump(mode="json")})[1])
    module_spec = importlib.util.spec_from_file_location("example", folder / "example.py")
    assert module_spec is not None
    assert module_spec.loader is not None
    example = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(example)

    inputs = golden_inputs(learner, 10_000, seed=1)
    expected = learner_outputs(learner, inputs)["action"]
    parts = [inputs[:, :25], inputs[:, 25:]] if goals else [inputs]
    ports = [item["name"] for item in example.CONTRACT["inputs"]]
    found = example.SESSION.run(["action"], dict(zip(ports, parts, strict=True)))[0]
    times = np.empty(calls)
    for call in range(calls):
        row = [part[call % len(inputs)] for part in parts]
        start = time.perf_counter()
        example.act(*row)
        times[call] = time.perf_counter() - start
    times = times[calls // 10 :] * 1e3  # without the first calls
    return {
        "policy": name + (", goals" if goals else ""),
        "bundle_kb": round(sum(file.stat().st_size for file in folder.iterdir()) / 1e3),
        "difference": float(np.abs(expected.astype(np.float64) - found).max()),
        "p50_ms": round(float(np.percentile(times, 50)), 4),
        "p99_ms": round(float(np.percentile(times, 99)), 4),
    }


def compare(run: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the largest differences of a trained policy's actions for two distributions of inputs."""
    export_policy(run, folder)
    learner, bundle = load_policy(run)[0], BundlePolicy(folder)
    rng, shape = np.random.default_rng(1), (10_000, learner.spec.policy_dim)
    rows = []
    for name, values in {
        "uniform in [-1, 1]": rng.uniform(-1, 1, shape),
        "standard normal": rng.normal(size=shape),
    }.items():
        inputs = values.astype(np.float32)
        actions = learner.predict(inputs).astype(np.float64)
        single = np.stack([learner.predict(row) for row in inputs[:3_000]])
        rows.append(
            {
                "inputs": name,
                "export": float(np.abs(bundle.predict(inputs) - actions).max()),
                "learner_single_rows": float(np.abs(single - actions[:3_000]).max()),
            }
        )
    return rows


def main() -> None:
    """Measure every policy and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--run", type=Path, help="compare the policy of this run instead")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.run is not None:
            rows = compare(arguments.run, Path(folder) / "policy")
        else:
            cases = [(name, goals) for name in NAMES for goals in (False, True)]
            rows = [measure(*case, arguments.calls, Path(folder) / str(i)) for i, case in enumerate(cases)]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
