"""One look for all learning curves: mean and range over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#1f6feb", "#2da44e", "#8250df", "#d1242f", "#bf8700", "#57606a")


def draw_curves(curves: Mapping[str, Sequence[Mapping[int, float]]], title: str, output: Path) -> None:
    """Draw success over steps for each name; a curve ends where the first of its runs does."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.4), dpi=150)
    for (name, runs), colour in zip(curves.items(), COLOURS[: len(curves)], strict=True):
        steps = sorted(set.intersection(*(set(run) for run in runs)))
        values = [[run[step] for run in runs] for step in steps]
        axes.plot(steps, [sum(column) / len(column) for column in values], label=name, color=colour, linewidth=2)
        axes.fill_between(steps, [min(c) for c in values], [max(c) for c in values], color=colour, alpha=0.15)
    axes.set(xlabel="environment steps", ylabel="success rate", ylim=(-0.03, 1.03))
    axes.set_xlim(left=0, right=max(step for runs in curves.values() for run in runs for step in run))
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(output)
    print(output)
