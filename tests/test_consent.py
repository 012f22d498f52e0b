"""No code is imported that the user did not name: not from the current folder, and not for a stranger's run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_cli import tiny
from warm_process import Done, WarmPython

TASK = """
import gymnasium as gym, pathlib
pathlib.Path("imported").touch()
gym.register("Mine-v0", entry_point="rl_training.envs.builtin:PointGoal1DEnv")
"""


class Folder:
    """A current folder with a task of one's own, and a home."""

    def __init__(self, path: Path, python: WarmPython) -> None:
        self.path, self.python = path, python
        path.mkdir(parents=True)
        (path / "my_task.py").write_text(TASK)
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(path / "state"),
            "XDG_CONFIG_HOME": str(path / "config"),
        }

    def check_run(self, *arguments: object, code: int = 0, imported: bool | None = None) -> Done:
        (self.path / "imported").unlink(missing_ok=True)
        done = self.python.run("-m", "rl_training", *arguments, cwd=self.path, env=self.environment)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        if imported is not None:
            assert (self.path / "imported").exists() is imported
        return done

    def train(self) -> Path:
        self.check_run(
            "train", "her/point_goal", *tiny("env_id=my_task:Mine-v0"), "--output-dir", "runs", imported=True
        )
        (run_dir,) = (self.path / "runs").iterdir()
        return run_dir


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> tuple[Folder, Path]:
    folder = Folder(tmp_path_factory.mktemp("mine") / "here", warm_python)
    return folder, folder.train()


COMMANDS = {
    "resume": ("resume", "RUN"),
    "verify": ("resume", "RUN", "--verify"),
    "evaluate": ("evaluate", "RUN", "--episodes", 1),
    "collect": ("data", "collect", "--policy", "RUN", "--episodes", 1, "-o", "x.npz"),
}


@pytest.fixture
def me(tmp_path: Path, warm_python: WarmPython) -> Folder:
    return Folder(tmp_path / "me", warm_python)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_strangers_run_imports_nothing_without_consent(mine, me, command) -> None:
    _, theirs = mine
    run_dir = shutil.copytree(theirs, me.path / "received")
    arguments = [run_dir if part == "RUN" else part for part in COMMANDS[command]]
    err = me.check_run(*arguments, code=2, imported=False).stderr
    assert err.startswith("error: ")
    for word in (str(run_dir), "'my_task:Mine-v0'", "--trust", "trusted.txt"):
        assert word in err
    me.check_run(*arguments, "--trust", imported=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_ones_own_run_needs_no_consent(mine, command) -> None:
    folder, run_dir = mine
    folder.check_run(*[run_dir if part == "RUN" else part for part in COMMANDS[command]], imported=True)


def test_a_copy_of_ones_own_run_is_not_trusted(mine) -> None:
    folder, run_dir = mine
    copy = shutil.copytree(run_dir, folder.path / "copy")
    folder.check_run("evaluate", copy, "--episodes", 1, code=2, imported=False)


def test_an_edited_module_is_not_trusted(mine) -> None:
    folder, run_dir = mine
    (folder.path / "other_task.py").write_text(TASK)
    text = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(text.replace("my_task:", "other_task:"))
    try:
        folder.check_run("resume", run_dir, code=2, imported=False)
    finally:
        (run_dir / "config.yaml").write_text(text)


def test_a_list_of_modules_is_consent(mine, me) -> None:
    _, theirs = mine
    (me.path / "config" / "rl_training").mkdir(parents=True)
    (me.path / "config" / "rl_training" / "trusted.txt").write_text("numpy\nmy_task\n")
    me.check_run("evaluate", theirs, "--episodes", 1, imported=True)


def test_report_and_predict_never_import(mine, me) -> None:
    _, theirs = mine
    me.check_run("report", theirs, "-o", "page.html", imported=False)
    (me.path / "obs.jsonl").write_text("")
    me.check_run("predict", theirs, "--obs", "obs.jsonl", imported=False)


def test_a_home_that_cannot_be_written_does_not_matter(me) -> None:
    me.environment["XDG_STATE_HOME"] = "/dev/null/state"
    me.check_run("evaluate", me.train(), "--episodes", 1, code=2, imported=False)


@pytest.mark.parametrize("command", [("doctor",), ("presets",), ("check-env", "my_task:Mine-v0")], ids=lambda c: c[0])
def test_modules_of_the_current_folder_do_not_replace_installed_ones(tmp_path, command) -> None:
    """Each command runs in a new interpreter, which has imported none of these modules yet."""
    (tmp_path / "my_task.py").write_text(TASK)
    for name in ("gymnasium", "torch", "yaml", "typer", "numpy", "signal", "json"):
        (tmp_path / f"{name}.py").write_text(f"import pathlib\npathlib.Path('imported-{name}').touch()\n")
    program = [sys.executable, "-m", "rl_training", *command]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert list(tmp_path.glob("imported-*")) == []
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_the_current_folder_is_on_the_path_only_for_the_module(tmp_path, monkeypatch) -> None:
    from rl_training.envs.factory import make_env

    (tmp_path / "passing_by.py").write_text(
        "import sys, gymnasium as gym\n"
        "PATH = list(sys.path)\n"
        "gym.register('Passing-v0', entry_point='rl_training.envs.builtin:PointGoal1DEnv')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = list(sys.path)
    make_env("passing_by:Passing-v0").close()
    assert sys.path == before
    assert [*before, str(tmp_path)] == sys.modules["passing_by"].PATH  # after all others


def test_a_module_that_is_missing_its_registration_is_named(me) -> None:
    err = me.check_run("check-env", "my_task:Qxz-v7", code=2).stderr
    assert "no such environment; the module 'my_task' does not register it" in err
    assert "for your own environment write module:Name" in me.check_run("check-env", "Qxzzz", code=2).stderr
