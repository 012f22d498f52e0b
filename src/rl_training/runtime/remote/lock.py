"""The lock of a run at a URL, which keeps two machines from training it.

It is a small file beside the run's folder that names its holder. The holder writes it again every few seconds. It ends
when the holder removes it, when the holder's process is gone, as far as that can be seen from here, or when it was not
written again for two minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
import warnings
from typing import Any

from rl_training.errors import RemoteError, RunLockedError, shown
from rl_training.runtime.remote.folder import RemoteFolder
from rl_training.urls import canonical, last_name, parent

REFRESH_SECONDS = 20.0
STALE_SECONDS = 120.0


class UrlLock:
    """Holds the lock of one URL.

    Attributes:
        lost: whether another process has taken the lock, because it was not written again for too long.
    """

    def __init__(self, url: str) -> None:
        self._url = url = canonical(url)
        is_bucket = "/" not in url.partition("://")[2]
        self._folder = RemoteFolder(url if is_bucket else str(parent(url)))
        self._name = ".lock" if is_bucket else f".{last_name(url)}.lock"
        self._token, self.lost = secrets.token_hex(8), False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lock of {url}", daemon=True)

    def acquire(self) -> None:
        """Take the lock, or raise an error that names its holder."""
        if not self._folder.create(self._name, self._content()):
            held = self._read()
            if held is not None and (reason := _why_held(held)):
                raise RunLockedError(
                    f"{self._url}: in use by {reason}. A lock ends {STALE_SECONDS:.0f} s after its holder's last sign"
                    f" of life; if that process is gone, wait, or remove {self._folder.url}/{self._name}"
                )
            if held is not None:
                warnings.warn(f"{self._url}: took over the lock of {_holder(held)}, which is gone", stacklevel=4)
            self._folder.write(self._name, self._content())
        held = self._read()  # two processes may have taken over the same lock
        if held is None or held.get("token") != self._token:
            raise RunLockedError(f"{self._url}: in use by {_holder(held or {})}")
        self._thread.start()

    def release(self) -> None:
        """Give the lock back, unless another process has it."""
        self._end.set()
        self._thread.join()
        with contextlib.suppress(RemoteError):  # without a connection it ends by its age
            if not self.lost and (held := self._read()) is not None and held.get("token") == self._token:
                self._folder.remove(self._name)

    def is_ours(self) -> bool:
        """Return whether no other process has taken the lock."""
        held = self._read()
        self.lost = self.lost or (held is not None and held.get("token") != self._token)
        return not self.lost

    def _keep(self) -> None:
        """Write the lock again and again, as long as it is ours."""
        while not self._end.wait(REFRESH_SECONDS):
            with contextlib.suppress(RemoteError):
                if not self.is_ours():
                    return
                self._folder.write(self._name, self._content())

    def _content(self) -> bytes:
        holder = {"process": os.getpid(), "host": socket.gethostname(), "time": time.time(), "token": self._token}
        return json.dumps(holder).encode()

    def _read(self) -> dict[str, Any] | None:
        """Return what the lock's file says; an empty answer if it cannot be understood."""
        content = self._folder.read(self._name)
        if content is None:
            return None
        try:
            held = json.loads(content)
            return {**held, "process": int(held["process"]), "time": float(held["time"])}
        except (LookupError, RecursionError, TypeError, ValueError):
            return {}


def _why_held(held: dict[str, Any]) -> str:
    """Return who holds a lock and since when there was no sign of life; nothing if the lock has ended."""
    age = max(0.0, time.time() - held.get("time", 0.0))
    if not held or age > STALE_SECONDS:
        return ""
    if held.get("host") == socket.gethostname() and not _is_alive(held["process"]):
        return ""
    return f"{_holder(held)}, last seen {age:.0f} s ago"


def _holder(held: dict[str, Any]) -> str:
    return f"process {held['process']} on {shown(held.get('host'))}" if "process" in held else "another process"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
