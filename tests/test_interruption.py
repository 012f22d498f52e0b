# ruff: noqa: F401, F811 (fixtures of another module)
"""A signal, whenever it comes, is answered with a checkpoint and exit code 3; a second one is not argued with."""

from __future__ import annotations

import json
import os
import re
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
from test_cli import Answer, Run, run, tiny, train, trained
from warm_process import WarmProcess, WarmPython

pytestmark = pytest.mark.slow

MAIN = "from rl_training.__main__ import main; main()"
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


def check_exactness(broken: Answer, whole: Path, run: Run) -> None:
    """Check that a run was stopped with a checkpoint of its last step, and ends like one that was not."""
    assert broken.code == 3, broken
    result = broken.json
    assert (result["status"], result["stop_reason"]) == ("interrupted", "interrupted by SIGTERM")
    run_dir = Path(result["run_dir"])
    manifest = read_manifest(resolve_checkpoint(run_dir / "checkpoints"))
    assert (manifest["global_step"], manifest["update_count"]) == (result["global_step"], result["update_count"])
    expected = json.loads((whole / "result.json").read_text())
    assert run("resume", run_dir, "--json").json["metrics"] == expected["metrics"]
    ends = [resolve_checkpoint(folder / "checkpoints") for folder in (run_dir, whole)]
    assert state_differences(*map(full_state, ends)) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_at_any_moment_saves_and_exits_with_3(trained: Path, train: Run, run: Run, monkeypatch, moment):
    owner, name, call, after = MOMENTS[moment]
    with monkeypatch.context() as patch:
        signal_in(patch, owner, name, call, after=after)
        broken = train(options=("--json",))
    check_exactness(broken, trained, run)


@pytest.mark.parametrize("moment", ["an update", "evaluation", "writing a checkpoint"])
def test_sigterm_on_logged_data(run: Run, tmp_path, monkeypatch, moment):
    sets = [part for setting in OFFLINE for part in ("--set", setting)]
    command = ("train", "bc/pendulum", *sets, "--output-dir", tmp_path / "runs", "--json")
    whole = Path(run(*command).json["run_dir"])
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
            open("asleep", "w").close()
            time.sleep(60)
        # More is allowed on one side, so the distance does not decide, and relabelling asks the environment.
        allowed = np.where(achieved_goal > desired_goal, 0.1, 0.05)
        return -(np.abs(achieved_goal - desired_goal) > allowed).any(axis=-1).astype(np.float32)

    def step(self, action):
        if os.path.exists("hang"):
            open("asleep", "w").close()
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

    def start(*sets: str) -> WarmProcess:
        changes = tiny("env_id=slow_task:Slow-v0", "num_envs=2", "total_timesteps=100000", *sets)
        return command_group("train", "her/point_goal", *changes, "--output-dir", tmp_path / "runs")

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_leaves_at_once_with_one_message(tmp_path: Path, slow, number) -> None:
    """The reward that is computed takes long; the run stays as its last checkpoint has it."""
    process = slow("algo_kwargs.checkpoint_interval=30")
    wait_for(lambda: any(tmp_path.glob("runs/*/checkpoints/latest")))
    (tmp_path / "slow").touch()
    wait_for((tmp_path / "asleep").exists)
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
    wait_for_rows(tmp_path / "runs")
    (tmp_path / "hang").touch()
    wait_for((tmp_path / "asleep").exists)
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
    wait_for_rows(tmp_path)  # of step 30
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 3, err
    assert out.startswith("interrupted by SIGTERM after 60 steps")
    assert "plots" not in out or list(tmp_path.glob("*/report.html"))


@pytest.mark.parametrize(
    "command", [("train", "her/point_goal", *tiny()), ("evaluate", "no-run"), ("presets",)], ids=lambda c: c[0]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_start_ends_in_order(tmp_path: Path, command, number) -> None:
    words = [sys.executable, "-m", "rl_training", *command]
    words += ["--output-dir", str(tmp_path)] if command[0] == "train" else []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: answers_signals(process))
        time.sleep(0.2)
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
    time.sleep(1.5)
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
def test_a_reader_that_goes_away_does_not_end_training(tmp_path: Path, warm_python: WarmPython, both: bool) -> None:
    """As with ``2>&1 | head -1``: the pipe breaks while the run has many lines to print."""
    sets = tiny("total_timesteps=300", "algo_kwargs.eval_interval=20", "eval_episodes=1")
    joined = "import os; os.dup2(1, 2)\n" if both else ""
    process = warm_python.start("-c", joined + MAIN, "train", "her/point_goal", *sets, "--output-dir", tmp_path)
    stream = process.stdout if both else process.stderr
    stream.readline()
    stream.close()
    assert process.wait(timeout=120) == 0
    process.close()
    (run_dir,) = tmp_path.iterdir()
    assert json.loads((run_dir / "result.json").read_text())["status"] == "completed"


def test_a_full_disk_under_stderr_does_not_end_training(tmp_path: Path, warm_python: WarmPython) -> None:
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\n"
    command = ("train", "her/point_goal", *tiny(), "--output-dir", tmp_path, "--json")
    done = warm_python.run("-c", full + MAIN, *command)
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


def answers_signals(process: subprocess.Popen[str]) -> bool:
    """Return whether a process has come so far that it handles SIGTERM, or has ended."""
    caught = re.search(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return process.poll() is not None or (caught is not None and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1 == 1)


def wait_for_rows(folder: Path) -> None:
    """Wait until a run has written lines of metrics."""
    wait_for(lambda: any("\n" in file.read_text().partition("\n")[2] for file in folder.glob("*/metrics.csv")))


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
