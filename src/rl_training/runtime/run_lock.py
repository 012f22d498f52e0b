"""Locks that keep two processes from training the same run."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, RunLockedError
from rl_training.runtime.checkpoint_files import open_without_following, refuse_links

try:
    import fcntl
except ImportError:  # Windows has no such locks: runs there are not locked
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def lock_run(run_dir: Path, doing: str = "training this run") -> Iterator[None]:
    """Hold the lock of a run's folder, or raise an error that names the process that holds it and what it is doing.

    It is a lock of the operating system on the file ``.lock``. The lock ends when its process ends; the file remains
    and has no meaning by itself. Take the lock after worker processes were started, because they would inherit it. A
    run that contains symbolic links is refused.
    """
    try:
        refuse_links(run_dir)
        file = _open(run_dir / ".lock")
    except OSError as error:
        raise CheckpointError(f"{run_dir}: cannot be written to: {error.strerror}") from None
    try:
        if fcntl is not None:
            if not _acquire(file, fcntl.flock, str(run_dir)):
                raise RunLockedError(f"{run_dir}: in use by {_holder(file)}, which is {doing}")
            _sign(file)
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def lock_configuration(output_dir: Path, config: dict[str, Any]) -> Iterator[None]:
    """Hold the lock of a configuration below ``output_dir``, so that two processes do not both start a run of it.

    Worker processes do not inherit this lock. Its file is removed at the end, unless the process is killed. If nothing
    can be written there, no lock is taken: a finished run can still be read, and starting a run fails anyway.
    """
    if fcntl is None:
        yield
        return
    key = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
    path = output_dir / f".resume-auto-{key}.lock"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        file = _open(path)
    except OSError as error:
        if path.is_symlink():
            raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from None
        yield
        return
    try:
        acquired = _acquire(file, fcntl.lockf, str(output_dir))
        # The process that held the lock may have removed the file between our opening and locking it.
        if not acquired or not path.exists() or not os.path.samestat(os.fstat(file), path.stat()):
            raise RunLockedError(f"{output_dir}: {_holder(file)} is training a run of this configuration")
        _sign(file)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        os.close(file)


def _open(path: Path) -> int:
    return open_without_following(path, os.O_RDWR | os.O_CREAT)


def _acquire(file: int, lock: Any, where: str) -> bool:
    """Try to take a lock and return whether no other process has it."""
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        warnings.warn(
            f"{where}: the file system does not support locks ({error.strerror});"
            " do not train this run in two processes at once",
            stacklevel=4,
        )
    return True


def _holder(file: int) -> str:
    return os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"


def _sign(file: int) -> None:
    """Write into the lock's file who holds it."""
    with contextlib.suppress(OSError):  # on a full disk the lock works, but its holder cannot be named
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def is_locked(run_dir: Path) -> bool:
    """Return whether a process is training this run."""
    if fcntl is None:
        return False
    try:
        file = open_without_following(run_dir / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(file)
    return False
