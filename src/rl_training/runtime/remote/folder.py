"""A folder at an fsspec URL, and the index of the files that make up its run.

The index ``mirror.json`` is written last, so it names complete files only. Files that only an earlier index names are
removed after that. A reader who follows the index therefore never sees a part of an upload.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rl_training.errors import RemoteError, shown
from rl_training.runtime.checkpoint_files import checkpoint_order, is_segment
from rl_training.urls import canonical, open_filesystem

INDEX = "mirror.json"

_FORMAT = 1


@dataclass(frozen=True)
class Index:
    """The files of a folder at a URL.

    Attributes:
        version: changes with every upload; empty if the folder has no index and was listed instead.
        files: by name: ``bytes`` and, from an index, ``sha256`` and ``mtime``, the time of its last change in
            nanoseconds; a small file that must fit the others has its ``text`` instead.
    """

    version: str = ""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes, where: str) -> Index | None:
        """Read an index; None if an upload of it was cut off. Names that lead out of the folder are refused."""
        try:
            values = json.loads(content)
            version, format_ = str(values["version"]), values["format"]
            files = {str(name): _entry(entry) for name, entry in dict(values["files"]).items()}
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            return None
        if format_ != _FORMAT:
            raise RemoteError(f"{where}: format {format_!r}, this version reads format {_FORMAT}")
        for name in files:
            if not is_inside(name):
                raise RemoteError(f"{where}: names the file {shown(name)}, which is not in its folder")
        return cls(version, files)

    def to_bytes(self) -> bytes:
        """Return the content of ``mirror.json``."""
        return json.dumps({"format": _FORMAT, "version": self.version, "files": self.files}, indent=1).encode()


def new_version() -> str:
    """Return a version for an index that no other upload has."""
    return secrets.token_hex(8)


def is_fixed(name: str) -> bool:
    """Return whether a file never changes once it is complete: a part of a checkpoint, or a replay segment."""
    parts = PurePosixPath(name).parts
    if len(parts) == 2 and parts[0] == "replay":
        return is_segment(parts[1])
    return len(parts) > 2 and parts[-3] == "checkpoints" and checkpoint_order(parts[-2]) is not None


class RemoteFolder:
    """The files below a URL. Every failure becomes a ``RemoteError``, whatever the file system raises."""

    def __init__(self, url: str) -> None:
        self.url = canonical(url)
        self._files, self._path = open_filesystem(self.url)
        self._made: set[str] = set()
        # A path without a root begins with a bucket: its objects are written whole, and folders need not be made.
        self._has_objects = not self._path.startswith("/")

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with self._failures("cannot be read"):
            try:
                return bytes(self._files.cat_file(self._at(name)))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that a reader sees its earlier content or the new one, if the file system can do that."""
        target, temporary = self._at(name), self._at(_temporary(name))
        with self._failures("cannot be written to"):
            if self._has_objects:
                self._files.pipe_file(target, content)
                return
            self._make_parent(target)
            self._files.pipe_file(temporary, content)
            try:
                self._files.mv(temporary, target)
            except (FileExistsError, FileNotFoundError, NotImplementedError, ValueError):  # it has no such operation
                self._files.pipe_file(target, content)
                self._remove(temporary)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file if there is none, and return whether it was written."""
        target = self._at(name)
        with self._failures("cannot be written to"):
            self._make_parent(target)
            try:
                self._files.pipe_file(target, content, mode="create")
            except FileExistsError:
                return False
            except (NotImplementedError, TypeError, ValueError):  # a file system of an older fsspec
                if self._files.exists(target):
                    return False
                self._files.pipe_file(target, content)
        return True

    def put(self, name: str, source: Path) -> None:
        """Copy a local file to the URL. ``FileNotFoundError`` says that the local file is gone."""
        target = self._at(name)
        try:
            with self._failures("cannot be written to"):
                self._make_parent(target)
                self._files.put_file(str(source), target)
        except RemoteError:
            if not source.exists():
                raise FileNotFoundError(source) from None
            raise

    def get(self, name: str, target: Path) -> bool:
        """Copy a file to a local path and return whether there is one."""
        with self._failures("cannot be read"):
            try:
                self._files.get_file(self._at(name), str(target))
            except (FileNotFoundError, NotADirectoryError):
                return False
        return target.is_file()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._failures("cannot be written to"):
            self._remove(self._at(name))

    def sizes(self) -> dict[str, int]:
        """Return the names and sizes of all files below the URL."""
        with self._failures("cannot be read"):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        start = self._files._strip_protocol(self._path).rstrip("/") + "/"
        names = {path.removeprefix(start): int(info.get("size") or 0) for path, info in found.items()}
        return {name: size for name, size in names.items() if is_inside(name)}

    def folders(self) -> list[str]:
        """Return the names of the folders in this one."""
        with self._failures("cannot be read"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        names = [str(info["name"]).rstrip("/").rpartition("/")[2] for info in found if info["type"] == "directory"]
        return sorted(name for name in names if is_inside(name))

    def exists(self) -> bool:
        """Return whether there is anything at the URL."""
        with self._failures("cannot be read"):
            self._files.invalidate_cache()
            return bool(self._files.exists(self._path))

    def read_index(self) -> Index | None:
        """Return the index, or None if there is none or its upload was cut off."""
        content = self.read(INDEX)
        return Index.parse(content, f"{self.url}/{INDEX}") if content is not None else None

    def read_files(self) -> Index | None:
        """Return the index or, without one, the files that are there; None if there are none."""
        index = self.read_index()
        if index is not None:
            return index
        found = {name: {"bytes": size} for name, size in self.sizes().items() if name != INDEX}
        return Index("", found) if found else None

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(path)

    def _make_parent(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if not self._has_objects and folder not in self._made:
            with contextlib.suppress(FileExistsError):
                self._files.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each file system has errors of its own
            self._made.clear()
            text = shown(error) or type(error).__name__
            raise RemoteError(f"{self.url}: {what}: {text}") from error


def _entry(values: Any) -> dict[str, Any]:
    if "text" in values:
        return {"text": str(values["text"]).encode().decode()}  # text that is not UTF-8 raises a ValueError
    mtime = int(values["mtime"])
    if not 0 <= mtime < 2**63:
        raise ValueError("not a time in nanoseconds")
    return {"bytes": int(values["bytes"]), "sha256": str(values["sha256"]), "mtime": mtime}


def _temporary(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_name(f".{path.name}.tmp"))


def is_inside(name: str) -> bool:
    """Return whether a name is that of a file below its folder, on any system; ``C:x`` names a drive on Windows."""
    is_plain = name.isprintable() and "\\" not in name and name[1:2] != ":"
    return is_plain and not set(name.split("/")) & {"", ".", ".."}
