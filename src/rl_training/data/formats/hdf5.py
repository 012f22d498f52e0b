"""HDF5 files: D4RL's flat layout, and Minari's with one group for each episode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats.columns import file_columns, is_known
from rl_training.data.formats.episodes import EXTRAS, join
from rl_training.data.formats.limits import byte_size, check_memory, check_packing, load_extra, narrow, replacing
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

_EPISODE = re.compile(r"episode_(\d+)")
_PER_EPISODE = ("observations", "actions", "rewards", "terminations", "truncations")
_DAMAGE = (OSError, KeyError, RuntimeError, TypeError, ValueError)  # what h5py raises when it meets damage
_DEPTH = 3  # groups may contain themselves


def read(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the known arrays of an HDF5 file under its names, and all names in it."""
    h5py = load_extra("h5py", "reading HDF5 files")
    if path.is_file() and not path.stat().st_size:
        raise DatasetError(f"{path}: not an HDF5 file that can be read: it is empty")
    try:
        with h5py.File(path, "r") as file:
            numbers = sorted(int(match[1]) for name in file if (match := _EPISODE.fullmatch(name)))
            if numbers:
                episodes = {f"episode_{number}": f"episode_{number}/" for number in numbers}
                found = dict(_datasets(file, h5py, path, wanted=_is_episode_part))
                check_declared(found, path)
                return join(_episodes(found, episodes), str(path)), list(found)
            found = dict(_datasets(file, h5py, path, wanted=is_known))
            chosen = {name: dataset for name, dataset in found.items() if is_known(name)}
            check_declared(chosen, path)
            return {name: _load(dataset) for name, dataset in chosen.items()}, list(found)
    except _DAMAGE as error:
        raise _unreadable(path, error) from None


def write(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset in D4RL's layout."""
    h5py = load_extra("h5py", "writing HDF5 files")
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in file_columns(dataset).items():
            file.create_dataset(name, data=array, fletcher32=True)  # with checksums


def check_file(path: Path) -> None:
    """Refuse a Minari file whose arrays are larger than what is stored, or than memory."""
    h5py = load_extra("h5py", "reading HDF5 files")
    try:
        with h5py.File(path, "r") as file:
            check_declared(dict(_datasets(file, h5py, path, wanted=lambda name: True)), path)
    except _DAMAGE as error:
        raise _unreadable(path, error) from None


def check_declared(datasets: dict[str, Any], path: Path) -> None:
    """Compare what arrays claim with what is stored, and all of them together with memory."""
    for name, dataset in datasets.items():
        if dataset.shape is None:
            raise DatasetError(f"{path}: {name} is empty; expected rows of numbers")
        declared, stored = byte_size(dataset.shape, dataset.dtype), dataset.id.get_storage_size()
        if declared and not stored:
            raise DatasetError(f"{path}: {name} claims shape {dataset.shape}, but nothing of it is stored")
        check_packing(declared, stored, f"{path}: {name} of shape {dataset.shape}")
    check_memory(sum(byte_size(d.shape, narrow(d.dtype)) for d in datasets.values()), str(path))


def _unreadable(path: Path, error: Exception) -> DatasetError:
    if isinstance(error, DatasetError):
        return error
    reason = str(error).split("\n", 1)[0]
    return DatasetError(f"{path}: not an HDF5 file that can be read: damaged or cut off ({reason})")


def _is_episode_part(name: str) -> bool:
    parts = name.split("/")
    if len(parts) < 2 or not _EPISODE.fullmatch(parts[0]):
        return False
    return parts[1] in _PER_EPISODE or (parts[1] == "infos" and parts[-1] in EXTRAS)


def _datasets(group: Any, h5py: Any, path: Path, *, wanted: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays in a group and those below it; nothing outside the file is followed."""
    for key in group:
        name = f"{prefix}{key}"
        if isinstance(group.get(key, getlink=True), h5py.ExternalLink):
            if wanted(name):
                raise DatasetError(f"{path}: {name} lies in another file; refused")
            continue
        item = group.get(key)
        if isinstance(item, h5py.Dataset):
            if not prefix or wanted(name):
                if wanted(name) and (item.external or item.is_virtual):
                    raise DatasetError(f"{path}: {name} lies in another file; refused")
                if wanted(name) and item.dtype.kind not in "biuf" and not prefix.startswith("episode_"):
                    raise DatasetError(f"{path}: {name} has dtype {item.dtype}; expected numbers")
                yield name, item
        elif isinstance(item, h5py.Group) and prefix.count("/") < _DEPTH:
            yield from _datasets(item, h5py, path, wanted=wanted, prefix=f"{name}/")


def _episodes(found: dict[str, Any], episodes: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read one episode after another, with its groups as dictionaries."""
    names: dict[str, list[str]] = {episode: [] for episode in episodes}
    for name in found:
        names[name.split("/", 1)[0]].append(name)
    for episode, members in names.items():
        values: dict[str, Any] = {}
        for name in members:
            *groups, last = name.split("/")[1:]
            inner = values
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[last] = _load(found[name])
        yield episode, values


def _load(dataset: Any) -> Array:
    """Read one array, converting wide floats on the way."""
    target = np.empty(dataset.shape, narrow(dataset.dtype))
    if target.size:
        dataset.read_direct(target)
    return target
