"""Replay segments: few, immutable, and intact whenever a run is killed."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data import ReplayBuffer
from rl_training.runtime.checkpoint_files import read_manifest, read_tensors
from rl_training.runtime.checkpointing import CheckpointStore, resolve_checkpoint
from rl_training.runtime.segments import merge_ranges
from rl_training.types import SpaceSpec

CAPACITY = 100_000


def make_buffer(capacity: int = CAPACITY) -> ReplayBuffer:
    return ReplayBuffer(SpaceSpec(1, 1), capacity)


def add(replay: ReplayBuffer, rows: int) -> None:
    """Add rows whose reward is their number."""
    for number in range(replay.ring.written, replay.ring.written + rows):
        column, flag = np.zeros((1, 1), np.float32), np.zeros(1, bool)
        replay.add(column, column, np.full(1, number, np.float32), column, flag, flag)


def save(store: CheckpointStore, replay: ReplayBuffer, step: int, *, best: bool = False) -> None:
    state = {"experience": replay.state_dict(with_rows=False), "learner": {"weight": torch.ones(1)}}
    store.save(state, {"config": {}, "spec": {}, "global_step": step, "update_count": step}, replay, best=best)


def load(run_dir: Path, capacity: int = CAPACITY) -> tuple[CheckpointStore, ReplayBuffer, int]:
    """Resume, and check that the buffer holds exactly the rows it held when the checkpoint was written."""
    store, replay = CheckpointStore(run_dir), make_buffer(capacity)
    state, manifest = store.load_newest_intact()
    replay.load_state_dict(state["experience"])
    store.load_rows(replay.ring)
    store.discard_newer()
    oldest, written = replay.oldest_row, replay.ring.written
    rewards = replay.ring.read(oldest, written)[:, replay.ring.columns["reward"].start]
    assert torch.equal(rewards, torch.arange(oldest, written, dtype=torch.float32))
    return store, replay, manifest["global_step"]


def listed(run_dir: Path) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = read_manifest(resolve_checkpoint(run_dir / "checkpoints"))["segments"]
    return segments


@pytest.mark.parametrize("sizes", ["equal", "random", "growing", "alternating"])
@pytest.mark.parametrize("full", [3_000, 10**9])
def test_merged_ranges_are_few_without_a_gap_and_rows_are_written_seldom(sizes: str, full: int) -> None:
    rng = np.random.default_rng(0)
    counts = {
        "equal": [7] * 6_000,
        "random": rng.integers(1, 500, 6_000).tolist(),
        "growing": list(range(1, 2_000)),
        "alternating": [1, 400] * 3_000,
    }[sizes]
    ranges: list[tuple[int, int]] = []
    end = most = rows_written = 0
    for count in counts:
        before = set(ranges)
        ranges = merge_ranges([*ranges, (end, end + count)], full)
        end += count
        most = max(most, len(ranges))
        rows_written += sum(last - first for first, last in ranges if (first, last) not in before)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == end
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    classes = math.ceil(math.log(min(end, full), 16))
    assert most <= 15 * classes + end // full + 1
    assert rows_written <= (classes + 1) * end
    assert merge_ranges(ranges, full) == ranges


def test_a_range_that_is_full_is_not_merged() -> None:
    assert merge_ranges([(n, n + 100) for n in range(0, 3_200, 100)], 100) == [
        (n, n + 100) for n in range(0, 3_200, 100)
    ]


def test_thousands_of_checkpoints_leave_few_segments_and_every_row(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    store, replay = CheckpointStore(tmp_path), make_buffer()
    for step in range(1_000):
        add(replay, 2)
        save(store, replay, step, best=step == 40)
    assert len(listed(tmp_path)) <= 45
    assert len(list((tmp_path / "replay").iterdir())) <= 3 * 45
    assert load(tmp_path)[2] == 999


def test_rows_that_the_buffer_dropped_are_not_written_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    store, replay = CheckpointStore(tmp_path), make_buffer(50)
    for step in range(300):
        add(replay, 3)
        save(store, replay, step)
        segments = listed(tmp_path)
        assert segments[0]["first"] <= replay.oldest_row < segments[0]["last"]
        assert segments[-1]["last"] == replay.ring.written
        for a, b in itertools.pairwise(segments):
            assert a["last"] == b["first"]
    for segment in segments:
        rows = read_tensors(tmp_path / "replay" / segment["name"])["rows"]
        assert len(rows) == segment["last"] - segment["first"]
    load(tmp_path, 50)


def test_a_run_with_thousands_of_segments_is_compacted_when_it_goes_on(tmp_path: Path, monkeypatch) -> None:
    """Versions before this one never merged any."""
    from rl_training.runtime import checkpointing

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    store, replay = CheckpointStore(tmp_path), make_buffer()
    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "merge_ranges", lambda ranges, full: ranges)
        for step in range(400):
            add(replay, 2)
            save(store, replay, step)
    assert len(listed(tmp_path)) == 400
    store, replay, step = load(tmp_path)
    add(replay, 2)
    save(store, replay, step + 1)
    assert len(listed(tmp_path)) <= 45
    assert load(tmp_path)[2] == 400


class Killed(BaseException):
    """Ends a process at once, as far as the code under test can tell."""


def kill_at(monkeypatch: pytest.MonkeyPatch, event: int) -> list[int]:
    """Raise ``Killed`` instead of the n-th change of the file system, and of every later one."""
    count = [0]

    def counted(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            writes = real is not real_open or arguments[1] & os.O_WRONLY
            count[0] += bool(writes)
            if writes and count[0] >= event:
                raise Killed
            return real(*arguments, **options)

        return call

    real_open = os.open
    for name in ("open", "replace", "rename", "unlink", "rmdir", "mkdir", "fsync"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return count


def test_a_kill_at_any_event_of_the_file_system_leaves_every_row(tmp_path: Path, monkeypatch) -> None:
    """The checkpoints written here merge segments, move ``best`` and remove older checkpoints."""
    store, replay = CheckpointStore(tmp_path / "base"), make_buffer()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        for step in range(14):
            add(replay, 20)
            save(store, replay, step, best=step == 5)
    event, merged = 0, False
    while True:
        event += 1
        run_dir = Path(shutil.copytree(tmp_path / "base", tmp_path / f"{event}"))
        last = -1
        with monkeypatch.context() as patch:
            count = kill_at(patch, event)
            try:
                store, replay, last = load(run_dir)
                for step in range(last + 1, 18):
                    add(replay, 20)
                    save(store, replay, step, best=step == 16)
                    last = step
            except Killed:
                pass
        store, replay, found = load(run_dir)
        assert found in (last, last + 1) if last >= 0 else found == 13
        for step in range(found + 1, 19):
            add(replay, 20)
            save(store, replay, step)
        segments = listed(run_dir)
        merged |= segments[0]["last"] - segments[0]["first"] > 20
        kept = {path.name for path in (run_dir / "checkpoints").iterdir() if path.is_dir()}
        assert all(json.loads((run_dir / "checkpoints" / name / "manifest.json").read_text()) for name in kept)
        assert load(run_dir)[2] == 18
        shutil.rmtree(run_dir)
        if count[0] < event:
            break
    assert merged
    assert event > 60
