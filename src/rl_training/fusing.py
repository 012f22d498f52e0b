"""Fewer and larger kernels on a GPU: functions of tensors that ``torch.compile`` turns into a few kernels each.

An update of small networks consists of hundreds of operations, each of which takes a GPU longer to start than to
compute. A function marked with ``fused`` runs as it is written, except inside ``fused_kernels``: there it is compiled
once for each form of its inputs. With a member axis it is compiled for all members at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch._C import _functorch
from torch.utils import _pytree as pytree

from rl_training.member_axis import has_member_axis, outside_members
from rl_training.user_folders import user_folder

P = ParamSpec("P")
R = TypeVar("R")

_MOST_FORMS = 256
"""How many forms of inputs one function can be compiled for; PyTorch's own limit is 8."""

_backend: str | None = None


@contextlib.contextmanager
def fused_kernels(backend: str = "inductor") -> Iterator[None]:
    """Compile the functions marked with ``fused`` with a backend of ``torch.compile``."""
    global _backend
    before, _backend = _backend, backend
    try:
        yield
    finally:
        _backend = before


def why_not_fused(device: torch.device) -> str | None:
    """Return why kernels for a device cannot be compiled here; None if they can."""
    from torch.utils._triton import has_triton

    if device.type != "cuda":
        return f"the device is {device.type}: expected cuda"
    if not has_triton():
        return "Triton does not support this GPU, or is not installed"
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        return "there is no C compiler: expected cc, gcc or clang"
    return None


def keep_compiled_code_private() -> None:
    """Let PyTorch keep compiled code in a folder of this user, unless ``TORCHINDUCTOR_CACHE_DIR`` names another one.

    PyTorch's own default is among the temporary files, where another user of the machine could place code first.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    with contextlib.suppress(OSError, RuntimeError):  # no home, or none that can be written to
        folder = user_folder("CACHE") / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function for ``fused_kernels``. It draws no random numbers, and never branches on the values of tensors.

    Its arguments are tensors, lists and tuples of them, None, and numbers. With keyword arguments it is not compiled.
    """
    compiled: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*inputs: P.args, **options: P.kwargs) -> R:
        if _backend is None or options:
            return function(*inputs, **options)
        leaves, form = pytree.tree_flatten(inputs)
        dims = [_functorch.maybe_get_bdim(leaf) if has_member_axis(leaf) else None for leaf in leaves]
        key, stacked = (_backend, form, tuple(dims)), any(dim is not None for dim in dims)
        if key not in compiled:
            axes = pytree.tree_unflatten(dims, form)
            compiled[key] = _compile(torch.func.vmap(function, in_dims=axes) if stacked else function, _backend)
        if not stacked:
            return cast(R, compiled[key](*inputs))
        level = next(_functorch.maybe_get_level(leaf) for leaf in leaves if has_member_axis(leaf))
        whole = [_functorch.get_unwrapped(leaf) if has_member_axis(leaf) else leaf for leaf in leaves]
        with outside_members():
            results = compiled[key](*pytree.tree_unflatten(whole, form))
        return cast(R, pytree.tree_map_only(Tensor, lambda x: _functorch._add_batch_dim(x, 0, level), results))

    return call


def _repeatable_code() -> dict[str, Any]:
    """Return options with which Inductor makes the same code every time.

    By default it times several forms of a sum on a GPU and keeps the fastest. Their results differ by rounding, and
    another one may win on a busy GPU, so a resumed run could differ from one that was never stopped.
    """
    import torch._inductor.config

    return {"deterministic": True} if hasattr(torch._inductor.config, "deterministic") else {}


def _compile(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    import torch._dynamo

    config = torch._dynamo.config
    setattr(config, "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit", _MOST_FORMS)
    options = _repeatable_code() if backend == "inductor" else None
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=False, options=options)

    def call(*inputs: Any) -> Any:
        nonlocal compiled
        try:
            return compiled(*inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(getattr(error, "inner_exception", error)).split())[:200]
            warnings.warn(f"a part of the updates is not compiled and stays slower: {reason}", stacklevel=3)
            compiled = function
            return function(*inputs)

    return call
