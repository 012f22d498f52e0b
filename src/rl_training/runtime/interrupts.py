"""Ending a run in order when it is asked to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from rl_training.runtime.controls import INTERRUPTED, TrainerState


@contextlib.contextmanager
def stop_on_signals(state: TrainerState) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into an orderly stop; a second one takes its usual course."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        state.stop(f"{INTERRUPTED} by {signal.Signals(number).name}")
        for name in previous:
            signal.signal(name, signal.default_int_handler if name == signal.SIGINT else signal.SIG_DFL)

    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
