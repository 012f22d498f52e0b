"""NumPy archives. Arrays are converted while they are read; those too large for memory are mapped from the file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats.columns import file_columns, is_known
from rl_training.data.formats.hostile_files import (
    available_memory,
    check_members,
    check_memory,
    check_packing,
    loaded_size,
)
from rl_training.data.formats.storage import atomic_write, read_each, storage_dtype
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

_CHUNK = 1 << 20  # bytes
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class _Entry(NamedTuple):
    """One array in the archive, as its header declares it."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    header_size: int

    @property
    def can_be_mapped(self) -> bool:
        stored_as_is = self.info.compress_type == zipfile.ZIP_STORED and not self.fortran
        return stored_as_is and self.dtype == storage_dtype(self.dtype) and 0 not in self.shape


def read(path: Path, wanted: Callable[[str], bool] = is_known) -> tuple[dict[str, Array], list[str]]:
    """Return the wanted arrays of an npz file under its names, and all names in it."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = _entries(archive, path)
            chosen = {name: entry for name, entry in entries.items() if wanted(name)}
            needed = {name: loaded_size(entry.shape, entry.dtype) for name, entry in chosen.items()}
            stored = sum(entry.info.compress_size for entry in chosen.values())
            check_packing(sum(needed.values()), min(stored, path.stat().st_size), str(path))
            mapped = set[str]()
            if 2 * sum(needed.values()) > available_memory():
                mapped = {name for name, entry in chosen.items() if entry.can_be_mapped}
            check_memory(sum(size for name, size in needed.items() if name not in mapped), str(path))

            def load(name: str) -> Array:
                return _map(path, file, chosen[name]) if name in mapped else _load(archive, chosen[name])

            return read_each(needed, load), list(entries)
    except DatasetError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DatasetError(f"{path}: not an npz file that can be read: {_reason(path, error)}") from None


def write(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset as an uncompressed npz file with D4RL's names."""
    columns = file_columns(dataset)
    with atomic_write(path, sum(array.nbytes for array in columns.values())) as file:
        np.savez(file, **columns)  # type: ignore[arg-type]


def _entries(archive: zipfile.ZipFile, path: Path) -> dict[str, _Entry]:
    """Read the headers of all arrays; refuse object arrays, and headers that do not agree with the archive."""
    entries = {}
    members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    check_members(len(members), str(path))
    for info in members:
        name = info.filename[: -len(".npy")]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DatasetError(f"{path}: {name} is compressed in a way that numpy does not use; refused")
        with archive.open(info) as file:
            version = np.lib.format.read_magic(file)
            if version not in _HEADERS:
                raise DatasetError(f"{path}: {name} has npy version {version}; expected 1.0 or 2.0")
            shape, fortran, dtype = _HEADERS[version](file)
            header_size = file.tell()
        if dtype.hasobject:
            raise DatasetError(
                f"{path}: {name} is an object array of shape {shape}: reading it would execute code; refused"
            )
        declared, held = int(np.prod(shape, dtype=object)) * dtype.itemsize, info.file_size - header_size
        if any(size < 0 for size in shape) or declared != held:
            raise DatasetError(
                f"{path}: {name} claims shape {shape} of {dtype}, {declared:,} bytes, but the file has {held:,} for it"
            )
        entries[name] = _Entry(info, shape, dtype, fortran, header_size)
    if not entries:
        raise DatasetError(f"{path}: there are no arrays in this archive")
    return entries


def _load(archive: zipfile.ZipFile, entry: _Entry) -> Array:
    """Read one array in chunks, so that it is never held in two types at once; zipfile compares its checksum."""
    size = max(1, entry.dtype.itemsize)
    count = (entry.info.file_size - entry.header_size) // size
    target = np.empty(count, storage_dtype(entry.dtype))
    step = max(1, _CHUNK // size)
    with archive.open(entry.info) as file:
        file.read(entry.header_size)
        for start in range(0, count, step):
            part = target[start : start + step]
            data = file.read(len(part) * size)
            if len(data) < len(part) * size:
                raise EOFError(f"{entry.info.filename} is cut off")
            with np.errstate(over="ignore"):
                part[:] = np.frombuffer(data, entry.dtype)
        file.read(1)  # zipfile compares the checksum at the end
    if entry.fortran:
        return np.ascontiguousarray(target.reshape(entry.shape[::-1]).T)
    return target.reshape(entry.shape)


def _map(path: Path, file: BinaryIO, entry: _Entry) -> Array:
    """Map an uncompressed array; the system reads pages when they are used, and writes stay in memory."""
    file.seek(entry.info.header_offset + 26)  # the local header ends with the lengths of the name and of extra fields
    name_size, extra_size = np.frombuffer(file.read(4), "<u2")
    offset = entry.info.header_offset + 30 + int(name_size) + int(extra_size) + entry.header_size
    return np.memmap(path, dtype=entry.dtype, mode="c", offset=offset, shape=entry.shape)


def _reason(path: Path, error: Exception) -> str:
    """Return why a file is not an npz archive, judged by its first bytes."""
    if path.is_dir():
        return "it is a folder"
    if not path.stat().st_size:
        return "it is empty"
    with path.open("rb") as file:
        start = file.read(6)
    if start[:1] == b"\x80":
        return "it is a pickle, which could execute code; refused"
    if start == b"\x93NUMPY":
        return "it is a single array (npy)"
    return "it is damaged or cut off" if isinstance(error, zipfile.BadZipFile) and start[:2] == b"PK" else str(error)
