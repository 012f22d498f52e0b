"""Two processes never train in one folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.errors import RunLockedError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import resume, train
from rl_training.runtime.run_lock import lock_run

HOLDER = """
import pathlib, sys, time
from rl_training.runtime.run_lock import lock_run
with lock_run(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "rl_training", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def holder(tmp_path: Path):
    """A process that holds the lock of ``tmp_path``."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_is_told_who_holds_the_run_and_a_killed_one_holds_nothing(tmp_path, holder):
    with (
        pytest.raises(RunLockedError, match=rf"{tmp_path.name}: in use by process {holder.pid} on "),
        lock_run(tmp_path),
    ):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with lock_run(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
    with lock_run(tmp_path):
        pass


class Intruder(Callback):
    """Uses a run while it is being trained, as another process would."""

    def __init__(self) -> None:
        self.answers: dict[str, subprocess.CompletedProcess[str]] = {}

    def on_step(self, trainer) -> None:
        if trainer.state.global_step == 250:
            run_dir = trainer.store.folder.parent
            with pytest.raises(RunLockedError):
                resume(run_dir)
            self.answers["resume"] = command("resume", run_dir)
            self.answers["evaluate"] = command("evaluate", run_dir, "--episodes", 1, "--json")
            self.answers["report"] = command("report", run_dir, "-o", run_dir / "other.html")


@pytest.mark.slow
def test_only_training_is_refused_while_a_run_is_trained(tiny_config):
    intruder = Intruder()
    result = train(tiny_config("her"), callbacks=[intruder])
    assert result.status == "completed"
    refused = intruder.answers["resume"]
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        line for line in refused.stderr.splitlines() if f"in use by process {os.getpid()}" in line
    ]
    assert intruder.answers["evaluate"].returncode == 0
    assert json.loads(intruder.answers["evaluate"].stdout)["episodes"] == 1
    assert intruder.answers["report"].returncode == 0
    assert resume(result.run_dir).status == "completed"
