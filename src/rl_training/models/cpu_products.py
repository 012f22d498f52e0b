"""Matrix products on processors of AMD, where PyTorch's default library uses only half of the vector units' width.

PyTorch multiplies float32 matrices with MKL, which uses AVX2 on these processors even if they have AVX-512. oneDNN,
which comes with PyTorch as well, uses AVX-512. PyTorch only calls it for products that may be rounded to bfloat16, but
oneDNN rounds nothing on a processor without matrix units. So the products are as exact as before, and up to twice as
fast.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import torch

_SETTING = ("mkldnn", "matmul")
_LARGEST_ERROR = 1e-5
"""The relative error up to which a product counts as one of float32; bfloat16 has 4e-3."""


def fast_products(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Return a context in which oneDNN computes matrix products on a CPU, if that is faster there and as exact."""
    return _onednn() if device.type == "cpu" and onednn_is_better() else contextlib.nullcontext()


@contextlib.contextmanager
def _onednn() -> Iterator[None]:
    before = torch._C._get_fp32_precision_getter(*_SETTING)
    torch._C._set_fp32_precision_setter(*_SETTING, "bf16")
    try:
        yield
    finally:
        torch._C._set_fp32_precision_setter(*_SETTING, before)


@functools.cache
def onednn_is_better() -> bool:
    """Return whether oneDNN computes products of float32 faster than PyTorch's default library, and as exactly."""
    return (
        hasattr(torch._C, "_set_fp32_precision_setter")  # PyTorch 2.9 and later
        and torch._C._has_mkldnn
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _processor_is_amd()
        and largest_error_of_onednn() < _LARGEST_ERROR
    )


def largest_error_of_onednn() -> float:
    """Return the largest error of products by oneDNN, relative to their largest value."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(2, 256, 256, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    with _onednn():
        products = [torch.bmm(left, right), torch.stack([a @ b for a, b in zip(left, right, strict=True)])]
    return max(float((product - exact).abs().max() / exact.abs().max()) for product in products)


def _processor_is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return False
