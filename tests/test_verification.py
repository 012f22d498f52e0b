"""``resume --verify``: an exact run is called exact, and what is not is named with its reason."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from conftest import StopAt
from rl_training import cli
from rl_training.errors import CheckpointError
from rl_training.runtime.checkpoint_files import sealed
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.run import resume, train
from rl_training.tools.comparison import full_state, state_differences, state_hash
from rl_training.tools.verification import verify_run
from test_checkpoint_workflows import Forgetful
from test_damaged_checkpoints import flip_a_byte

PRIOR = {"dataset_kind": "random", "dataset_size": 200}


def fingerprint(run_dir: Path) -> dict[str, str]:
    """Return every file of a run with its content's hash and its time."""
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest() + str(file.stat().st_mtime_ns)
        for file in run_dir.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        ("her", {"num_envs": 3, "algo_kwargs": {"backend": "sac", "normalize_observations": True}}),
        ("ddpg", {"algo_kwargs": {"buffer_capacity": 120}}),
        ("rlpd", {"algo_kwargs": {**PRIOR, "offline_pretrain_updates": 130, "num_critics": 3}}),
        ("sac", {"algo_kwargs": {"early_stopping": {"patience": 50}, "lr_schedule": "cosine"}}),
    ],
)
@pytest.mark.slow
def test_a_finished_run_is_exact_from_its_last_checkpoint_but_one(tiny_config, algo, changes):
    result = train(tiny_config(algo, **changes))
    before = fingerprint(result.run_dir)
    found = verify_run(result.run_dir)
    assert (found.grade, found.method, found.differences, found.reasons) == ("exact", "checkpoints", (), ())
    assert found.end == resolve_checkpoint(result.run_dir / "checkpoints").name > found.start
    assert found.sha256 == state_hash(full_state(resolve_checkpoint(result.run_dir / "checkpoints")))
    assert fingerprint(result.run_dir) == before


def test_an_interrupted_run_and_one_on_logged_data(tiny_config):
    broken = train(tiny_config("her"), callbacks=[StopAt(137)])
    assert verify_run(broken.run_dir).grade == "exact"
    config = tiny_config("bc")
    kwargs = {"hidden_sizes": [16], "dataset_kind": "random", "dataset_size": 300, "checkpoint_interval": 100}
    offline = train(config.model_copy(update={"algo_kwargs": kwargs}))
    found = verify_run(offline.run_dir)
    assert (found.grade, found.method) == ("exact", "checkpoints")


@pytest.mark.parametrize("stop", [None, 150])
def test_where_there_is_one_checkpoint_a_stretch_is_run_twice(tiny_config, stop):
    config = tiny_config("her", algo_kwargs={"checkpoint_interval": None, "eval_interval": None})
    result = train(config, callbacks=[StopAt(stop)] if stop else [])
    before = fingerprint(result.run_dir)
    found = verify_run(result.run_dir)
    assert (found.grade, found.method) == ("exact", "stretch")
    assert found.end.startswith(f"{(stop or 300) + 400:09d}-")
    assert fingerprint(result.run_dir) == before


def test_checkpoints_of_two_configurations_are_not_compared(tiny_config):
    config = tiny_config("ddpg", algo_kwargs={"eval_interval": None, "checkpoint_interval": 300})
    result = train(config)
    file = result.run_dir / "config.yaml"
    file.write_text(file.read_text().replace("total_timesteps: 300", "total_timesteps: 600"))
    resume(result.run_dir)
    found = verify_run(result.run_dir)
    assert (found.grade, found.method, found.start[:9]) == ("exact", "stretch", "000000600")


def test_an_environment_that_does_not_repeat_itself_is_the_reason(tiny_config):
    gym.register("Forgetful-v0", entry_point=Forgetful)
    try:
        result = train(tiny_config("ddpg", env_id="Forgetful-v0"))
        with pytest.warns(UserWarning, match="did not repeat"):
            found = verify_run(result.run_dir)
    finally:
        gym.registry.pop("Forgetful-v0")
    assert found.grade == "different"
    assert any(line.startswith("learner/module/") for line in found.differences)
    assert any(line.startswith("replay/rows: ") for line in found.differences)
    assert found.reasons == ("Forgetful-v0 is not deterministic: the same seed and actions give other observations",)


def test_another_version_is_the_reason_and_the_command_exits_with_1(tiny_config, monkeypatch, capsys):
    """The last checkpoint is made one of another machine, which counted to another score."""
    run_dir = train(tiny_config("ddpg")).run_dir
    file = resolve_checkpoint(run_dir / "checkpoints") / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest.pop("manifest_sha256")
    manifest["machine"]["torch"] = "1.0"
    manifest["state"]["trainer"]["state"]["best_score"] = [0.0, 123.0]
    file.write_text(sealed(json.dumps(manifest)))

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rl-training", "resume", str(run_dir), "--verify", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return int(exit_.value.code or 0), capsys.readouterr().out

    code, out = command("--json")
    answer = json.loads(out)
    assert (code, answer["grade"], answer["run_dir"]) == (1, "different", str(run_dir))
    (difference,) = answer["differences"]
    assert difference.startswith("trainer/state/best_score: [0.0, 123.0], the other ")
    (reason,) = answer["reasons"]
    assert "torch is " in reason
    assert "was 1.0" in reason
    code, out = command()
    assert (code, out.splitlines()[0]) == (1, "different")


def test_an_exact_run_exits_with_0(tiny_config, monkeypatch, capsys):
    run_dir = train(tiny_config("ddpg")).run_dir
    monkeypatch.setattr(sys, "argv", ["rl-training", "resume", str(run_dir), "--verify"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("exact\n")


def test_a_damaged_latest_checkpoint_is_mentioned(tiny_config):
    config = tiny_config("ddpg", algo_kwargs={"keep_checkpoints": 3, "eval_interval": None})
    run_dir = train(config).run_dir
    latest = resolve_checkpoint(run_dir / "checkpoints")
    flip_a_byte(latest / "learner.safetensors")
    with pytest.warns(UserWarning, match=rf"{latest.name}/learner\.safetensors: damaged.*; verifying 000000200-"):
        found = verify_run(run_dir)
    assert (found.grade, found.end[:9]) == ("exact", "000000200")
    (damage,) = found.damage
    assert f"{latest.name}/learner.safetensors" in damage
    assert found.to_json()["damage"] == (damage,)


@pytest.mark.parametrize("failing", ["mkdtemp", "copytree", "copyfile"])
def test_a_full_disk_ends_the_verification_with_a_message(tiny_config, monkeypatch, failing):
    run_dir = train(tiny_config("ddpg", total_timesteps=200)).run_dir

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(tempfile if failing == "mkdtemp" else shutil, failing, full)
    with pytest.raises(CheckpointError, match=r"--verify needs .*No space left on device"):
        verify_run(run_dir)


def test_where_hard_links_are_impossible_segments_are_copied(tiny_config, monkeypatch):
    run_dir = train(tiny_config("ddpg", total_timesteps=200)).run_dir

    def other_device(*_arguments: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", other_device)
    before = fingerprint(run_dir)
    assert verify_run(run_dir).grade == "exact"
    assert fingerprint(run_dir) == before


def test_without_a_checkpoint_there_is_nothing_to_verify(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint to verify"):
        verify_run(tmp_path)


def test_differences_name_tensors_values_and_what_is_in_one_only(tiny_config):
    state = full_state(resolve_checkpoint(train(tiny_config("ddpg")).run_dir / "checkpoints"))
    assert state_differences(state, dict(state)) == []
    name = next(name for name in state if name.startswith("learner/optimizers/"))
    assert {"replay/rows", "experience/generator", "collector/rng/state/state", "trainer/state/update_count"} <= set(
        state
    )
    changed = {**state, name: state[name] + 1, "trainer/state/update_count": 5, "more": np.float64(1).item()}
    assert [line.partition(":")[0] for line in state_differences(state, changed)] == sorted(
        [name, "more", "trainer/state/update_count"]
    )
    assert state_hash(changed) != state_hash(state)
