"""Environments in worker processes: one that dies, hangs or raises is named, and the run can go on later."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from conftest import make_tiny_config
from rl_training import cli
from rl_training.envs.factory import make_vector_env
from rl_training.envs.workers import WorkerVectorEnv, free_processes
from rl_training.errors import EnvError, WorkerError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.run import resume, train
from rl_training.tools.comparison import full_state, state_differences

POINT = "rl_training/PointGoal1D-v0"
CHANGES: dict[str, Any] = {
    "num_envs": 3,
    "env_kwargs": {"vectorization": "async", "worker_timeout": 3.0, "worker_processes": 3},
    "algo_kwargs": {"backend": "sac", "normalize_observations": True},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run that lost no worker."""
    return train(make_tiny_config(tmp_path_factory.mktemp("whole"), "her", **CHANGES))


class Strike(Callback):
    """Sends a signal to one worker once a run has taken ``step`` steps."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step, self.number, self.pids = step, number, []

    def on_step(self, trainer) -> None:
        if trainer.state.global_step == self.step:
            envs = trainer.collector.envs
            self.pids = [process.pid for process in envs.processes]
            os.kill(envs.processes[1].pid, self.number)


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, "the process of environment 1 was ended by SIGKILL"),
        (signal.SIGSTOP, r"environment 1 did not answer a (step|reset) within 3 seconds"),
    ],
    ids=["dies", "hangs"],
)
@pytest.mark.parametrize("step", [147, 150])  # a step, and one at whose end all environments are reset
def test_a_lost_worker_is_named_and_the_run_goes_on_exactly(tiny_config, whole, number, message, step):
    config = tiny_config("her", **CHANGES)
    strike = Strike(step, number)
    with pytest.raises(WorkerError, match=rf"{message}.*A checkpoint was saved at step {step}"):
        train(config, callbacks=[strike])
    assert not any(map(is_running, strike.pids))
    (run_dir,) = config.output_dir.iterdir()
    assert json.loads((run_dir / "result.json").read_text())["status"] == "failed"
    assert resolve_checkpoint(run_dir / "checkpoints").name.startswith(f"{step:09d}-")
    assert resume(run_dir).metrics == whole.metrics
    ends = [full_state(resolve_checkpoint(path / "checkpoints")) for path in (run_dir, whole.run_dir)]
    assert state_differences(*ends) == []


def test_a_worker_that_is_lost_while_it_is_reset(tiny_config, whole, monkeypatch):
    """The step itself was taken, the next episode was not begun: both are done again."""
    config = tiny_config("her", **CHANGES)
    real, calls = WorkerVectorEnv.reset, [0]

    def struck(self, *arguments, **options):
        calls[0] += 1
        if calls[0] == 2:
            os.kill(self.processes[2].pid, signal.SIGKILL)
            self.processes[2].join()
        return real(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(WorkerVectorEnv, "reset", struck)
        with pytest.raises(WorkerError, match="environment 2 was ended by SIGKILL"):
            train(config)
    (run_dir,) = config.output_dir.iterdir()
    resume(run_dir)
    ends = [full_state(resolve_checkpoint(path / "checkpoints")) for path in (run_dir, whole.run_dir)]
    assert state_differences(*ends) == []


class Faulty(gym.Env):
    """Raises an error in its tenth step."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(-1, 1, (1,))
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.steps += 1
        if self.steps == 10:
            raise ValueError("the joint is out of range")
        return self.observation_space.sample() * 0, 0.0, False, False, {}


def test_an_error_in_a_worker_is_one_line_with_its_place(tiny_config, tmp_path, monkeypatch, capfd):
    gym.register("Faulty-v0", entry_point=Faulty)
    try:
        file = tmp_path / "faulty.yaml"
        changes: dict[str, Any] = {"num_envs": 2, "env_kwargs": {"vectorization": "async"}}
        file.write_text(tiny_config("ddpg", env_id="Faulty-v0", **changes).to_yaml())
        monkeypatch.setattr(sys, "argv", ["rl-training", "train", str(file)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    finally:
        gym.registry.pop("Faulty-v0")
    assert exit_.value.code == 1
    err = capfd.readouterr().err
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    for word in (
        "raised ValueError: the joint is out of range",
        __file__,
        "in step",
        "saved at step 18",
    ):
        assert word in line


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_the_number_of_processes_does_not_change_a_step(processes: int) -> None:
    """Environments are shared out in order, and each has its own actions, seeds and results."""
    local = make_vector_env(POINT, {"max_steps": 6}, 5)
    envs = make_vector_env(POINT, {"max_steps": 6, "vectorization": "async", "worker_processes": processes}, 5)
    assert isinstance(envs, WorkerVectorEnv)
    assert [len(block) for block in envs.blocks] == {1: [5], 2: [3, 2], 5: [1] * 5}[processes]
    assert [index for block in envs.blocks for index in block] == list(range(5))
    assert len(envs.processes) == processes
    rng = np.random.default_rng(0)
    both = [vector.reset(seed=[3, 1, 4, 1, 5])[0] for vector in (local, envs)]
    np.testing.assert_equal(both[1], both[0])
    for step in range(1, 12):
        actions = rng.uniform(-1, 1, (5, 1)).astype(np.float32)
        expected, found = local.step(actions), envs.step(actions)
        for one, other in zip(expected[:4], found[:4], strict=True):
            np.testing.assert_equal(other, one)
        assert found[4]["is_success"].tolist() == expected[4]["is_success"].tolist()
        done = found[2] | found[3]
        mask = done if done.any() else np.arange(5) == step % 5  # one alone, or all that have ended
        seeds = rng.integers(0, 99, 5).tolist()
        both = [vector.reset(seed=seeds, options={"reset_mask": mask})[0] for vector in (local, envs)]
        np.testing.assert_equal(both[1], both[0])
    local.close()
    envs.close()


def test_observations_are_not_changed_by_the_next_step() -> None:
    envs = make_vector_env(POINT, {"vectorization": "async"}, 2)
    first, _ = envs.reset(seed=[0, 1])
    second, rewards, *_ = envs.step(np.ones((2, 1), np.float32))
    kept = [first["observation"].copy(), second["observation"].copy(), rewards.copy()]
    envs.step(-np.ones((2, 1), np.float32))
    np.testing.assert_equal([first["observation"], second["observation"], rewards], kept)
    envs.close()


def test_a_lost_process_is_named_with_all_its_environments() -> None:
    kwargs = {"vectorization": "async", "worker_processes": 2, "worker_timeout": 0.5}
    for number, message in (
        (signal.SIGKILL, "the process of environments 2, 3 was ended by SIGKILL"),
        (signal.SIGSTOP, "environments 2, 3 did not answer a step within 1 seconds"),
    ):
        envs = make_vector_env("CartPole-v1", kwargs, 4)
        envs.reset(seed=0)
        os.kill(envs.processes[1].pid, number)
        with pytest.raises(WorkerError, match=message):
            envs.step(np.zeros(4, np.int64))
        assert not any(process.is_alive() for process in envs.processes)
        envs.close()


@pytest.mark.parametrize(
    ("cores", "num_envs", "runs", "expected"),
    [(16, 4, 1, 4), (16, 4, 8, 2), (16, 4, 20, 1), (2, 4, 1, 2), (8, 1, 1, 1)],
)
def test_the_runs_of_a_stack_share_the_cores(monkeypatch, cores, num_envs, runs, expected) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert free_processes(num_envs, runs) == expected


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(EnvError, match="expected Box observations, found Discrete"):
        make_vector_env("CliffWalking-v1", {"vectorization": "async"}, 2)


def test_environments_close_in_order_and_by_force():
    for number in (None, signal.SIGSTOP, signal.SIGKILL):
        envs = make_vector_env("CartPole-v1", {"vectorization": "async"}, 2)
        assert isinstance(envs, WorkerVectorEnv)
        envs.reset(seed=0)
        if number is not None:
            os.kill(envs.processes[0].pid, number)
            with contextlib.suppress(WorkerError):  # a killed worker may be missed at once
                envs.step_async(envs.action_space.sample())
        start = time.monotonic()
        envs.close()
        assert time.monotonic() - start < 5
        assert not any(process.is_alive() for process in envs.processes)


def test_workers_that_nobody_closed_do_not_hold_up_the_end(tmp_path: Path) -> None:
    program = (
        "from rl_training.envs.factory import make_vector_env\n"
        "envs = make_vector_env('CartPole-v1', {'vectorization': 'async'}, 2)\n"
        "envs.reset(seed=0)\n"
        "import atexit; keep = [envs]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_sigterm_to_the_whole_group_is_an_orderly_stop(tmp_path: Path, tiny_config, command_group) -> None:
    """A scheduler signals every process of a job, the workers included."""
    file = tmp_path / "run.yaml"
    changes = {**CHANGES, "total_timesteps": 1_000_000, "eval_episodes": 1, "compile": False}
    file.write_text(tiny_config("her", **changes).to_yaml())
    process = command_group("train", file, "--json")
    assert process.stderr.readline().startswith("run folder")
    assert ": step 150 of 1,000,000" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert json.loads(out)["stop_reason"] == "interrupted by SIGTERM"
