"""Distributed collection: what a worker plays, what the learner makes of it, and runs on two nodes of Ray."""

from __future__ import annotations

import csv
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import DQN, SAC, TD3
from rl_training.config import parse_config
from rl_training.envs.factory import make_raw_env, make_vector_env, space_spec
from rl_training.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    EnvFailedError,
    MissingExtraError,
    NumericalError,
    WorkerError,
)
from rl_training.runtime import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.distributed import collection, pool, ray_session
from rl_training.runtime.distributed.collection import RemoteCollector, start_remote_collection
from rl_training.runtime.distributed.ray_session import RaySession
from rl_training.runtime.distributed.worker import (
    EpisodeWorker,
    Failure,
    Played,
    Policy,
    Request,
    WorkerPlan,
    acting_weights,
)
from rl_training.runtime.exploration import ExplorationSettings
from rl_training.runtime.run import resume, train
from rl_training.runtime.settings import parse_run
from rl_training.seeding import stream_seed, worker_generator
from scripted_env import ENV_ID, ScriptedEnv

POINT = "rl_training/PointReach2D-v0"
HAS_RAY = importlib.util.find_spec("ray") is not None


def make_plan(
    learner: Any, env_id: str = ENV_ID, *, longest: int | None = None, seed: int = 7, **env: Any
) -> WorkerPlan:
    exploration = ExplorationSettings(exploration_noise=0.1)
    return WorkerPlan(
        env_id, env, type(learner), learner.settings, learner.spec, exploration, seed, os.getcwd(), longest
    )


def make_learner(kind: type = SAC, env_id: str = ENV_ID, seed: int = 3, *, env: Any = (), **settings: Any) -> Any:
    return kind(space_spec(make_raw_env(env_id, dict(env))), {"hidden_sizes": [8], **settings}, seed=seed)


def play(worker: EpisodeWorker, number: int = 0, policy: Policy | None = None, *, random: bool = False) -> Played:
    answer = worker.play(Request(number, 0, 0.0, random), policy or acting_weights(make_learner(), 1))
    assert isinstance(answer, Played)
    return answer


class LocalPool:
    """Workers in this process: ``receive`` plays the oldest request, or those of the workers in ``finish``."""

    def __init__(self, plan: WorkerPlan, size: int) -> None:
        self.size, self.lost, self.closed = size, 0, False
        self.workers = [EpisodeWorker(plan, index) for index in range(size)]
        self.requests: list[tuple[int, Request, Policy]] = []
        self.put_policies: list[Policy] = []
        self.at_once = True  # whether every request is answered by the next receive
        self.most = 0

    def __len__(self) -> int:
        return len(self.requests)

    def put(self, policy: Policy) -> Policy:
        self.put_policies.append(policy)
        return policy

    def ask(self, worker: int, request: Request, policy: Policy) -> None:
        assert worker not in [asked for asked, _, _ in self.requests], "one request at a time"
        self.requests.append((worker, request, policy))

    def receive(self, seconds: float) -> tuple[list[Played], list[int]]:
        count = len(self.requests) if self.at_once else 1
        answered, self.requests = self.requests[:count], self.requests[count:]
        return [self.workers[worker].play(request, policy) for worker, request, policy in answered], []

    def lose(self) -> list[int]:
        workers = [worker for worker, _, _ in self.requests]
        self.lost, self.requests = self.lost + len(workers), []
        return workers

    def close(self) -> None:
        self.closed = True


def make_remote(learner: Any, workers: int = 2, max_age: int = 1000, **plan: Any) -> tuple[RemoteCollector, LocalPool]:
    pool: Any = LocalPool(make_plan(learner, **plan), workers)
    return RemoteCollector(pool, learner, max_age), pool


# ---- a worker


def test_an_episode_is_whole_and_in_order() -> None:
    worker = EpisodeWorker(make_plan(make_learner()), index=5)
    episode = play(worker, number=2)
    assert episode.observations["observation"][:, 2].tolist() == [0, 1, 2, 3, 4]
    assert episode.rewards.tolist() == [1, 2, 3, 4]
    assert episode.actions.shape == (4, 2)
    assert (episode.terminated, episode.truncated) == (True, False)
    assert episode.record is not None
    assert (episode.record.reward, episode.record.length, episode.record.environment) == (10.0, 4, 5)
    assert (episode.worker, episode.request.number, episode.policy_version) == (5, 2, 1)


def test_an_episode_depends_on_seed_worker_and_number_alone() -> None:
    policy = acting_weights(make_learner(env_id=POINT), 1)
    plan = make_plan(make_learner(env_id=POINT), POINT)
    first, second = EpisodeWorker(plan, 0), EpisodeWorker(plan, 0)
    for number in (0, 1, 5):
        expected = play(first, number, policy)
    restarted = play(second, 5, policy)  # as after a death, without the episodes before
    assert np.array_equal(restarted.actions, expected.actions)
    assert np.array_equal(restarted.observations["observation"], expected.observations["observation"])
    others = [play(EpisodeWorker(plan, 1), 5, policy), play(second, 6, policy)]
    for other in others:
        assert not np.array_equal(other.observations["desired_goal"][0], expected.observations["desired_goal"][0])
        assert not np.allclose(other.actions, expected.actions)


def test_a_worker_starts_the_episodes_that_an_environment_of_its_index_would_start() -> None:
    env = ScriptedEnv()
    worker = EpisodeWorker(make_plan(make_learner()), index=3)
    played = play(worker, number=4)
    env.reset(seed=stream_seed(7, 3, 4))
    assert played.observations["observation"][0, 1] == np.float32(env.draw)


def test_generators_of_workers_do_not_meet() -> None:
    draws = {worker_generator(s, w, e).random() for s in (0, 1) for w in (0, 1, 2) for e in (0, 1, 2)}
    assert len(draws) == 18


def test_a_worker_acts_with_the_weights_it_is_sent() -> None:
    for kind, settings in ((TD3, {"normalize_observations": True}), (DQN, {})):
        env = {"discrete": kind is DQN}
        learner = make_learner(kind, seed=9, env=env, **settings)
        learner.observe(torch.randn(50, 3) * 7)
        plan = make_plan(make_learner(kind, env=env, **settings), **env)
        worker = EpisodeWorker(
            WorkerPlan(**{**vars(plan), "exploration": ExplorationSettings(exploration_noise=0, random_action_prob=0)}),
            0,
        )
        for version, current in ((1, learner), (2, make_learner(kind, seed=10, env=env, **settings))):
            episode = play(worker, version, acting_weights(current, version))
            seen = torch.from_numpy(episode.observations["observation"][:-1])
            assert torch.allclose(current.act(seen), torch.from_numpy(episode.actions), atol=1e-6)


def test_only_the_acting_part_is_sent_and_it_is_a_copy() -> None:
    learner = make_learner(normalize_observations=True)
    weights = acting_weights(learner, 1).weights
    assert {name.split(".")[0] + "." + name.split(".")[1] for name in weights} == {
        "model.actor", "normalizer.mean", "normalizer.variance", "normalizer.count"
    }  # fmt: skip
    before = {name: value.copy() for name, value in weights.items()}
    for parameter in learner.parameters():
        parameter.data.add_(1.0)
    assert all(np.array_equal(weights[name], before[name]) for name in before)


def test_an_episode_that_arrives_is_copied() -> None:
    original = play(EpisodeWorker(make_plan(make_learner()), 0))
    arrays = [*original.observations.values(), original.actions, original.rewards]
    for array in arrays:
        array.flags.writeable = False  # as arrays in Ray's object store are
    copied = original.copied()
    for one, other in zip(arrays, [*copied.observations.values(), copied.actions, copied.rewards], strict=True):
        assert np.array_equal(one, other)
        assert not np.shares_memory(one, other)


def test_random_episodes_ignore_the_policy() -> None:
    worker = EpisodeWorker(make_plan(make_learner(), length=300), 0)
    actions = play(worker, random=True).actions
    assert abs(actions.mean()) < 0.1
    assert abs(np.abs(actions).mean() - 0.5) < 0.05


def test_a_long_episode_comes_in_parts_with_new_weights() -> None:
    worker = EpisodeWorker(make_plan(make_learner(), longest=3, length=8), 0)
    parts = [play(worker, number) for number in range(4)]
    assert [len(part.rewards) for part in parts] == [3, 3, 2, 3]
    assert [part.record is not None for part in parts] == [False, False, True, False]
    assert np.concatenate([part.rewards for part in parts[:3]]).tolist() == list(range(1, 9))
    assert parts[1].observations["observation"][0, 2] == 3  # goes on where the part before it ended


def test_errors_of_an_environment_are_values() -> None:
    failing = EpisodeWorker(make_plan(make_learner(), "tests/NoSuchEnv-v0"), 0)
    for answer in (failing.prepare(), failing.play(Request(0, 0, 0.0, False), Policy(1, {}))):
        assert isinstance(answer, Failure)
        assert answer.kind is EnvError
        assert "tests/NoSuchEnv-v0" in answer.message


# ---- the learner's side


def test_the_loop_gets_whole_episodes_step_by_step() -> None:
    remote, _ = make_remote(make_learner(), workers=2)
    steps = [remote.step(0.0, False) for _ in range(4)]
    assert [step.observations[0, 2] for step in steps] == [0, 1, 2, 3]
    assert [step.next_observations[0, 2] for step in steps] == [1, 2, 3, 4]
    assert [step.rewards.tolist() for step in steps] == [[1], [2], [3], [4]]
    assert [bool(step.terminated[0]) for step in steps] == [False, False, False, True]
    assert [record.length for record in remote.ended] == [4]
    remote.step(0.0, False)
    assert remote.ended == []
    assert remote.rollout_metrics()["rollout/ep_rew_mean"] == 10.0


def test_it_stores_what_a_local_collector_would_store() -> None:
    learner = make_learner(TD3, POINT)
    remote, _ = make_remote(learner, workers=1, env_id=POINT)
    got = [remote.step(0.0, False) for _ in range(100)]
    local = Collector(make_vector_env(POINT, {}, 1), learner, ExplorationSettings(exploration_noise=0.1), 7)
    for episode in range(2):
        local.exploration.rng = worker_generator(7, 0, episode)
        local.exploration.rng.integers(2**63)
        for t in range(50):
            expected, step = local.step(0.0, False), got[50 * episode + t]
            for one, other in zip(step, expected, strict=True):
                for key in one if isinstance(one, dict) else [None]:
                    a, b = (one, other) if key is None else (one[key], other[key])
                    assert np.array_equal(a, np.asarray(b, a.dtype)), (episode, t, key)
    assert list(remote.finished) == list(local.finished)


def test_workers_wait_for_a_slow_learner() -> None:
    remote, _ = make_remote(make_learner(), workers=3)
    for _ in range(60):
        remote._poll_at = 0.0  # look at what has arrived in every step
        remote.step(0.0, False)
        assert remote.ahead <= 2 * 3 + 1  # two of each worker, and the one that is being handed over
    counts = remote.counts
    assert counts.asked == counts.stored + counts.lost + counts.stale + remote.ahead
    assert counts.stored == 15


def test_changed_weights_are_put_once_for_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "_PUT_SECONDS", 0.0)
    learner = make_learner()
    remote, pool = make_remote(learner, workers=3)
    for step in range(24):
        learner.update_count = step // 12
        remote._poll_at = 0.0  # look at what has arrived in every step
        remote.step(0.0, False)
    assert [policy.version for policy in pool.put_policies] == [1, 2]


def test_weights_are_not_put_too_often_and_their_age_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "_PUT_SECONDS", 3600.0)
    learner = make_learner()
    remote, pool = make_remote(learner, workers=1)
    for step in range(40):
        learner.update_count = step
        remote.step(0.0, False)
    assert len(pool.put_policies) == 1
    assert remote.rollout_metrics()["collect/policy_age_max"] == 36  # the last episode, with the weights of step 0


def test_old_episodes_are_dropped_and_counted() -> None:
    remote, pool = make_remote(make_learner(), workers=2, max_age=10)
    pool.at_once = False
    remote.step(0.0, False)
    slow = pool.requests.pop()  # this worker is slow, the other one plays on
    for _ in range(30):
        remote.step(0.0, False)
    pool.requests.insert(0, slow)
    for _ in range(12):
        remote.step(0.0, False)
    assert remote.counts.stale == 1
    metrics = remote.rollout_metrics()
    assert metrics["collect/stale_episodes"] == 1.0
    assert metrics["collect/policy_age_max"] <= 10
    assert remote.counts.asked == remote.counts.stored + remote.counts.stale + remote.ahead


def test_the_age_limit_keeps_episodes_from_being_asked_for() -> None:
    remote, _ = make_remote(make_learner(), workers=50, max_age=20)
    with pytest.warns(UserWarning, match="max_policy_age = 20 keeps workers idle"):
        steps = [remote.step(0.0, False) for _ in range(400)]
    assert len(steps) == 400
    assert remote.ahead <= 6  # 20 steps are five episodes, and one is being handed over
    assert remote.rollout_metrics()["collect/policy_age_max"] <= 20


def test_random_episodes_are_never_too_old() -> None:
    remote, _ = make_remote(make_learner(), workers=8, max_age=1)
    for _ in range(32):
        remote.step(0.0, True)
    assert remote.counts.stale == 0


def test_the_normaliser_sees_what_a_local_run_shows_it() -> None:
    env = {"goals": True}
    learner, other = (make_learner(env=env, normalize_observations=True) for _ in range(2))
    remote, _ = make_remote(learner, workers=1, goals=True)
    for _ in range(4):
        step = remote.step(0.0, True)
        for goal in ("desired_goal", "achieved_goal"):
            parts = np.concatenate([step.observations["observation"], step.observations[goal]], axis=1)
            other.observe(torch.from_numpy(parts))
    assert learner.normalizer.count == other.normalizer.count == 8
    assert torch.allclose(learner.normalizer.mean, other.normalizer.mean)
    assert torch.allclose(learner.normalizer.variance, other.normalizer.variance)


def test_a_checkpoint_keeps_the_rest_of_the_episode_and_the_numbers() -> None:
    remote, _ = make_remote(make_learner(), workers=2)
    for _ in range(10):
        remote.step(0.0, False)
    state = remote.state_dict()
    expected = [remote.step(0.0, False) for _ in range(2)]
    again, _ = make_remote(make_learner(), workers=3)
    assert again.load_state_dict(state) == []
    got = [again.step(0.0, False) for _ in range(2)]
    for one, other in zip(got, expected, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert again.ended == remote.ended
    again.step(0.0, False)
    asked = {worker: again._numbers[worker] - 1 for worker in range(3)}
    assert all(asked[worker] >= state["numbers"][worker] for worker in (0, 1)), "a number was used twice"
    counts = again.counts
    assert counts.lost > 0
    assert counts.asked == counts.stored + counts.lost + counts.stale + again.ahead


def test_a_failure_is_raised_as_the_error_that_it_was() -> None:
    with pytest.raises(NumericalError, match="worker 3, environment 3 returned nan"):
        pool._raise(Failure(NumericalError, "environment 3 returned nan", ""), 3)
    with pytest.raises(WorkerError, match="worker 3, step raised ValueError") as raised:
        pool._raise(Failure(EnvFailedError, "step raised ValueError", "the traceback"), 3)
    assert raised.value.trace == "the traceback"


def test_close_ends_the_workers() -> None:
    remote, pool = make_remote(make_learner())
    remote.close()
    assert pool.closed


# ---- wrong input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo": "iql", "algo_kwargs": {"dataset_kind": "random"}}, "num_workers = 2 collect nothing offline"),
        ({"num_envs": 3}, "num_envs = 3 and num_workers = 2: every worker plays in one environment"),
        ({"num_workers": -1}, "num_workers = -1: expected greater"),
        ({"algo": "her", "algo_kwargs": {"practice_goals": True}}, "practice_goals = True and num_workers = 2"),
    ],
)
def test_wrong_numbers_are_refused(changes: dict[str, Any], message: str) -> None:
    values = {"algo": "sac", "env_id": ENV_ID, "total_timesteps": 2000, "num_workers": 2, **changes}
    with pytest.raises(ConfigError, match=message):
        parse_run(parse_config(values))


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"num_workers needs an optional package: .*\[scale\]"):
        RaySession(None)


@pytest.mark.skipif(not HAS_RAY, reason="needs ray")
@pytest.mark.parametrize("address", ["nowhere", "ray://host:10001", "127.0.0.1:x", ":6379"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected auto or host:port"):
        RaySession(address)


@pytest.mark.skipif(not HAS_RAY, reason="needs ray")
def test_an_address_without_a_cluster_is_refused_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match="no Ray cluster answers there"):
            RaySession(address)
        server.listen()

        def answer_as_another_server() -> None:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer_as_another_server)
        thread.start()
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=f"ray_address = '{address}': what answers there is not a Ray cluster"):
            RaySession(None)
        thread.join()
    with pytest.raises(ConfigError, match=r"ray_address = 'auto': [\d.]+:\d+: no Ray cluster answers there"):
        RaySession("auto")  # a cluster that was killed is still the one that Ray takes for auto


@pytest.mark.skipif(not HAS_RAY, reason="needs ray")
@pytest.mark.parametrize(
    ("address", "message"),
    [("auto", "ray_address = 'auto': there is no connection to Ray: too slow"), (None, "Ray does not start: too slow")],
)
def test_a_ray_that_does_not_start_is_named(address: str | None, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray does, with a handler of its own
        raise Exception("too slow\nfor this machine")

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("rl_training.runtime.distributed.ray_session._address_of_auto", lambda: None)
    monkeypatch.setattr("ray.init", fail)
    with pytest.raises(ConfigError, match=message):
        RaySession(address)
    assert signal.getsignal(signal.SIGTERM) == handler


def test_an_environment_given_as_an_object_is_refused() -> None:
    learner = make_learner()
    config = parse_config({"algo": "sac", "env_id": ENV_ID, "total_timesteps": 2000, "num_workers": 2})
    with pytest.raises(EnvError, match=r"given as an object exists in this process only.*my_module:MyTask-v0"):
        start_remote_collection(config, parse_run(config), "rl_training_objects/Mine-v0", learner, hindsight=False)


# ---- runs on a cluster of two nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster with two nodes on this machine."""
    pytest.importorskip("ray", reason="needs the extra scale")
    from ray.cluster_utils import Cluster

    ray_session.import_ray("tests")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1, include_dashboard=False)
    yield nodes.address
    nodes.shutdown()


class Interrupts(Callback):
    """Kills a worker while it plays an episode, from one step on, and sends SIGINT once that was noticed."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at, self.stopped_at = kill_at, 0
        self.nodes: set[str] = set()  # of the workers
        self.victim: int | None = None

    def on_step(self, trainer: Any) -> None:
        pool = trainer.collector._pool
        if trainer.state.global_step == self.kill_at:
            ray, actors = pool._ray, pool._actors
            # The function must not name this module, which the workers cannot import.
            place = lambda _: (__import__("ray").get_runtime_context().get_node_id(), __import__("os").getpid())  # noqa: E731
            found = ray.get([actor.__ray_call__.remote(place) for actor in actors.values()], timeout=60)
            self.nodes = {node for node, _ in found}
            self.victim = found[0][1]
            os.kill(self.victim, signal.SIGSTOP)
        if self.victim is not None and 0 in pool._calls.values():
            os.kill(self.victim, signal.SIGKILL)
            self.victim = None
        if trainer.state.global_step > self.kill_at and not self.stopped_at:
            time.sleep(0.005)  # the other worker alone must not finish the run meanwhile
            if pool.lost:
                self.stopped_at = trainer.state.global_step
                os.kill(os.getpid(), signal.SIGINT)


def last_row(run_dir: Path) -> dict[str, float]:
    with (run_dir / "metrics.csv").open() as file:
        row = list(csv.DictReader(file))[-1]
    return {name: float(value) for name, value in row.items() if value}


@pytest.mark.slow
def test_a_run_on_two_nodes_survives_a_dead_worker_and_an_interruption(cluster: str, tmp_path: Path) -> None:
    config = {
        "algo": "her",
        "env_id": POINT,
        "total_timesteps": 2500,
        "num_workers": 2,
        "ray_address": cluster,
        "eval_episodes": 1,
        "output_dir": tmp_path,
        "algo_kwargs": {
            "hidden_sizes": [16],
            "batch_size": 16,
            "learning_starts": 200,
            "gradient_updates_per_step": 0.5,
            "eval_interval": None,
            "log_interval": 100,
        },
    }
    interrupts = Interrupts(kill_at=300)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    first = train(config, callbacks=[interrupts])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert (first.status, first.global_step) == ("interrupted", interrupts.stopped_at)
    assert len(interrupts.nodes) == 2
    second = resume(first.run_dir, overrides=["num_workers=1"])
    assert (second.status, second.global_step, second.update_count) == ("completed", 2500, 1150)
    row = last_row(second.run_dir)
    assert row["collect/lost_episodes"] >= 1
    settled = row["collect/stored_episodes"] + row["collect/lost_episodes"] + row["collect/stale_episodes"]
    assert row["collect/asked_episodes"] == settled + row["collect/episodes_ahead"]
    assert row["collect/stored_episodes"] == 50
    assert 0 <= row["collect/policy_age_mean"] <= row["collect/policy_age_max"] <= 2500
    with (second.run_dir / "episodes.csv").open() as file:
        episodes = list(csv.DictReader(file))
    assert len(episodes) == 50
    assert {episode["environment"] for episode in episodes} == {"0", "1"}
    assert len({episode["goal"] for episode in episodes}) == 50, "two episodes had the same seed"
    with pytest.raises(CheckpointError, match="num_workers = 0, the checkpoint has 1"):
        resume(second.run_dir, overrides=["num_workers=0", "total_timesteps=3000"])


@pytest.mark.slow
def test_an_environment_that_only_this_program_knows_is_refused(cluster: str, tmp_path: Path) -> None:
    config = {"algo": "sac", "env_id": ENV_ID, "total_timesteps": 2000, "num_workers": 1, "ray_address": cluster}
    with pytest.raises(EnvError, match=r"num_workers = 1: worker 0 cannot build its environment.*my_module:MyTask-v0"):
        train({**config, "output_dir": tmp_path})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_errors_in_an_environment_end_the_run(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty_task.py").write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"algo": "sac", "env_id": "faulty_task:Faulty-v0", "total_timesteps": 2000, "num_workers": 1}
    config |= {"ray_address": cluster, "output_dir": tmp_path / "runs", "algo_kwargs": {"hidden_sizes": [8]}}
    with pytest.raises(WorkerError, match=r"worker 0, .*Faulty-v0.*step raised ValueError: out of order"):
        train(config)


FAULTY = """
import gymnasium as gym
import numpy as np


class Faulty(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    t = 0

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 30:
            raise ValueError("out of order")
        return np.zeros(1, np.float32), 0.0, False, self.t % 20 == 0, {}


gym.register("Faulty-v0", entry_point=Faulty)
"""
