"""The connection to Ray: a new instance on this machine, or a cluster that runs already."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import ModuleType

from rl_training.errors import ConfigError, MissingExtraError, shown

_CONNECT_SECONDS = 5.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # with an empty frame of settings
_SETTINGS_FRAME = 4
_OBJECT_STORE_BYTES = 2**29  # of an instance on this machine; weights and episodes are far smaller
TOKEN_HINT = ". If the cluster asks for a token, this machine needs the same one"
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class RaySession:
    """A connection to Ray. ``close`` ends it, unless the program was connected before.

    Attributes:
        ray: the module.
        cpus: the CPUs of the cluster, and how many of them nothing has reserved.
    """

    def __init__(self, address: str | None) -> None:
        """Connect to ``address`` (``auto`` or host:port), to ``RAY_ADDRESS``, or start Ray on this machine."""
        self.ray = import_ray("num_workers")
        self._owned = not self.ray.is_initialized()
        if self._owned:
            _connect(self.ray, address or os.environ.get("RAY_ADDRESS") or "local")
        self.cpus = tuple(
            float(resources.get("CPU", 0.0))
            for resources in (self.ray.cluster_resources(), self.ray.available_resources())
        )

    def close(self) -> None:
        """End the connection, and with it an instance that was started for it."""
        if self._owned and self.ray.is_initialized():
            self.ray.shutdown()


def import_ray(what: str) -> ModuleType:
    """Return the module ``ray``, or raise an error that names the extra; ``what`` needs it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    try:
        import ray
    except ImportError:
        raise MissingExtraError(what, "scale") from None
    return ray


def _connect(ray: ModuleType, address: str) -> None:
    local = address == "local"
    require_reachable(address, f"ray_address = {address!r}")
    if local:
        os.environ.setdefault("RAY_worker_niceness", "0")  # else all other processes go before the workers
    options = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES} if local else {}
    try:
        with _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
    except Exception as error:  # Ray raises plain exceptions, too, for example if it does not start within 30 seconds
        reason = shown(str(error).strip().partition("\n")[0])
        raise ConfigError(
            f"ray_address = {address!r}: there is no connection to Ray: {reason}{TOKEN_HINT}"
            if not local
            else f"Ray does not start: {reason}"
        ) from None


def require_reachable(address: str, setting: str) -> None:
    """Refuse an address where nothing, or something else, answers: Ray itself would try for minutes.

    ``setting`` begins the message. ``auto`` may be the address of a cluster that was killed, so it is tried as well.
    """
    if address == "auto":
        found = _address_of_auto()
        address, setting = found or "local", f"{setting}: {found}"
    if address == "local":
        return
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or "://" in address:
        raise ConfigError(f"{setting}: expected auto or host:port, such as 10.0.0.1:6379")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.sendall(_HTTP2_GREETING)  # the head of a cluster speaks gRPC, which is HTTP/2
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{setting}: no Ray cluster answers there: {error}") from None
    if len(answer) < 4 or answer[3] != _SETTINGS_FRAME:
        raise ConfigError(f"{setting}: what answers there is not a Ray cluster")


def _address_of_auto() -> str | None:
    """Return the address that Ray takes for ``auto``; None if Ray finds none, which it then says itself."""
    from ray._private import services

    try:
        address: str | None = services.canonicalize_bootstrap_address("auto")
    except (AttributeError, ConnectionError, ValueError):
        return None
    return address


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of signals, which Ray replaces, and let the processes of Ray ignore a closed terminal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP]) if hasattr(signal, "SIGHUP") else None
    try:
        yield
    finally:
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
