"""The report in a real browser: every chart is drawn, at both widths and in both themes, without error or request."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from report_runs import write_run
from rl_training.experiment.report import write_report
from rl_training.experiment.report.server import ReportServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium: apt-get install chromium")

WIDTHS = (390, 1400)

# The page that holds the reports in frames of both widths, looks at them and writes down what it sees.
LOOK = """<!doctype html><body>FRAMES<pre id="seen"></pre><script>
const count = (figure) => ["path", "rect", "circle"].map((kind) => figure.querySelectorAll(`svg ${kind}`).length);
addEventListener("load", () => {
  const look = (frame) => {
    const page = frame.contentDocument, root = page.documentElement, body = getComputedStyle(page.body);
    const figures = [...page.querySelectorAll("figure.chart")];
    const before = body.backgroundColor;
    page.getElementById("theme").click();
    const after = body.backgroundColor;
    page.getElementById("theme").click();
    const plot = page.querySelector("figure.main .plot"), box = plot.getBoundingClientRect();
    const at = { clientX: box.left + 0.7 * box.width, clientY: box.top + 50 };
    plot.dispatchEvent(new PointerEvent("pointermove", at));
    const tip = page.querySelector("figure.main .tip");
    const sort = page.querySelector("#runs + div th.n button");
    const column = () => [...page.querySelectorAll("#runs + div tbody tr")].map((row) => row.cells[1].dataset.value);
    if (sort) sort.click();
    const up = column();
    if (sort) sort.click();
    return {
      drawn: root.dataset.charts,
      marks: Object.fromEntries(figures.map((one) => [one.dataset.chart, count(one)])),
      broken: figures.filter((one) => /NaN|undefined|Infinity/.test(one.innerHTML)).map((one) => one.dataset.chart),
      legends: figures.every((one) => one.querySelector(".legend").textContent.length > 0),
      overflow: root.scrollWidth - root.clientWidth,
      requests: frame.contentWindow.performance.getEntriesByType("resource").map((one) => one.name),
      curve: page.querySelector("figure.main").getBoundingClientRect().bottom,
      tip: getComputedStyle(tip).visibility === "visible" ? tip.textContent : "",
      background: before, toggled: after, up, down: column(),
    };
  };
  document.getElementById("seen").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(look));
});
</script>"""


def chromium(profile: Path, address: str, *options: str) -> tuple[str, list[str]]:
    """Open an address and return the document as it is then, and what was written to the console."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    flags += ["--disable-background-networking", "--no-first-run", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={profile}", "--allow-file-access-from-files", *options]
    command = [CHROMIUM, *flags, "--dump-dom", address]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return process.stdout, [line for line in process.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run and that of several, in a folder."""
    folder = tmp_path_factory.mktemp("pages")
    runs = [write_run(folder / "runs" / f"slow-{seed}", seed=seed) for seed in (1, 2, 0)]
    runs += [write_run(folder / "runs" / "fast-0", overrides=("algo_kwargs.learning_rate=0.01",))]
    write_report(runs[:1], folder / "one.html")
    write_report(runs, folder / "several.html")
    return folder


@pytest.fixture(scope="module", params=["light", "dark"])
def seen(request: pytest.FixtureRequest, pages: Path) -> tuple[str, dict[tuple[str, int], dict[str, Any]], list[str]]:
    """What the browser shows in one theme: by page and width, and its console."""
    cases = [(page, width) for page in ("one", "several") for width in WIDTHS]
    frames = "".join(
        f'<iframe src="{page}.html" style="width:{width}px;height:900px;border:0"></iframe>' for page, width in cases
    )
    (pages / "look.html").write_text(LOOK.replace("FRAMES", frames))
    scheme = f"--blink-settings=preferredColorScheme={0 if request.param == 'dark' else 1}"
    profile, address = pages / request.param, f"file://{pages / 'look.html'}"  # a profile remembers the chosen theme
    document, console = chromium(profile, address, "--window-size=1500,1000", scheme)
    text = re.search(r'<pre id="seen">(.*?)</pre>', document, re.DOTALL)
    assert text, console
    return request.param, dict(zip(cases, json.loads(html.unescape(text[1])), strict=True)), console


def marks(chart: dict[str, Any]) -> list[int]:
    """Return how many lines and areas, rectangles and circles a chart has."""
    areas = rectangles = circles = 0
    for series in chart["series"]:
        count = len(series["y"])
        if series["kind"] == "line":
            areas += 1 + ("low" in series)
            circles += count if "marked" in series or count == 1 else 0
        elif series["kind"] == "dots":
            circles += count
        elif series["kind"] == "path":
            areas, circles = areas + 1, circles + 3  # start, goal and end
        else:
            rectangles += count
    return [areas, rectangles, circles]


def test_every_chart_is_drawn_at_both_widths(seen, pages: Path) -> None:
    for (page, width), found in seen[1].items():
        text = (pages / f"{page}.html").read_text()
        (data,) = re.findall(r'<script id="charts" type="application/json">(.*?)</script>', text)
        assert found["marks"] == {key: marks(chart) for key, chart in json.loads(data).items()}, (page, width)
        assert found["drawn"] == f"{len(found['marks'])}/{len(found['marks'])}"
        assert found["broken"] == []
        assert found["legends"]
    kinds = set(seen[1]["one", 390]["marks"])
    assert {
        "success-rate",
        "goal-map",
        "trajectories",
        "final-distance",
        "returns-of-data",
        "temperature",
        "entropy",
    } <= kinds
    assert {"pretraining-train-critic_loss", "learning-rate", "throughput", "offline-rows", "custom-height"} <= kinds


def test_nothing_is_written_to_the_console_and_nothing_is_requested(seen) -> None:
    assert seen[2] == []
    assert [found["requests"] for found in seen[1].values()] == [[]] * 4


def test_pages_fit_their_width_and_the_curve_is_on_the_first_screen(seen) -> None:
    assert [found["overflow"] for found in seen[1].values()] == [0] * 4
    assert seen[1]["one", 390]["curve"] <= 844
    assert seen[1]["one", 1400]["curve"] <= 800


def test_the_theme_follows_the_system_and_the_button(seen) -> None:
    for found in seen[1].values():
        light, dark = "rgb(246, 247, 249)", "rgb(15, 19, 24)"
        shown = (light, dark) if seen[0] == "light" else (dark, light)
        assert (found["background"], found["toggled"]) == shown


def test_pointing_at_a_curve_shows_its_values(seen) -> None:
    for width in WIDTHS:
        tip = seen[1]["one", width]["tip"]
        assert re.search(r"environment steps.*evaluation: 0\.\d+ \[0\.\d+, \d.*exploration: 0\.\d+", tip), tip


def test_a_click_on_a_heading_sorts_the_table(seen) -> None:
    found = seen[1]["several", 1400]
    assert (found["up"], found["down"]) == (["0", "0", "1", "2"], ["2", "1", "0", "0"])


@pytest.mark.slow
def test_a_served_page_refreshes_itself(pages: Path, monkeypatch) -> None:
    asked: list[str] = []
    real = ReportServer.page

    def counted(self: ReportServer, path: str) -> str | None:
        asked.append(path)
        text = real(self, path)
        return None if text is None else text.replace("4 runs</h1>", f"answer {len(asked)}</h1>")

    monkeypatch.setattr(ReportServer, "page", counted)
    with ReportServer(pages / "runs", 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        document, console = chromium(pages / "served", server.address, "--virtual-time-budget=12000")
        server.shutdown()
    assert console == []
    assert len(asked) > 1
    assert f"<h1>answer {len(asked)}</h1>" in document
    charts = re.search(r'data-charts="(\d+)/(\d+)"', document)
    assert charts
    assert charts[1] == charts[2] != "0"
