"""What resume, train and report write and remove: files of their own run only, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from gymnasium.envs.classic_control import PendulumEnv

from rl_training import cli
from rl_training.config import parse_config
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.manager import load_policy, train_experiment
from rl_training.experiment.report import write_report
from rl_training.runtime import checkpoint_files, checkpointing
from rl_training.runtime.checkpoint_files import read_manifest, write_durably
from rl_training.runtime.checkpointing import CheckpointStore, find_checkpoint, resolve_checkpoint
from rl_training.runtime.run import resume, train
from test_damaged_checkpoints import flip_a_byte


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run of three checkpoints; tests take a copy of it."""
    settings = {
        "hidden_sizes": [8],
        "batch_size": 8,
        "learning_starts": 20,
        "eval_interval": 40,
        "checkpoint_interval": 20,
        "log_interval": 20,
        "keep_checkpoints": 3,
    }
    values = {
        "algo": "ddpg",
        "env_id": "Pendulum-v1",
        "total_timesteps": 80,
        "eval_episodes": 1,
        "output_dir": str(tmp_path_factory.mktemp("runs")),
        "algo_kwargs": settings,
    }
    return train_experiment(parse_config(values)).run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


def go_on(run_dir: Path, steps: int = 120) -> None:
    """Raise a run's budget and resume it."""
    config = run_dir / "config.yaml"
    config.write_text(config.read_text().replace("total_timesteps: 80", f"total_timesteps: {steps}"))
    assert resume(run_dir).global_step == steps


LINKS = [
    "replay",
    "checkpoints",
    ".lock",
    "metrics.csv",
    "episodes.csv",
    "evaluation.json",
    "warnings.jsonl",
    "result.json",
    "report.html",
    "config.yaml",
    "post_mortem",
    ".metrics.csv.tmp",
    ".result.json.tmp",
    "checkpoints/latest",
    "checkpoints/best",
    "checkpoints/.latest.tmp",
    "checkpoints/.000000100-000000080.tmp",
    "CHECKPOINT",
    "CHECKPOINT/learner.safetensors",
    "SEGMENT",
]


@pytest.mark.parametrize("name", LINKS)
def test_a_link_in_a_run_is_refused_and_nothing_elsewhere_changes(run_dir: Path, tmp_path: Path, name: str) -> None:
    checkpoint = resolve_checkpoint(run_dir / "checkpoints")
    segment = f"replay/{read_manifest(checkpoint)['segments'][0]['name']}"
    name = name.replace("CHECKPOINT", f"checkpoints/{checkpoint.name}").replace("SEGMENT", segment)
    link, elsewhere = run_dir / name, tmp_path / "elsewhere"
    elsewhere.mkdir()
    if link.exists():
        target = Path(shutil.move(link, elsewhere / "target"))
    elif name == "post_mortem" or link.name.startswith(".0"):
        target = elsewhere / "target"
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    else:
        target = elsewhere / "target"
        target.write_text("mine")
    link.symlink_to(target)
    before = contents(elsewhere)
    with pytest.raises(CheckpointError, match=rf"{link.name}: a symbolic link, which a run may not contain"):
        resume(run_dir)
    assert contents(elsewhere) == before


def test_the_command_line_refuses_a_link_in_one_line(run_dir: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    shutil.move(run_dir / "replay", tmp_path / "elsewhere")
    (run_dir / "replay").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "argv", ["rl-training", "resume", str(run_dir)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert (exit_.value.code, line.startswith(f"error: {run_dir / 'replay'}: a symbolic link")) == (2, True)


def test_links_of_the_user_with_other_names_do_not_matter(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for folder in (run_dir, run_dir / "checkpoints", run_dir / "replay"):
        (folder / "notes").symlink_to(tmp_path / "notes")
    go_on(run_dir)
    assert (run_dir / "replay" / "notes").is_symlink()


def test_a_folder_that_becomes_a_link_while_training_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0-2-0123abcd.safetensors").write_text("mine")
    (tmp_path / "replay").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="replay: a symbolic link"):
        CheckpointStore(tmp_path).save({}, {"global_step": 1, "update_count": 1}, None)
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


@pytest.mark.parametrize("name", ["page.html", ".page.html.tmp"])
def test_a_report_does_not_follow_links(run_dir: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / name).symlink_to(victim)
    if name == "page.html":
        with pytest.raises(ConfigError, match=r"page\.html: a symbolic link"):
            write_report([run_dir], tmp_path / "page.html")
    else:
        write_report([run_dir], tmp_path / "page.html")
        assert "Critic loss" in (tmp_path / "page.html").read_text()
    assert victim.read_text() == "mine"


def test_what_the_package_did_not_write_is_left_alone(run_dir: Path) -> None:
    foreign = [
        run_dir / folder / name
        for folder in ("checkpoints", "replay")
        for name in ("@eaDir/thumb.jpg", "notes/a.txt", "zzz/manifest.json", "README", ".hidden.tmp", "1-2.safetensors")
    ]
    foreign += [run_dir / "replay" / "3-4-0123abcd.safetensors.bak", run_dir / "replay" / "1-2-0123abcd.safetensors/x"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    go_on(run_dir)
    assert [path for path in foreign if not path.is_file() or path.read_text() != "mine"] == []


def test_leftovers_of_a_kill_are_removed(run_dir: Path) -> None:
    """A removal or a write that was cut short leaves nothing behind for good."""
    folder = run_dir / "checkpoints"
    kept = {path.name for path in folder.iterdir()}
    half_removed = folder / "000000007-000000003"  # as versions before this one left them
    for leftover in (half_removed, folder / ".000000008-000000004.tmp", folder / ".000000400-000000300.tmp"):
        leftover.mkdir()
        (leftover / "learner.safetensors").write_bytes(b"half")
    (folder / ".latest.tmp").write_text("half")
    store = CheckpointStore(run_dir)
    store.load_newest_intact()
    store.discard_newer()
    assert {path.name for path in folder.iterdir()} == {*kept, half_removed.name}
    go_on(run_dir)
    assert not half_removed.exists()


def test_a_removal_that_is_cut_short_leaves_no_folder_that_looks_like_a_checkpoint(tmp_path: Path, monkeypatch) -> None:
    class Killed(BaseException):
        pass

    def killed(path: Path, **_options: object) -> None:
        raise Killed

    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        save(store, step)
    real = shutil.rmtree
    monkeypatch.setattr(
        shutil, "rmtree", lambda path, **options: killed(path) if not options else real(path, **options)
    )
    with pytest.raises(Killed):
        save(store, 3)
    folders = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert folders == {".000000001-000000001.tmp", "000000002-000000002", "000000003-000000003"}


def save(store: CheckpointStore, step: int, *, best: bool = False) -> Path:
    metadata = {"config": {}, "spec": {}, "global_step": step, "update_count": step}
    return store.save({"learner": {"weight": torch.full((3,), float(step))}}, metadata, None, best=best)


def test_checkpoints_beyond_a_billion_steps_are_the_newer_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (999_999_998, 999_999_999, 1_000_000_000):
        save(store, step)
    assert store.load_newest_intact()[1]["global_step"] == 1_000_000_000
    names = {path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()}
    assert names == {"999999999-999999999", "1000000000-1000000000"}
    flip_a_byte(tmp_path / "checkpoints" / "1000000000-1000000000" / "learner.safetensors")
    again = CheckpointStore(tmp_path)
    with pytest.warns(UserWarning, match="resuming from 999999999-999999999"):
        again.load_newest_intact()
    again.discard_newer()
    assert resolve_checkpoint(tmp_path / "checkpoints").name == "999999999-999999999"
    assert not (tmp_path / "checkpoints" / "1000000000-1000000000").exists()


def test_a_damaged_best_is_named_at_resume_and_evaluation_uses_another(run_dir: Path) -> None:
    folder = run_dir / "checkpoints"
    best, latest = resolve_checkpoint(folder, "best"), resolve_checkpoint(folder)
    if best == latest:  # the test needs two of them
        best = sorted(path for path in folder.iterdir() if path.is_dir())[0]
        manifest = latest / "manifest.json"
        text = manifest.read_text().rpartition(', "manifest_sha256"')[0] + "}"
        manifest.write_text(checkpoint_files.sealed(text.replace(f'"best": "{latest.name}"', f'"best": "{best.name}"')))
        write_durably(folder / "best", f"{best.name}\n")
    assert find_checkpoint(run_dir) == best
    flip_a_byte(best / "learner.safetensors")
    with pytest.warns(UserWarning, match=rf"{best.name}/learner\.safetensors: damaged.*; using {latest.name} instead"):
        _, _, used = load_policy(run_dir)
    assert used == latest
    with pytest.warns(UserWarning, match=rf"the best checkpoint is damaged: .*{best.name}/learner"):
        resume(run_dir)
    shutil.rmtree(best)
    with pytest.warns(UserWarning, match=r"best: names no checkpoint; using"):
        assert find_checkpoint(run_dir) == latest
    with pytest.warns(UserWarning, match=rf"the best checkpoint is damaged: .*{best.name}/manifest"):
        resume(run_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_checkpoint(run_dir) == latest  # the pointer is gone


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_manifest_that_is_nested_deeply_is_damaged(run_dir: Path, depth: int) -> None:
    for manifest in (run_dir / "checkpoints").glob("*/manifest.json"):
        text = manifest.read_text().rpartition(', "manifest_sha256"')[0]
        nested = f'{text}, "x": {"[" * depth}{"]" * depth}}}'
        manifest.write_text(checkpoint_files.sealed(nested))
    with pytest.raises(CheckpointError, match=r"manifest\.json: (nested in more than|cannot be read)"):
        resume(run_dir)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_file_that_cannot_be_written_keeps_its_earlier_content(tmp_path: Path, monkeypatch, failing: str) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_durably(tmp_path / "page", "good")
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="No space"):
            write_durably(tmp_path / "page", "half")
    assert [path.name for path in tmp_path.iterdir()] == ["page"]
    assert (tmp_path / "page").read_text() == "good"


def test_a_report_that_does_not_fit_keeps_the_earlier_one_and_the_run_completes(run_dir, tiny_config, monkeypatch):
    from rl_training.experiment import report

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = (run_dir / "report.html").read_bytes()
    monkeypatch.setattr(report, "write_durably", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_report([run_dir], run_dir / "report.html")
    assert (run_dir / "report.html").read_bytes() == before
    with pytest.warns(
        UserWarning, match="the report cannot be written: .*No space left.*the run itself is not affected"
    ):
        assert train_experiment(tiny_config("ddpg", total_timesteps=120)).status == "completed"


def test_config_yaml_is_flushed_to_disk(tiny_config, monkeypatch) -> None:
    flushed: list[str] = []
    real = os.fsync

    def recorded(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    config = tiny_config("ddpg", total_timesteps=110)
    run_dir = train(config).run_dir
    assert flushed[:3] == [".config.yaml.tmp", run_dir.name, config.output_dir.name]
    assert (run_dir / "config.yaml").is_file()


class Wanderer(PendulumEnv):
    """An environment that changes the working folder when it is made and whenever it is reset."""

    folder: Path

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        os.chdir(self.folder)

    def reset(self, **options):
        self.folder.mkdir(exist_ok=True)
        os.chdir(self.folder)
        return super().reset(**options)


def test_an_environment_that_changes_the_working_folder_does_not_split_a_run(tiny_config, tmp_path, monkeypatch):
    Wanderer.folder = tmp_path / "away"
    Wanderer.folder.mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    gym.register("Wanderer-v0", entry_point=Wanderer, max_episode_steps=50)
    try:
        config = tiny_config("ddpg", env_id="Wanderer-v0", total_timesteps=120, output_dir="runs")
        result = train_experiment(config)
        (run_dir,) = (tmp_path / "home" / "runs").iterdir()
        assert result.run_dir == run_dir
        assert Path.cwd() == tmp_path / "home"  # so that a second seed's run lies beside it
        relative = run_dir.relative_to(tmp_path / "home")
        (run_dir / "result.json").unlink()
        assert resume(relative).run_dir == run_dir
    finally:
        gym.registry.pop("Wanderer-v0")
    assert {"config.yaml", "metrics.csv", "checkpoints", "replay", "report.html", "result.json"} <= set(
        os.listdir(run_dir)
    )
    assert list(Wanderer.folder.iterdir()) == []


def test_stores_name_their_folders_from_the_start(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = checkpointing.CheckpointStore(Path("run"))
    monkeypatch.chdir("/")
    assert save(store, 1) == tmp_path / "run" / "checkpoints" / "000000001-000000001"
