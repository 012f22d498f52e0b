"""What all formats share: the type of stored arrays, optional packages, and writing a file completely or not at all."""

from __future__ import annotations

import errno
import importlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import numpy as np

from rl_training.data.formats.hostile_files import size_text
from rl_training.errors import DatasetError, MissingExtraError

Watcher = Callable[[str, int, int], None]
"""Is told what is done (reading or writing), how many bytes of it are done, and about how many there are."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watch_bytes(watcher: Watcher) -> Iterator[None]:
    """Tell ``watcher`` about all files that are read and written inside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def report_bytes(what: str, done: int, total: int) -> None:
    """Tell the watcher, if there is one, how far the reading or writing of a file is."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(what, done, total)


def read_each(sizes: Mapping[str, int], load: Callable[[str], Any]) -> dict[str, Any]:
    """Load arrays by their names, one after another, and report the bytes."""
    arrays: dict[str, Any] = {}
    done, total = 0, sum(sizes.values())
    for name, size in sizes.items():
        arrays[name] = load(name)
        done += size
        report_bytes("reading", done, total)
    return arrays


def storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type an array is kept in: floats of any width become float32 while they are read."""
    return np.dtype(np.float32) if dtype.kind == "f" else dtype.newbyteorder("=")


def load_extra(module: str, what: str) -> Any:
    """Import an optional package, or say which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(what, "offline") from None


def local_path(path: str | Path) -> Path:
    """Return a path with ``~`` expanded, or refuse one that no file can have."""
    try:
        expanded = Path(path).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError):
            expanded.lstat()
        return expanded
    except (OSError, ValueError, RuntimeError) as error:  # too long, NUL or surrogates, no home of that user
        raise DatasetError(f"{str(path)!r} is not the path of a file: {getattr(error, 'strerror', error)}") from None


def check_room(folder: Path, size: int) -> None:
    """Raise the error of a full disk before anything is written, if ``size`` bytes do not fit."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {size_text(size)} needed, {size_text(free)} free")


@contextmanager
def atomic_write(path: Path, size: int) -> Iterator[Any]:
    """Open a temporary file for writing, and rename it to ``path`` once it is complete; ``size`` is about its length.

    If anything fails, ``path`` stays as it was, the temporary file is removed, and a ``DatasetError`` gives the reason.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_room(path.parent, size)
        with _DeferringFile(temporary, "w+b") as file:
            file.expected = size
            try:
                yield file
            except Exception:
                if file.error is None:
                    raise
            if file.error is not None:
                raise file.error
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


class _DeferringFile(io.FileIO):
    """A file that keeps its first error instead of raising it, and discards later writes.

    HDF5 crashes the process, and torch raises errors without a reason, when a write fails. Both finish normally if
    they do not see the error, and ``atomic_write`` raises it afterwards.
    """

    error: OSError | None = None
    expected = 0
    _written = 0

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        self._written += size
        report_bytes("writing", self._written, max(self.expected, self._written))
        while len(rest):
            try:
                if self.error is not None:
                    raise self.error
                rest = rest[cast(int, super().write(rest)) :]  # a full disk may accept only a part
            except OSError as error:
                self.error = self.error or error
                self.seek(len(rest), os.SEEK_CUR)
                break
        return size

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return self.tell() if size is None else size
