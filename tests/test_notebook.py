"""The notebook of the docs runs from top to bottom, learns, and is stored with the outputs of its own cells."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebook needs nbclient and ipykernel, of the extra dev")
nbclient = pytest.importorskip("nbclient", reason="the notebook needs nbclient and ipykernel, of the extra dev")

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")


def drawn(cell: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.outputs)


def test_it_is_stored_as_it_ran() -> None:
    cells = code_cells(read())
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert [drawn(cell) for cell in cells][-2:] == [1, 1]
    assert "/home/" not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_runs_and_learns_in_time() -> None:
    notebook, stored = read(), code_cells(read())
    started = time.perf_counter()
    nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3").execute()
    assert time.perf_counter() - started < 180
    cells = code_cells(notebook)
    assert [drawn(cell) for cell in cells] == [drawn(cell) for cell in stored]
    assert [len(printed(cell).splitlines()) for cell in cells] == [len(printed(cell).splitlines()) for cell in stored]
    assert float(printed(cells[-1]).split()[-1]) >= 0.9
