"""Checkpoints: a run that is stopped and resumed ends where an uninterrupted one does, bit for bit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import StopAt
from rl_training.errors import CheckpointError, DatasetError
from rl_training.runtime.checkpoint_files import read_checkpoint, read_manifest
from rl_training.runtime.checkpointing import CheckpointStore, find_checkpoint, resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run import resume, train


def final_state(run_dir: Path) -> dict:
    """Return everything that decides a run's future, as plain comparable values."""
    checkpoint = resolve_checkpoint(run_dir / "checkpoints")
    manifest, _ = read_checkpoint(checkpoint)
    tensors = {part: load_file(checkpoint / f"{part}.safetensors") for part in manifest["files"]}
    rows = [load_file(run_dir / "replay" / segment["name"])["rows"] for segment in manifest["segments"]]
    return {
        "state": manifest["state"],
        "tensors": tensors,
        "rows": torch.cat(rows),
        "first": manifest["segments"][0]["first"],
    }


def assert_same(a: Path, b: Path) -> None:
    first, second = final_state(a), final_state(b)
    assert first["state"] == second["state"]
    for part, tensors in first["tensors"].items():
        assert tensors.keys() == second["tensors"][part].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second["tensors"][part][name]), f"{part}: {name}"
    newest = min(len(first["rows"]), len(second["rows"]))
    assert torch.equal(first["rows"][-newest:], second["rows"][-newest:])

    def lasting(path: Path) -> list[dict[str, float]]:
        rows = read_metrics(path / "metrics.csv")
        return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]

    assert lasting(a) == lasting(b)


CASES = [
    pytest.param("her", {}, id="her-ddpg"),
    pytest.param(
        "her", {"num_envs": 3, "algo_kwargs": {"backend": "sac", "normalize_observations": True}}, id="her-sac-3"
    ),
    pytest.param(
        "her",
        {"num_envs": 2, "env_kwargs": {"vectorization": "async"}, "algo_kwargs": {"backend": "td3"}},
        id="her-td3-async",
    ),
    pytest.param(
        "her",
        {
            "env_id": "rl_training/BitFlipping-v0",
            "env_kwargs": {"n_bits": 5},
            "algo_kwargs": {"backend": "dqn", "buffer_capacity": 90},
        },
        id="her-dqn-overwriting",
    ),
    pytest.param(
        "her", {"num_envs": 2, "algo_kwargs": {"backend": "sac", "overlap_collection": True}}, id="her-sac-overlapping"
    ),
    pytest.param(
        "her",
        {
            "num_envs": 2,
            "env_id": "rl_training/PointReach2D-v0",
            "env_kwargs": {"max_steps": 12},
            "algo_kwargs": {
                "backend": "sac",
                "goal_priority": "pursued",
                "practice_goals": True,
                "noise_correlation": 0.8,
                "buffer_capacity": 150,
            },
        },
        id="her-sac-practising",
    ),
    pytest.param(
        "her",
        {
            "num_envs": 2,
            "env_id": "rl_training/PointReach2D-v0",
            "env_kwargs": {"max_steps": 60, "distance_threshold": 0.8},
            "algo_kwargs": {"backend": "sac", "practice_goals": True, "next_goal_after": 3, "buffer_capacity": 250},
        },
        id="her-sac-next-goals",
    ),
    pytest.param(
        "her",
        {
            "num_envs": 2,
            "env_id": "ending_env:tests/Ending-v0",
            "env_kwargs": {"max_steps": 30, "distance_threshold": 0.3},
            "algo_kwargs": {"backend": "sac", "practice_goals": True},
        },
        id="her-sac-learned-ends",
    ),
    pytest.param("ddpg", {"algo_kwargs": {"buffer_capacity": 120}}, id="ddpg-overwriting"),
    pytest.param("td3", {"algo_kwargs": {"lr_schedule": "cosine"}}, id="td3"),
    pytest.param(
        "sac", {"num_envs": 4, "algo_kwargs": {"train_frequency": 8, "gradient_updates_per_step": 0.5}}, id="sac-4"
    ),
    pytest.param("dqn", {"algo_kwargs": {"early_stopping": {"patience": 50}}}, id="dqn"),
]


@pytest.mark.parametrize(("algo", "changes"), CASES)
def test_resumed_runs_end_exactly_where_uninterrupted_ones_do(tiny_config, algo, changes):
    config = tiny_config(algo, **changes)
    straight = train(config, run_name="straight")
    broken = train(config, run_name="broken", callbacks=[StopAt(137)])
    assert broken.status == "interrupted"
    resume(broken.run_dir, callbacks=[StopAt(190)])
    finished = resume(broken.run_dir)
    assert (finished.status, finished.global_step) == ("completed", straight.global_step)
    assert finished.update_count == straight.update_count
    assert finished.metrics == straight.metrics
    assert_same(straight.run_dir, broken.run_dir)


def test_resuming_a_finished_run_changes_nothing(tiny_config):
    config = tiny_config("ddpg")
    result = train(config)
    before = final_state(result.run_dir)["tensors"]
    again = resume(result.run_dir)
    assert (again.global_step, again.stop_reason) == (300, "total_timesteps")
    after = final_state(result.run_dir)["tensors"]
    assert all(torch.equal(before[part][name], after[part][name]) for part in before for name in before[part])


class Forgetful(gym.Env):
    """An environment that does not repeat itself, whatever seed it is reset with."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    clock = 0

    def _observe(self):
        Forgetful.clock += 1
        return np.full(2, Forgetful.clock, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 40
        return self._observe(), {}

    def step(self, action):
        self.left -= 1
        return self._observe(), 0.0, False, self.left == 0, {}


def test_an_environment_that_does_not_repeat_itself_is_named_and_the_run_goes_on(tiny_config):
    gym.register("Forgetful-v0", entry_point=Forgetful)
    try:
        config = tiny_config("ddpg", env_id="Forgetful-v0")
        broken = train(config, callbacks=[StopAt(130)])
        with pytest.warns(UserWarning, match=r"environments \[0\] did not repeat"):
            finished = resume(broken.run_dir)
        assert finished.global_step == 300
    finally:
        gym.registry.pop("Forgetful-v0")


def test_an_edited_seed_is_named_as_the_reason(tiny_config):
    config = tiny_config("ddpg")
    run_dir = train(config, callbacks=[StopAt(130)]).run_dir
    file = run_dir / "config.yaml"
    file.write_text(file.read_text().replace("seed: 0", "seed: 7"))
    message = "seed = 7 in config.yaml, the checkpoint has 0: this resume is not exact"
    with pytest.warns(UserWarning, match=message) as caught:
        assert resume(run_dir).global_step == 300
    assert not any("deterministic" in str(warning.message) for warning in caught)


def test_an_edited_seed_that_draws_other_data_is_named_as_the_reason(tiny_config):
    kwargs = {"hidden_sizes": [16], "dataset_kind": "random", "dataset_size": 300, "eval_interval": None}
    config = tiny_config("bc").model_copy(update={"algo_kwargs": kwargs})
    run_dir = train(config).run_dir
    file = run_dir / "config.yaml"
    file.write_text(file.read_text().replace("seed: 0", "seed: 7"))
    with pytest.raises(DatasetError, match=r"changed \(seed = 7 in config.yaml, the checkpoint has 0\)"):
        resume(run_dir)


def test_old_checkpoints_go_and_pointers_stay_valid(tiny_config):
    config = tiny_config("ddpg", total_timesteps=600, algo_kwargs={"keep_checkpoints": 2, "buffer_capacity": 150})
    run_dir = train(config).run_dir
    folder = run_dir / "checkpoints"
    latest, best = resolve_checkpoint(folder, "latest"), resolve_checkpoint(folder, "best")
    kept = {path for path in folder.iterdir() if path.is_dir()}
    assert {latest, best} <= kept
    assert 2 <= len(kept) <= 3
    listed = {segment["name"] for path in kept for segment in read_manifest(path)["segments"]}
    assert {path.name for path in (run_dir / "replay").iterdir()} == listed
    assert find_checkpoint(run_dir) == best
    assert find_checkpoint(folder / "latest") == latest


def test_a_checkpoint_writes_only_what_is_new(tiny_config):
    config = tiny_config("ddpg", algo_kwargs={"keep_checkpoints": 3, "eval_interval": None})
    run_dir = train(config).run_dir
    segments = read_manifest(resolve_checkpoint(run_dir / "checkpoints"))["segments"]
    assert [(segment["first"], segment["last"]) for segment in segments] == [(0, 100), (100, 200), (200, 300)]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named(tiny_config, damage):
    run_dir = train(tiny_config("ddpg")).run_dir
    victim = resolve_checkpoint(run_dir / "checkpoints") / "learner.safetensors"
    content = bytearray(victim.read_bytes())
    if damage == "remove":
        victim.unlink()
    else:
        content[-1] ^= 1
        victim.write_bytes(content if damage == "flip" else content[:-10])
    with pytest.raises(CheckpointError, match=r"learner\.safetensors"):
        read_checkpoint(victim.parent)


def test_another_format_is_refused_with_both_versions(tiny_config):
    run_dir = train(tiny_config("ddpg")).run_dir
    path = resolve_checkpoint(run_dir / "checkpoints")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(CheckpointError, match="format 99, this version reads format 1"):
        read_checkpoint(path)


def test_missing_checkpoints_are_reported(tmp_path):
    with pytest.raises(CheckpointError, match="neither a run nor a checkpoint"):
        find_checkpoint(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint 'latest'"):
        find_checkpoint(tmp_path)


def test_a_failed_write_leaves_the_earlier_checkpoint(tmp_path, monkeypatch, tiny_config):
    from rl_training.data import ReplayBuffer
    from rl_training.runtime import checkpoint_files
    from rl_training.types import SpaceSpec

    store, replay = CheckpointStore(tmp_path), ReplayBuffer(SpaceSpec(1, 1), 10)
    state = {"learner": {"weight": torch.ones(3), "count": 1, "array": np.arange(3)}}
    metadata = {"config": {}, "spec": {}}
    store.save(state, {**metadata, "global_step": 1, "update_count": 1}, replay)

    def disk_full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files.os, "fsync", disk_full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.save(state, {**metadata, "global_step": 2, "update_count": 2}, replay)
    monkeypatch.undo()
    loaded, manifest = CheckpointStore(tmp_path).load_newest_intact()
    assert manifest["global_step"] == 1
    assert torch.equal(loaded["learner"]["weight"], torch.ones(3))
    assert loaded["learner"]["count"] == 1
    assert isinstance(loaded["learner"]["array"], np.ndarray)


def test_nothing_is_pickled(tiny_config):
    run_dir = train(tiny_config("ddpg")).run_dir
    suffixes = {path.suffix for path in run_dir.rglob("*") if path.is_file() and "events.out" not in path.name}
    assert suffixes == {".yaml", ".csv", ".json", ".safetensors", ""}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_checkpoint(resolve_checkpoint(run_dir / "checkpoints"))
