"""HDF5 files: D4RL's flat layout, and Minari's with one group for each episode."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats.columns import file_columns, is_known
from rl_training.data.formats.episodes import EXTRAS, join
from rl_training.data.formats.hostile_files import check_hdf5_sizes, hdf5_datasets
from rl_training.data.formats.storage import atomic_write, load_extra, read_each, storage_dtype
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

_EPISODE = re.compile(r"episode_(\d{1,18})")
_PER_EPISODE = ("observations", "actions", "rewards", "terminations", "truncations")
_DAMAGE = (OSError, KeyError, RuntimeError, TypeError, ValueError)  # what h5py raises for damaged files


def read(path: Path, wanted: Callable[[str], bool] = is_known) -> tuple[dict[str, Array], list[str]]:
    """Return the wanted arrays of an HDF5 file under its names, and all names in it."""
    h5py = load_extra("h5py", "reading HDF5 files")
    if path.is_file() and not path.stat().st_size:
        raise DatasetError(f"{path}: not an HDF5 file that can be read: it is empty")
    try:
        with h5py.File(path, "r") as file:
            found = dict(hdf5_datasets(file, h5py, path))
            parts = {name: dataset for name, dataset in found.items() if _is_episode_part(name)}
            if parts:
                check_hdf5_sizes(parts, path, copies=2)  # as episodes, and joined
                return join(_episodes(parts), str(path)), list(parts)
            chosen = {name: dataset for name, dataset in found.items() if wanted(name)}
            for name, dataset in chosen.items():
                if dataset.dtype.kind not in "biuf":
                    raise DatasetError(f"{path}: {name} has dtype {dataset.dtype}; expected numbers")
            check_hdf5_sizes(chosen, path)
            sizes = {name: dataset.nbytes for name, dataset in chosen.items()}
            return read_each(sizes, lambda name: _load(chosen[name])), list(found)
    except DatasetError:
        raise
    except _DAMAGE as error:
        reason = str(error).split("\n", 1)[0]
        raise DatasetError(f"{path}: not an HDF5 file that can be read: damaged or cut off ({reason})") from None


def write(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset in D4RL's layout, with checksums."""
    h5py = load_extra("h5py", "writing HDF5 files")
    columns = file_columns(dataset)
    with (
        atomic_write(path, sum(array.nbytes for array in columns.values())) as target,
        h5py.File(target, "w") as file,
    ):
        for name, array in columns.items():
            file.create_dataset(name, data=array, fletcher32=True)


def _is_episode_part(name: str) -> bool:
    parts = name.split("/")
    if len(parts) < 2 or not _EPISODE.fullmatch(parts[0]):
        return False
    return parts[1] in _PER_EPISODE or (parts[1] == "infos" and parts[-1] in EXTRAS)


def _episodes(datasets: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read one episode after another in the order of their numbers, with groups as dictionaries."""
    members: dict[str, list[str]] = {}
    for name in datasets:
        members.setdefault(name.split("/", 1)[0], []).append(name)
    for episode in sorted(members, key=lambda name: int(name.removeprefix("episode_"))):
        values: dict[str, Any] = {}
        for name in members[episode]:
            *groups, last = name.split("/")[1:]
            inner = values
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[last] = _load(datasets[name])
        yield episode, values


def _load(dataset: Any) -> Array:
    """Read one array; HDF5 converts wide floats while it reads."""
    target = np.empty(dataset.shape, storage_dtype(dataset.dtype))
    if target.size:
        dataset.read_direct(target)
    return target
