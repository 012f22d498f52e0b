"""Guards against hostile files. Readers call them before they allocate memory or interpret a file's content.

No file may run code, refer to another file, or need much more memory than its size on disk. A file is refused within 2
seconds and with at most 1 GB of memory.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from rl_training.errors import DatasetError, shown

_HARMLESS_BYTES = 64 << 20  # less memory than this is never refused
_PACKING_LIMIT = 100  # recorded numbers pack 1 to 30 times
_MEMBER_LIMIT = 10_000  # arrays or names in one file
_PICKLE_LIMIT = 8 << 20  # bytes; the tensors of a pt file are outside its pickle
_OPCODE_LIMIT = 500_000
_DEPTH_LIMIT = 8  # groups in groups, or lists in lists
_JSON_LIMIT = 16 << 20  # bytes


def size_text(size: int) -> str:
    """Return a number of bytes as text."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):,.1f} {unit}"
    return f"{size} bytes"


# Memory


def available_memory() -> int:
    """Return how many bytes can be allocated without swapping, as far as the system and its cgroup report."""
    return min(_system_memory(), cgroup_memory())


def _system_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 1 << 62


def cgroup_memory(process: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes the process's cgroup and the groups above it still allow (version 1 or 2)."""
    try:
        lines = [line.split(":", 2) for line in process.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return 1 << 62
    free = 1 << 62
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers == "":
            base, names, cache = root, ("memory.max", "memory.current"), "inactive_file"
        elif "memory" in controllers.split(","):
            base, names, cache = (
                root / "memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                "total_inactive_file",
            )
        else:
            continue
        group = base / path.lstrip("/")  # in a container the path may be the host's; then only ``base`` exists
        for folder in (group, *group.parents):
            if folder != base and base not in folder.parents:
                break
            try:
                limit, used = (int((folder / name).read_text(encoding="ascii")) for name in names)
            except (OSError, ValueError):  # no such file, or "max"
                continue
            free = min(free, max(0, limit - used + _reclaimable(folder / "memory.stat", cache)))
    return free


def _reclaimable(file: Path, key: str) -> int:
    """Return how many bytes of a cgroup's use are file cache that the kernel can free."""
    try:
        fields = dict(line.split(" ", 1) for line in file.read_text(encoding="ascii").splitlines())
        return int(fields.get(key, 0))
    except (OSError, ValueError):
        return 0


def loaded_size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return how many bytes an array takes once it is loaded: at least 4 per number, since most become float32."""
    return math.prod(int(size) for size in shape) * (4 if dtype.kind == "f" else max(4, dtype.itemsize))


def check_memory(needed: int, what: str) -> None:
    """Refuse to load more than there is memory for, and warn if it is more than half of that."""
    available = available_memory()
    text = f"{what} needs {size_text(needed)} of memory, and {size_text(available)} are available"
    if needed > available:
        raise DatasetError(text)
    if 2 * needed > available:
        warnings.warn(shown(text), stacklevel=2)


def check_packing(unpacked: int, stored: int, what: str) -> None:
    """Refuse data that unpacks to far more than is stored, as a file made to fill memory does."""
    if unpacked > _HARMLESS_BYTES and unpacked > _PACKING_LIMIT * stored:
        raise DatasetError(
            f"{what} unpacks to {size_text(unpacked)}, but only {size_text(stored)} are stored; refused"
            " (data that really is so uniform can be stored uncompressed)"
        )


def check_members(count: int, what: str) -> None:
    """Refuse a file of more parts than any dataset has."""
    if count > _MEMBER_LIMIT:
        raise DatasetError(f"{what} has more than {_MEMBER_LIMIT:,} parts; refused")


# JSON


def read_json(path: Path) -> Any:
    """Return the content of a JSON file of reasonable size and depth."""
    try:
        if path.stat().st_size > _JSON_LIMIT:
            raise DatasetError(f"{path}: larger than {size_text(_JSON_LIMIT)}; refused")
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise DatasetError(f"{path}: cannot be read: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path}: cannot be read: {error}") from None


# Files of torch.save


def check_torch_file(path: Path) -> None:
    """Refuse a pt file that holds anything but tensors and plain values, or more of these than a dataset has.

    ``torch.load(weights_only=True)`` runs no foreign code, but its own functions can be used to fill memory.
    """
    with path.open("rb") as file:
        if not is_torch_archive(file):  # the format before torch 1.6: five pickles, then the tensors
            for _ in range(5):
                _check_pickle(file, path)
            return
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            check_members(len(members), str(path))
            for info in members:
                if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                    raise DatasetError(f"{path}: {info.filename} is compressed, which torch.save never does; refused")
                if info.filename.lower().endswith(".pkl"):
                    if info.file_size > _PICKLE_LIMIT:
                        raise _too_many_objects(path)
                    _check_pickle(io.BytesIO(archive.read(info)), path)


def is_torch_archive(file: BinaryIO) -> bool:
    """Return whether a file starts like torch's zip format."""
    start = file.read(4)
    file.seek(0)
    return start == b"PK\x03\x04"


def _check_pickle(stream: BinaryIO, path: Path) -> None:
    """Read one pickle's instructions without executing them."""
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if number > _OPCODE_LIMIT:
                raise _too_many_objects(path)
            is_call = opcode.name in ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4")
            if is_call or (opcode.name == "GLOBAL" and not _builds_tensors(str(argument))):
                raise DatasetError(
                    f"{path}: refused, since reading it could execute code: it holds objects other than tensors;"
                    " expected a dictionary of tensors"
                )
    except DatasetError:
        raise
    except Exception as error:  # pickletools raises what it meets in damaged bytes
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DatasetError(f"{path}: not a pt file that can be read: damaged or cut off ({reason})") from None


def _builds_tensors(name: str) -> bool:
    """Return whether a name in a pickle, such as ``torch FloatStorage``, is one that tensors are saved with."""
    module, _, attribute = name.partition(" ")
    if module == "torch":
        return attribute.endswith("Storage") or isinstance(getattr(torch, attribute, None), torch.dtype)
    if module == "torch._utils":
        return attribute.startswith("_rebuild_")
    return name in ("collections OrderedDict", "torch.storage UntypedStorage", "torch.serialization _get_layout")


def _too_many_objects(path: Path) -> DatasetError:
    return DatasetError(f"{path}: holds too many Python objects; refused; expected a dictionary of tensors")


def check_list(values: Any, what: str, *, budget: int = _OPCODE_LIMIT, depth: int = 0) -> int:
    """Return how many lists and numbers there are; lists that contain themselves or repeat their parts are refused.

    A pickle stores a list once and may refer to it many times, so a few bytes can expand to billions of numbers.
    """
    count = 1
    for value in values:
        if count > budget or depth > _DEPTH_LIMIT:
            raise DatasetError(f"{what} is a list with more numbers than the file can hold; refused; expected a tensor")
        nested = isinstance(value, (list, tuple))
        count += check_list(value, what, budget=budget - count, depth=depth + 1) if nested else 1
    return count


# HDF5


def hdf5_datasets(file: Any, h5py: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield all arrays of an HDF5 file with their names. Links to elsewhere, or to the same thing twice, are refused.

    Only a group that contains itself is left out without an error.
    """
    seen: set[int] = set()
    # Each entry: a group, the start of its members' names, and the addresses of the groups around it.
    pending: list[tuple[Any, str, frozenset[int]]] = [(file, "", frozenset([_address(file, h5py)]))]
    while pending:
        group, prefix, around = pending.pop()
        inner: list[tuple[Any, str, frozenset[int]]] = []
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise DatasetError(f"{path}: {name} is a link to another place or file; refused")
            item = group[key]
            address = _address(item, h5py)
            if isinstance(item, h5py.Group) and address in around:
                continue
            if address in seen:
                raise DatasetError(f"{path}: {name} is the same as another part of the file (a hard link); refused")
            seen.add(address)
            if isinstance(item, h5py.Group):
                if len(around) > _DEPTH_LIMIT:
                    raise DatasetError(f"{path}: {name} is nested too deeply; refused")
                inner.append((item, f"{name}/", around | {address}))
            elif isinstance(item, h5py.Dataset):
                yield name, item
        pending.extend(reversed(inner))


def _address(item: Any, h5py: Any) -> int:
    return int(h5py.h5o.get_info(item.id).addr)


def check_hdf5_sizes(datasets: dict[str, Any], path: Path, copies: int = 1) -> None:
    """Compare the declared sizes of arrays with the stored sizes, and with the memory for ``copies`` copies of them."""
    for name, dataset in datasets.items():
        if dataset.external or dataset.is_virtual:
            raise DatasetError(f"{path}: {name} is stored in another file; refused")
        if dataset.shape is None:
            raise DatasetError(f"{path}: {name} is empty; expected rows of numbers")
        if dataset.size and not dataset.id.get_storage_size():
            raise DatasetError(f"{path}: {name} claims shape {dataset.shape}, but nothing of it is stored")
    needed = sum(loaded_size(dataset.shape, dataset.dtype) for dataset in datasets.values())
    check_packing(needed, sum(dataset.id.get_storage_size() for dataset in datasets.values()), str(path))
    check_memory(copies * needed, str(path))
