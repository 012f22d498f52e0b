"""NumPy archives, read straight into their final arrays; what is too large for memory is mapped."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats.columns import file_columns, is_known
from rl_training.data.formats.limits import (
    available_memory,
    byte_size,
    check_memory,
    check_packing,
    narrow,
    replacing,
)
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

_CHUNK = 1 << 20  # small enough to be still in the cache when its checksum is taken
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class _Entry(NamedTuple):
    """One array in the archive, as its header declares it."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    header_size: int

    @property
    def stored(self) -> bool:
        return self.info.compress_type == zipfile.ZIP_STORED


def read(path: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the known arrays of an npz file under its names, and all names in it."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = _entries(archive, path)
            chosen = {name: entry for name, entry in entries.items() if is_known(name)}
            total = sum(byte_size(entry.shape, narrow(entry.dtype)) for entry in chosen.values())
            mapped = total > available_memory() // 2
            if mapped:
                loaded = (entry for entry in chosen.values() if not _can_map(entry))
                check_memory(sum(byte_size(entry.shape, narrow(entry.dtype)) for entry in loaded), str(path))
            arrays = {
                name: _map(path, file, entry) if mapped and _can_map(entry) else _load(archive, file, entry, path)
                for name, entry in chosen.items()
            }
            return arrays, list(entries)
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path}: not an npz file that can be read: {_reason(path, error)}") from None


def write(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset as an uncompressed npz file with D4RL's names."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **file_columns(dataset))  # type: ignore[arg-type]


def _entries(archive: zipfile.ZipFile, path: Path) -> dict[str, _Entry]:
    """Read the headers of all arrays, and refuse what is not plain numbers or not as large as it claims."""
    entries = {}
    for info in archive.infolist():
        if not info.filename.endswith(".npy"):
            continue
        name = info.filename[: -len(".npy")]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DatasetError(f"{path}: {name} is packed in a way that numpy does not use; refused")
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
        declared, held = byte_size(shape, dtype), info.file_size - header_size
        if any(size < 0 for size in shape) or declared != held:
            raise DatasetError(
                f"{path}: {name} claims shape {shape} of {dtype}, {declared:,} bytes, but the file has {held:,} for it"
            )
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            raise DatasetError(f"{path}: {name} claims {info.file_size:,} bytes, but {info.compress_size:,} are stored")
        check_packing(declared, info.compress_size, f"{path}: {name} of shape {shape}")
        entries[name] = _Entry(info, shape, dtype, fortran, header_size)
    if not entries:
        raise DatasetError(f"{path}: there are no arrays in this archive")
    return entries


def _load(archive: zipfile.ZipFile, file: BinaryIO, entry: _Entry, path: Path) -> Array:
    """Read one array into memory, and compare its checksum."""
    if not entry.stored:
        with archive.open(entry.info) as packed:
            packed.read(entry.header_size)
            array = _fill(packed, entry)[0]
            packed.read(1)  # at its end the archive's own checksum is compared
    else:
        file.seek(_data_offset(file, entry))
        checksum = zlib.crc32(file.read(entry.header_size))
        array, checksum = _fill(file, entry, checksum)
        if checksum != entry.info.CRC:
            raise DatasetError(f"{path}: {entry.info.filename} is damaged: its checksum does not agree")
    if entry.fortran:
        return np.ascontiguousarray(array.reshape(entry.shape[::-1]).T)
    return array.reshape(entry.shape)


def _fill(source: Any, entry: _Entry, checksum: int = 0) -> tuple[Array, int]:
    """Read the numbers of an entry chunk by chunk, converting them on the way, so that nothing is held twice.

    The detour over one small buffer, warm in the cache, is quicker than letting the system fill fresh pages.
    """
    size = max(1, entry.dtype.itemsize)
    count = byte_size(entry.shape, entry.dtype) // size
    target = np.empty(count, narrow(entry.dtype))
    step = max(1, _CHUNK // size)
    buffer = bytearray(min(step, count) * size)
    for start in range(0, count, step):
        part = target[start : start + step]
        view = memoryview(buffer)[: len(part) * size]
        done = 0
        while done < len(view):
            read = source.readinto(view[done:])
            if not read:
                raise EOFError(f"{entry.info.filename} is cut off")
            done += read
        checksum = zlib.crc32(view, checksum)
        with np.errstate(over="ignore"):
            part[:] = np.frombuffer(view, entry.dtype)
    return target, checksum


def _can_map(entry: _Entry) -> bool:
    return entry.stored and not entry.fortran and entry.dtype == narrow(entry.dtype) and 0 not in entry.shape


def _map(path: Path, file: BinaryIO, entry: _Entry) -> Array:
    """Map an array that is stored as it is; pages are read when they are used, and writes stay private."""
    offset = _data_offset(file, entry) + entry.header_size
    return np.memmap(path, dtype=entry.dtype, mode="c", offset=offset, shape=entry.shape)


def _data_offset(file: BinaryIO, entry: _Entry) -> int:
    """Return where an entry's bytes begin: after its local header, whose length only it knows."""
    file.seek(entry.info.header_offset)
    header = file.read(30)
    offset = entry.info.header_offset + 30 + int.from_bytes(header[26:28], "little")
    offset += int.from_bytes(header[28:30], "little")
    if len(header) < 30 or offset + entry.info.compress_size > os.fstat(file.fileno()).st_size:
        raise EOFError(f"{entry.info.filename} is cut off")
    return offset


def _reason(path: Path, error: Exception) -> str:
    """Say what a file that is no archive is instead, where its first bytes tell."""
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
