"""Reading and writing transitions: every format, the names in real use, and what hostile or broken files get."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_training.data.dataset_loaders import (
    DatasetSettings,
    RewardSettings,
    find_file,
    load_transition_dataset,
    read_transitions,
    warn_of_terminations_at_limit,
    write_transitions,
)
from rl_training.data.formats import hostile_files, npz
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import ConfigError, DatasetError, MissingExtraError

FILES = {
    "npz": "a.npz",
    "pt": "a.pt",
    "hdf5": "a.hdf5",
    "parquet": "a.parquet",
    "csv": "a.csv",
    "minari": "minari:test/set-v0",
}
NEEDS = {"hdf5": ["h5py"], "parquet": ["pyarrow"], "minari": ["minari", "h5py"]}


@pytest.fixture(params=list(FILES))
def kind(request: pytest.FixtureRequest) -> str:
    for module in NEEDS.get(request.param, []):
        pytest.importorskip(module)
    return str(request.param)


@pytest.fixture(autouse=True)
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep Minari's datasets in the test's own folder."""
    root = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    return root


def shared_file(name: str) -> Path:
    """Return one of the real files, or skip."""
    folder = Path(os.environ.get("RL_TRAINING_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / name).is_file():
        pytest.skip(f"{name} is neither in $RL_TRAINING_DATA nor in ../shared/data")
    return folder / name


def rows(lengths: tuple[int, ...] = (3, 2, 4), seed: int = 0, goal: bool = False, discrete: bool = False) -> dict:
    """Return transitions of whole episodes that chain: the next observation is the following row's."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    parts: dict[str, list[np.ndarray]] = {}
    for length in lengths:
        for name in ("observations", *(("achieved_goals", "desired_goals") if goal else ())):
            walk = rng.normal(size=(length + 1, 2 if "goals" in name else 3)).astype(np.float32)
            parts.setdefault(name, []).append(walk[:-1])
            parts.setdefault(f"next_{name}", []).append(walk[1:])
    ends = np.cumsum(lengths) - 1
    flags = np.zeros((2, total), bool)
    flags[rng.integers(0, 2, len(ends)), ends] = True
    action = rng.integers(0, 4, total) if discrete else rng.uniform(-1, 1, (total, 2)).astype(np.float32)
    return {
        **{name: np.concatenate(arrays) for name, arrays in parts.items()},
        "actions": action,
        "rewards": rng.normal(size=total).astype(np.float32),
        "terminated": flags[0],
        "truncated": flags[1],
    }


def assert_equal(left: TransitionDataset, right: TransitionDataset) -> None:
    assert left.arrays.keys() == right.arrays.keys()
    for name, array in left.arrays.items():
        assert array.dtype == right.arrays[name].dtype, name
        np.testing.assert_array_equal(array, right.arrays[name], err_msg=name)
    assert (left.usable is None) == (right.usable is None)
    if left.usable is not None and right.usable is not None:
        np.testing.assert_array_equal(left.usable, right.usable)


def write_csv(path: Path, values: dict[str, Any]) -> None:
    """Write arrays as anybody might: a column for each number."""
    table = {
        **{name: array for name, array in values.items() if array.ndim == 1},
        **{f"{name}_{i}": part for name, array in values.items() if array.ndim == 2 for i, part in enumerate(array.T)},
    }
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")


def place(kind: str, folder: Path) -> str:
    return FILES[kind] if kind == "minari" else str(folder / FILES[kind])


# Round trips


@pytest.mark.parametrize("goal", [False, True])
@pytest.mark.parametrize("discrete", [False, True])
def test_every_format_gives_back_what_was_written(kind: str, goal: bool, discrete: bool, tmp_path: Path) -> None:
    dataset = TransitionDataset.from_dict(rows(goal=goal, discrete=discrete))
    path = place(kind, tmp_path)
    write_transitions(dataset, path)
    again = load_transition_dataset(path)
    assert_equal(dataset, again)
    assert again.is_goal_conditioned == goal
    assert again.is_discrete == discrete
    assert not list(tmp_path.rglob("*.tmp"))


def test_both_ends_at_once_unusable_rows_and_rows_that_do_not_chain_survive(kind: str, tmp_path: Path) -> None:
    values = rows((4, 3, 1), goal=True)
    values["truncated"][3] = values["terminated"][3] = True
    values["next_observations"][1] += 1
    del values["next_achieved_goals"]
    dataset = TransitionDataset.from_dict(values)
    dataset = TransitionDataset(dataset.arrays, np.array([1, 0, 1, 1, 1, 1, 0, 1], bool))
    path = place(kind, tmp_path)
    write_transitions(dataset, path)
    assert_equal(dataset, load_transition_dataset(path))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    goal=st.booleans(),
    discrete=st.booleans(),
    cut=st.booleans(),
)
def test_round_trips_hold_for_any_episodes(
    kind: str,
    lengths: list[int],
    seed: int,
    goal: bool,
    discrete: bool,
    cut: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("trip")
    values = rows(tuple(lengths), seed, goal, discrete)
    if cut:  # the file stops in the middle of an episode
        values["terminated"][-1] = values["truncated"][-1] = False
    values["rewards"] = values["rewards"] * np.float32(1e30)
    dataset = TransitionDataset.from_dict(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
        path = place(kind, folder)
        write_transitions(dataset, path)
        assert_equal(dataset, load_transition_dataset(path))


def test_conversion_through_all_formats_changes_nothing(tmp_path: Path) -> None:
    for modules in NEEDS.values():
        for module in modules:
            pytest.importorskip(module)
    first = dataset = TransitionDataset.from_dict(rows(goal=True))
    for name in FILES:
        write_transitions(dataset, place(name, tmp_path))
        dataset = load_transition_dataset(place(name, tmp_path))
    assert_equal(first, dataset)


def test_writing_replaces_a_file_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TransitionDataset.from_dict(rows())
    write_transitions(dataset, tmp_path / "a.npz")
    before = (tmp_path / "a.npz").read_bytes()

    def fail(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(npz.np, "savez", fail)
    with pytest.raises(DatasetError, match=r"a\.npz: cannot be written: No space left"):
        write_transitions(dataset, tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["a.npz"]


# Names in real use


@pytest.mark.parametrize(
    "names",
    [
        ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts"),
        ("obs", "act", "rew", "next_obs", "terminated", "truncated"),
        ("obs", "acts", "rews", "obs_next", "terminations", "truncations"),
        ("states", "action", "reward", "next_states", "terminal", "timeout"),
        ("observation.state", "action", "next.reward", "next.observation.state", "next.terminated", "next.truncated"),
    ],
)
def test_names_of_others_are_understood(names: tuple[str, ...], tmp_path: Path) -> None:
    ours = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    values = rows()
    np.savez(tmp_path / "a.npz", **{theirs: values[name] for theirs, name in zip(names, ours, strict=True)})
    assert_equal(TransitionDataset.from_dict(values), load_transition_dataset(tmp_path / "a.npz"))


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def plain(length: int = 6) -> dict[str, np.ndarray]:
    """Return a file's arrays without any mark of where episodes end."""
    observations = np.arange(length, dtype=np.float32)[:, None]
    return {"observations": observations, "actions": observations, "rewards": observations[:, 0]}


def test_merged_dones_with_timeouts_are_terminations_only_elsewhere(tmp_path: Path) -> None:
    path = save(tmp_path, **plain(), dones=[0, 0, 1, 0, 0, 1], timeouts=[0, 0, 1, 0, 0, 0])
    dataset = load_transition_dataset(path)
    assert dataset.arrays["terminated"].tolist() == [False] * 5 + [True]
    assert dataset.arrays["truncated"].tolist() == [False, False, True, False, False, False]


def test_dones_alone_are_terminations_and_beside_terminals_they_mark_timeouts(tmp_path: Path) -> None:
    dones = np.array([0, 0, 1, 0, 0, 1])
    alone = load_transition_dataset(save(tmp_path, **plain(), dones=dones))
    assert alone.arrays["terminated"].tolist() == dones.astype(bool).tolist()
    both = load_transition_dataset(save(tmp_path, **plain(), dones=dones, terminals=[0, 0, 0, 0, 0, 1]))
    assert both.arrays["truncated"].tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize(
    "marks",
    [
        {"episode_lengths": [2, 4]},
        {"episode_starts": [0, 2]},
        {"episode_starts": [True, False, True, False, False, False]},
        {"episode_ends": [2, 6]},
        {"episode_index": [7, 7, 9, 9, 9, 9]},
        {"timeouts": [0, 1, 0, 0, 0, 1]},
    ],
    ids=lambda marks: next(iter(marks)),
)
def test_marks_end_episodes_without_terminating_them(marks: dict[str, list[int]], tmp_path: Path) -> None:
    dataset = load_transition_dataset(save(tmp_path, **plain(), **marks))
    assert dataset.episode_lengths.tolist() == [2, 4]
    assert not dataset.arrays["terminated"].any()
    # Nothing follows a cut-off row, so it is not sampled, and nothing is taken from the next episode.
    assert dataset.usable is not None
    assert dataset.usable.tolist() == [True, False, True, True, True, False]
    assert dataset.arrays["next_observations"][:, 0].tolist() == [1, 1, 3, 4, 5, 5]


def test_marks_leave_terminations_as_they_are(tmp_path: Path) -> None:
    dataset = load_transition_dataset(save(tmp_path, **plain(), terminals=[0, 1, 0, 0, 0, 0], episode_lengths=[2, 4]))
    assert dataset.arrays["terminated"].tolist() == [False, True, False, False, False, False]
    assert dataset.arrays["truncated"].tolist() == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"episode_lengths": [2, 5]}, "episode_lengths adds up to 7 rows; expected 6"),
        ({"episode_ends": [9]}, "episode_ends names rows outside"),
        ({"episode_index": [0, 1]}, r"episode_index has shape \(2,\); expected \(6,\)"),
        ({"dones": [0, 1]}, r"dones has shape \(2,\)"),
        ({"episode_lengths": ["a"]}, "expected whole numbers"),
        ({"episode_lengths": [2.5, 3.5]}, r"episode_lengths has 2\.5; expected whole numbers"),
        ({"dones": [0, 0, 2, 0, 0, 1]}, "dones is 2 at row 2; expected 0 or 1"),
        ({"dones": [0, 0, np.nan, 0, 0, 1]}, "dones is nan at row 2; expected 0 or 1"),
        (
            {"episode_lengths": [2, 4], "terminals": np.full(6, 0.5)},
            r"terminals \(terminated\) is 0\.5 at row 0",
        ),
    ],
)
def test_marks_that_do_not_fit_are_refused(marks: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        load_transition_dataset(save(tmp_path, **plain(), **marks))


@pytest.mark.parametrize("style", ["observations/{}", "{}", "obs.{}"])
def test_goal_dictionaries_in_flat_files_stay_goals(style: str, tmp_path: Path) -> None:
    values = rows(goal=True)
    goals = {"observation": "observations", "achieved_goal": "achieved_goals", "desired_goal": "desired_goals"}
    arrays = {style.format(part): values[name] for part, name in goals.items()}
    arrays |= {name: values[name] for name in ("actions", "rewards", "terminated", "truncated")}
    dataset = load_transition_dataset(save(tmp_path, **arrays))
    assert dataset.is_goal_conditioned
    np.testing.assert_array_equal(dataset.arrays["achieved_goals"], values["achieved_goals"])
    usable = dataset.usable if dataset.usable is not None else slice(None)
    np.testing.assert_array_equal(
        dataset.arrays["next_achieved_goals"][usable & ~values["terminated"]],
        values["next_achieved_goals"][usable & ~values["terminated"]],
    )


def test_wide_numbers_become_float32_and_compression_makes_no_difference(tmp_path: Path) -> None:
    values = rows()
    wide = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in values.items()}
    np.savez_compressed(tmp_path / "a.npz", **wide)
    assert_equal(TransitionDataset.from_dict(values), load_transition_dataset(tmp_path / "a.npz"))
    swapped = {name: array.astype(">f4") if array.dtype == np.float32 else array for name, array in values.items()}
    swapped["observations"] = np.asfortranarray(swapped["observations"])
    np.savez(tmp_path / "b.npz", **swapped)
    assert_equal(TransitionDataset.from_dict(values), load_transition_dataset(tmp_path / "b.npz"))


# Formats of others


def test_lerobot_rows_in_one_file_or_a_folder(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    values = rows((3, 2))
    table = {
        "observation.state": pa.array(values["observations"].tolist(), pa.list_(pa.float32())),
        "action": pa.array(values["actions"].tolist(), pa.list_(pa.float32())),
        "next.reward": pa.array(values["rewards"]),
        "next.done": pa.array([False, False, True, False, True]),
        "next.success": pa.array([False, False, True, False, False]),
        "episode_index": pa.array([0, 0, 0, 1, 1]),
        "task": pa.array(["push"] * 5),
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=2)
    dataset = load_transition_dataset(tmp_path / "a.parquet")
    assert dataset.arrays["terminated"].tolist() == [False, False, True, False, False]
    assert dataset.arrays["truncated"].tolist() == [False, False, False, False, True]
    np.testing.assert_array_equal(dataset.arrays["observations"], values["observations"])
    assert dataset.usable is not None
    assert dataset.usable.tolist() == [True, True, True, True, False]
    chunks = tmp_path / "robot" / "data" / "chunk-000"
    chunks.mkdir(parents=True)
    (tmp_path / "robot" / "meta").mkdir()
    (tmp_path / "robot" / "meta" / "info.parquet").write_bytes(b"not data")
    pq.write_table(pa.table(table).slice(0, 3), chunks / "episode_000000.parquet")
    pq.write_table(pa.table(table).slice(3), chunks / "episode_000001.parquet")
    assert_equal(dataset, load_transition_dataset(tmp_path / "robot"))
    del table["next.success"]  # then a merged flag counts as termination
    pq.write_table(pa.table(table), tmp_path / "b.parquet")
    assert load_transition_dataset(tmp_path / "b.parquet").arrays["terminated"].tolist()[-1]


def test_d4rl_layout_with_a_goal_group_and_infos(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    values = rows(goal=True)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations/observation"] = values["observations"].astype(np.float64)
        file["observations/achieved_goal"] = values["achieved_goals"]
        file["observations/desired_goal"] = values["desired_goals"]
        for name, theirs in (("actions", "actions"), ("rewards", "rewards"), ("terminated", "terminals")):
            file.create_dataset(theirs, data=values[name], compression="gzip")
        file["timeouts"] = values["truncated"]
        file["infos/qpos"] = np.zeros((2, 2))
        file["metadata/algorithm"] = "SAC"
        file["loop"] = file["/"]  # a group that contains itself must not hang the reader
    dataset = load_transition_dataset(tmp_path / "a.hdf5")
    assert dataset.is_goal_conditioned
    np.testing.assert_array_equal(dataset.arrays["observations"], values["observations"])
    assert dataset.episode_lengths.tolist() == [3, 2, 4]


def test_minaris_own_file_is_read_as_hdf5_its_folder_and_its_id_as_minari(minari_root: Path) -> None:
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    dataset = TransitionDataset.from_dict(rows((2,) * 12, goal=True))
    folder = write_transitions(dataset, "maze/play-v3", "minari")
    assert folder == minari_root / "maze" / "play-v3"
    observations = minari.load_dataset("maze/play-v3")[0].observations
    assert {name: array.shape for name, array in observations.items()} == {
        "observation": (3, 3),
        "achieved_goal": (3, 2),
        "desired_goal": (3, 2),
    }
    assert "maze/play-v3" in minari.list_local_datasets()
    assert_equal(dataset, load_transition_dataset(folder / "data" / "main_data.hdf5"))  # episode_10 after episode_9
    assert_equal(dataset, load_transition_dataset(folder))
    assert_equal(dataset, load_transition_dataset(dataset_id="maze/play-v3"))
    assert_equal(dataset, load_transition_dataset("maze/play-v3", "minari"))
    with pytest.raises(DatasetError, match="already"):
        write_transitions(dataset, "minari:maze/play-v3")


def test_an_unknown_minari_id_says_that_downloading_is_off(minari_root: Path) -> None:
    pytest.importorskip("minari")
    with pytest.raises(DatasetError, match=r"no Minari dataset 'D4RL/door/none-v9' in .*downloading is off"):
        load_transition_dataset(kind="minari", dataset_id="D4RL/door/none-v9")
    for bad in ("../../etc-v0", "no version"):
        with pytest.raises(DatasetError, match="not the id of a Minari dataset"):
            load_transition_dataset(dataset_id=bad)


def test_minari_metadata_cannot_make_code_run(minari_root: Path) -> None:
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    folder = write_transitions(TransitionDataset.from_dict(rows()), "minari:bad-v0")
    file = folder / "data" / "metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["action_space"]
    metadata["env_spec"] = '{"id": "x-v0", "entry_point": "this:that"}'
    file.write_text(json.dumps(metadata))
    with pytest.raises(DatasetError, match="key 'action_space' is missing"):
        load_transition_dataset(folder)


@pytest.mark.parametrize("change", ["rewards", "observations", "missing"])
def test_minari_episodes_of_wrong_lengths_are_refused(change: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group["observations"] = np.zeros((3 if change == "observations" else 4, 2))
        group["actions"] = np.zeros((3, 1))
        group["rewards"] = np.zeros(2 if change == "rewards" else 3)
        group["terminations"] = np.zeros(3, bool)
        if change != "missing":
            group["truncations"] = np.zeros(3, bool)
    expected = {
        "rewards": r"episode_0: observations have shape \(4, 2\); expected 3 rows",
        "observations": r"episode_0: observations have shape \(3, 2\); expected 4 rows",
        "missing": "episode_0 has no truncations",
    }
    with pytest.raises(DatasetError, match=expected[change]):
        load_transition_dataset(tmp_path / "a.hdf5")


def test_pt_files_are_mapped_and_may_hold_goal_dictionaries(tmp_path: Path) -> None:
    values = rows(goal=True)
    observations = {"observation": values["observations"], "achieved_goal": values["achieved_goals"]}
    observations["desired_goal"] = values["desired_goals"]
    saved = {"observations": {key: torch.from_numpy(value) for key, value in observations.items()}}
    saved |= {key: torch.from_numpy(values[key]) for key in ("actions", "terminated", "truncated")}
    saved["rewards"] = torch.from_numpy(values["rewards"]).double().requires_grad_()
    torch.save(saved, tmp_path / "a.pt")
    dataset = load_transition_dataset(tmp_path / "a.pt")
    assert dataset.is_goal_conditioned
    np.testing.assert_array_equal(dataset.arrays["rewards"], values["rewards"])
    torch.save(saved, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_equal(dataset, load_transition_dataset(tmp_path / "old.pt"))


# Hostile and broken files


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.trace),))


def test_pickles_and_object_arrays_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    trace, values = tmp_path / "trace", rows()
    objects = np.empty(9, object)
    objects[:] = [Bomb(trace)] * 9
    for key in ("rewards", "infos"):
        np.savez(tmp_path / "a.npz", **{**values, key: objects})
        with pytest.raises(DatasetError, match=rf"a\.npz: {key} is an object array of shape \(9,\).*refused"):
            load_transition_dataset(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(DatasetError, match=r"pickle.*refused"):
        load_transition_dataset(tmp_path / "b.npz")
    torch.save({**values, "rewards": Bomb(trace)}, tmp_path / "a.pt")
    with pytest.raises(DatasetError, match=r"a\.pt: refused.*tensors"):
        load_transition_dataset(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(DatasetError, match=r"b\.pt"):
        load_transition_dataset(tmp_path / "b.pt")
    assert not trace.exists()


def npy(shape: tuple[int, ...], data: bytes = b"", descr: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.mark.parametrize("shape", [(10**12,), (10**9, 10**9, 10**9), (4, 3), (-1, 3)])
def test_a_header_that_claims_more_than_is_there_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("observations.npy", npy(shape, bytes(8)))
    with pytest.raises(DatasetError, match=r"a\.npz: observations claims shape .* but the file has 8 for it"):
        load_transition_dataset(tmp_path / "a.npz")


def test_an_archive_whose_directory_lies_about_sizes_is_refused(tmp_path: Path) -> None:
    header = npy((2**28,))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("observations.npy", header + bytes(64))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    struct.pack_into("<L", content, directory + 24, len(header) + 2**30)  # the unpacked size
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"a\.npz unpacks to 1\.0 GiB, but only \d+ bytes are stored; refused"):
        load_transition_dataset(tmp_path / "a.npz")


def test_a_tensor_that_repeats_one_number_without_end_is_refused(tmp_path: Path) -> None:
    values = {key: torch.from_numpy(array) for key, array in rows().items()}
    values["rewards"] = torch.zeros(1).expand(10**12)
    torch.save(values, tmp_path / "a.pt")
    with pytest.raises(DatasetError, match=r"rewards claims shape \(1000000000000,\)"):
        load_transition_dataset(tmp_path / "a.pt")


def test_hdf5_shapes_without_data_and_links_to_other_files_are_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("observations", shape=(10**10, 10), dtype="f4", chunks=(1000, 10))
    with pytest.raises(DatasetError, match=r"observations claims shape .* nothing of it is stored"):
        load_transition_dataset(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        chunked = file.create_dataset("observations", shape=(10**10, 10), dtype="f4", chunks=(1000, 10))
        chunked[0] = 1
    with pytest.raises(DatasetError, match=r"b\.hdf5 unpacks to 372\.5 GiB"):
        load_transition_dataset(tmp_path / "b.hdf5")
    with h5py.File(tmp_path / "c.hdf5", "w") as file:
        file["observations"] = h5py.ExternalLink("other.hdf5", "/x")
    with pytest.raises(DatasetError, match="observations is a link to another place or file; refused"):
        load_transition_dataset(tmp_path / "c.hdf5")
    (tmp_path / "raw").write_bytes(bytes(400))
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        file.create_dataset("rewards", shape=(100,), dtype="f4", external=[(str(tmp_path / "raw"), 0, 400)])
    with pytest.raises(DatasetError, match="rewards is stored in another file"):
        load_transition_dataset(tmp_path / "d.hdf5")


def test_what_does_not_fit_into_memory_is_mapped_or_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = TransitionDataset.from_dict(rows((50,)))
    write_transitions(dataset, place(kind, tmp_path))
    for module in (hostile_files, npz):
        monkeypatch.setattr(module, "available_memory", lambda: 100)
    if kind in ("npz", "pt"):
        mapped = load_transition_dataset(place(kind, tmp_path))
        assert_equal(dataset, mapped)
        assert mapped.sample(4).observations.shape == (4, 3)
        if kind == "npz":
            assert isinstance(read_transitions(place(kind, tmp_path))["observations"], np.memmap)
        return
    with pytest.raises(DatasetError, match="of memory, and 100 bytes are available"):
        load_transition_dataset(place(kind, tmp_path))


def test_compressed_archives_are_held_to_the_memory_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", **rows())
    for module in (hostile_files, npz):
        monkeypatch.setattr(module, "available_memory", lambda: 100)
    with pytest.raises(DatasetError, match="of memory, and 100 bytes are available"):
        load_transition_dataset(tmp_path / "a.npz")


@pytest.mark.parametrize("damage", ["empty", "cut", "middle", "text", "folder"])
@pytest.mark.parametrize("kind", ["npz", "pt", "hdf5", "parquet", "csv"])
def test_broken_files_get_one_clear_error(kind: str, damage: str, tmp_path: Path) -> None:
    for module in NEEDS.get(kind, []):
        pytest.importorskip(module)
    path = tmp_path / FILES[kind]
    dataset = TransitionDataset.from_dict(rows((40, 60)))
    write_transitions(dataset, path)
    content = path.read_bytes()
    if damage == "middle" and kind == "pt":
        pytest.skip("the format has no checksums that its readers compare")
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        middle = content.find(dataset.arrays["observations"][10:].tobytes()[:16])
        middle = middle if middle > 0 else len(content) // 3  # where it is compressed
        broken = {
            "empty": b"",
            "cut": content[: len(content) * 2 // 3],
            "middle": content[:middle]
            + bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
            + content[middle + 64 :],
            "text": b"observations,actions\n1,2\n",
        }
        path.write_bytes(broken[damage])
    with pytest.raises(DatasetError, match=r"a\.\w+") as caught:
        load_transition_dataset(path, kind)
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**6), value=st.integers(0, 255), keep=st.integers(0, 10**6))
@pytest.mark.parametrize("kind", ["npz", "pt", "hdf5", "parquet", "csv"])
def test_no_damage_of_a_byte_or_a_tail_escapes_as_another_error(
    kind: str, position: int, value: int, keep: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for module in NEEDS.get(kind, []):
        pytest.importorskip(module)
    if kind == "pt" or kind == "hdf5":
        keep = 10**6  # one kind of damage is enough for the slower readers
    content = bytearray(_original(kind, tmp_path_factory))
    content[position % len(content)] = value
    path = tmp_path_factory.getbasetemp() / f"damaged-{FILES[kind]}"
    path.write_bytes(content[: keep % len(content) if keep % 3 == 0 else len(content)])
    with contextlib.suppress(DatasetError):  # any other error is a failure
        assert 0 < len(load_transition_dataset(path)) <= 9


_ORIGINALS: dict[str, bytes] = {}


def _original(kind: str, factory: pytest.TempPathFactory) -> bytes:
    if kind not in _ORIGINALS:
        path = factory.mktemp("original") / FILES[kind]
        write_transitions(TransitionDataset.from_dict(rows()), path)
        _ORIGINALS[kind] = path.read_bytes()
    return _ORIGINALS[kind]


def _wrong(values: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """Return changes of good arrays, each with the error that must name it."""
    nan = values["rewards"].copy()
    nan[4] = np.nan
    return {
        "short": ({"actions": values["actions"][:-1]}, r"actions has shape \(8, 2\); expected 9 rows"),
        "wide rewards": ({"rewards": np.zeros((9, 2))}, r"rewards has shape \(9, 2\); expected \(9,\)"),
        "text": ({"observations": np.full((9, 3), "a")}, r"observations has dtype <U\d+; expected numbers"),
        "nan": ({"rewards": nan}, "rewards is not finite, first at row 4: nan"),
        "too large": ({"observations": np.full((9, 3), 1e300)}, "observations is not finite"),
        "narrow": ({"next_observations": np.zeros((9, 2))}, r"next_observations has shape \(9, 2\), expected \(9, 3\)"),
        "images": ({"observations": np.zeros((9, 8, 8, 3), np.uint8)}, "no images"),
        "halves": ({"terminated": np.full(9, 0.5)}, r"terminated is 0\.5 at row 0; expected 0 or 1"),
        "nothing": ({name: array[:0] for name, array in values.items()}, "there are no transitions in it"),
        "one goal": ({"achieved_goals": np.zeros((9, 2))}, "'desired_goals' is missing"),
        "scalar": ({"observations": np.float32(1)}, "there are no transitions in it"),
        "huge index": ({"actions": np.full(9, 2**40)}, r"1099511627776 is not below 1,048,576"),
        "no columns": ({"observations": np.zeros((9, 0))}, r"observations has shape \(9, 0\)"),
    }


@pytest.mark.parametrize("case", _wrong(rows()))
def test_wrong_content_is_named(case: str, tmp_path: Path) -> None:
    values = rows()
    change, message = _wrong(values)[case]
    with pytest.raises(DatasetError, match=message):
        load_transition_dataset(save(tmp_path, **{**values, **change}))


def test_errors_use_the_names_of_the_file(tmp_path: Path) -> None:
    values = rows()
    names = {"obs": values["observations"], "data/act": values["actions"][:-1], "rew": values["rewards"]}
    path = save(tmp_path, **names, done=values["terminated"] | values["truncated"])
    with pytest.raises(DatasetError, match=r"a\.npz: data/act \(actions\) has shape \(8, 2\); expected 9 rows"):
        load_transition_dataset(path, rename={"data/act": "actions"})
    path = save(tmp_path, **{**names, "data/act": values["actions"], "done": np.full(9, 3)})
    with pytest.raises(DatasetError, match="done is 3 at row 0; expected 0 or 1"):
        load_transition_dataset(path, rename={"data/act": "actions"})


def test_arrays_of_unknown_names_are_read_by_renaming(kind: str, tmp_path: Path) -> None:
    if kind == "minari":
        pytest.skip("Minari's names are fixed")
    values = rows()
    dataset = TransitionDataset.from_dict(values)
    values["sensor/lidar"] = values.pop("observations")
    values["finished"] = values.pop("terminated")
    path = tmp_path / FILES[kind]
    if kind == "npz":
        np.savez(path, **values)
    elif kind == "pt":
        torch.save({name: torch.from_numpy(array) for name, array in values.items()}, path)
    elif kind == "hdf5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            for name, array in values.items():
                file[name] = array
    elif kind == "csv":
        write_csv(path, values)
    else:
        pa = pytest.importorskip("pyarrow")
        table = pa.table({name: pa.array(array.tolist()) for name, array in values.items()})
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    with pytest.raises(DatasetError, match=r"'observations' .*is missing; found .*sensor/lidar.*--rename NAME=obs"):
        load_transition_dataset(path)
    rename = {"sensor/lidar": "observations", "finished": "terminals"}
    assert_equal(dataset, load_transition_dataset(path, rename=rename))
    with pytest.raises(DatasetError, match=r"there is no 'sensors' to rename; found .*sensor/lidar"):
        load_transition_dataset(path, rename={"sensors": "observations"})
    with pytest.raises(ConfigError, match=r"rename finished=terminatd: unknown name \(did you mean 'terminated'\?\)"):
        load_transition_dataset(path, rename={"finished": "terminatd"})


def test_fragments_survive_every_format(kind: str, tmp_path: Path) -> None:
    dataset = TransitionDataset.from_dict({**rows(), "fragment": np.arange(9) < 3})
    write_transitions(dataset, place(kind, tmp_path))
    again = load_transition_dataset(place(kind, tmp_path))
    assert_equal(dataset, again)
    assert again.complete_episodes.tolist() == [False, True, True]


def test_interventions_survive_every_format_and_choose_the_rows_that_are_sampled(kind: str, tmp_path: Path) -> None:
    flags = np.array([0, 1, 1, 0, 0, 0, 0, 1, 0], bool)
    plain, flagged = rows(), {**rows(), "is_intervention": flags}
    dataset = TransitionDataset.from_dict(flagged)
    write_transitions(dataset, place(kind, tmp_path))
    again = load_transition_dataset(place(kind, tmp_path))
    assert_equal(dataset, again)
    assert again.usable is None
    chosen = again.only_interventions()
    assert chosen.usable is not None
    np.testing.assert_array_equal(chosen.usable, flags)
    assert {row.tobytes() for row in chosen.sample(200).rewards.numpy()} == {
        row.tobytes() for row in dataset.arrays["rewards"][flags]
    }
    np.testing.assert_array_equal(chosen.episode_returns, dataset.episode_returns)
    assert again.fingerprint() == TransitionDataset.from_dict(plain).fingerprint()  # runs of earlier versions resume


def test_interventions_must_be_there_to_be_chosen() -> None:
    with pytest.raises(DatasetError, match="expected a column intervention, is_intervention or complementary_info"):
        TransitionDataset.from_dict(rows()).only_interventions()
    with pytest.raises(DatasetError, match="no row that can be sampled has the flag"):
        TransitionDataset.from_dict({**rows(), "intervention": np.zeros(9)}).only_interventions()


def test_a_file_takes_the_place_of_random_play() -> None:
    kept = DatasetSettings.model_validate({"dataset_kind": "random"})
    assert kept.dataset_kind == "random"
    for source in ({"dataset_path": "a.npz"}, {"dataset_id": "D4RL/door/human-v2"}):
        settings = DatasetSettings.model_validate({"dataset_kind": "random", **source})
        assert settings.dataset_kind is None
        assert settings.names_dataset


@pytest.mark.filterwarnings("error")
def test_terminations_at_the_time_limit_are_warned_of() -> None:
    def data(lengths: tuple[int, ...], terminal: bool) -> TransitionDataset:
        values = rows(lengths)
        ends = values["terminated"] | values["truncated"]
        return TransitionDataset.from_dict(
            {**values, "terminated": ends & terminal, "truncated": ends & (not terminal)}
        )

    with pytest.warns(UserWarning, match=r"log: 3 episodes of 4 steps .*If that is a time limit"):
        warn_of_terminations_at_limit(data((4, 4, 4), True), where="log")
    with pytest.warns(UserWarning, match="1 episodes of 4 steps are marked as terminated. That is the time limit"):
        warn_of_terminations_at_limit(data((4, 2, 3), True), 4)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        warn_of_terminations_at_limit(data((4, 4, 4), False))
        warn_of_terminations_at_limit(data((4, 2, 3), True))
        warn_of_terminations_at_limit(data((4, 4, 4), True), 5)
    assert shown == []


def test_a_missing_key_is_named_with_what_was_found(tmp_path: Path) -> None:
    values = rows()
    del values["rewards"]
    with pytest.raises(DatasetError, match=r"a\.npz: key 'rewards' \(or rew, .*\) is missing; found .*, unknown"):
        load_transition_dataset(save(tmp_path, **values, unknown=np.zeros(2)))


def test_ragged_missing_and_textual_parquet_columns_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    good = {"action": [[1.0], [2.0]], "next.reward": [0.0, 1.0], "next.done": [False, True]}
    for column, message in (
        ([[1.0], [1.0, 2.0]], "rows of 1 to 2 numbers"),
        ([[1.0], None], "1 missing values"),
        ([[1.0], [None]], "1 missing values"),
        (["a", "b"], "type string; expected numbers"),
    ):
        pq.write_table(pa.table({"observation.state": column, **good}), tmp_path / "a.parquet")
        with pytest.raises(DatasetError, match=message):
            load_transition_dataset(tmp_path / "a.parquet")


# Finding files


def test_files_are_found_in_the_data_folder_and_kinds_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_transitions(TransitionDataset.from_dict(rows()), tmp_path / "x.npz")
    monkeypatch.setenv("RL_TRAINING_DATA", str(tmp_path))
    assert find_file("x.npz") == tmp_path / "x.npz"
    assert len(load_transition_dataset("x.npz")) == 9
    with pytest.raises(DatasetError, match=r"'y\.npz': no such file here, nor in \$RL_TRAINING_DATA"):
        load_transition_dataset("y.npz")
    (tmp_path / "x.data").write_bytes((tmp_path / "x.npz").read_bytes())
    assert len(load_transition_dataset("x.data", "npz")) == 9
    with pytest.raises(DatasetError, match="the format is not clear from the name"):
        load_transition_dataset("x.data")
    with pytest.raises(DatasetError, match="dataset_path is required"):
        load_transition_dataset()
    with pytest.raises(DatasetError, match="names a Minari dataset"):
        load_transition_dataset("x.npz", dataset_id="a-v0")
    with pytest.raises(DatasetError, match="'random' is not a file format"):
        load_transition_dataset("x.npz", "random")


@pytest.mark.parametrize(("kind", "module"), [("hdf5", "h5py"), ("parquet", "pyarrow"), ("minari", "minari")])
def test_a_missing_package_names_the_extra(
    kind: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(MissingExtraError, match=r"\[offline\]"):
        load_transition_dataset(*(("a-v0", kind) if kind == "minari" else (tmp_path / "a", kind)))


def test_rewards_are_transformed_as_the_settings_say() -> None:
    dataset = TransitionDataset.from_dict(rows())
    transform = RewardSettings(reward_scale=2.0, reward_shift=1.0, reward_clip_max=1.5).reward_transform(dataset)
    expected = np.minimum(dataset.arrays["rewards"] * 2 + 1, 1.5)
    np.testing.assert_allclose(dataset.with_reward_transform(transform).arrays["rewards"], expected, rtol=1e-6)
    automatic = dataset.with_reward_transform(RewardSettings(reward_scale="auto").reward_transform(dataset))
    assert np.ptp(automatic.episode_returns) == pytest.approx(1000, rel=1e-4)
    assert RewardSettings().reward_transform(dataset) is None
    with pytest.raises(ConfigError, match="needs logged data"):
        RewardSettings(reward_scale="auto").reward_transform(None)


# Real files


def test_real_hopper_data_has_the_episodes_its_table_says() -> None:
    dataset = load_transition_dataset(shared_file("hopper_medium_expert_100k.npz"))
    assert len(dataset) == 100_000
    assert dataset.spec.observation_dim == 11
    assert dataset.spec.action_dim == 3
    assert dataset.episode_returns.max() == pytest.approx(3680, abs=1)
    assert dataset.usable is None


def test_real_demonstrations_without_next_observations_are_completed() -> None:
    path = shared_file("adroit_door_human25.npz")
    dataset = load_transition_dataset(path)
    assert len(dataset.episode_lengths) == 25
    assert dataset.usable is not None
    assert int((~dataset.usable).sum()) == 25
    inner = np.flatnonzero(dataset.usable)
    np.testing.assert_array_equal(dataset.arrays["next_observations"][inner], dataset.arrays["observations"][inner + 1])
