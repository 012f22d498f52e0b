"""Show a notebook, with the outputs it was stored with, as a page of the site.

A page with the line ``<!-- notebook: NAME.ipynb -->`` gets the cells of that notebook in its place. MkDocs calls
``on_page_markdown`` for every page (``hooks`` in ``mkdocs.yml``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_MARK = re.compile(r"^<!-- notebook: ([\w.]+\.ipynb) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the mark of a page by the notebook it names."""
    return _MARK.sub(lambda match: notebook_markdown(Path(__file__).parent / match[1]), markdown)


def notebook_markdown(file: Path) -> str:
    """Return the cells of a notebook as Markdown."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell_parts(cell))


def _cell_parts(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return [source]
    parts = [f"```python\n{source}\n```"]
    text = "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
    if text:
        parts.append(f"```text\n{text.rstrip()}\n```")
    for output in cell["outputs"]:
        image = "".join(output.get("data", {}).get("image/png", ""))
        if image:
            parts.append(f'<img alt="plot" src="data:image/png;base64,{"".join(image.split())}">')
    return parts
