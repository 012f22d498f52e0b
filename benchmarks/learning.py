"""What the presets reach: success or return after training, over seeds, as JSON and as a table.

    python benchmarks/learning.py --suite point_reach --seeds 100-104 --workers 2
    python benchmarks/learning.py --suite goals --seeds 700-704 --runs goal_runs --device cuda

Each run trains a preset with one torch thread and plays 100 episodes (20 where the task has no success) with the last
checkpoint, not the best one, so that nothing is selected by the score that is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from goals import CPU_TASKS, TASKS, read_run, table, train_task

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "disabled")

BACKENDS = ("ddpg", "td3", "sac")
OFFLINE = ("bc", "td3_bc", "iql", "awac", "cql")
SUITES: dict[str, list[tuple[str, list[str]]]] = {
    "point_reach": [("her/point_reach", [f"algo_kwargs.backend={backend}"]) for backend in BACKENDS],
    "point_reach_4_envs": [("her/point_reach", [f"algo_kwargs.backend={b}", "num_envs=4"]) for b in BACKENDS],
    "point_goal": [("her/point_goal", [])],
    "fetch_reach": [("her/fetch_reach", [])],
    "fetch_reach_4_envs": [("her/fetch_reach", ["num_envs=4"])],
    "bit_flipping": [
        ("her/bit_flipping", []),
        ("her/bit_flipping", ["algo_kwargs.her_ratio=0"]),
        ("her/bit_flipping", ["num_envs=4"]),
    ],
    # These two need the files in RL_TRAINING_DATA.
    "hopper": [(f"{algo}/hopper", []) for algo in OFFLINE],
    "halfcheetah": [(f"{algo}/halfcheetah", []) for algo in OFFLINE],
    # The second needs point_reach_demos.npz, here or in RL_TRAINING_DATA; the preset says how to make it.
    "prior_data": [("rlpd/pendulum", []), ("her/point_reach_demos", [])],
    "random_play": [*((f"{algo}/pendulum", []) for algo in OFFLINE), ("discrete_cql/cartpole", [])],
    "classic": [(preset, []) for preset in ("ddpg/pendulum", "td3/pendulum", "sac/pendulum", "dqn/cartpole")],
}


def train_and_evaluate(preset: str, overrides: list[str], seed: int) -> dict[str, Any]:
    """Train once and evaluate the last checkpoint on episodes that training never saw."""
    from rl_training.config import load_config
    from rl_training.runtime.checkpointing import resolve_checkpoint
    from rl_training.runtime.evaluator import Evaluator
    from rl_training.runtime.run import load_learner, train

    with tempfile.TemporaryDirectory() as folder:
        config = load_config(preset, [*overrides, f"seed={seed}", f"output_dir={folder}"])
        started = time.perf_counter()
        result = train(config)
        seconds = time.perf_counter() - started
        learner, _ = load_learner(resolve_checkpoint(result.run_dir / "checkpoints"))
    episodes = 100 if "eval/success_rate" in result.metrics else 20
    evaluator = Evaluator(config.env_id, config.env_kwargs, episodes=episodes, seed=10_000)
    metrics = evaluator.run(learner)
    return {
        "preset": preset,
        "overrides": overrides,
        "seed": seed,
        "steps": result.global_step,
        "updates": result.update_count,
        "stop_reason": result.stop_reason,
        "episodes": episodes,
        "seconds": round(seconds, 1),
        **{name: round(value, 4) for name, value in metrics.items()},
    }


def main() -> None:
    """Run the suites that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=[*SUITES, "goals", "goals-cpu"], default=list(SUITES))
    parser.add_argument("--seeds", default="100-104", help="a range such as 100-104")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--set", nargs="*", default=[], help="further key=value overrides, for trying things out")
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    parser.add_argument("--runs", type=Path, default=Path("goal_runs"), help="where the runs of the goals suites are")
    parser.add_argument("--device", default="cuda", help="of the suite goals")
    arguments = parser.parse_args()
    first, last = (int(part) for part in arguments.seeds.split("-"))
    for suite, tasks, device in (("goals", TASKS, arguments.device), ("goals-cpu", CPU_TASKS, "cpu")):
        if suite in arguments.suite:
            for task in tasks:
                if task.startswith("panda") and find_spec("panda_gym") is None:
                    print(f"her/{task} is left out: it needs the extra panda")
                    continue
                train_task(task, list(range(first, last + 1)), arguments.runs, device, arguments.set)
            print("\n".join(table([read_run(path.parent) for path in sorted(arguments.runs.rglob("metrics.csv"))])))
            arguments.suite.remove(suite)
    jobs = [
        (preset, [*overrides, *arguments.set], seed)
        for suite in arguments.suite
        for preset, overrides in SUITES[suite]
        for seed in range(first, last + 1)
    ]
    with ProcessPoolExecutor(arguments.workers) as pool:
        futures = [pool.submit(train_and_evaluate, *job) for job in jobs]
        results = []
        for future in futures:
            results.append(future.result())
            if arguments.output:  # after each run: the others may take hours
                arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    for preset, overrides in dict.fromkeys((job[0], tuple(job[1])) for job in jobs):
        rows = [row for row in results if (row["preset"], tuple(row["overrides"])) == (preset, overrides)]
        metric = "eval/success_rate" if "eval/success_rate" in rows[0] else "eval/mean_reward"
        scores = [row[metric] for row in rows]
        name = f"{preset} {' '.join(overrides)}"
        seconds = sum(row["seconds"] for row in rows) / len(rows)
        print(f"{name:64} {metric} mean {sum(scores) / len(scores):.3f} min {min(scores):.3f} {scores} {seconds:.0f} s")


if __name__ == "__main__":
    main()
