"""What stands between a file's header and memory: sizes are checked before anything is allocated."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import DatasetError, MissingExtraError

DENSEST = 1100
"""Deflate packs at most 1,032 bytes into one; what claims more than this was made to fill memory."""

_HARMLESS = 1 << 24  # 16 MiB: below this a dense packing is no threat, and constant flags pack very well


def available_memory() -> int:
    """Return how many bytes can be allocated without swapping, as far as the system tells."""
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


def check_packing(declared: int, stored: int, what: str) -> None:
    """Refuse ``declared`` bytes that ``stored`` bytes on disk cannot hold, however well they are packed."""
    if declared > _HARMLESS and declared > DENSEST * stored:
        raise DatasetError(f"{what} claims {declared:,} bytes, but {stored:,} are stored; refused")


def check_memory(declared: int, what: str) -> None:
    """Refuse to load more than there is memory for."""
    available = available_memory()
    if declared > available:
        raise DatasetError(f"{what} needs {declared:,} bytes of memory, but {available:,} are available")


def byte_size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the size of an array in bytes, without the overflow of fixed-width integers."""
    return math.prod(int(size) for size in shape) * dtype.itemsize


def narrow(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type an array is kept in: wide floats become float32 while they are read, all else stays."""
    return np.dtype(np.float32) if dtype.kind == "f" else dtype.newbyteorder("=")


def load_extra(module: str, what: str) -> Any:
    """Import an optional package, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(what, "offline") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to, and put the result in place of ``path`` once it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
