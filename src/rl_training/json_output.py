"""JSON that every reader accepts: NaN and infinity, which JSON does not have, become null."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return plain values as JSON text, with null in place of NaN and infinity."""
    return json.dumps(_without_non_finite(value), indent=indent, allow_nan=False)


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
