"""What an inspection of data found, as an object, as JSON and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One problem: its name, a message, how many rows (or dimensions) have it, and the first row."""

    name: str
    message: str
    count: int
    first_row: int | None = None


@dataclass
class DatasetReport:
    """The result: ``facts``, ``warnings`` (worth a look) and ``errors`` (training on this data would go wrong)."""

    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[Finding] = field(default_factory=list)
    errors: list[Finding] = field(default_factory=list)

    @property
    def is_sane(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "is_sane": self.is_sane}

    def finding(self, name: str) -> Finding | None:
        """Return the error or warning of that name."""
        return next((found for found in (*self.errors, *self.warnings) if found.name == name), None)

    def lines(self) -> list[str]:
        """Return the report as text for a terminal."""
        lines = [f"{name:20} {_text(value)}" for name, value in self.facts.items() if name != "return_histogram"]
        histogram = self.facts.get("return_histogram")
        if histogram:
            lines.append("returns of episodes")
            top = max(histogram["counts"])
            for count, low, high in zip(histogram["counts"], histogram["edges"], histogram["edges"][1:], strict=False):
                lines.append(f"  {low:>10.4g} to {high:<10.4g} {'█' * round(40 * count / top):40} {count}")
        lines += [f"error: {found.name}: {found.message}" for found in self.errors]
        lines += [f"warning: {found.name}: {found.message}" for found in self.warnings]
        return lines if self.errors or self.warnings else [*lines, "nothing wrong was found"]


def _text(value: Any) -> str:
    if isinstance(value, dict) and "mean" in value:
        return " · ".join(f"{name} {'?' if number is None else f'{number:.6g}'}" for name, number in value.items())
    if isinstance(value, dict):
        return " · ".join(f"{name} {'×'.join(map(str, size)) or 1}" for name, size in value.items())
    if isinstance(value, list):
        return " ".join(f"{number:.2f}" if isinstance(number, float) else str(number) for number in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
