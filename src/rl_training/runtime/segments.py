"""Which replay segments to merge, so that a run of many checkpoints has few segments."""

from __future__ import annotations

from collections.abc import Sequence

_FAN_IN = 16
"""This many segments of one size class are merged into one."""

_FULL_CLASS = 64
"""The size class of a full segment, above that of any other."""


def merge_ranges(ranges: Sequence[tuple[int, int]], full: int) -> list[tuple[int, int]]:
    """Merge neighbouring ranges of rows, so that the number of ranges grows with the logarithm of the rows.

    A range belongs to class k if it has 16^k to 16^(k+1) - 1 rows; ranges of ``full`` or more rows are a class of their
    own, which is never merged. From left to right, a range absorbs the ranges of smaller classes just before it, and 16
    neighbours of one class become one range. So every merge moves rows to a higher class, which bounds how often a row
    is written.
    """
    merged: list[tuple[int, int]] = []
    for new in ranges:
        merged.append(new)
        while (start := _merge_from(merged, full)) is not None:
            merged[start:] = [(merged[start][0], merged[-1][1])]
    return merged


def _merge_from(ranges: Sequence[tuple[int, int]], full: int) -> int | None:
    """Return the index of the first range to merge with all later ones, or None if there is nothing to merge."""
    classes = [_size_class(last - first, full) for first, last in ranges[-_FAN_IN:]]
    newest = classes[-1]
    smaller = same = 1  # how many ranges at the end to merge, the newest included
    for count, size_class in enumerate(reversed(classes[:-1]), start=2):
        if size_class > newest or size_class == _FULL_CLASS:
            break
        same = count
        if size_class < newest:
            smaller = count
    merge = smaller if smaller > 1 else same if same == _FAN_IN else 1
    return len(ranges) - merge if merge > 1 else None


def _size_class(rows: int, full: int) -> int:
    return _FULL_CLASS if rows >= full else (rows.bit_length() - 1) // (_FAN_IN.bit_length() - 1)
