"""LeRobot datasets, written here as versions 2.1 and 3.0 lay them out."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError, RLTrainingError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LENGTHS = (3, 2, 4)


def table(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> dict[str, Any]:
    rng, total = np.random.default_rng(seed), sum(lengths)
    frames = np.concatenate([np.arange(length) for length in lengths])
    last = np.append(frames[1:] == 0, True)
    return {
        "observation.state": rng.normal(size=(total, 3)).astype(np.float32),
        "action": rng.normal(size=(total, 2)).astype(np.float32),
        "next.reward": rng.normal(size=total).astype(np.float32),
        "next.done": last,
        "next.success": last & (np.arange(total) < lengths[0]),
        "timestamp": (frames / 10).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": np.arange(total),
        "task_index": np.zeros(total, np.int64),
    }


def to_arrow(columns: dict[str, Any]) -> Any:
    return pa.table({name: pa.array(np.asarray(array).tolist()) for name, array in columns.items()})


def write(folder: Path, version: str = "v2.1", columns: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write a dataset: version 2 with a file for each episode, version 3 with two files of many episodes."""
    columns = table() if columns is None else columns
    rows = to_arrow(columns)
    numbers = np.asarray(columns["episode_index"])
    chunk = folder / "data" / "chunk-000"
    chunk.mkdir(parents=True)
    (folder / "meta").mkdir()
    (folder / "videos").mkdir()
    lengths = {int(number): int((numbers == number).sum()) for number in np.unique(numbers)}
    episodes = [{"episode_index": n, "tasks": ["push"], "length": length} for n, length in lengths.items()]
    if version.startswith("v2"):
        for number in lengths:
            pq.write_table(rows.filter(pa.array(numbers == number)), chunk / f"episode_{number:06d}.parquet")
        (folder / "meta" / "episodes.jsonl").write_text("\n".join(map(json.dumps, episodes)))
        (folder / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "push"}))
        path = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    else:
        half = len(numbers) // 2
        pq.write_table(rows.slice(0, half), chunk / "file-000.parquet")
        pq.write_table(rows.slice(half), chunk / "file-001.parquet")
        (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(episodes), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
        path = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    features = {
        name: {"dtype": str(np.asarray(array).dtype), "shape": list(np.asarray(array).shape[1:]) or [1], "names": None}
        for name, array in columns.items()
    }
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "total_episodes": len(lengths),
        "total_frames": len(numbers),
        "total_tasks": 1,
        "chunks_size": 1000,
        "fps": 10,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": path,
        "features": features,
        **changes,
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    return folder


@pytest.fixture(params=["v2.0", "v2.1", "v3.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.filterwarnings("error")
def test_both_layouts_give_the_same_transitions(version: str, tmp_path: Path) -> None:
    columns = table()
    dataset = load_transition_dataset(write(tmp_path / "robot", version))
    np.testing.assert_array_equal(dataset.arrays["observations"], columns["observation.state"])
    np.testing.assert_array_equal(dataset.arrays["actions"], columns["action"])
    np.testing.assert_array_equal(dataset.arrays["rewards"], columns["next.reward"])
    assert dataset.episode_lengths.tolist() == list(LENGTHS)
    assert np.flatnonzero(dataset.arrays["terminated"]).tolist() == [2]  # the one that succeeded
    assert np.flatnonzero(dataset.arrays["truncated"]).tolist() == [4, 8]
    assert load_transition_dataset(tmp_path / "robot", "lerobot").fingerprint() == dataset.fingerprint()
    if version != "v3.0":
        assert load_transition_dataset(tmp_path / "robot", "parquet").fingerprint() == dataset.fingerprint()


def test_videos_and_images_are_left_out_with_a_note(version: str, tmp_path: Path) -> None:
    columns = table()
    path = write(tmp_path / "robot", version)
    info = json.loads((path / "meta" / "info.json").read_text())
    info["features"]["observation.images.top"] = {"dtype": "video", "shape": [480, 640, 3], "names": None}
    info["features"]["observation.images.wrist"] = {"dtype": "image", "shape": [8, 8, 3], "names": None}
    (path / "meta" / "info.json").write_text(json.dumps(info))
    file = next((path / "data").rglob("*.parquet"))
    rows = pq.read_table(file)
    images = pa.array([{"bytes": b"png", "path": "a.png"}] * len(rows))
    pq.write_table(rows.append_column("observation.images.wrist", images), file)
    with pytest.warns(UserWarning, match=r"robot: not read: observation\.images\.top, observation\.images\.wrist$"):
        dataset = load_transition_dataset(path)
    np.testing.assert_array_equal(dataset.arrays["observations"], columns["observation.state"])


def test_rows_and_files_are_put_in_order(tmp_path: Path) -> None:
    expected = load_transition_dataset(write(tmp_path / "plain", "v3.0"))
    mixed = {name: array[::-1] for name, array in table().items()}
    assert load_transition_dataset(write(tmp_path / "mixed", "v3.0", mixed)).fingerprint() == expected.fingerprint()
    path = write(tmp_path / "chunks", "v2.1")
    (path / "data" / "chunk-1000").mkdir()
    last = path / "data" / "chunk-000" / "episode_000002.parquet"
    last.rename(path / "data" / "chunk-1000" / last.name)
    (path / "data" / "chunk-000").rename(path / "data" / "chunk-999")
    assert load_transition_dataset(path).fingerprint() == expected.fingerprint()


def test_demonstrations_without_rewards_and_ends(version: str, tmp_path: Path) -> None:
    columns = table()
    for name in ("next.reward", "next.done"):
        del columns[name]
    with pytest.warns(UserWarning, match="there are no rewards in it; they are 0, which only bc can use"):
        dataset = load_transition_dataset(write(tmp_path / "robot", version, columns))
    assert not dataset.arrays["rewards"].any()
    assert dataset.episode_lengths.tolist() == list(LENGTHS)
    assert np.flatnonzero(dataset.arrays["terminated"]).tolist() == [2]
    del columns["next.success"]
    with pytest.warns(UserWarning, match="no rewards"):
        dataset = load_transition_dataset(write(tmp_path / "more", version, columns))
    assert np.flatnonzero(dataset.arrays["truncated"]).tolist() == [2, 4, 8]


def test_interventions_of_people_are_found(version: str, tmp_path: Path) -> None:
    flags = np.arange(9) % 2 == 1
    columns = {**table(), "complementary_info.is_intervention": flags}
    dataset = load_transition_dataset(write(tmp_path / "robot", version, columns)).only_interventions()
    assert dataset.usable is not None
    assert dataset.usable.tolist() == (flags & ~dataset.arrays["truncated"]).tolist()


def remove_a_file(path: Path) -> None:
    sorted((path / "data").rglob("*.parquet"))[-1].unlink()


def cut_a_file(path: Path) -> None:
    file = sorted((path / "data").rglob("*.parquet"))[-1]
    file.write_bytes(file.read_bytes()[:-20])


def remove_all(path: Path) -> None:
    for file in (path / "data").rglob("*.parquet"):
        file.unlink()


def change_info(**changes: Any) -> Any:
    def change(path: Path) -> None:
        file = path / "meta" / "info.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def cut_info(path: Path) -> None:
    file = path / "meta" / "info.json"
    file.write_text(file.read_text()[:-5])


def drop_column(path: Path) -> None:
    for file in (path / "data").rglob("*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns(["frame_index"]), file)


def repeat_a_row(path: Path) -> None:
    file = sorted((path / "data").rglob("*.parquet"))[-1]
    rows = pq.read_table(file)
    pq.write_table(pa.concat_tables([rows, rows.slice(len(rows) - 1)]), file)


DAMAGE = {
    "a file is missing": (remove_a_file, r"total_frames 9, but the data has \d: files are missing .*--kind parquet"),
    "a file is cut": (cut_a_file, "not a Parquet file that can be read"),
    "no files": (remove_all, r"there are no files data/chunk-\*/\*\.parquet"),
    "an old version": (change_info(codebase_version="v1.6"), "codebase_version is 'v1.6'; expected v2.0, v2.1 or v3.0"),
    "no version": (change_info(codebase_version=3), "codebase_version is 3"),
    "a total of text": (change_info(total_frames="9"), "total_frames is '9'; expected a whole number"),
    "other episodes": (change_info(total_episodes=7), "total_episodes 7, but the data has 3"),
    "features of text": (change_info(features={"action": "float"}), "features is missing or not an object of objects"),
    "another shape": (
        change_info(features={"action": {"dtype": "float32", "shape": [7]}}),
        r"action has rows of shape \(2,\); meta/info\.json declares \[7\]",
    ),
    "a shape of text": (
        change_info(features={"action": {"dtype": "float32", "shape": "2"}}),
        r"has shape '2' for action; expected a list",
    ),
    "cut metadata": (cut_info, r"info\.json: cannot be read"),
    "no frames": (drop_column, "column 'frame_index' is missing in data; found action, "),
    "a frame twice": (repeat_a_row, "episode 2 has frame 3; expected frame 4"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGE[damage]
    for version in ("v2.1", "v3.0"):
        path = write(tmp_path / version, version)
        change(path)
        with pytest.raises(DatasetError, match=message) as caught:
            load_transition_dataset(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["log.npz", "folder"])
def test_what_is_not_such_a_folder_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "log.npz").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DatasetError, match=rf"{name}: not the folder of a LeRobot dataset: it has no meta/info\.json"):
        load_transition_dataset(tmp_path / name, "lerobot")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("target", ["meta", "data"])
def test_no_damage_escapes_as_another_error(target: str, tmp_path: Path) -> None:
    from test_fuzz import mutate_bytes, mutate_tree

    path = write(tmp_path / "robot", "v3.0")
    victim = path / "meta" / "info.json" if target == "meta" else next((path / "data").rglob("*.parquet"))
    content = victim.read_bytes()
    refused = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        if target == "meta" and seed % 2:
            victim.write_text(json.dumps(mutate_tree(json.loads(content), rng)))
        else:
            victim.write_bytes(mutate_bytes(content, rng))
        try:
            assert 0 < len(load_transition_dataset(path)) <= 9
        except RLTrainingError:
            refused += 1
    assert refused > 20


def test_it_is_read_but_not_written(tmp_path: Path) -> None:
    from rl_training.data.dataset_loaders import write_transitions

    dataset = load_transition_dataset(write(tmp_path / "robot"))
    with pytest.raises(DatasetError, match="'lerobot' cannot be written; expected npz, pt, hdf5, parquet, csv, minari"):
        write_transitions(dataset, tmp_path / "copy", "lerobot")
    for name in ("copy.csv", "copy.npz"):
        write_transitions(dataset, tmp_path / name)
        again = load_transition_dataset(tmp_path / name)
        assert isinstance(again, TransitionDataset)
        for key, array in dataset.arrays.items():
            np.testing.assert_array_equal(array, again.arrays[key])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_transition_dataset(tmp_path / "robot")
