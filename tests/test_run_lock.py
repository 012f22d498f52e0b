"""Two processes never train in one folder."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from rl_training.errors import RunLockedError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import resume, train
from rl_training.runtime.run_lock import lock_run
from warm_process import Done, WarmPython

HOLDER = """
import pathlib, sys, time
from rl_training.runtime.run_lock import lock_run
with lock_run(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path, warm_python: WarmPython):
    """A process that holds the lock of ``tmp_path``."""
    process = warm_python.start("-c", HOLDER, tmp_path)
    assert process.stdout.readline() == "held\n"
    yield process
    process.close()


def test_a_second_process_is_told_who_holds_the_run_and_a_killed_one_holds_nothing(tmp_path, holder):
    with (
        pytest.raises(RunLockedError, match=rf"{tmp_path.name}: in use by process {holder.pid} on "),
        lock_run(tmp_path),
    ):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(60)
    with lock_run(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
    with lock_run(tmp_path):
        pass


class Intruder(Callback):
    """Uses a run while it is being trained, as another process would."""

    def __init__(self, python: WarmPython) -> None:
        self.python = python
        self.answers: dict[str, Done] = {}

    def command(self, *arguments: object) -> Done:
        return self.python.run("-m", "rl_training", *arguments)

    def on_step(self, trainer) -> None:
        if trainer.state.global_step == 250:
            run_dir = trainer.store.folder.parent
            with pytest.raises(RunLockedError):
                resume(run_dir)
            self.answers["resume"] = self.command("resume", run_dir)
            self.answers["evaluate"] = self.command("evaluate", run_dir, "--episodes", 1, "--json")
            self.answers["report"] = self.command("report", run_dir, "-o", run_dir / "other.html")


@pytest.mark.slow
def test_only_training_is_refused_while_a_run_is_trained(tiny_config, warm_python):
    intruder = Intruder(warm_python)
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
