"""What going online did to a pretrained policy, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.runtime.logging import STEP


def change_since_offline(rows: Sequence[dict[str, float]]) -> str:
    """Return what happened to a trained policy's return when it went online, or nothing where none did."""
    changes = [(int(row[STEP]), row["eval/change_since_offline"]) for row in rows if "eval/change_since_offline" in row]
    if not changes:
        return ""
    now = f"now {changes[-1][1]:+.4g}"
    lowest_at, lowest = min(changes, key=lambda change: change[1])
    if lowest >= 0:
        return f"Going online cost nothing: the return never fell below that of the pretrained policy ({now})."
    recovered = next((step for step, change in changes if step > lowest_at and change >= 0), None)
    end = f"made up for by step {recovered:,}" if recovered is not None else "not made up for"
    return f"Going online cost {-lowest:.4g} of return at worst, at step {lowest_at:,}, {end} ({now})."
