"""A ring of packed rows: every field of a transition side by side in one float32 matrix.

Sampling needs one gather for all fields, and a checkpoint writes ranges of rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.errors import ConfigError


class RowRing:
    """``capacity`` rows of named columns, numbered in the order they are written; row n is in slot n % capacity.

    Attributes:
        rows: the storage, ``[capacity, width]``.
        columns: the slice of ``rows`` that holds each field.
        written: how many rows were ever written, which is the number of the next row.
    """

    def __init__(self, capacity: int, widths: Mapping[str, int], device: str | torch.device = "cpu") -> None:
        self.capacity = capacity
        self.device = torch.device(device)
        self.columns: dict[str, slice] = {}
        offset = 0
        for name, width in widths.items():
            self.columns[name] = slice(offset, offset + width)
            offset += width
        # Not initialised on purpose: the system allocates memory as rows are written, not all at once.
        try:
            self.rows = torch.empty(capacity, offset, dtype=torch.float32, device=self.device)
        except RuntimeError:
            size = capacity * offset * 4 / 2**30
            raise ConfigError(
                f"algo_kwargs.buffer_capacity = {capacity} needs {size:,.0f} GiB, which could not be allocated:"
                " expected a smaller buffer_capacity"
            ) from None
        self.written = 0

    def append(self, rows: Tensor) -> int:
        """Write ``[n, width]`` rows at the head, wrapping around; return the slot of the first."""
        slot = self.written % self.capacity
        until_end = self.capacity - slot
        self.rows[slot : slot + len(rows)] = rows[:until_end]
        if len(rows) > until_end:
            self.rows[: len(rows) - until_end] = rows[until_end:]
        self.written += len(rows)
        return slot

    def skip_to_start(self) -> None:
        """Fill the slots from the head to the end with zeros, so that the next rows start in slot 0."""
        slot = self.written % self.capacity
        if slot:
            self.rows[slot:] = 0.0
            self.written += self.capacity - slot

    def set_written(self, written: int, capacity: int) -> None:
        """Continue the numbering of a ring of the same capacity."""
        if capacity != self.capacity:
            raise ValueError(
                f"buffer_capacity = {self.capacity}, but the stored buffer has {capacity}: expected the same"
            )
        self.written = written

    def read(self, first: int, last: int) -> Tensor:
        """Return a copy of the rows numbered ``first`` to ``last`` (exclusive), on the CPU."""
        slots = torch.arange(first, last, device=self.device) % self.capacity
        return self.rows.index_select(0, slots).cpu()

    def write(self, first: int, rows: Tensor) -> None:
        """Put rows back under their old numbers, starting at ``first``; ``written`` does not change."""
        slots = torch.arange(first, first + len(rows), device=self.device) % self.capacity
        self.rows.index_copy_(0, slots, rows.to(self.device))
