"""Parquet files with one row per step: LeRobot's columns, and our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats.columns import is_known
from rl_training.data.formats.hostile_files import check_memory, check_packing
from rl_training.data.formats.storage import atomic_write, load_extra, report_bytes, storage_dtype
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

_BATCH_ROWS = 1 << 16
_BATCH_NUMBERS = 1 << 22  # decoded at once
_NAMES = {"observations": "observation.state", "actions": "action", "rewards": "next.reward"}


def read(path: Path, wanted: Callable[[str], bool] = is_known) -> tuple[dict[str, Array], list[str]]:
    """Return the wanted columns of a file, or of a folder of files in the order of their names, and all names."""
    return read_files(path, files_of, wanted)


def read_files(
    path: Path, find_files: Callable[[Path], list[Path]], wanted: Callable[[str], bool]
) -> tuple[dict[str, Array], list[str]]:
    """Return the wanted columns of the files that ``find_files`` finds at ``path``, in that order, and all names."""
    pa = load_extra("pyarrow", "reading Parquet files")
    pq = load_extra("pyarrow.parquet", "reading Parquet files")
    place = path
    try:
        files = []
        for place in find_files(path):
            if not place.stat().st_size:
                raise DatasetError(f"{place}: not a Parquet file that can be read: it is empty")
            files.append((place, pq.ParquetFile(place, memory_map=True, page_checksum_verification=True)))
        place, first = files[0]
        names = [field.name for field in first.schema_arrow]
        chosen = [field.name for field in first.schema_arrow if _is_wanted(field, wanted, pa)]
        rows = sum(file.metadata.num_rows for _, file in files)
        stored = sum(place.stat().st_size for place, _ in files)
        groups = [file.metadata.row_group(index) for _, file in files for index in range(file.metadata.num_row_groups)]
        check_packing(max(4 * rows * len(chosen), sum(group.total_byte_size for group in groups)), stored, str(path))
        width = _numbers_per_row(first, chosen, pa)
        check_packing(4 * rows * width, stored, str(path))
        check_memory(4 * rows * width, str(path))
        batch_rows = max(1, min(_BATCH_ROWS, _BATCH_NUMBERS // max(1, width)))
        columns = _Columns(rows, path, wanted)
        for place, file in files:
            absent = [name for name in chosen if name not in file.schema_arrow.names]
            if absent:
                raise DatasetError(f"{place}: column {absent[0]!r} is missing; {files[0][0].name} has it")
            for batch in file.iter_batches(batch_rows, columns=chosen):
                columns.add(pa.Table.from_batches([batch]).flatten(), pa)
                report_bytes("reading", 4 * columns.filled * width, 4 * rows * width)
        return columns.complete(), names
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        if isinstance(error, DatasetError):
            raise
        reason = str(error).split("\n", 1)[0]
        raise DatasetError(f"{place}: not a Parquet file that can be read: damaged or cut off ({reason})") from None


def write(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset with LeRobot's columns, and our own for distinctions that LeRobot does not make."""
    pa = load_extra("pyarrow", "writing Parquet files")
    pq = load_extra("pyarrow.parquet", "writing Parquet files")
    arrays = dict(dataset.arrays)
    lengths = dataset.episode_lengths
    arrays["next.done"] = arrays["terminated"] | arrays["truncated"]
    arrays["episode_index"] = np.repeat(np.arange(len(lengths)), lengths)
    arrays["frame_index"] = np.arange(len(dataset)) - np.repeat(dataset.episode_starts, lengths)
    if dataset.usable is not None:
        arrays["usable"] = dataset.usable
    columns = {_NAMES.get(name, name): _to_arrow(array, pa) for name, array in arrays.items()}
    with atomic_write(path, sum(array.nbytes for array in arrays.values()) // 2) as file:  # it is compressed
        pq.write_table(pa.table(columns), file, row_group_size=_BATCH_ROWS, write_page_checksum=True)


def files_of(path: Path) -> list[Path]:
    """Return the file itself, or the data files of a folder: those under ``data`` in LeRobot's layout."""
    if not path.is_dir():
        return [path]
    files = sorted((path / "data").rglob("*.parquet")) if (path / "data").is_dir() else sorted(path.glob("*.parquet"))
    if not files:
        raise DatasetError(f"{path}: there are no Parquet files in this folder, and it is no LeRobot or Minari dataset")
    return files


def _numbers_per_row(file: Any, chosen: list[str], pa: Any) -> int:
    """Return how many numbers the chosen columns have in the first row. It decodes that row.

    The metadata of a column has its number of values, but pyarrow crashes the process if that metadata is damaged.
    """
    for batch in file.iter_batches(1, columns=chosen):
        columns = (column.combine_chunks() for column in pa.Table.from_batches([batch]).flatten().columns)
        return sum(len(column.flatten()) if hasattr(column, "flatten") else 1 for column in columns)
    return 0


class _Columns:
    """Arrays for all rows, filled batch by batch so that nothing is held twice."""

    def __init__(self, rows: int, path: Path, wanted: Callable[[str], bool]) -> None:
        self._rows, self._path, self.filled = rows, path, 0
        self._wanted = wanted
        self._arrays: dict[str, Array] = {}

    def add(self, table: Any, pa: Any) -> None:
        start, end = self.filled, self.filled + table.num_rows
        for name, column in zip(table.column_names, table.columns, strict=True):
            if not self._wanted(name):
                continue
            values = _to_numpy(column.combine_chunks(), f"{self._path}: {name}", pa)
            if name not in self._arrays:
                shape, dtype = (self._rows, *values.shape[1:]), storage_dtype(values.dtype)
                check_memory(self._rows * int(np.prod(shape[1:])) * dtype.itemsize, f"{self._path}: {name}")
                self._arrays[name] = np.empty(shape, dtype)
            target = self._arrays[name]
            if values.shape[1:] != target.shape[1:] or end > self._rows:
                raise DatasetError(
                    f"{self._path}: {name} has rows of shape {values.shape[1:]} from row {start:,};"
                    f" expected {target.shape[1:]}"
                )
            with np.errstate(over="ignore"):
                target[start:end] = values
        self.filled = end

    def complete(self) -> dict[str, Array]:
        if self.filled != self._rows:
            raise DatasetError(f"{self._path}: claims {self._rows:,} rows, but {self.filled:,} are in it")
        return self._arrays


def _is_wanted(field: Any, wanted: Callable[[str], bool], pa: Any) -> bool:
    if pa.types.is_struct(field.type):
        return any(wanted(f"{field.name}.{child.name}") for child in field.type)
    return wanted(field.name)


def _to_numpy(column: Any, what: str, pa: Any) -> Array:
    """Return one number or one vector per row."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    rows, width = len(column), None
    types = pa.types
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        if column.null_count:
            raise DatasetError(f"{what} has {column.null_count} missing values")
        if types.is_fixed_size_list(column.type):
            width = column.type.list_size
        else:
            lengths = np.diff(column.offsets.to_numpy())
            width = int(lengths[0]) if rows else 0
            if (lengths != width).any():
                raise DatasetError(
                    f"{what} has rows of {lengths.min()} to {lengths.max()} numbers; expected equal ones"
                )
        column = column.flatten()
    if not (types.is_floating(column.type) or types.is_integer(column.type) or types.is_boolean(column.type)):
        raise DatasetError(f"{what} has type {column.type}; expected numbers")
    if column.null_count:
        raise DatasetError(f"{what} has {column.null_count} missing values")
    values: Array = column.to_numpy(zero_copy_only=False)
    return values if width is None else values.reshape(rows, width)


def _to_arrow(array: Array, pa: Any) -> Any:
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
