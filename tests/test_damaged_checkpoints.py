"""A checkpoint that is damaged costs the steps since the one before it, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import make_tiny_config
from rl_training.errors import CheckpointError
from rl_training.runtime.checkpoint_files import read_checkpoint, read_manifest
from rl_training.runtime.checkpointing import CheckpointStore, find_checkpoint, resolve_checkpoint
from rl_training.runtime.run import resume, train


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def newest_segment(run_dir: Path) -> Path:
    segments = read_manifest(resolve_checkpoint(run_dir / "checkpoints"))["segments"]
    return run_dir / "replay" / segments[-1]["name"]


def latest(run_dir: Path) -> Path:
    return resolve_checkpoint(run_dir / "checkpoints")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed weights": (lambda run: flip_a_byte(latest(run) / "learner.safetensors"), "learner.safetensors"),
    "missing part": (lambda run: (latest(run) / "collector.safetensors").unlink(), "collector.safetensors"),
    "cut manifest": (
        lambda run: (latest(run) / "manifest.json").write_text((latest(run) / "manifest.json").read_text()[:-50]),
        "manifest.json",
    ),
    "changed counter": (
        lambda run: (latest(run) / "manifest.json").write_text(
            (latest(run) / "manifest.json").read_text().replace('"update_count": 200', '"update_count": 201')
        ),
        "manifest.json: damaged",
    ),
    "missing manifest": (lambda run: (latest(run) / "manifest.json").unlink(), "manifest.json"),
    "changed segment": (lambda run: flip_a_byte(newest_segment(run)), "replay"),
    "missing segment": (lambda run: newest_segment(run).unlink(), "replay"),
    "missing folder": (lambda run: shutil.rmtree(latest(run)), "latest"),
    "nonsense pointer": (lambda run: (run / "checkpoints" / "latest").write_bytes(b"\xff\x00"), "latest"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished run of three checkpoints, to be read and never written to."""
    options = {"keep_checkpoints": 3, "eval_interval": None}
    return train(make_tiny_config(tmp_path_factory.mktemp("original"), "ddpg", algo_kwargs=options))


@pytest.fixture
def finished(original, tmp_path):
    """A copy of the finished run that a test may damage."""
    run_dir = Path(shutil.copytree(original.run_dir, tmp_path / "runs" / original.run_dir.name))
    return dataclasses.replace(original, run_dir=run_dir)


def same_weights(a: Path, b: Path) -> bool:
    first, second = (read_checkpoint(path)[0]["files"]["learner"]["sha256"] for path in (a, b))
    return bool(first == second)


@pytest.mark.parametrize("case", DAMAGE)
def test_resume_names_what_is_damaged_and_goes_on_from_the_one_before(finished, tmp_path, case):
    damage, named = DAMAGE[case]
    whole = Path(shutil.copytree(finished.run_dir, tmp_path / "whole"))
    damage(finished.run_dir)
    with pytest.warns(UserWarning, match=named) as caught:
        again = resume(finished.run_dir)
    expected = "000000300-" if case.endswith("pointer") else "000000200-"
    assert any(f"resuming from {expected}" in str(warning.message) for warning in caught)
    assert (again.global_step, again.metrics) == (300, finished.metrics)
    assert same_weights(latest(finished.run_dir), latest(whole))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert resume(finished.run_dir).global_step == 300  # and all is well again


def test_without_a_pointer_the_newest_is_taken(finished):
    """A run that is killed after its first checkpoint was written has none yet: that is no damage."""
    (finished.run_dir / "checkpoints" / "latest").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert resume(finished.run_dir).global_step == 300
    assert latest(finished.run_dir).name.startswith("000000300-")


def test_it_falls_back_as_far_as_it_has_to(finished):
    folder = finished.run_dir / "checkpoints"
    newest, middle, oldest = sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)
    flip_a_byte(newest / "trainer.safetensors")
    flip_a_byte(middle / "learner.safetensors")
    with pytest.warns(UserWarning, match=rf"{newest.name}.*{middle.name}.*resuming from {oldest.name}"):
        assert resume(finished.run_dir).global_step == 300


def test_where_none_is_left_every_reason_is_given_and_nothing_is_removed(finished):
    folder = finished.run_dir / "checkpoints"
    checkpoints = [path for path in folder.iterdir() if path.is_dir()]
    for path in checkpoints:
        flip_a_byte(path / "learner.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint to resume from") as caught:
        resume(finished.run_dir)
    assert all(path.name in str(caught.value) and path.is_dir() for path in checkpoints)


def test_pointers_never_name_what_is_gone(tiny_config):
    """The newest checkpoint is also the best, so that both pointers name the damaged one."""
    config = tiny_config("ddpg", total_timesteps=200, algo_kwargs={"eval_interval": None, "checkpoint_interval": 50})
    run_dir = train(config).run_dir
    folder = run_dir / "checkpoints"
    assert resolve_checkpoint(folder, "best") == latest(run_dir)
    flip_a_byte(latest(run_dir) / "learner.safetensors")
    store = CheckpointStore(run_dir)
    with pytest.warns(UserWarning, match="resuming from"):
        store.load_newest_intact()
    store.discard_newer()
    assert latest(run_dir).name.startswith("000000150-")
    assert not (folder / "best").exists()
    assert find_checkpoint(run_dir) == latest(run_dir)
    resume(run_dir)
    assert resolve_checkpoint(folder, "best") == latest(run_dir)


def test_a_kill_between_checkpoint_and_pointers_does_not_lose_the_best(tiny_config, monkeypatch):
    from rl_training.runtime import checkpointing

    config = tiny_config("ddpg", total_timesteps=200, algo_kwargs={"eval_interval": None})
    real = checkpointing.write_pointer

    def killed(path: Path, name: str) -> None:
        if path.name == "best":
            raise KeyboardInterrupt
        real(path, name)

    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "write_pointer", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    (run_dir,) = config.output_dir.iterdir()
    resume(run_dir)
    assert resolve_checkpoint(run_dir / "checkpoints", "best") == latest(run_dir)


def test_a_damaged_checkpoint_does_not_end_a_run_that_goes_on(tiny_config):
    """Old checkpoints are read when segments are cleared away: that one of them is damaged must not matter."""
    from rl_training.runtime.callbacks import Callback

    class Damage(Callback):
        def on_step(self, trainer) -> None:
            if trainer.state.global_step == 150:
                (resolve_checkpoint(trainer.store.folder) / "manifest.json").write_text("{")

    config = tiny_config("ddpg", algo_kwargs={"eval_interval": None})
    assert train(config, callbacks=[Damage()]).status == "completed"


def test_another_format_is_not_damage(finished):
    """An earlier checkpoint is no answer to one that a newer version wrote."""
    file = latest(finished.run_dir) / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format_version": 99, "package_version": "7.1"}))
    with pytest.raises(CheckpointError, match=r"format 99, this version reads format 1.*rl-training 7\.1"):
        resume(finished.run_dir)
