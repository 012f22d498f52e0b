"""Start Python programs in processes that need not import torch first.

``WarmPython`` keeps a server: a Python process that has imported the large packages, and nothing of this one. The
server forks a process for each program. Such a process has its own session, environment, streams and exit status, and
answers signals, like one that was started from the beginning. It saves importing torch, which takes two seconds, and at
the end taking it apart, which takes another half.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

LARGE = ("torch", "torch.utils.tensorboard", "gymnasium.vector", "pydantic", "safetensors.torch", "typer", "yaml")


class Done(NamedTuple):
    """What a program that has ended returned and printed."""

    returncode: int
    stdout: str
    stderr: str


class WarmProcess:
    """A program in a process that the server forked, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, status: IO[str], stdout: IO[str], stderr: IO[str]) -> None:
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._status = status
        self.pid = int(status.readline())

    def poll(self) -> int | None:
        """Return the exit code, which is negative after a signal, or None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end of the program and return its exit code."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = os.waitstatus_to_exitcode(int(self._status.readline()))
        return self.returncode

    def communicate(self, timeout: float = 120.0) -> tuple[str, str]:
        """Return what is left of both streams once the program has ended."""
        end, texts = time.monotonic() + timeout, ["", ""]

        def read(index: int, stream: IO[str]) -> None:
            texts[index] = stream.read()

        streams = [(index, stream) for index, stream in enumerate((self.stdout, self.stderr)) if not stream.closed]
        threads = [threading.Thread(target=read, args=row, daemon=True) for row in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        self.wait(max(end - time.monotonic(), 0))
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone; ``os.killpg`` sends it to all processes of its group."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Kill the process with all of its group and close its streams."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(60)
        for stream in (self.stdout, self.stderr, self._status):
            stream.close()


class WarmPython:
    """Starts programs with the arguments of ``python``: ``-m MODULE``, ``-c CODE`` or a file, and those of it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._server = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        self._connection = ours
        theirs.close()

    def start(
        self, *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None, stdin: bytes = b""
    ) -> WarmProcess:
        """Start a program in the current folder and environment, or in those that are given."""
        request = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ) if env is None else env,
        }
        pipes = [os.pipe() for _ in range(3)]
        with tempfile.TemporaryFile() as described, tempfile.TemporaryFile() as given:
            for file, content in ((described, json.dumps(request).encode()), (given, stdin)):
                file.write(content)
                file.seek(0)
            sent = [described.fileno(), given.fileno(), *(write for _, write in pipes)]
            socket.send_fds(self._connection, [b"."], sent)
        for _, write in pipes:
            os.close(write)
        stdout, stderr, status = (os.fdopen(read, encoding="utf-8", errors="replace") for read, _ in pipes)
        return WarmProcess(status, stdout, stderr)

    def run(self, *arguments: object, **options: Any) -> Done:
        """Run a program to its end, with the options of ``start``."""
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate()
            return Done(process.wait(0), out, err)
        finally:
            process.close()

    def close(self) -> None:
        """End the server."""
        self._connection.close()
        self._server.wait(60)


def serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a process for each request and report its end; return the request in that process, None in the server."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    while True:
        ready = select.select([connection, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    report = running.pop(pid)
                    with contextlib.suppress(BrokenPipeError):
                        os.write(report, f"{status}\n".encode())
                    os.close(report)
        if connection in ready:
            message, files, _, _ = socket.recv_fds(connection, 1, 5)
            if not message:
                return None
            described, *streams, report = files
            with os.fdopen(described, encoding="utf-8") as file:
                request = json.load(file)
            pid = os.fork()
            if pid == 0:
                os.setsid()
                os.write(report, f"{os.getpid()}\n".encode())
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                connection.close()
                for descriptor in (woken, wake, report, *running.values()):
                    os.close(descriptor)
                return request, streams
            for descriptor in streams:
                os.close(descriptor)
            running[pid] = report


def execute(request: dict[str, Any], streams: list[int]) -> None:
    """Run the program that was asked for, with its streams, folder, environment and arguments."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(number, mode, closefd=False), old.encoding, old.errors, line_buffering=number == 2)
        for number, (mode, old) in enumerate((("rb", sys.stdin), ("wb", sys.stdout), ("wb", sys.stderr)))
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    program, *arguments = request["arguments"]
    if program in ("-m", "-c"):
        text, *arguments = arguments
        sys.argv, sys.path[0] = [program, *arguments], os.getcwd() if program == "-m" else ""
        if program == "-m":
            runpy.run_module(text, run_name="__main__", alter_sys=True)
        else:
            exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")


def end(error: BaseException | None) -> NoReturn:
    """End the process as the interpreter does, but leave all objects in place."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    os._exit(code)


if __name__ == "__main__":
    for module in LARGE:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        failure: BaseException | None = None
        try:
            execute(*asked)
        except BaseException as error:
            failure = error
        end(failure)
