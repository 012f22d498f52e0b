# ruff: noqa: F401, F811 (fixtures of another module)
"""``train --resume-auto``: the same command, run again by a scheduler, finishes one run and starts no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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

    def killed(*_arguments: object) -> None:
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr("rl_training.runtime.collector.Collector.step", killed)
        assert run("resume", run_dir).code == 9
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
