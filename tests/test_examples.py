"""The examples run, as a reader would run them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from warm_process import WarmPython

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {"demo.py", "own_data.py", "own_environment.py", "offline_to_online.py", "custom_learner.py"}


@pytest.fixture
def run(tmp_path: Path, warm_python: WarmPython) -> Callable[..., str]:
    """Return a function that runs an example in ``tmp_path`` and returns what it printed."""

    def run(name: str, *arguments: str) -> str:
        answer = warm_python.run(EXAMPLES / name, *arguments, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    return run


def test_every_example_is_tested_here():
    assert {file.name for file in EXAMPLES.glob("*.py")} == TESTED


def test_demo_trains_evaluates_and_says_where_everything_is(tmp_path, run):
    output = run("demo.py", "1050", "2")
    assert re.search(r"success rate +\d\.\d\d over 2 new episodes", output)
    for name, file in (("run", "config.yaml"), ("checkpoint", "manifest.json"), ("plots", "")):
        assert Path(tmp_path, re.search(rf"{name} +(.+)", output)[1], file).exists(), name


def test_own_environment_is_given_as_a_class(tmp_path, run):
    output = run("own_environment.py", "500")
    assert "after 500 steps" in output
    assert Path(tmp_path, re.search(r"run: (.+)", output)[1], "report.html").exists()


def test_offline_to_online_continues_a_policy(tmp_path, run):
    output = run("offline_to_online.py", "200")
    assert "after 200 updates" in output
    assert "after 100 steps" in output
    first, second = re.search(r"runs: (.+) (.+)", output).groups()
    assert str(Path(first).name) in Path(tmp_path, second, "config.yaml").read_text()


def test_own_data_trains_from_arrays_in_memory(tmp_path, run):
    output = run("own_data.py", "200")
    assert "10,000 transitions" in output
    assert "after 200 updates" in output
    assert Path(tmp_path, re.search(r"run: (.+)", output)[1], "report.html").exists()


def test_a_learner_outside_the_package_learns(run):
    output = run("custom_learner.py")
    first, last = map(float, re.findall(r"\d+\.\d+", output))
    assert last > 3 * first, output
