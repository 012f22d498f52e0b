"""A server on the loopback that lists the runs of a folder and refreshes their reports while they train."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from rl_training.errors import ConfigError, RLTrainingError, shown
from rl_training.experiment.report.one_run import run_page
from rl_training.experiment.report.page import message_page
from rl_training.experiment.report.run_data import RunData, find_runs, read_run
from rl_training.experiment.report.several_runs import runs_page

HOST = "127.0.0.1"
_REFRESH = 5
"""Seconds after which a page loads itself again."""


class ReportServer(ThreadingHTTPServer):
    """Serves the reports of the runs below a folder. Only this machine can reach it, and it reads nothing else."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        if not folder.is_dir():
            raise ConfigError(f"--serve {shown(folder)}: no such folder; expected one with runs in it")
        self.folder = folder.absolute()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"--port {port}: cannot be used: {reason}; expected a free port, or 0 for any") from None

    @property
    def address(self) -> str:
        """The address of the list of runs."""
        return f"http://{HOST}:{self.server_port}/"

    def page(self, path: str) -> str | None:
        """Return the page behind a path, or None if there is none."""
        runs = {self._path_of(run): run for run in find_runs(self.folder)}
        if path in runs:
            try:
                return run_page(read_run(runs[path]), refresh=_REFRESH, home="/")
            except RLTrainingError as error:
                return message_page(runs[path].name, str(error), refresh=_REFRESH)
        return self._index(list(runs.values())) if path == "/" else None

    def _index(self, paths: list[Path]) -> str:
        runs: list[RunData] = []
        problems = []
        for path in paths:
            try:
                runs.append(read_run(path))
            except RLTrainingError as error:
                problems.append(str(error))
        if not runs:
            text = "; ".join(problems) or f"There are no runs with metrics below {self.folder} yet."
            return message_page("No runs", text, refresh=_REFRESH)
        return runs_page(runs, refresh=_REFRESH, link=lambda run: quote(self._path_of(run.path)), problems=problems)

    def _path_of(self, run: Path) -> str:
        return f"/run/{run.relative_to(self.folder).as_posix()}"


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        # A page elsewhere could point a name of its own at the loopback; such a request has another host.
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            self.send_error(403)
            return
        text = self.server.page(unquote(urlsplit(self.path).path))
        if text is None:
            self.send_error(404)
            return
        content = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing for a request."""
