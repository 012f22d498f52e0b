"""Memory that a training process keeps."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # M_… of malloc.h
_LARGEST_MMAP_THRESHOLD = 32 * 1024**2


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next update instead of giving it back to the system.

    An update allocates and frees dozens of tensors. Each page that comes back from the system costs a page fault.
    Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, 2**29)
        mallopt(_TOP_PAD, 2**24)
