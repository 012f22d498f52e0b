"""Signals that ask the program to stop (SIGINT, SIGTERM, SIGHUP), and time limits on foreign code."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import NoReturn

_PATIENCE = 1.0  # seconds that a call of an environment may still take after a request to stop
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_HAS_TIMER = hasattr(signal, "setitimer")


class Interrupted(BaseException):
    """A signal asked the program to stop. It is not an ``Exception``, so code that catches all errors lets it pass."""


class OutOfTimeError(Exception):
    """The body of a ``TimeLimit`` took too long."""


class _TimeIsUp(BaseException):
    """Raised by the alarm of a ``TimeLimit``."""


class _Requests:
    """The state that the signal handlers share. There is one, as there is one set of handlers in a process."""

    asked: str | None = None
    """The name of the signal that asked to stop."""
    stop: Callable[[str], None] | None = None
    """Takes the request while a run is in progress. None: ``Interrupted`` is raised where the program stands."""
    in_limit = False
    """Whether a ``TimeLimit`` is active."""
    alarm_ready = False
    """Whether the handler of a ``TimeLimit`` is installed already, which takes longer than a step of some tasks."""
    leave_on_second = False
    """Whether a second signal ends the process with a message, as on the command line."""
    process = 0
    """The process that installed the handlers. One that it forked leaves signals to it."""


_requests = _Requests()


def asked_to_stop() -> str | None:
    """Return the name of the signal that asked to stop, or None."""
    return _requests.asked


def raise_if_asked_to_stop() -> None:
    """Raise ``Interrupted`` if a signal has asked to stop."""
    if _requests.asked is not None:
        raise Interrupted(_requests.asked)


@contextlib.contextmanager
def answer_signals() -> Iterator[None]:
    """Handle signals for a whole program: the first one raises ``Interrupted``, a second one ends the process.

    Inside ``stop_on_signals`` the first signal asks the run to stop instead.
    """
    if _requests.leave_on_second or threading.current_thread() is not threading.main_thread():
        yield
        return
    _requests.asked, _requests.leave_on_second = None, True
    try:
        with _handlers():
            yield
    finally:
        _requests.asked, _requests.leave_on_second = None, False


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Call ``stop`` with the signal's name on the first signal. Outside ``answer_signals`` a second acts as usual.

    A call of an environment that takes longer than a second after that raises ``Interrupted``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, _requests.stop = _requests.stop, stop
    try:
        with _handlers():
            if _requests.asked is not None:
                stop(_requests.asked)  # foreign code swallowed the exception
            yield
    finally:
        _requests.stop = outer
        if not _requests.leave_on_second:
            _requests.asked = None


@contextlib.contextmanager
def _handlers() -> Iterator[None]:
    process, _requests.process = _requests.process, os.getpid()
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in previous.items():
        if number in (signal.SIGINT, signal.SIGTERM) or handler is not signal.SIG_IGN:
            signal.signal(number, _handle)  # nohup ignores SIGHUP, and that stays
    ready, _requests.alarm_ready = _requests.alarm_ready, _HAS_TIMER
    if _HAS_TIMER:
        previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, _on_alarm)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _requests.process, _requests.alarm_ready = process, ready


class TimeLimit:
    """A context that raises ``OutOfTimeError`` when its body takes longer than ``seconds``.

    It needs a timer of the operating system and works in the main thread alone; elsewhere there is no limit. After a
    request to stop, the body is given one more second and ``Interrupted`` is raised.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._active = _HAS_TIMER and threading.current_thread() is threading.main_thread()
        if not self._active:
            return
        self._was_in_limit, _requests.in_limit = _requests.in_limit, True
        self._started = time.monotonic()
        self._installs = not _requests.alarm_ready
        if self._installs:
            self._handler = signal.signal(signal.SIGALRM, _on_alarm)
        seconds = self._seconds if _requests.asked is None else min(self._seconds, _PATIENCE)
        self._outer = signal.setitimer(signal.ITIMER_REAL, seconds, _PATIENCE)  # again, if code swallows the first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._active:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._installs:
            signal.signal(signal.SIGALRM, signal.SIG_DFL if self._handler is None else self._handler)
        _requests.in_limit = self._was_in_limit
        if self._outer[0] > 0:
            left = self._outer[0] - (time.monotonic() - self._started)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-6), self._outer[1])
        if isinstance(error, _TimeIsUp):
            raise OutOfTimeError(f"not done within {self._seconds:g} seconds") from None


def ignore_signals() -> None:
    """Ignore the signals that ask to stop, in a process that another one ends."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _handle(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _requests.process:
        return
    name = signal.Signals(number).name
    if _requests.asked is not None:
        if _requests.leave_on_second:
            _leave(number, name)
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _requests.asked = name
    if _requests.stop is None:
        raise Interrupted(name)
    _requests.stop(name)
    if _requests.in_limit:
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE, _PATIENCE)


def _on_alarm(number: int, frame: FrameType | None) -> None:
    if _requests.asked is not None:
        raise Interrupted(_requests.asked)
    raise _TimeIsUp


def _leave(number: int, name: str) -> NoReturn:
    """End the process at once, with its workers: 130 for SIGINT, by the signal itself for the others."""
    with contextlib.suppress(OSError):
        os.write(2, f"\nerror: ended by a second {name}; what was not in a checkpoint is lost\n".encode())
    for child in multiprocessing.active_children():
        child.kill()
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(128 + number)
