"""Files made to fill memory, to waste time, or to lead elsewhere: each is refused within 2 seconds and 1 GB."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data.dataset_loaders import load_transition_dataset, write_transitions
from rl_training.data.formats import hostile_files
from rl_training.data.formats.hostile_files import cgroup_memory
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError, shown
from warm_process import WarmPython

SECONDS, BYTES = 2.0, 1e9
ROWS = 9


def rows() -> dict[str, np.ndarray]:
    observations = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    ends = np.arange(ROWS) == ROWS - 1
    return {"observations": observations, "actions": observations, "rewards": observations[:, 0], "terminals": ends}


def nested(width: int, depth: int, leaf: Any, make: Callable[[list[Any]], Any] = list) -> Any:
    """Return a container of one container many times, and so on: a few bytes in a pickle, huge when it is expanded."""
    for _ in range(depth):
        leaf = make([leaf] * width)
    return leaf


def shared_lists(path: Path) -> None:
    torch.save({**tensors(), "rewards": nested(30, 6, 0.0)}, path)


def shared_dictionaries(path: Path) -> None:
    def make(values: list[Any]) -> dict[str, Any]:
        return {f"k{index}": value for index, value in enumerate(values)}

    torch.save({**tensors(), "x": nested(300, 4, {}, make), "y": nested(300, 4, torch.zeros(1), make)}, path)


def list_that_contains_itself(path: Path) -> None:
    values: list[Any] = []
    values.append(values)
    torch.save({**tensors(), "rewards": values}, path)


def tensors() -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in rows().items()}


class Call:
    """A call of a function, as a pickle stores it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def large_bytearray(path: Path) -> None:
    torch.save({**tensors(), "rewards": Call(bytearray, 6 * 10**9)}, path)


def tensor_of_shared_lists(path: Path) -> None:
    torch.save({**tensors(), "rewards": Call(torch.Tensor, nested(30, 6, 0.0))}, path)


def old_format_with_a_call(path: Path) -> None:
    torch.save({"rewards": Call(bytearray, 6 * 10**9)}, path, _use_new_zipfile_serialization=False)


def compressed_pickle(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps(bytes(10**7), 2))
        archive.writestr("a/version", "3")


def wide_views_of_one_storage(path: Path) -> None:
    one = torch.zeros(10**6, dtype=torch.float64)
    torch.save({**tensors(), **{f"k{index}": one for index in range(20_000)}}, path)


def packed_npz(path: Path) -> None:
    np.savez_compressed(path, **{name: np.zeros(10**7, np.float32) for name in rows()})


def many_members(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for index in range(20_000):
            archive.writestr(f"{index}.npy", b"")


def bzip_npz(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("observations.npy", bytes(10**7))


def h5(path: Path) -> Any:
    return pytest.importorskip("h5py").File(path, "w")


def write_flat(file: Any, **changes: Any) -> None:
    for name, array in {**rows(), **changes}.items():
        file[name] = array


def self_links(path: Path) -> None:
    with h5(path) as file:
        write_flat(file)
        for index in range(1000):
            file[f"g{index}"] = file["/"]
        for outer in ("a", "b", "c"):
            group = file.create_group(outer)
            for index in range(300):
                group[f"g{index}"] = file["/"]
                group[f"{outer}{index}"] = group


def crossed_groups(path: Path) -> None:
    with h5(path) as file:
        write_flat(file)
        groups = [file.create_group(f"g{index}") for index in range(60)]
        for group in groups:
            for index, other in enumerate(groups):
                group[str(index)] = other


def hard_linked_episodes(path: Path) -> None:
    with h5(path) as file:
        group = file.create_group("episode_0")
        length = 10**6
        group["observations"] = np.zeros((length + 1, 2), np.float32)
        group["actions"] = np.zeros((length, 1), np.float32)
        group["rewards"] = np.zeros(length, np.float32)
        group["terminations"] = group["truncations"] = np.zeros(length, bool)
        for index in range(1, 500):
            file[f"episode_{index}"] = group


def hard_linked_arrays(path: Path) -> None:
    with h5(path) as file:
        long = file.create_dataset("episode_0/observations", data=np.zeros((10**6, 8), np.float32))
        for index in range(1, 500):
            file[f"episode_{index}/observations"] = long


def soft_link(path: Path) -> None:
    with h5(path) as file:
        write_flat(file)
        del file["rewards"]
        file["x"] = rows()["rewards"]
        file["rewards"] = pytest.importorskip("h5py").SoftLink("/x")


def external_link(path: Path) -> None:
    with h5(path.with_name("other.hdf5")) as other:
        other["rewards"] = rows()["rewards"]
    with h5(path) as file:
        write_flat(file)
        del file["rewards"]
        file["rewards"] = pytest.importorskip("h5py").ExternalLink("other.hdf5", "/rewards")


def packed_hdf5(path: Path) -> None:
    with h5(path) as file:
        write_flat(file)
        del file["rewards"]
        file.create_dataset("rewards", data=np.ones(3 * 10**7, np.float32), compression="gzip", chunks=(10**7,))


def packed_parquet(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    names = ("observation.state", "action", "next.reward", "next.done")
    pq.write_table(pa.table({name: np.zeros(10**7, np.float32) for name in names}), path)


def wide_parquet(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    count = 3 * 10**7
    row = pa.ListArray.from_arrays(np.arange(0, count + 1, 10**4, np.int32), np.zeros(count, np.int8))
    table = {"observation.state": row, "action": np.zeros(len(row)), "next.reward": np.zeros(len(row))}
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(table), path)


def large_parquet_page(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"action": np.zeros(10**7), "next.reward": np.zeros(10**7)})
    options = {"use_dictionary": False, "compression": "zstd", "data_page_size": 2**30}
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=10**7, **options)


HEADER = "observation_0,action_0,reward,terminated\n"


def long_csv_line(path: Path) -> None:
    path.write_text(HEADER + "1," * 10**7)


def many_csv_columns(path: Path) -> None:
    path.write_text(",".join(f"observation_{index}" for index in range(20_000)) + "\n")


def empty_csv_lines(path: Path) -> None:
    path.write_text(",".join([*(f"observation_{index}" for index in range(200)), "reward"]) + "\n" * 10**6)


def open_csv_quote(path: Path) -> None:
    path.write_text(HEADER + '"' + "1\n" * 10**6)


def wide_csv_cells(path: Path) -> None:
    path.write_text(HEADER + ("1" * 100_000 + ",1,1,0\n") * 100)


def lerobot(path: Path, **changes: Any) -> None:
    (path / "meta").mkdir(parents=True)
    info = {"codebase_version": "v3.0", "total_frames": 9, "total_episodes": 1, "features": {}, **changes}
    (path / "meta" / "info.json").write_text(json.dumps(info))
    (path / "data" / "chunk-000").mkdir(parents=True)


def packed_lerobot(path: Path) -> None:
    lerobot(path)
    packed_parquet(path / "data" / "chunk-000" / "file-000.parquet")


def deep_lerobot(path: Path) -> None:
    lerobot(path)
    (path / "meta" / "info.json").write_text("[" * 10**6)


def lerobot_elsewhere(path: Path) -> None:
    lerobot(path, data_path="../../{chunk_index}.parquet")


def deep_metadata(path: Path) -> None:
    (path / "data").mkdir(parents=True)
    (path / "data" / "metadata.json").write_text("[" * 10**6)


def many_minari_episodes(path: Path) -> None:
    (path / "data" / "0").mkdir(parents=True)
    metadata = {"observation_space": "{}", "action_space": "{}", "data_format": "arrow", "total_episodes": 10**9}
    (path / "data" / "metadata.json").write_text(json.dumps(metadata))


def yaml_aliases(path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    path.write_text("\n".join(lines))


def yaml_merges(path: Path) -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 10)]
    path.write_text("\n".join(lines))


def yaml_cycle(path: Path) -> None:
    path.write_text("a: &a [*a, *a]\n")


def long_yaml(path: Path) -> None:
    path.write_text("".join(f"k{index}: 1\n" for index in range(90_000)))


def float8(path: Path) -> None:
    torch.save({**tensors(), "rewards": torch.zeros(ROWS).to(torch.float8_e4m3fn)}, path)


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "shared_lists.pt": (shared_lists, "rewards is a list with more numbers than the file can hold"),
    "shared_dictionaries.pt": (shared_dictionaries, "more than 10,000 parts"),
    "self_list.pt": (list_that_contains_itself, "rewards is a list with more numbers"),
    "bytearray.pt": (large_bytearray, "objects other than tensors"),
    "tensor_of_lists.pt": (tensor_of_shared_lists, "objects other than tensors"),
    "old.pt": (old_format_with_a_call, "objects other than tensors"),
    "compressed.pt": (compressed_pickle, "is compressed, which torch.save never does"),
    "views.pt": (wide_views_of_one_storage, "parts; refused"),
    "float8.pt": (float8, "rewards has dtype float8_e4m3fn; expected"),
    "packed.npz": (packed_npz, "unpacks to 152.6 MiB"),
    "members.npz": (many_members, "more than 10,000 parts"),
    "bzip.npz": (bzip_npz, "compressed in a way that numpy does not use"),
    "crossed.hdf5": (crossed_groups, "a hard link"),
    "episodes.hdf5": (hard_linked_episodes, "episode_1 is the same as another part of the file"),
    "arrays.hdf5": (hard_linked_arrays, "is the same as another part of the file"),
    "soft.hdf5": (soft_link, "rewards is a link to another place or file; refused"),
    "external.hdf5": (external_link, "rewards is a link to another place or file; refused"),
    "packed.hdf5": (packed_hdf5, "unpacks to 114.4 MiB"),
    "packed.parquet": (packed_parquet, "unpacks to 152.6 MiB"),
    "wide.parquet": (wide_parquet, "unpacks to 114.5 MiB"),
    "page.parquet": (large_parquet_page, "unpacks to 152.7 MiB"),
    "line.csv": (long_csv_line, "a line has more than 1,048,576 characters"),
    "columns.csv": (many_csv_columns, "the header has more than 10,000 parts"),
    "lines.csv": (empty_csv_lines, "unpacks to 770.6 MiB"),
    "quote.csv": (open_csv_quote, "field larger than field limit"),
    "cells.csv": (wide_csv_cells, "observation (observations) is not finite"),
    "packed_lerobot": (packed_lerobot, "unpacks to 152.6 MiB"),
    "deep_lerobot": (deep_lerobot, "nested too deeply"),
    "lerobot_elsewhere": (lerobot_elsewhere, "there are no files data/chunk-*/*.parquet"),
    "deep_minari": (deep_metadata, "nested too deeply"),
    "many_minari": (many_minari_episodes, "total_episodes is 1000000000, but the data has 0 episodes"),
    "aliases.yaml": (yaml_aliases, "more than 20,000 values, aliases included"),
    "merges.yaml": (yaml_merges, "more than 20,000 values, aliases included"),
    "cycle.yaml": (yaml_cycle, "more than 20,000 values, aliases included"),
    "long.yaml": (long_yaml, "more than 20,000 values"),
}
HARMLESS: dict[str, Callable[[Path], None]] = {"self_links.hdf5": self_links}

_MEASURE = r"""
import json, re, sys, time
from pathlib import Path
from rl_training.config import read_yaml
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.errors import RLTrainingError
import h5py, minari, pyarrow.parquet, pyarrow.dataset  # so that no file is charged for an import

for path in map(Path, sys.argv[1:]):
    start = time.process_time()
    try:
        answer = str((read_yaml if path.suffix == ".yaml" else load_transition_dataset)(path))
        refused = False
    except RLTrainingError as error:
        answer, refused = str(error), True
    seconds = time.process_time() - start
    # ru_maxrss would start from the peak of the process that started this one.
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    print(json.dumps([path.name, refused, answer, seconds, peak]), flush=True)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bool, str, float, float]]:
    """Read every hostile file in one process, and return answer, seconds and the process's peak memory so far."""
    for module in ("h5py", "minari", "pyarrow"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("hostile")
    for name, make in [*((name, make) for name, (make, _) in CASES.items()), *HARMLESS.items()]:
        make(folder / name)
    paths = [str(folder / name) for name in [*CASES, *HARMLESS]]
    done = subprocess.run([sys.executable, "-c", _MEASURE, *paths], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {name: tuple(rest) for name, *rest in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_are_refused_soon_and_in_little_memory(name: str, measured: dict[str, Any]) -> None:
    refused, answer, seconds, peak = measured[name]
    assert refused, answer
    assert CASES[name][1] in answer
    assert "\n" not in answer
    assert seconds < SECONDS
    assert peak < BYTES


@pytest.mark.parametrize("name", HARMLESS)
def test_groups_that_contain_themselves_do_no_harm(name: str, measured: dict[str, Any]) -> None:
    refused, answer, seconds, peak = measured[name]
    assert not refused, answer
    assert seconds < SECONDS
    assert peak < BYTES


def test_uniform_data_below_the_limit_is_still_read(tmp_path: Path) -> None:
    """Sparse rewards and constant observations pack hundreds of times, and are no attack."""
    count = 200_000
    values = {name: np.zeros((count, 2), np.float32) for name in ("observations", "actions")}
    np.savez_compressed(tmp_path / "a.npz", **values, rewards=np.zeros(count), terminals=np.arange(count) % 100 == 99)
    assert len(load_transition_dataset(tmp_path / "a.npz")) == count


# Paths and names


@pytest.mark.parametrize("path", ["a\0b.npz", "\ud800.npz", "x" * 300 + ".npz", "~nobody-of-that-name/a.npz"])
def test_impossible_paths_get_one_message(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = TransitionDataset.from_dict(rows())
    for attempt in (lambda: load_transition_dataset(path), lambda: write_transitions(dataset, path)):
        with pytest.raises(DatasetError) as caught:
            attempt()
        assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npz")  # opening it would wait for a writer
    with pytest.raises(DatasetError, match="neither a regular file nor a folder"):
        load_transition_dataset(tmp_path / "a.npz")


def test_names_from_files_appear_escaped(tmp_path: Path) -> None:
    values = rows()
    del values["rewards"]
    np.savez(tmp_path / "a\x1b[31m\n.npz", **values, **{"rew\x1b[2J\nards": np.zeros(ROWS)})
    with pytest.raises(DatasetError, match=r"found .*rew\\x1b\[2J\\nards") as caught:
        load_transition_dataset(tmp_path / "a\x1b[31m\n.npz")
    assert str(caught.value).isprintable()
    assert shown("é\u202e\ud800\t") == "é\\u202e\\ud800\\t"


# Memory


@pytest.mark.parametrize("version", [1, 2])
def test_memory_limits_of_cgroups_are_known(version: int, tmp_path: Path) -> None:
    process, root = tmp_path / "cgroup", tmp_path / "root"
    process.write_text("0::/job/step\n" if version == 2 else "5:cpu:/x\n4:memory:/job/step\n")
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    base = root if version == 2 else root / "memory"
    assert cgroup_memory(process, root) == 1 << 62

    def set_group(folder: Path, limit: object, used: int, cached: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"{'' if version == 2 else 'total_'}inactive_file {cached}\nanon 7\n")

    set_group(base / "job" / "step", "max" if version == 2 else 9223372036854771712, 500, 0)
    assert cgroup_memory(process, root) > 1 << 50
    set_group(base / "job", 1000, 700, 200)  # a limit of the group above holds as well
    assert cgroup_memory(process, root) == 500
    set_group(base / "job" / "step", 800, 700, 0)
    assert cgroup_memory(process, root) == 100
    process.write_text(process.read_text().replace("/job/step", "/of/the/host"))  # as in a container
    set_group(base, 400, 100, 0)
    assert cgroup_memory(process, root) == 300


@pytest.mark.parametrize("kind", ["npz", "hdf5", "parquet", "csv"])
def test_a_load_that_takes_more_than_half_of_the_memory_is_announced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"hdf5": "h5py", "parquet": "pyarrow"}.get(kind, "numpy"))
    path = tmp_path / f"a.{kind}"
    if kind == "npz":  # what is not compressed would be mapped
        np.savez_compressed(path, **rows())
    else:
        write_transitions(TransitionDataset.from_dict(rows()), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_transition_dataset(path)
    monkeypatch.setattr(hostile_files, "available_memory", lambda: 250 if kind == "npz" else 600)
    with pytest.warns(UserWarning, match=r"a\.\w+ needs \d+ bytes of memory, and \d+ bytes are available"):
        loaded = load_transition_dataset(path)
    assert len(loaded) == len(rows()["rewards"])  # it is loaded all the same


# Full disks


_CONVERT = """
import resource, sys
from rl_training.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.argv[:1] = ["rl-training", "data", "convert"]
main()
"""


@pytest.mark.parametrize("kind", ["npz", "pt", "hdf5", "parquet", "csv"])
def test_a_write_that_fails_ends_with_a_message_and_leaves_nothing(
    kind: str, tmp_path: Path, warm_python: WarmPython
) -> None:
    """No file may grow beyond 20 kB, as on a disk that is full in the middle of the write."""
    pytest.importorskip({"hdf5": "h5py", "parquet": "pyarrow"}.get(kind, "numpy"))
    numbers = np.random.default_rng(0).normal(size=(5000, 3))
    ends = np.arange(5000) == 4999
    np.savez(tmp_path / "source.npz", observations=numbers, actions=numbers, rewards=numbers[:, 0], terminals=ends)
    done = warm_python.run("-c", _CONVERT, tmp_path / "source.npz", tmp_path / f"target.{kind}")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert "cannot be written: File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source.npz"]


@pytest.mark.parametrize("kind", ["npz", "pt", "hdf5", "parquet", "csv", "minari"])
def test_a_disk_without_room_is_noticed_before_anything_is_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"hdf5": "h5py", "parquet": "pyarrow", "minari": "minari"}.get(kind, "numpy"))
    from rl_training.data.formats import storage

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    usage = storage.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(DatasetError, match=r"cannot be written: No space left on device: [\d.]+ \w+ needed, 10 bytes"):
        write_transitions(
            TransitionDataset.from_dict(rows()), "minari:a-v0" if kind == "minari" else tmp_path / f"a.{kind}"
        )
    assert list(tmp_path.iterdir()) == []
