"""What distributed collection gains, what its messages cost, and whether learning per step stays the same.

    python benchmarks/collection.py costs       # microseconds of each message, on this machine
    python benchmarks/collection.py speed       # steps per second with few and with many workers
    python benchmarks/collection.py kill        # a worker is killed every 5 seconds
    python benchmarks/collection.py learning    # PointReach2D, one process and 4 workers, 3 seeds each

Results are added to benchmarks/results/collection.json. Rates of two numbers of workers are measured in turns, and the
median of their ratios counts. It needs the extras ``scale`` and, for FetchReach, ``robotics``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms import HER, SAC
from rl_training.data import HERReplayBuffer
from rl_training.envs.consent import approve
from rl_training.envs.factory import make_raw_env, space_spec
from rl_training.envs.goals import GoalRewards
from rl_training.runtime import Callback
from rl_training.runtime.distributed.collection import RemoteCollector, start_remote_collection
from rl_training.runtime.distributed.ray_session import RaySession
from rl_training.runtime.distributed.worker import Played, Policy, Request, acting_weights
from rl_training.runtime.run import train
from rl_training.runtime.run_records import EpisodeRecord
from rl_training.runtime.settings import parse_run, read_config
from rl_training.types import SpaceSpec

RESULTS = Path(__file__).parent / "results" / "collection.json"
SLOW = "slow_env:SlowReach-v0"


def quick_us(action: Callable[[], object], rounds: int = 200) -> float:
    """Return the time of an action in microseconds: the 10th percentile, which a busy machine changes least."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return round(1e6 * float(np.quantile(times, 0.1)), 1)


def episode(steps: int, observation_dim: int, goal_dim: int, action_dim: int) -> Played:
    """Return a made-up episode."""
    rng = np.random.default_rng(0)
    dims = {"observation": observation_dim, "achieved_goal": goal_dim, "desired_goal": goal_dim}
    return Played(
        worker=0,
        request=Request(0, 0, 0.0, False),
        policy_version=1,
        observations={key: rng.normal(size=(steps + 1, dim)).astype(np.float32) for key, dim in dims.items() if dim},
        actions=rng.uniform(-1, 1, (steps, action_dim)).astype(np.float32),
        rewards=np.full(steps, -1.0),
        terminated=False,
        truncated=True,
        record=EpisodeRecord(0.0, steps, False),
        saturation=(0, 0),
    )


class Echo:
    """An actor that does as little as possible."""

    def nothing(self) -> None:
        """Answer."""

    def play(self, request: Request, policy: Policy) -> Played:
        """Answer with the episode that was kept."""
        return self._kept

    def keep(self, answer: Played) -> None:
        """Keep an episode for ``play``."""
        self._kept = answer

    def fetch(self, policies: list[Any]) -> float:
        """Return the seconds that fetching weights takes."""
        import ray

        start = time.perf_counter()
        ray.get(policies[0])
        return time.perf_counter() - start


def costs() -> dict[str, Any]:
    """Return the costs of messages, in microseconds."""
    session = RaySession(None)
    ray = session.ray
    found: dict[str, Any] = {}
    actor = ray.remote(num_cpus=0)(Echo).remote()
    ray.get(actor.nothing.remote())
    found["call_and_answer"] = quick_us(lambda: ray.get(actor.nothing.remote()))

    def many() -> None:
        ray.get([actor.nothing.remote() for _ in range(500)])

    found["call_of_many_to_one_worker"] = round(quick_us(many, 10) / 500, 1)
    for name, hidden in (("2x256", (256, 256)), ("3x1024", (1024, 1024, 1024))):
        learner = SAC(SpaceSpec(25, 4, 3), {"hidden_sizes": hidden})
        policy = acting_weights(learner, 1)
        found[f"weights_{name}"] = {
            "bytes": sum(value.nbytes for value in policy.weights.values()),
            "copy_from_learner": quick_us(lambda learner=learner: acting_weights(learner, 1), 50),
            "put": quick_us(lambda policy=policy: ray.put(policy), 50),
            "fetch_in_worker": round(
                1e6 * float(np.quantile([ray.get(actor.fetch.remote([ray.put(policy)])) for _ in range(50)], 0.1)), 1
            ),
            "load_in_worker": quick_us(
                lambda policy=policy, learner=learner: learner.load_state_dict(
                    {key: torch.tensor(value) for key, value in policy.weights.items()}, strict=False
                ),
                50,
            ),
        }
    for name, shape in (("50_steps_of_fetch", (50, 25, 3, 4)), ("1000_steps_of_376_numbers", (1000, 376, 0, 17))):
        played = episode(*shape)
        ray.get(actor.keep.remote(played))
        arrays = [*played.observations.values(), played.actions, played.rewards]
        reference = ray.put(Policy(1, {}))
        found[f"episode_{name}"] = {
            "bytes": sum(array.nbytes for array in arrays),
            "request_and_episode": quick_us(
                lambda reference=reference: ray.get(actor.play.remote(Request(0, 0, 0.0, False), reference)), 100
            ),
            "copy_on_arrival": quick_us(played.copied, 100),
        }
    for count in (10, 100, 1000):
        refs = [ray.put(None) for _ in range(count)]
        found[f"look_at_{count}_requests"] = quick_us(lambda refs=refs: ray.wait(refs, num_returns=1, timeout=0), 50)
    session.close()
    return {"microseconds": found, "step_of_the_learner": learner_step()}


def learner_step() -> dict[str, float]:
    """Return the microseconds that the learner's process takes for one step of an episode that has arrived."""
    env = make_raw_env("rl_training/PointReach2D-v0")
    goals = GoalRewards(env)
    spec = space_spec(env, goals)
    buffer = HERReplayBuffer(spec, 100_000, goals)
    learner = HER(spec, backend="ddpg")
    pool: Any = type("Pool", (), {"size": 1, "lost": 0, "__len__": lambda self: 0})()
    remote = RemoteCollector(pool, learner, 10**9)
    played = episode(1000, spec.observation_dim, spec.goal_dim, spec.action_dim)

    def hand_over() -> None:
        remote._current, remote._position, remote._poll_at = played, 0, float("inf")
        for _ in range(100):
            buffer.add(*remote.step(0.0, False))

    hand_over()
    played = episode(100, spec.observation_dim, spec.goal_dim, spec.action_dim)
    return {
        "hand_over_and_store": round(quick_us(hand_over, 100) / 100, 1),
        "one_update_her_ddpg_2x256": quick_us(lambda: learner.update(buffer.sample(256)), 300),
    }


class Rate:
    """Measures the steps per second of a number of workers, which play only while they are measured."""

    def __init__(self, env_id: str, workers: int) -> None:
        config = read_config(
            {"algo": "her", "env_id": env_id, "total_timesteps": 10**9, "num_workers": workers, "seed": workers}
        )
        settings = parse_run(config)
        env = make_raw_env(env_id)
        goals = GoalRewards(env)
        spec = space_spec(env, goals)
        self.buffer = HERReplayBuffer(spec, 200_000, goals)
        self.remote = start_remote_collection(config, settings, env_id, HER(spec, settings.learner), hindsight=True)
        self.steps(4 * 50 * workers)  # until all of them have started

    def steps(self, count: int) -> None:
        """Take steps."""
        for _ in range(count):
            self.buffer.add(*self.remote.step(0.0, False))

    def measure(self, seconds: float) -> float:
        """Return the steps per second; the first steps, which may have waited, do not count."""
        self.steps(len(self.remote._idle) * 100 + 200)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            self.steps(50)
            count += 50
        return count / (time.perf_counter() - start)


def speed(rounds: int, seconds: float, tasks: list[str]) -> dict[str, Any]:
    """Return the steps per second with few and with many workers."""
    os.chdir(Path(__file__).parent)  # the module of the slow environment is here
    approve(SLOW)
    session = RaySession(None)  # both numbers of workers share it
    found = {}
    for env_id, workers in ((SLOW, 8), ("FetchReach-v4", 2)):
        if env_id not in tasks:
            continue
        one, several = Rate(env_id, 1), Rate(env_id, workers)
        rates = []
        for _ in range(rounds):
            rates.append((one.measure(seconds), several.measure(seconds)))
            print(env_id, [round(rate) for rate in rates[-1]], "load", os.getloadavg()[0], flush=True)
        for side in (one, several):
            side.remote._pool.close()
        found[f"speed_{env_id}"] = {
            "workers": workers,
            "steps_per_second_of_one": [round(rate) for rate, _ in rates],
            "steps_per_second": [round(rate) for _, rate in rates],
            "median_ratio": round(statistics.median(rate / base for base, rate in rates), 2),
        }
    session.close()
    return found


class Killer(Callback):
    """Kills a worker every few seconds while a run goes on."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.kills, self._stop = seconds, 0, threading.Event()

    def on_training_start(self, trainer: Any) -> None:
        """Start to kill."""
        threading.Thread(target=self._kill, args=(trainer.collector._pool,), daemon=True).start()

    def on_training_end(self, trainer: Any) -> None:
        """Stop."""
        self._stop.set()

    def _kill(self, pool: Any) -> None:
        place: Any = lambda _: __import__("os").getpid()  # noqa: E731
        while not self._stop.wait(self.seconds):
            actor = pool._actors[self.kills % pool.size]
            try:
                os.kill(pool._ray.get(actor.__ray_call__.remote(place), timeout=10), signal.SIGKILL)
                self.kills += 1
            except pool._ray.exceptions.RayError:
                continue  # it is being restarted


def kill() -> dict[str, Any]:
    """Train while a worker is killed every 5 seconds, and return what became of the episodes."""
    os.chdir(Path(__file__).parent)
    killer = Killer(5.0)
    with tempfile.TemporaryDirectory() as folder:
        config = point_reach(0, 3, folder) | {"env_id": SLOW, "total_timesteps": 6_000}
        result = train(config, callbacks=[killer])
        row = rows(result.run_dir)[-1]
    episodes = {name: int(float(row[f"collect/{name}"])) for name in
                ("asked_episodes", "stored_episodes", "lost_episodes", "stale_episodes", "episodes_ahead")}  # fmt: skip
    return {"kill": {"workers": 3, "kills": killer.kills, "status": result.status, **episodes}}


def point_reach(seed: int, workers: int, folder: str) -> dict[str, Any]:
    """Return the preset her/point_reach with a number of workers, as a mapping."""
    config = read_config("her/point_reach", [f"seed={seed}", f"num_workers={workers}", f"output_dir={folder}"])
    return config.model_dump(mode="json")


def rows(run_dir: Path) -> list[dict[str, str]]:
    """Return the rows of a run's metrics."""
    with (run_dir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def learning(workers: int, seeds: int) -> dict[str, Any]:
    """Return the success rates of runs in one process and with workers, by step."""
    curves: dict[str, Any] = {}
    for count in (0, workers):
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                config = point_reach(seed, count, folder)
                settings = config["algo_kwargs"] | {"eval_interval": 500}
                result = train(config | {"total_timesteps": 3_000, "algo_kwargs": settings})
                curve = {row["global_step"]: float(row["eval/success_rate"]) for row in rows(result.run_dir)
                         if row["eval/success_rate"]}  # fmt: skip
                ages = [float(row["collect/policy_age_mean"]) for row in rows(result.run_dir)
                        if row.get("collect/policy_age_mean")]  # fmt: skip
            name = "one process" if count == 0 else f"{count} workers"
            curves.setdefault(name, []).append(curve)
            print(name, "seed", seed, curve, "mean age", ages[-1:], flush=True)
            if ages:
                curves.setdefault("mean policy age", []).append(ages[-1])
    return {"learning_point_reach": curves}


def main() -> None:
    """Run one part and add its results to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["costs", "speed", "kill", "learning"])
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each number of workers")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=[SLOW, "FetchReach-v4"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "costs": costs,
        "speed": lambda: speed(options.rounds, options.seconds, options.tasks),
        "kill": kill,
        "learning": lambda: learning(4, options.seeds),
    }
    found = parts[options.part]()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**known, **found, "cpus": os.cpu_count()}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
