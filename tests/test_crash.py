"""The short form of ``benchmarks/crash_test.py``: a few runs killed at random instants end like ones that were not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "crash_test.py"


def test_runs_that_are_killed_end_like_runs_that_are_not(tmp_path: Path) -> None:
    output = tmp_path / "answer.json"
    command = [sys.executable, str(PROGRAM), "--runs", "3", "--seed", "2", "--output", str(output)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    total = json.loads(output.read_text())["total"]
    assert (total["runs"], total["identical"], total.get("damaged", 0)) == (3, 3, 0)
    assert total["kills"] >= 2
