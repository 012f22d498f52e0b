"""One process a run: whoever trains in a run's folder holds a lock on it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

from rl_training.errors import CheckpointError, RunLockedError

try:
    import fcntl
except ImportError:  # Windows has no such lock, and its runs do without
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def lock_run(run_dir: Path) -> Iterator[None]:
    """Hold a run's folder, or say which process holds it.

    It is a lock of the operating system on the file ``.lock``: it goes with its process, however that ends, and the
    file itself, which stays behind, means nothing. It has to be taken after worker processes were started: they would
    inherit it.
    """
    if fcntl is None:
        yield
        return
    try:
        file = os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise CheckpointError(f"{run_dir}: cannot be written to: {error.strerror}") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
                raise RunLockedError(f"{run_dir}: in use by {holder}, which trains it at this moment") from None
            warnings.warn(f"{run_dir}: no lock to be had ({error.strerror}), take care to use it once", stacklevel=3)
        with contextlib.suppress(OSError):  # on a full disk the lock holds, and nobody can be told whose it is
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(file)
