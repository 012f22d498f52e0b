"""Run folders that show every kind of chart, made without training."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

from rl_training.config import load_config
from rl_training.runtime.settings import complete_config


def write_run(folder: Path, *, seed: int = 0, overrides: tuple[str, ...] = ()) -> Path:
    """Write a run of HER on PointReach2D with pretraining, offline data, episodes, goals and a warning."""
    folder.mkdir(parents=True)
    config = complete_config(load_config("her/point_reach", [f"seed={seed}", *overrides]))
    (folder / "config.yaml").write_text(config.to_yaml())
    rows = [
        {"global_step": 0, "update_count": 50 * n, "train/critic_loss": 3.0 / n, "eval/mean_reward": -50.0 + n}
        for n in (1, 2, 3)
    ]
    for n in range(1, 11):
        rate = min(1.0, 0.1 * n + 0.01 * seed)
        rows.append(
            {
                "global_step": 500 * n,
                "update_count": 150 + 500 * n,
                "rollout/ep_rew_mean": -50.0 + 2 * n,
                "rollout/success_rate": rate / 2,
                "train/critic_loss": 2.0 / n,
                "train/actor_loss": float(n),
                "train/q_mean": -10.0 + n,
                "train/q_offline": -9.0,
                "train/q_online": -8.0 + n,
                "train/offline_share": 0.5,
                "train/alpha": 0.2 / n,
                "train/entropy": -float(n),
                "train/actor_lr": 1e-3,
                "train/relabelled_share": 0.8,
                "train/trivial_goal_share": 0.1 + 0.02 * n,
                "custom/height": math.sin(n),
                "time/fps": 100.0,
                "time/updates_per_second": 90.0,
            }
        )
        if n % 2 == 0:
            score = {"eval/mean_reward": -50.0 + 3 * n, "eval/std_reward": 4.0, "eval/success_rate": rate}
            rows[-1] |= {**score, "eval/change_since_offline": 3.0 * n - 2}
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    with (folder / "episodes.csv").open("w") as file:
        file.write("global_step,return,length,success,final_distance,environment,goal\n")
        for n in range(1, 101):
            goal = f"{math.cos(n)} {math.sin(n)}"
            file.write(f"{50 * n},{-50.0 + 0.2 * n},50,{int(n % 3 > 0)},{2.0 / n},0,{goal}\n")
    episodes = [
        {
            "return": -20.0 - n,
            "length": 50,
            "success": n != 2,
            "goal": [math.cos(n), math.sin(n)],
            "path": [[0.0, 0.0], [0.5 * math.cos(n), 0.2], [math.cos(n), math.sin(n)]],
        }
        for n in range(6)
    ]
    (folder / "evaluation.json").write_text(
        json.dumps({"global_step": 5000, "update_count": 5150, "episodes": episodes})
    )
    data = {
        "source": "logged.npz",
        "transitions": 5000,
        "episodes": 100,
        "returns": [-50.0 + n / 4 for n in range(100)],
    }
    (folder / "data.json").write_text(json.dumps(data))
    (folder / "warnings.jsonl").write_text('{"global_step": 0, "message": "2.0% of the rows are clipped"}\n')
    result = {"run_dir": str(folder), "status": "completed", "stop_reason": "total_timesteps", "metrics": {}}
    (folder / "result.json").write_text(json.dumps({**result, "global_step": 5000, "update_count": 5150}))
    return folder
