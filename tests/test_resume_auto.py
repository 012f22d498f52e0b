# ruff: noqa: F401, F811 (fixtures of another module)
"""``train --resume-auto``: the same command, run again by a scheduler, finishes one run and starts no other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rl_training.errors import RunLockedError
from rl_training.runtime.run_lock import lock_configuration
from test_cli import Run, interrupt_at, run, tiny, train

AUTO = ("--json", "--resume-auto")


def run_dirs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "runs").iterdir())


def test_started_continued_and_then_only_reported(train: Run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 70)
        first = train(options=AUTO)
    assert (first.code, first.json["global_step"]) == (3, 70)
    second = train(options=AUTO)
    assert (second.code, second.json["global_step"], second.json["run_dir"]) == (0, 120, first.json["run_dir"])
    third = train(options=AUTO)
    assert (third.code, third.json) == (0, second.json)
    assert len(run_dirs(tmp_path)) == 1


@pytest.mark.slow
def test_another_configuration_gets_a_run_of_its_own(train: Run, tmp_path):
    one = train(options=AUTO).json["run_dir"]
    assert train("algo_kwargs.tau=0.01", options=AUTO).json["run_dir"] != one
    assert train(options=(*AUTO, "--seed", 1)).json["run_dir"] != one
    assert train(options=("--json",)).json["run_dir"] != one  # without the option every run is a new one
    assert len(run_dirs(tmp_path)) == 4


def test_seeds_are_each_taken_up(train: Run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 190)  # in the second of them
        assert train(options=(*AUTO, "--seeds", "0-1")).code == 3
    result = train(options=(*AUTO, "--seeds", "0-1"))
    assert (result.code, [one["global_step"] for one in result.json["runs"]]) == (0, [120, 120])
    assert len(run_dirs(tmp_path)) == 2


def test_a_folder_that_was_moved_and_one_without_a_checkpoint(run: Run, train: Run, tmp_path):
    first = Path(train(options=AUTO).json["run_dir"])
    moved = Path(shutil.move(str(tmp_path / "runs"), tmp_path / "moved"))
    (moved / "junk").mkdir()
    (moved / "junk" / "config.yaml").write_text("algo: [")
    again = run("train", "her/point_goal", *tiny(), "--output-dir", moved, *AUTO)
    assert again.json["run_dir"] == str(moved / first.name)
    shutil.rmtree(moved / first.name / "checkpoints")
    (moved / first.name / "checkpoints" / ".000000100-000000050.tmp").mkdir(parents=True)  # killed in the first one
    (moved / first.name / "result.json").unlink()
    fresh = run("train", "her/point_goal", *tiny(), "--output-dir", moved, *AUTO)
    assert (fresh.code, fresh.json["global_step"]) == (0, 120)
    assert fresh.json["run_dir"] != again.json["run_dir"]


def test_what_an_earlier_end_said_does_not_count_once_a_run_goes_on(train: Run, run: Run, monkeypatch):
    """A finished run whose budget is raised is unfinished again, also when it is killed."""
    run_dir = Path(train(options=AUTO).json["run_dir"])
    file = run_dir / "config.yaml"
    file.write_text(file.read_text().replace("total_timesteps: 120", "total_timesteps: 240"))

    class Killed(BaseException):
        """Ends the process without a word, as SIGKILL does."""

    def killed(*_arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("rl_training.runtime.collector.Collector.step", killed)
        with pytest.raises(Killed):
            run("resume", run_dir)
    result = train("total_timesteps=240", options=AUTO)
    assert (result.json["run_dir"], result.json["global_step"]) == (str(run_dir), 240)


def test_a_run_in_use_is_not_doubled(train: Run, tmp_path, monkeypatch):
    from rl_training.runtime.run_lock import lock_run

    with monkeypatch.context() as patch:
        interrupt_at(patch, 70)
        run_dir = Path(train(options=AUTO).json["run_dir"])
    with lock_run(run_dir):
        answer = train(options=AUTO)
    assert answer.code == 2
    assert "in use by process" in answer.err
    assert len(run_dirs(tmp_path)) == 1


@pytest.mark.parametrize("status", ["failed", "nonsense"])
def test_a_run_that_failed_is_tried_again(train: Run, tmp_path, status):
    run_dir = Path(train(options=AUTO).json["run_dir"])
    file = run_dir / "result.json"
    file.write_text("{" if status == "nonsense" else file.read_text().replace("completed", status))
    assert train(options=AUTO).json["run_dir"] == str(run_dir)
    assert len(run_dirs(tmp_path)) == 1


def test_the_report_that_a_kill_prevented_is_written(train: Run, tmp_path):
    run_dir = Path(train(options=AUTO).json["run_dir"])
    report = run_dir / "report.html"
    report.unlink()
    assert train(options=AUTO).code == 0
    assert "Success rate" in report.read_text()
    report.write_text("of an earlier end")
    os.utime(report, ns=(0, 0))
    assert train(options=AUTO).code == 0
    assert "Success rate" in report.read_text()
    report.write_text("newer than the end")
    assert train(options=AUTO).code == 0
    assert report.read_text() == "newer than the end"


HOLDER = """
import pathlib, sys, time
from rl_training.runtime.run_lock import lock_configuration
with lock_configuration(pathlib.Path(sys.argv[1]), {"algo": "her"}):
    print("held", flush=True)
    time.sleep(60)
"""


def test_of_two_simultaneous_starts_one_is_refused(tmp_path, warm_python):
    process = warm_python.start("-c", HOLDER, tmp_path)
    try:
        assert process.stdout.readline() == "held\n"
        with (
            pytest.raises(
                RunLockedError, match=rf"process {process.pid} on .* is training a run of this configuration"
            ),
            lock_configuration(tmp_path, {"algo": "her"}),
        ):
            pass
        with lock_configuration(tmp_path, {"algo": "sac"}):
            pass
    finally:
        process.close()
    with lock_configuration(tmp_path, {"algo": "her"}):  # a process that was killed holds nothing
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_command_that_starts_while_another_looks_for_its_run_is_refused(tmp_path, command_group):
    """Two processes start the same command at the same moment: one run comes of it."""
    words = ["train", "her/point_goal", *tiny(), "--output-dir", tmp_path / "runs", *AUTO]
    processes = [command_group(*words) for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in processes]
    codes = sorted(process.returncode for process in processes)
    assert codes in ([0, 0], [0, 2]), answers  # a slow second one finds the finished run
    if codes == [0, 2]:
        assert any("is training a run of this configuration" in error for _, error in answers)
    assert len(run_dirs(tmp_path)) == 1


def test_a_folder_that_cannot_be_written_needs_no_lock(tmp_path, monkeypatch):
    def read_only(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rl_training.runtime.run_lock.open_without_following", read_only)
    entered = False
    with lock_configuration(tmp_path, {}):
        entered = True
    assert entered
