"""How a resumed run recognises its data: by the number of rows and a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SAMPLED_BYTES = 2**30  # for larger data the fingerprint starts with a checksum of some rows, as in earlier versions


def fingerprint(columns: Sequence[Array]) -> str:
    """Return a short text that identifies columns ``[N, ...]``: the number of rows and a CRC-32 of all numbers.

    A changed number goes unnoticed with probability 2^-32. For data of more than 1 GiB, a checksum of some rows comes
    before it. Earlier versions stored only that one.
    """
    step = 1 + sum(column.nbytes for column in columns) // _SAMPLED_BYTES
    text = f"{len(columns[0])}-{_checksum(columns, step):08x}"
    return text if step == 1 else f"{text}-{_checksum(columns, 1):08x}"


def same_data(stored: str, current: str) -> bool:
    """Return whether a stored fingerprint is that of the data; for large data, older ones have only the start."""
    return current == stored or (current.count("-") == 2 and current.rpartition("-")[0] == stored)


def _checksum(columns: Sequence[Array], step: int) -> int:
    """Return a checksum of every ``step``-th row of all columns."""
    total = 0
    for column in columns:
        total = zlib.crc32(np.ascontiguousarray(column[::step]).data, total)
    return total
