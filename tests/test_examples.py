"""The examples run, as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_own_data_trains_from_arrays_in_memory(tmp_path):
    output = run("own_data.py", tmp_path, "200")
    assert "10,000 transitions" in output
    assert "after 200 updates" in output
    assert Path(tmp_path, re.search(r"run: (.+)", output)[1], "report.html").exists()


def test_a_learner_outside_the_package_learns(tmp_path):
    output = run("custom_learner.py", tmp_path)
    first, last = map(float, re.findall(r"\d+\.\d+", output))
    assert last > 3 * first, output
