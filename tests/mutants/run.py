"""Apply small defects to copies of the package, one at a time, and check that the quick tests notice each of them.

A mutant is an entry of a YAML list: ``name``; ``file`` below ``src/rl_training``; ``find``, text that occurs in it
exactly once; ``replace``, the defect; ``tests``, what must fail, as arguments of pytest below ``tests/``.

    python tests/mutants/run.py [--list] [--only NAME]... [--add FILE]... [--jobs N]

The exit code is 1 if a mutant survives, if its text does not occur exactly once, or if tests fail without any mutant.
Every run of tests is a fork of this process, because importing torch takes longer than most of them.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MUJOCO_GL": "disabled"}

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MUTANTS = Path(__file__).with_name("mutants.yaml")
TIMEOUT = 300.0
KILLED, SURVIVED, INVALID = "killed", "SURVIVED", "INVALID"
HEAVY = ("torch", "torch.utils.tensorboard", "gymnasium.vector", "pydantic", "safetensors.torch", "typer")


@dataclass(frozen=True)
class Mutant:
    """A small defect, and the tests that must notice it; without a file there is no defect."""

    name: str
    file: str
    find: str
    replace: str
    tests: str


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant, and the first test that failed or the reason why none could."""

    mutant: Mutant
    result: str
    detail: str
    seconds: float = 0.0


def read_mutants(files: list[Path]) -> list[Mutant]:
    """Return the mutants of all files; a name may occur once."""
    mutants = [Mutant(**entry) for file in files for entry in yaml.safe_load(file.read_text(encoding="utf-8"))]
    repeated = [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1]
    if repeated:
        sys.exit(f"mutants of the same name: {', '.join(repeated)}")
    return mutants


def controls(mutants: list[Mutant]) -> list[Mutant]:
    """Return one mutant without a defect for each selection of tests: they must survive."""
    selections = {mutant.tests if "-k" in mutant.tests else test for mutant in mutants for test in mutant.tests.split()}
    return [Mutant("(no defect)", "", "", "", tests) for tests in sorted(selections)]


class Attempt:
    """The tests of one mutant, on its copy of the package, in a process of their own."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.started = mutant, time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        self.output = self.folder / "output"
        # Compiled files go along: copies keep their times, so they stay valid except for the file that is changed.
        self.source = Path(shutil.copytree(ROOT / "src", self.folder / "src"))
        self.problem = self._apply()
        self.pid = None if self.problem else self._start()

    def _apply(self) -> str | None:
        """Put the defect into the copy, or return why that cannot be done."""
        mutant = self.mutant
        if not mutant.file:
            return None
        file = self.source / "rl_training" / mutant.file
        if not file.is_file():
            return f"there is no {mutant.file}"
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.find) != 1 or mutant.find == mutant.replace:
            return f"its text occurs {text.count(mutant.find)} times in {mutant.file}: expected 1"
        file.write_text(text.replace(mutant.find, mutant.replace), encoding="utf-8")
        return None

    def _start(self) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = self._run_tests()
            finally:
                os._exit(code)
        return pid

    def _run_tests(self) -> int:
        """Run quick tests on the copy, up to the first failure; this is the process of its own."""
        os.setpgrp()
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = str(self.source)  # of the processes that tests start
        sys.path.insert(0, str(self.source))
        options = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
        options += [f"--basetemp={self.folder / 'tests'}", "--hypothesis-seed=0"]
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self.folder / "hypothesis")
        tests = [test if "=" in test or ".py" not in test else f"tests/{test}" for test in self.mutant.tests.split()]
        code = int(pytest.main([*options, *tests]))
        if not Path(sys.modules["rl_training"].__file__ or "").is_relative_to(self.source):
            print("the package was not imported from the copy")
            code = 71
        sys.stdout.flush()
        return code

    def outcome(self) -> Outcome | None:
        """Return what became of the mutant, or None while its tests are running."""
        seconds = time.monotonic() - self.started
        if self.pid is None:
            return Outcome(self.mutant, INVALID, self.problem or "", seconds)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            if seconds < TIMEOUT:
                return None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return Outcome(self.mutant, KILLED, f"the tests took more than {TIMEOUT:.0f} s", seconds)
        code, printed = os.waitstatus_to_exitcode(status), self.output.read_text(encoding="utf-8", errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", printed, re.MULTILINE)
        if code == 0:
            return Outcome(self.mutant, SURVIVED, self.mutant.tests, seconds)
        if code != 1 or failed is None:  # nothing was collected, or the mutant is no program
            last = (printed.strip().splitlines() or [""])[-1]
            return Outcome(self.mutant, INVALID, f"pytest exited with {code}: {last}", seconds)
        return Outcome(self.mutant, KILLED, failed[1], seconds)

    def clean_up(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)


def attempt_all(mutants: Iterable[Mutant], jobs: int) -> Iterator[Outcome]:
    """Try mutants, ``jobs`` at a time, and yield what became of them as it is known."""
    waiting, running = list(mutants), list[Attempt]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(Attempt(waiting.pop(0)))
        for attempt in list(running):
            outcome = attempt.outcome()
            if outcome is not None:
                running.remove(attempt)
                attempt.clean_up()
                yield outcome
        time.sleep(0.05)


def main() -> int:
    """Run the mutants and print what became of them."""
    parser = argparse.ArgumentParser(description="Check that the quick tests notice small defects.")
    parser.add_argument("--list", action="store_true", help="show the mutants and end")
    parser.add_argument("--only", action="append", metavar="NAME", help="a name or a pattern such as 'td3-*'")
    parser.add_argument("--add", action="append", type=Path, default=[], metavar="FILE", help="further mutants (YAML)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    options = parser.parse_args()
    mutants = read_mutants([MUTANTS, *options.add])
    if options.only:
        mutants = [m for m in mutants if any(fnmatch.fnmatchcase(m.name, pattern) for pattern in options.only)]
        if not mutants:
            parser.error(f"no mutant is called {' or '.join(options.only)}")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:40} {mutant.file:32} {mutant.tests}")
        return 0
    for module in HEAVY:
        importlib.import_module(module)
    counts: Counter[str] = Counter()
    for outcome in attempt_all([*controls(mutants), *mutants], options.jobs):
        if not outcome.mutant.file:
            if outcome.result != SURVIVED:
                print(f"error: {outcome.mutant.tests} fails without a mutant: {outcome.detail}", file=sys.stderr)
                return 1
            outcome = replace(outcome, result="passed")
        counts[outcome.result] += 1
        columns = f"{outcome.result:9} {outcome.mutant.name:40} {outcome.mutant.file:32} {outcome.seconds:5.1f} s"
        print(f"{columns}  {outcome.detail}", flush=True)
    invalid = f", {counts[INVALID]} invalid" if counts[INVALID] else ""
    print(f"{counts[KILLED]} killed, {counts[SURVIVED]} survived{invalid}")
    return 0 if counts[KILLED] == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
