"""Files of ``torch.save``: a dictionary of tensors, read without executing anything in them."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.formats.columns import file_columns
from rl_training.data.formats.limits import check_memory, replacing
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]


def read(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the arrays of a pt file under its names, memory-mapped where its format allows, and all names in it."""
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        raise DatasetError(f"{path}: not a pt file that can be read: it is {'empty' if path.is_file() else 'a folder'}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd pickles; they are refused, or they are not
            values = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError:  # torch's own words recommend to read it nevertheless
        raise DatasetError(
            f"{path}: refused, since reading it could execute code: it holds objects other than tensors;"
            " expected a dictionary of tensors"
        ) from None
    except Exception as error:  # torch raises what its parsers meet: RuntimeError, EOFError, KeyError, AttributeError
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DatasetError(f"{path}: not a pt file that can be read: damaged or cut off ({reason})") from None
    if not isinstance(values, Mapping):
        raise DatasetError(f"{path}: holds a {type(values).__name__}; expected a dictionary of tensors")
    arrays = _arrays(values, size, path)
    return arrays, list(arrays)


def write(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset as a dictionary of tensors with D4RL's names."""
    tensors = {
        name: torch.from_numpy(np.require(array, None, ["C", "W"])) for name, array in file_columns(dataset).items()
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(tensors, file)


def _arrays(values: Mapping[Any, Any], size: int, path: Path, prefix: str = "") -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if prefix.count("/") < 3:
                arrays.update(_arrays(value, size, path, f"{name}/"))
        elif isinstance(value, torch.Tensor):
            arrays[name] = _array(value, size, f"{path}: {name}")
        elif isinstance(value, (list, tuple)):
            try:
                arrays[name] = np.asarray(value)
            except (ValueError, OverflowError):
                raise DatasetError(f"{path}: {name} is a list of unequal parts; expected a tensor") from None
    return arrays


def _array(tensor: torch.Tensor, size: int, what: str) -> Array:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
        raise DatasetError(f"{what} is a {tensor.layout} tensor on {tensor.device}; expected a plain one")
    if tensor.numel() * tensor.element_size() > size:  # a stride of 0 repeats one number without end
        raise DatasetError(f"{what} claims shape {tuple(tensor.shape)}, but the file has only {size:,} bytes")
    tensor = tensor.detach()
    if tensor.dtype in (torch.bfloat16, torch.float64):
        check_memory(tensor.numel() * 4, what)
        tensor = tensor.float()
    return tensor.contiguous().resolve_conj().resolve_neg().numpy()
