"""``report --serve`` and ``report --png``: what they serve and write, and wrong input."""

from __future__ import annotations

import re
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from report_runs import write_run
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.report import png, write_report
from rl_training.experiment.report.run_charts import run_charts
from rl_training.experiment.report.run_data import read_run
from rl_training.experiment.report.server import ReportServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    write_run(tmp_path / "first")
    write_run(tmp_path / "group" / "a&b")
    (tmp_path / "secret.html").write_text("secret")
    with ReportServer(tmp_path, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def get(server: ReportServer, path: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(server.address.rstrip("/") + path, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_the_list_links_to_the_runs(server: ReportServer) -> None:
    code, index = get(server, "/")
    assert (code, "<title>2 runs</title>" in index) == (200, True)
    links = re.findall(r'<a href="(/run/[^"]+)">', index)
    assert links == ["/run/first", "/run/group/a%26b"]
    for link, name in zip(links, ("first", "a&amp;b"), strict=True):
        code, page = get(server, link)
        assert (code, f"<title>{name}</title>" in page, '<a href="/">All runs</a>' in page) == (200, True, True)
        assert 'data-refresh="5"' in page
        assert "connect-src 'self'" in page


def test_a_run_that_goes_on_is_read_again(server: ReportServer) -> None:
    metrics = server.folder / "first" / "metrics.csv"
    last = metrics.read_text().splitlines()[-1]
    before = get(server, "/run/first")[1]
    metrics.write_text(metrics.read_text() + last.replace("5000", "5500", 1) + "\n")
    assert "step 5,500" in get(server, "/run/first")[1]
    assert "step 5,500" not in before


@pytest.mark.parametrize(
    "path", ["/secret.html", "/run/../secret.html", "/run/nothing", "/run/first/metrics.csv", "/run/"]
)
def test_nothing_else_is_served(server: ReportServer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_only_requests_to_the_loopback_are_answered(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    assert get(server, "/", host=f"elsewhere.example:{server.server_port}")[0] == 403


def test_a_run_that_cannot_be_read_does_not_hide_the_others(server: ReportServer) -> None:
    (server.folder / "first" / "config.yaml").write_text("algo: [")
    assert "first/config.yaml" in get(server, "/")[1]
    assert get(server, "/run/group/a%26b")[0] == 200
    assert "first/config.yaml" in get(server, "/run/first")[1]
    (server.folder / "group" / "a&b" / "metrics.csv").write_text("")
    assert get(server, "/")[0] == 200


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    with ReportServer(tmp_path, 0) as server:
        assert "There are no runs with metrics" in (server.page("/") or "")
        with pytest.raises(ConfigError, match=rf"--port {server.server_port}: cannot be used: .*expected a free port"):
            ReportServer(tmp_path, server.server_port)
    with pytest.raises(ConfigError, match="no such folder"):
        ReportServer(tmp_path / "nowhere", 0)


def test_the_command_serves_until_it_is_interrupted(command_group, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    process = command_group("report", "--serve", tmp_path, "--port", 0)
    line = process.stdout.readline()
    address = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert address, line
    with urllib.request.urlopen(address[0], timeout=30) as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "ended\n", "")


def test_every_kind_of_chart_becomes_a_png_file(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    charts = run_charts(read_run(write_run(tmp_path / "run")))
    kinds = {series.kind: chart for chart in charts for series in chart.series}
    assert set(kinds) == {"line", "dots", "bars", "cells", "path"}
    drawn = list({chart.key: chart for chart in kinds.values()}.values())
    monkeypatch.setattr(png, "run_charts", lambda run: drawn)
    write_report([tmp_path / "run"], tmp_path / "page.html", png=True)
    files = list((tmp_path / "page_png").iterdir())
    assert {file.stem for file in files} == {chart.key for chart in drawn}
    assert all(file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 5_000 for file in files)


def test_png_files_need_the_extra(tmp_path: Path, monkeypatch) -> None:
    run = write_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"report --png needs an optional package: .*\[plots\]"):
        write_report([run], tmp_path / "page.html", png=True)
    assert not (tmp_path / "page.html").exists()
    assert not (tmp_path / "page_png").exists()
