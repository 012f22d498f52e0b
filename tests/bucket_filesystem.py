"""Two fsspec file systems for tests, which can be told to fail or to kill the process in the middle of a write.

``bucket://`` has objects, which are written whole, and neither renames nor locks. ``disk://`` has files, of which a
kill leaves a part. Both are below the folder that ``BUCKET`` names, so that several processes see the same files.
``BUCKET_KILL`` says when to kill: ``latest 2`` at the second write of a file whose path contains ``latest``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec import AbstractFileSystem


class Bucket(AbstractFileSystem):
    """Counts its writes, and calls ``before_write`` and ``after_write`` with the object's path."""

    protocol = "bucket"
    cachable = False
    writes: ClassVar[list[str]] = []
    before_write: ClassVar[Callable[[str], None]] = staticmethod(lambda path: None)
    after_write: ClassVar[Callable[[str], None]] = staticmethod(lambda path: None)

    def _file(self, path: str) -> Path:
        return Path(os.environ["BUCKET"]) / self._strip_protocol(path).lstrip("/")

    def _write(self, path: str, content: bytes) -> None:
        type(self).before_write(path)
        self.writes.append(path)
        file = self._file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        name, _, count = os.environ.get("BUCKET_KILL", "").partition(" ")
        if name and name in path and sum(name in earlier for earlier in self.writes) == int(count):
            self._write_part(file, content)
            os.kill(os.getpid(), signal.SIGKILL)
        file.write_bytes(content)
        type(self).after_write(path)

    def _write_part(self, file: Path, content: bytes) -> None:
        """Do what a write that is cut off does: nothing."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_options: Any) -> None:
        if mode == "create" and self._file(path).exists():
            raise FileExistsError(path)
        self._write(path, value)

    def put_file(self, lpath: str, rpath: str, **_options: Any) -> None:
        self._write(rpath, Path(lpath).read_bytes())

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_options: Any) -> bytes:
        return self._file(path).read_bytes()[start:end]

    def get_file(self, rpath: str, lpath: str, **_options: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))

    def rm_file(self, path: str) -> None:
        self._file(path).unlink()

    def mv(self, *_arguments: Any, **_options: Any) -> None:
        raise NotImplementedError

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        file, name = self._file(path), self._strip_protocol(path)
        if file.is_dir():
            return {"name": name, "size": 0, "type": "directory"}
        return {"name": name, "size": file.stat().st_size, "type": "file"}

    def ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        name = self._strip_protocol(path)
        found = [self.info(f"{name}/{file.name}") for file in sorted(self._file(path).iterdir())]
        return found if detail else [entry["name"] for entry in found]


class Disk(Bucket):
    """Writes files in place, and can rename them."""

    protocol = "disk"
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("disk://").strip("/")

    def _write_part(self, file: Path, content: bytes) -> None:
        file.write_bytes(content[: len(content) // 2])

    def mv(self, path1: str, path2: str, **_options: Any) -> None:
        self._file(path1).replace(self._file(path2))


for _class in (Bucket, Disk):
    fsspec.register_implementation(_class.protocol, _class, clobber=True)
