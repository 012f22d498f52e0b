"""What prior data is worth: RLPD, SAC with the demonstrations in its buffer, and SAC alone, on one Adroit task.

    RL_TRAINING_DATA=folder python benchmarks/prior_data.py --seeds 100-102 --workers 2 --output curves.json

All three have the same networks, rewards, budget and updates per step. The curves are those of the evaluations that
each run makes, 20 episodes every 5,000 steps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "disabled")

PRESET = "rlpd/adroit_door"
SHARED = (
    "reward_scale",
    "hidden_sizes",
    "backup_entropy",
    "gradient_updates_per_step",
    "policy_delay",
    "initial_alpha",
    "target_entropy",
    "learning_starts",
)


def run(variant: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Train one variant and return its evaluations."""
    from rl_training.config import load_config, parse_config
    from rl_training.data import load_transition_dataset
    from rl_training.experiment.registry import recipe_for
    from rl_training.runtime.assembly import train
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.logging import read_metrics

    config = load_config(PRESET, [*overrides, f"seed={seed}"])
    path = config.algo_kwargs["dataset_path"]

    class FillBuffer(Callback):
        """Puts the demonstrations into the replay buffer, as if the run had collected them."""

        def on_training_start(self, trainer: Any) -> None:
            data = load_transition_dataset(path).for_task(trainer.learner.spec)
            rows = slice(None) if data.usable is None else data.usable
            fields = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
            trainer.replay.add(*(data.arrays[field][rows] for field in fields))

    if variant != "rlpd":
        kept = {key: value for key, value in config.algo_kwargs.items() if key in SHARED or key.endswith("_interval")}
        config = parse_config({**config.model_dump(), "algo": "sac", "algo_kwargs": kept})
    started = time.perf_counter()
    callbacks = [FillBuffer()] if variant == "sac_with_demonstrations" else []
    result = train(recipe_for(config.algo), config, callbacks=callbacks, run_name=variant)
    rows = [row for row in read_metrics(result.run_dir / "metrics.csv") if "eval/mean_reward" in row]
    return {
        "variant": variant,
        "seed": seed,
        "device": config.device,
        "seconds": round(time.perf_counter() - started, 1),
        "steps": [row["global_step"] for row in rows],
        "return": [round(row["eval/mean_reward"], 2) for row in rows],
        "success": [round(row["eval/success_rate"], 3) for row in rows],
    }


def main() -> None:
    """Run every variant on every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="100-102", help="a range such as 100-102")
    parser.add_argument("--variants", nargs="+", default=["rlpd", "sac_with_demonstrations", "sac"])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--set", nargs="*", default=[], help="key=value overrides, such as device=cuda")
    parser.add_argument("--output", type=Path, help="write the curves here as JSON")
    arguments = parser.parse_args()
    first, last = (int(part) for part in arguments.seeds.split("-"))
    curves: list[dict[str, Any]] = []
    with ProcessPoolExecutor(arguments.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(run, variant, seed, arguments.set)
            for variant in arguments.variants
            for seed in range(first, last + 1)
        ]
        for job in as_completed(jobs):
            curves.append(job.result())
            print(json.dumps(curves[-1]), flush=True)
            if arguments.output:
                ordered = sorted(curves, key=lambda curve: (curve["variant"], curve["seed"]))
                arguments.output.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main()
