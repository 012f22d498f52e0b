"""What the command line writes to: streams that may close at any time, and messages on stderr."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_training.errors import shown
from rl_training.json_output import to_json
from rl_training.user_folders import user_folder


class LossyStream:
    """A text stream that drops what it cannot write, because its reader has gone or its disk is full.

    Attributes:
        lost: why writing failed, or None.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        if self.lost is None:
            try:
                return int(self._stream.write(text))
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        if self.lost is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.lost = error
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # What is still buffered goes nowhere, so that Python can flush it at exit.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Streams:
    """The streams of a command.

    Attributes:
        stdout: where its results go.
        stderr: where its messages go.
    """

    def __init__(self, results: Any) -> None:
        self.stdout, self.stderr = LossyStream(results), LossyStream(sys.stderr)

    def exit_code(self, code: int) -> int:
        """Return the exit code: results that could not be written are a failure, unless their reader has gone."""
        self.stdout.flush()
        lost = self.stdout.lost
        if code == 0 and lost is not None and lost.errno != errno.EPIPE:
            print_error(f"standard output cannot be written: {lost.strerror}")
            return 1
        return code


@contextlib.contextmanager
def lossy_streams() -> Iterator[Streams]:
    """Replace stdout and stderr by streams that never raise an ``OSError``."""
    for number in range(3):  # a closed one would be the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    real = sys.stdout, sys.stderr
    null = None
    if sys.stdout is None or sys.stderr is None:
        null = open(os.devnull, "w")  # noqa: SIM115 (it is open as long as the program)
        sys.stdout, sys.stderr = sys.stdout or null, sys.stderr or null
    global _answers
    with _apart_from_other_output(sys.stdout) if _answers_in_json() else contextlib.nullcontext(sys.stdout) as results:
        streams = Streams(results)
        sys.stdout, sys.stderr = streams.stdout, streams.stderr
        if _answers_in_json():
            _answers, sys.stdout = streams.stdout, streams.stderr
        try:
            yield streams
        finally:
            _answers = None
            sys.stdout, sys.stderr = real


_answers: LossyStream | None = None
"""Where answers in JSON go, if that is not the stdout that everything else in this process sees."""


def print_answer(answer: Any) -> bool:
    """Print an answer as one line of JSON, and return whether anybody still reads them."""
    stream = _answers or sys.stdout
    print(to_json(answer), file=stream, flush=True)
    return getattr(stream, "lost", None) is None


def _answers_in_json() -> bool:
    words = sys.argv[1:]
    return ("--json" in words or words[:1] == ["predict"]) and "--help" not in words


@contextlib.contextmanager
def _apart_from_other_output(stdout: Any) -> Iterator[Any]:
    """Return a stream of its own for stdout, and send to stderr what environments and libraries print there.

    Libraries in C write to the descriptor of stdout, some of them only at the end of the process.
    """
    try:
        descriptor = stdout.fileno()
    except (OSError, ValueError):  # not a file
        yield stdout
        return
    stdout.flush()
    copy = os.dup(descriptor)
    with open(copy, "w", encoding=stdout.encoding, errors=stdout.errors, closefd=False) as results:
        os.dup2(2, descriptor)
        try:
            yield results
        finally:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).fflush(None)
            os.dup2(copy, descriptor)
            with contextlib.suppress(OSError):
                results.flush()
    os.close(copy)


def printable(message: object) -> str:
    """Return a message with its own line breaks; other control characters, and those of arguments, are escaped."""
    text = str(message)
    for argument in sys.argv[1:]:
        if "\n" in argument:
            text = text.replace(argument, shown(argument))
    return "\n".join(map(shown, text.split("\n")))


def print_error(message: object) -> None:
    """Print an error on stderr."""
    print(f"error: {printable(message)}", file=sys.stderr)


def print_failure(error: Exception) -> None:
    """Print one message about an error that nobody expected, and keep its traceback in a file."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    kept = ""
    with contextlib.suppress(OSError, RuntimeError):
        file = user_folder("STATE") / "traceback.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
        kept = f". The traceback is in {file}"
    print_error(f"unexpected {type(error).__name__}: {shown(error)}{place}{kept}. Please report it: this is a bug")
