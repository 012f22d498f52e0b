"""What prior data is worth: RLPD, SAC with the demonstrations in its buffer, and SAC alone, on one Adroit task.

    RL_TRAINING_DATA=folder python benchmarks/prior_data.py --seeds 100-102 --workers 2 --output curves.json

All three have the same networks, rewards, budget, rates and updates per step. The curves are those of the evaluations
that each run makes, 20 episodes every 5,000 steps. SAC diverges at the preset's rates; at its own ones:

    python benchmarks/prior_data.py --variants sac_with_demonstrations sac --set algo_kwargs.learning_rate=3e-4 \
        algo_kwargs.tau=0.005

The picture of the page: ``--output benchmarks/results/adroit_door.json --draw docs/assets/adroit_door.png``
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

from curve_plot import draw_curves

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "disabled")

PRESET = "rlpd/adroit_door"
SHARED = (
    "reward_scale",
    "hidden_sizes",
    "backup_entropy",
    "gradient_updates_per_step",
    "policy_delay",
    "learning_rate",
    "tau",
    "initial_alpha",
    "target_entropy",
    "learning_starts",
)


def run(variant: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Train one variant and return its evaluations."""
    from rl_training.config import load_config, parse_config
    from rl_training.data import load_transition_dataset
    from rl_training.errors import NumericalError
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.run import train

    config = load_config(PRESET, [*overrides, f"seed={seed}"])
    path = config.algo_kwargs["dataset_path"]
    curve: dict[str, list[float]] = {"steps": [], "return": [], "success": []}

    class Record(Callback):
        """Keeps the evaluations, also those of a run that does not reach its end."""

        def on_evaluation(self, trainer: Any, metrics: dict[str, float]) -> None:
            curve["steps"].append(trainer.state.global_step)
            curve["return"].append(round(metrics["eval/mean_reward"], 2))
            curve["success"].append(round(metrics["eval/success_rate"], 3))

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
    callbacks: list[Callback] = [Record(), *([FillBuffer()] if variant == "sac_with_demonstrations" else [])]
    try:
        outcome = train(config, callbacks=callbacks, run_name=variant).stop_reason
    except NumericalError:
        outcome = "diverged"
    return {
        "variant": variant,
        "overrides": overrides,
        "seed": seed,
        "device": config.device,
        "seconds": round(time.perf_counter() - started, 1),
        "outcome": outcome,
        **curve,
    }


def draw(curves: list[dict[str, Any]], output: Path) -> None:
    """Draw the success of each variant and its overrides."""
    named: dict[str, list[dict[int, float]]] = {}
    for curve in curves:
        changed = [override.removeprefix("algo_kwargs.") for override in curve["overrides"] if "device" not in override]
        name = ", ".join([curve["variant"].replace("_", " "), *changed])
        named.setdefault(name, []).append(dict(zip(curve["steps"], curve["success"], strict=True)))
    counted = {f"{name} ({len(runs)} seeds)": runs for name, runs in named.items()}
    draw_curves(counted, f"{PRESET} (mean and range over seeds)", output)


def main() -> None:
    """Run every variant on every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="100-102", help="a range such as 100-102")
    parser.add_argument("--variants", nargs="+", default=["rlpd", "sac_with_demonstrations", "sac"])
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--set", nargs="*", default=[], help="key=value overrides, such as device=cuda")
    parser.add_argument("--output", type=Path, help="write the curves here as JSON")
    parser.add_argument("--draw", type=Path, help="draw the curves of --output into this picture, and train nothing")
    arguments = parser.parse_args()
    if arguments.draw:
        draw(json.loads(arguments.output.read_text()), arguments.draw)
        return
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
