"""Files of ``torch.save``: a dictionary of tensors, read without executing anything in them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.formats.columns import file_columns, is_known
from rl_training.data.formats.hostile_files import (
    check_list,
    check_members,
    check_memory,
    check_torch_file,
    is_torch_archive,
)
from rl_training.data.formats.storage import atomic_write
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

_DEPTH = 3  # dictionaries in dictionaries
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_MAPPED = (torch.float32, torch.bool, *_INTEGERS)
_CONVERTED = (torch.float16, torch.bfloat16, torch.float64)  # to float32


def read(path: Path, wanted: Callable[[str], bool] = is_known) -> tuple[dict[str, Any], list[str]]:
    """Return the wanted arrays of a pt file under its names, and all names in it.

    Arrays are mapped from the file if its format allows that and they need no conversion.
    """
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        raise DatasetError(f"{path}: not a pt file that can be read: it is {'empty' if path.is_file() else 'a folder'}")
    try:
        check_torch_file(path)
        with path.open("rb") as file:
            mapped = is_torch_archive(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about unusual pickles; weights_only=True rejects unsafe ones
            values = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except DatasetError:
        raise
    except pickle.UnpicklingError:  # torch's own message recommends loading it anyway
        raise DatasetError(
            f"{path}: refused, since reading it could execute code: it holds objects other than tensors;"
            " expected a dictionary of tensors"
        ) from None
    except Exception as error:  # torch raises RuntimeError, EOFError, KeyError, AttributeError and others
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DatasetError(f"{path}: not a pt file that can be read: damaged or cut off ({reason})") from None
    if not isinstance(values, Mapping):
        raise DatasetError(f"{path}: holds a {type(values).__name__}; expected a dictionary of tensors")
    found: dict[str, Any] = {}
    for count, (name, value) in enumerate(_flatten(values)):
        check_members(count, str(path))
        if isinstance(value, (torch.Tensor, list, tuple)):
            found[name] = value
    chosen = {name: value for name, value in found.items() if wanted(name)}
    for name, value in chosen.items():
        _check(value, size, f"{path}: {name}")
    tensors = [value for value in chosen.values() if isinstance(value, torch.Tensor)]
    check_memory(sum(4 * tensor.numel() for tensor in tensors if tensor.dtype in _CONVERTED), str(path))
    return {name: _to_array(value, f"{path}: {name}") for name, value in chosen.items()}, list(found)


def write(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset as a dictionary of tensors with D4RL's names."""
    tensors = {
        name: torch.from_numpy(np.require(array, None, ["C", "W"])) for name, array in file_columns(dataset).items()
    }
    with atomic_write(path, sum(tensor.nbytes for tensor in tensors.values())) as file:
        torch.save(tensors, file)


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its name; the names of nested dictionaries are joined by ``/``."""
    for key, value in values.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping) and prefix.count("/") < _DEPTH:
            yield from _flatten(value, f"{prefix}{key}/")


def _check(value: Any, size: int, what: str) -> None:
    """Refuse values larger than a file of ``size`` bytes can hold, and tensors that are not plain numbers."""
    if not isinstance(value, torch.Tensor):
        check_list(value, what)
        return
    if value.layout != torch.strided or value.is_quantized or value.is_nested or value.device.type != "cpu":
        raise DatasetError(f"{what} is a {value.layout} tensor on {value.device}; expected a plain one")
    if value.dtype not in (*_MAPPED, *_CONVERTED):
        expected = "float16, bfloat16, float32, float64, bool or an integer type"
        raise DatasetError(f"{what} has dtype {str(value.dtype).removeprefix('torch.')}; expected {expected}")
    if value.numel() * value.element_size() > size:  # a stride of 0 repeats one number without end
        raise DatasetError(f"{what} claims shape {tuple(value.shape)}, but the file has only {size:,} bytes")


def _to_array(value: Any, what: str) -> Array:
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        return (tensor.float() if tensor.dtype in _CONVERTED else tensor).contiguous().resolve_neg().numpy()
    try:
        return np.asarray(value)
    except (ValueError, OverflowError):
        raise DatasetError(f"{what} is a list of unequal parts; expected a tensor") from None
