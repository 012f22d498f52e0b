"""What compiling gains on a CPU: a batch and its update, as it is written and compiled, in alternating rounds.

    python benchmarks/compiled_updates.py

Prints a Markdown table of milliseconds. The ratio is the median within a round, with its quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from speed_side import BATCH, our_buffer

from rl_training.algorithms.table import ALGORITHMS
from rl_training.runtime.acceleration import accelerated_updates
from rl_training.runtime.heap import keep_freed_memory


def milliseconds(update: Callable[[], Any], count: int) -> float:
    """Return the mean time of an update."""
    started = time.perf_counter()
    for _ in range(count):
        update()
    return (time.perf_counter() - started) / count * 1e3


def compare(name: str, layer_norm: bool, threads: int, rounds: int, count: int) -> str:
    """Return a row of the table."""
    buffer = our_buffer(True, "cpu")
    torch.set_num_threads(threads)
    updates, first = [], 0.0
    for compiles in (False, True):
        learner = ALGORITHMS[name].learner(buffer.spec, {"critic_layer_norm": layer_norm})
        learner.fuses_kernels = compiles
        updates.append(accelerated_updates(learner, buffer, BATCH))
        first = 2 * milliseconds(updates[-1], 2) / 1e3  # every second update of TD3 moves the actor
        milliseconds(updates[-1], 10)
    found = [[milliseconds(update, count) for update in updates] for _ in range(rounds)]
    written, compiled = (statistics.median(column) for column in zip(*found, strict=True))
    low, middle, high = statistics.quantiles([one / other for one, other in found], n=4)
    title = f"{name.upper()}, {'LayerNorm' if layer_norm else 'plain critics'}"
    times = f"{written:.2f} | {compiled:.2f} | {middle:.2f} ({low:.2f}–{high:.2f})"
    return f"| {title} | {threads} | {times} | {first:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=60, help="updates of one side in a round")
    options = parser.parse_args()
    keep_freed_memory()
    print("| | threads | as written, ms | compiled, ms | ratio | first two updates, s |\n|---|---|---|---|---|---|")
    for threads in (1, 2):
        for name in ("ddpg", "td3", "sac"):
            for layer_norm in (False, True):
                print(compare(name, layer_norm, threads, options.rounds, options.count), flush=True)


if __name__ == "__main__":
    main()
