"""The progress of long jobs: lines or a bar on stderr, at intervals, with rate and time left; nothing with --quiet."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rl_training.cli import main
from rl_training.data.formats.storage import report_bytes, watch_bytes
from rl_training.runtime import progress as module
from rl_training.runtime import run as runs
from rl_training.runtime.progress import Progress
from rl_training.runtime.settings import read_config


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_lines_come_at_intervals_with_rate_and_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("evaluate") as progress:
        progress.start("", 1000, "episode")
        for done in range(1, 101):
            clock.now += 1
            progress.update(done, f"seen {done}")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "evaluate: episode 31 of 1,000: seen 31, 1 episodes/s, 0:16:09 left",
        "evaluate: episode 62 of 1,000: seen 62, 1 episodes/s, 0:15:38 left",
        "evaluate: episode 93 of 1,000: seen 93, 1 episodes/s, 0:15:07 left",
    ]


def test_the_rate_is_that_of_the_last_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("train") as progress:
        progress.start("", 10_000, "step", done=1000)
        for _ in range(31):
            clock.now += 1
            progress.advance(100)  # a quick start, without updates
        for _ in range(310):
            clock.now += 1
            progress.advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "train: step 4,100 of 10,000: 100 steps/s, 0:00:59 left"
    assert lines[-1] == "train: step 4,720 of 10,000: 2 steps/s, 0:44:00 left"


def test_a_stage_that_has_not_moved_has_no_rate(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("report") as progress:
        progress.start("reading", 3, "run")
        clock.now += 31
        progress.update(0)
    assert capsys.readouterr().err == "report: reading: run 0 of 3: time left unknown\n"


def test_quiet_shows_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("evaluate", quiet=True) as progress:
        progress.start("", 10, "episode")
        clock.now += 100
        progress.update(5, force=True)
        progress.line("text")
    assert capsys.readouterr() == ("", "")


def test_bytes_of_files_are_counted_in_megabytes(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("data convert") as progress, watch_bytes(progress.on_bytes):
        report_bytes("reading", 0, 50_000_000)
        clock.now += 31
        report_bytes("reading", 31_000_000, 50_000_000)
        report_bytes("writing", 0, 2_000)
        clock.now += 31
        report_bytes("writing", 2_000, 2_000)
    report_bytes("reading", 1, 2)  # nobody watches any more
    assert capsys.readouterr().err.splitlines() == [
        "data convert: reading: 31 of 50 MB: 1 MB/s, 0:00:19 left",
        "data convert: writing: 0 of 1 MB: time left unknown",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_of_at_most_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with Progress("data collect") as progress:
        progress.start("", 40, "episode")
        for done in range(1, 21):
            progress.update(done, f"{done * 50:,} transitions", force=done == 20)
        progress.start("writing", 7, "MB")
        progress.update(3)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", plain) if "%" in line]
    assert any(re.match(r"data collect .* +50% [\d,]+/s 0:00:\d\d 1,000 transitions", line) for line in lines)
    assert re.match(r"data collect writing .* 100%", lines[-1])
    assert max(map(len, lines)) <= 80


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not Progress("evaluate").is_bar


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    changes = ["total_timesteps=70", "eval_episodes=1", f"output_dir={folder}", "env_kwargs={max_steps: 5}"]
    changes += ["algo_kwargs.hidden_sizes=[4]", "algo_kwargs.batch_size=8", "algo_kwargs.learning_starts=60"]
    return runs.train(read_config("her/point_goal", changes)).run_dir


@pytest.fixture
def data(tmp_path: Path) -> Path:
    numbers = np.random.default_rng(0).normal(size=(50, 3))
    ends = np.arange(50) % 10 == 9
    np.savez(tmp_path / "log.npz", observations=numbers, actions=numbers, rewards=numbers[:, 0], terminals=ends)
    return tmp_path / "log.npz"


LONGER = itertools.count(80, 5)
COMMANDS: dict[str, tuple[Callable[[Path, Path], list[object]], str]] = {
    "train": (
        lambda run, data: ["train", run / "config.yaml", "--output-dir", data.parent / "runs"],
        r"config seed 0: step \d+ of 70: ",
    ),
    "resume": (
        lambda run, data: ["resume", run, "--set", f"total_timesteps={next(LONGER)}"],
        r"seed 0: step \d+ of 80: ",
    ),
    "evaluate": (lambda run, data: ["evaluate", run, "--episodes", 3], r"evaluate: episode 2 of 3: .*left"),
    "collect": (
        lambda run, data: ["data", "collect", "--policy", run, "--episodes", 3, "-o", data.parent / "c.npz"],
        r"data collect: episode 2 of 3: 10 transitions, [\d,.e+]+ episodes/s, 0:00:00 left",
    ),
    "convert": (
        lambda run, data: ["data", "convert", data, data.parent / "c.csv"],
        r"data convert: (reading|writing): \d of 1 MB: ",
    ),
    "inspect": (lambda run, data: ["data", "inspect", data], r"data inspect: checking: check 3 of 7: "),
    "report": (
        lambda run, data: ["report", run, "-o", data.parent / "r.html"],
        r"report: run 1 of 1: ",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_long_command_shows_progress_on_stderr_unless_it_is_told_not_to(
    name: str, run_dir: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, expected = COMMANDS[name]
    monkeypatch.setattr(module, "_LINE_EVERY", -1.0)

    def command(*more: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["rl-training", *map(str, arguments(run_dir, data)), *more])
        with pytest.raises(SystemExit) as done:
            main()
        assert not done.value.code
        captured = capsys.readouterr()
        return captured.out, captured.err

    overwrite = ["-y"] if name in ("collect", "convert") else []
    out, err = command()
    assert re.search(expected, err), err
    assert not re.search(expected, out)
    assert command("--quiet", *overwrite)[1] == ""
    if name != "report":
        assert isinstance(json.loads(command("--json", *overwrite)[0]), dict)
