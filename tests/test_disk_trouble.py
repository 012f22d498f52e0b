"""A disk that is full, gone or read-only: one clear error, and every checkpoint that was complete still is."""

from __future__ import annotations

import errno
import os
import resource
import sys
from pathlib import Path

import pytest

from rl_training import cli
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.manager import evaluate_experiment
from rl_training.runtime import checkpoint_files, checkpointing
from rl_training.runtime.checkpointing import CheckpointStore, resolve_checkpoint
from rl_training.runtime.logging import MetricsLogger
from rl_training.runtime.run import resume, train


def fail_from(monkeypatch: pytest.MonkeyPatch, module: object, name: str, call: int, code: int) -> None:
    """Let a function fail, as the operating system would, from its n-th call for a checkpoint or a segment on."""
    real, calls = getattr(module, name), [0]

    def failing(*arguments, **options):
        first = arguments[0] if arguments else ""
        path = Path(os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first))
        calls[0] += not {"checkpoints", "replay"}.isdisjoint(path.parts) or module is MetricsLogger
        if calls[0] >= call:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [  # every function, and every error: the package treats all errors of the operating system alike
        (checkpoint_files, "_write", errno.ENOSPC),
        (checkpoint_files, "_write", errno.EROFS),
        (checkpoint_files, "sync_folder", errno.EIO),
        (checkpoint_files.os, "rename", errno.ENOSPC),
        (checkpoint_files.os, "replace", errno.EIO),
        (checkpointing.shutil, "rmtree", errno.EROFS),
    ],
)
def test_whatever_fails_earlier_checkpoints_are_intact(tiny_config, monkeypatch, module, name, code):
    config = tiny_config("ddpg", algo_kwargs={"eval_interval": None})
    with monkeypatch.context() as patch:
        # The first checkpoint has 5 files and 2 pointers; what is renamed or removed twice is enough.
        call = {"_write": 9, "sync_folder": 6, "rename": 2, "replace": 3, "rmtree": 2}[name]
        fail_from(patch, module, name, call, code)
        with pytest.raises(CheckpointError, match=os.strerror(code)):
            train(config)
    (run_dir,) = config.output_dir.iterdir()
    state, manifest = CheckpointStore(run_dir).load_newest_intact()
    assert manifest["global_step"] in (100, 200, 300)
    assert state["trainer"]["state"]["global_step"] == manifest["global_step"]
    assert not (run_dir / "result.json").exists()
    assert resume(run_dir).global_step == 300


def test_a_failed_write_leaves_no_half_written_files(tiny_config, monkeypatch):
    config = tiny_config("ddpg", algo_kwargs={"eval_interval": None})
    with monkeypatch.context() as patch:
        fail_from(patch, checkpoint_files.os, "fsync", 14, errno.ENOSPC)
        with pytest.raises(CheckpointError, match=r"earlier ones are intact: .*No space left on device"):
            train(config)
    (run_dir,) = config.output_dir.iterdir()
    assert list(run_dir.rglob(".*.tmp")) == []
    assert resolve_checkpoint(run_dir / "checkpoints").name.startswith("000000100-")


@pytest.mark.parametrize("victim", ["checkpoint", "metrics"])
def test_the_command_line_says_it_in_one_line_and_exits_with_2(tiny_config, tmp_path, monkeypatch, capsys, victim):
    file = tmp_path / "run.yaml"
    file.write_text(tiny_config("ddpg").to_yaml())
    if victim == "checkpoint":
        fail_from(monkeypatch, checkpoint_files, "_write", 9, errno.ENOSPC)
    else:
        fail_from(monkeypatch, MetricsLogger, "_rewrite", 2, errno.ENOSPC)
    monkeypatch.setattr(sys, "argv", ["rl-training", "train", str(file), "--json"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    out, err = capsys.readouterr()
    assert (exit_.value.code, out) == (2, "")
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert "No space left on device" in line


@pytest.mark.slow
def test_a_real_limit_of_the_operating_system(tiny_config, tmp_path, warm_python):
    """No file may grow beyond 20 kB, so that the weights, which are larger, cannot be written."""
    file = tmp_path / "run.yaml"
    file.write_text(tiny_config("ddpg", algo_kwargs={"hidden_sizes": [64, 64]}).to_yaml())
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    code += "from rl_training.__main__ import main; main()"
    answer = warm_python.run("-c", code, "train", file)
    assert answer.returncode == 2, answer.stderr
    assert "Traceback" not in answer.stderr
    assert "checkpoint not written" in answer.stderr
    assert "File too large" in answer.stderr
    (run_dir,) = Path(tmp_path / "runs").iterdir()
    assert list((run_dir / "checkpoints").iterdir()) == []


def test_a_video_that_does_not_fit_is_named_and_no_half_of_it_is_left(tiny_config):
    pytest.importorskip("imageio_ffmpeg")
    run_dir = train(tiny_config("her", total_timesteps=120)).run_dir
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"best\.mp4: the video cannot be written"):
            evaluate_experiment(run_dir, episodes=1, video=run_dir / "videos")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((run_dir / "videos").iterdir()) == []
