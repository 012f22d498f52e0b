# ruff: noqa: F401, F811 (fixtures of another module)
"""A signal, whenever it comes, is answered with a checkpoint and exit code 3; a second one is not argued with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.runtime import checkpointing, trainer
from rl_training.runtime.checkpoint_files import read_manifest
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.collector import Collector
from rl_training.tools.comparison import full_state, state_differences
from test_cli import Answer, Run, run, tiny, train

pytestmark = pytest.mark.slow

OFFLINE = [
    "total_timesteps=120",
    "eval_episodes=2",
    "algo_kwargs.dataset_size=200",
    "algo_kwargs.batch_size=16",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.eval_interval=60",
    "algo_kwargs.log_interval=30",
]


def signal_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool = False) -> None:
    """Send SIGTERM at the n-th call of a function: while it is at work, or once it has done it."""
    real, calls = getattr(owner, name), [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and not after:
            os.kill(os.getpid(), signal.SIGTERM)
        answer = real(*arguments, **options)
        if calls[0] == call and after:
            os.kill(os.getpid(), signal.SIGTERM)
        return answer

    monkeypatch.setattr(owner, name, counted)


MOMENTS: dict[str, tuple[Any, str, int, bool]] = {
    "collection": (Collector, "step", 70, False),
    "an update": (trainer.Trainer, "prepare_updates", 70, False),
    "evaluation": (trainer.Evaluator, "run", 1, False),
    "logging": (trainer.MetricsLogger, "flush", 2, False),
    "writing a checkpoint": (checkpointing, "write_checkpoint", 1, False),
    "removing old ones": (checkpointing.CheckpointStore, "_prune", 1, False),
    "the end of a step": (trainer.Trainer, "_report_and_save", 70, True),
}


def check_exactness(broken: Answer, whole: Answer, run: Run) -> None:
    """Check that a run was stopped with a checkpoint of its last step, and ends like one that was not."""
    assert broken.code == 3, broken
    result = broken.json
    assert (result["status"], result["stop_reason"]) == ("interrupted", "interrupted by SIGTERM")
    run_dir = Path(result["run_dir"])
    manifest = read_manifest(resolve_checkpoint(run_dir / "checkpoints"))
    assert (manifest["global_step"], manifest["update_count"]) == (result["global_step"], result["update_count"])
    assert run("resume", run_dir, "--json").json["metrics"] == whole.json["metrics"]
    ends = [resolve_checkpoint(Path(answer.json["run_dir"]) / "checkpoints") for answer in (broken, whole)]
    assert state_differences(*map(full_state, ends)) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_at_any_moment_saves_and_exits_with_3(train: Run, run: Run, monkeypatch, moment):
    owner, name, call, after = MOMENTS[moment]
    whole = train(options=("--json",))
    with monkeypatch.context() as patch:
        signal_in(patch, owner, name, call, after=after)
        broken = train(options=("--json",))
    check_exactness(broken, whole, run)


@pytest.mark.parametrize("moment", ["an update", "evaluation", "writing a checkpoint"])
def test_sigterm_on_logged_data(run: Run, tmp_path, monkeypatch, moment):
    sets = [part for setting in OFFLINE for part in ("--set", setting)]
    command = ("train", "bc/pendulum", *sets, "--output-dir", tmp_path / "runs", "--json")
    whole = run(*command)
    with monkeypatch.context() as patch:
        owner, name, call, after = MOMENTS[moment]
        signal_in(patch, owner, name, call, after=after)
        broken = run(*command)
    check_exactness(broken, whole, run)


SLOW = """
import gymnasium as gym, numpy as np, os, time
from rl_training.envs.goals import PointGoal1DEnv

class Slow(PointGoal1DEnv):
    stepping = False

    def compute_reward(self, achieved_goal, desired_goal, info=None):
        if os.path.exists("slow") and not self.stepping:
            time.sleep(60)
        # More is allowed on one side, so the distance does not decide, and relabelling asks the environment.
        allowed = np.where(achieved_goal > desired_goal, 0.1, 0.05)
        return -(np.abs(achieved_goal - desired_goal) > allowed).any(axis=-1).astype(np.float32)

    def step(self, action):
        if os.path.exists("hang"):
            time.sleep(60)
        self.stepping = True
        try:
            return super().step(action)
        finally:
            self.stepping = False

gym.register("Slow-v0", entry_point=Slow, max_episode_steps=20)
"""


@pytest.fixture
def slow(tmp_path: Path, command_group, monkeypatch: pytest.MonkeyPatch):
    """Return a function that starts a command with an environment that a file makes slow."""
    (tmp_path / "slow_task.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def start(*sets: str) -> subprocess.Popen[str]:
        changes = tiny("env_id=slow_task:Slow-v0", "num_envs=2", "total_timesteps=100000", *sets)
        return command_group("train", "her/point_goal", *changes, "--output-dir", tmp_path / "runs")

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_leaves_at_once_with_one_message(tmp_path: Path, slow, number) -> None:
    """The reward that is computed takes long; the run stays as its last checkpoint has it."""
    process = slow("algo_kwargs.checkpoint_interval=30")
    wait_for(lambda: any(tmp_path.glob("runs/*/checkpoints/latest")))
    (tmp_path / "slow").touch()
    time.sleep(1.0)
    os.killpg(process.pid, number)
    time.sleep(1.5)
    assert process.poll() is None  # it is still computing a reward
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == (130 if number == signal.SIGINT else -number), err
    assert "Traceback" not in err
    assert err.count("error:") == 1
    assert f"ended by a second {number.name}" in err


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_step_that_hangs_does_not_keep_a_run_from_stopping(tmp_path: Path, slow, number, vectorization) -> None:
    process = slow(f"env_kwargs.vectorization={vectorization}", "algo_kwargs.eval_interval=1000000")
    wait_for(lambda: any(tmp_path.glob("runs/*/metrics.csv")))
    time.sleep(1.0)
    (tmp_path / "hang").touch()
    time.sleep(1.0)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3, err
    assert "Traceback" not in err
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert json.loads((run_dir / "result.json").read_text())["stop_reason"] == f"interrupted by {number.name}"
    assert read_manifest(resolve_checkpoint(run_dir / "checkpoints"))["global_step"] > 0


def test_a_signal_ends_an_evaluation_that_would_take_hours(tmp_path: Path, command_group) -> None:
    sets = tiny("eval_episodes=1000000")
    process = command_group("train", "her/point_goal", *sets, "--output-dir", tmp_path)
    wait_for(lambda: any(tmp_path.glob("*/metrics.csv")))
    time.sleep(3.0)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 3, err
    assert out.startswith("interrupted by SIGTERM after 60 steps")
    assert "plots" not in out or list(tmp_path.glob("*/report.html"))


@pytest.mark.parametrize(
    "command", [("train", "her/point_goal", *tiny()), ("evaluate", "no-run"), ("presets",)], ids=lambda c: c[0]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_start_ends_in_order(tmp_path: Path, command_group, command, number) -> None:
    process = command_group(*command, *(("--output-dir", tmp_path) if command[0] == "train" else ()))
    time.sleep(0.4)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3 or command[0] != "train", err  # the others may be done by then
    assert "Traceback" not in err
    assert process.returncode in (0, 2, 3)


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "RUN", "--episodes", 1_000_000),
        ("data", "collect", "--policy", "RUN", "--episodes", 10_000_000, "-o", "x.npz"),
    ],
    ids=["evaluate", "collect"],
)
def test_a_signal_ends_playing(train: Run, tmp_path: Path, command_group, monkeypatch, command) -> None:
    run_dir = train(options=("--json",)).json["run_dir"]
    monkeypatch.chdir(tmp_path)
    process = command_group(*[run_dir if part == "RUN" else part for part in command])
    time.sleep(6.0)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (3, "error: interrupted by SIGTERM\n")
    assert not (tmp_path / "x.npz").exists()


def test_nohup_is_respected(tmp_path: Path) -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from rl_training.interrupts import answer_signals, stop_on_signals\n"
        "with answer_signals(), stop_on_signals(print):\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('alive')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "alive\n"


@pytest.mark.parametrize("both", [False, True], ids=["stderr", "stdout and stderr"])
def test_a_reader_that_goes_away_does_not_end_training(tmp_path: Path, both: bool) -> None:
    """As with ``2>&1 | head -1``: the pipe breaks while the run has many lines to print."""
    sets = tiny("total_timesteps=300", "algo_kwargs.eval_interval=20", "eval_episodes=1")
    command = [sys.executable, "-m", "rl_training", "train", "her/point_goal", *sets, "--output-dir", str(tmp_path)]
    stderr = subprocess.STDOUT if both else subprocess.PIPE
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    stream = process.stdout if both else process.stderr
    assert stream is not None
    stream.readline()
    stream.close()
    assert process.wait(timeout=120) == 0
    (run_dir,) = tmp_path.iterdir()
    assert json.loads((run_dir / "result.json").read_text())["status"] == "completed"


def test_a_full_disk_under_stderr_does_not_end_training(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rl_training", "train", "her/point_goal", *tiny(), "--output-dir", str(tmp_path)]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "completed"


def test_results_that_cannot_be_written_are_a_failure() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rl_training", "presets"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def test_a_pipe_that_breaks_is_quiet(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m rl_training presets | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def test_closed_streams_do_not_matter(tmp_path: Path) -> None:
    """A file that is opened must not become the stderr of a process that has none."""
    sets = " ".join(f"'{part}'" for part in tiny())
    command = f"{sys.executable} -m rl_training train her/point_goal {sets} --output-dir {tmp_path} 0<&- 1>&- 2>&-"
    assert subprocess.run(command, shell=True).returncode == 0
    (run_dir,) = tmp_path.iterdir()
    assert json.loads((run_dir / "result.json").read_text())["status"] == "completed"


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
