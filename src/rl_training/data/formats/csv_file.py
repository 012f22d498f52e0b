"""CSV files with one row per step and one column for each number, named by a header line."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats.columns import ALIASES, is_known
from rl_training.data.formats.hostile_files import check_members, check_memory, check_packing
from rl_training.data.formats.storage import atomic_write, report_bytes
from rl_training.errors import DatasetError, shown

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

_LINE_LIMIT = 1 << 20  # characters
_ROWS_AT_ONCE = 4096
_EPISODE_IDS = ("episode_index", "episode_id", "episode")
_INDEXED = re.compile(r"(.+?)(?:[_.](\d{1,5})|\[(\d{1,5})\])")  # action_0, action.0, action[0]
_WORDS = {"true": 1.0, "false": 0.0}
_SINGULAR = {
    "observations": "observation",
    "achieved_goals": "achieved_goal",
    "desired_goals": "desired_goal",
    "next_observations": "next_observation",
    "next_achieved_goals": "next_achieved_goal",
    "next_desired_goals": "next_desired_goal",
    "actions": "action",
    "rewards": "reward",
    "interventions": "intervention",
}


class _Column(NamedTuple):
    """Where the numbers of one array are in each row."""

    positions: list[int]
    is_vector: bool
    """Whether the header numbers the columns, as in ``action_0``."""


def read(path: Path, wanted: Callable[[str], bool] = is_known) -> tuple[dict[str, Array], list[str]]:
    """Return the wanted arrays of a CSV file under their names without numbers, and all names in its header."""
    try:
        size, most_rows = _size_and_lines(path)
        if not size:
            raise DatasetError(f"{path}: not a CSV file that can be read: it is empty")
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _lines(file, path)
            skipped, first = next(((n, line) for n, line in enumerate(lines) if line.strip()), (0, ""))
            separator = max(",;\t", key=first.count)
            reader = csv.reader(itertools.chain([first], lines), delimiter=separator, strict=True)
            header = [name.strip() for name in next(reader)]
            check_members(len(header), f"{path}: the header")
            columns = _find_columns(header, wanted, path)
            if not columns:
                return {}, header  # the error about missing keys says more than one about a row
            table = _Table(columns, header, most_rows, path)
            check_packing(table.nbytes, size, str(path))
            check_memory(table.nbytes, str(path))
            while rows := [(reader.line_num + skipped, row) for row in itertools.islice(reader, _ROWS_AT_ONCE)]:
                table.add([(line, row) for line, row in rows if row])
                report_bytes("reading", min(size, table.characters), size)
            return table.complete(), header
    except (OSError, csv.Error, UnicodeError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeError) else str(error).split("\n", 1)[0]
        raise DatasetError(f"{path}: not a CSV file that can be read: {reason}") from None


def write(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset with names such as ``observation_0``; nine digits give back every float32 exactly."""
    lengths = dataset.episode_lengths
    arrays: dict[str, Array] = {"episode_index": np.repeat(np.arange(len(lengths)), lengths), **dataset.arrays}
    if dataset.usable is not None:
        arrays["usable"] = dataset.usable
    names = list[str]()
    for key, array in arrays.items():
        name = _SINGULAR.get(key, key)
        names += [name] if array.ndim == 1 else [f"{name}_{index}" for index in range(array.shape[1])]
    line = ",".join(["%.9g"] * len(names)) + "\n"
    with atomic_write(path, 4 * len(names) * len(dataset)) as file:
        file.write((",".join(names) + "\n").encode())
        for start in range(0, len(dataset), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            numbers = np.column_stack([array[rows].astype(np.float64) for array in arrays.values()])
            file.write("".join(line % tuple(row) for row in numbers.tolist()).encode())


class _Table:
    """Arrays for all rows, filled some thousand rows at a time."""

    def __init__(self, columns: dict[str, _Column], header: list[str], most_rows: int, path: Path) -> None:
        self._columns, self._header, self._path = columns, header, path
        self._rows, self.characters = 0, 0
        # A column without a number may hold whole numbers, which float32 would round.
        self._arrays = {
            name: np.empty((most_rows, len(column.positions)), np.float32 if column.is_vector else np.float64)
            for name, column in columns.items()
        }
        self._ids: Array | None = None
        if "episode_index" in columns:
            del self._arrays["episode_index"]
            self._ids = np.empty(most_rows, np.int64)
        indices = ("actions", *ALIASES["actions"])
        self._may_be_index = {
            name
            for name, column in columns.items()
            if not column.is_vector and (name in indices or not is_known(name))  # an unknown name is renamed later
        }

    @property
    def nbytes(self) -> int:
        """The memory that the arrays need."""
        return sum(array.nbytes for array in self._arrays.values())

    def add(self, rows: list[tuple[int, list[str]]]) -> None:
        """Add rows, each with the number of its last line in the file."""
        for line, row in rows:
            if len(row) != len(self._header):
                raise DatasetError(
                    f"{self._path}: line {line} has {len(row)} values; expected {len(self._header)}, as the header has"
                )
            self.characters += sum(map(len, row)) + len(row)
        start, end = self._rows, self._rows + len(rows)
        for name, column in self._columns.items():
            for index, position in enumerate(column.positions):
                cells = [row[position] for _, row in rows]
                if name == "episode_index" and self._ids is not None:
                    self._ids[start:end] = [hash(cell.strip()) for cell in cells]  # ids may be text
                    continue
                try:
                    numbers = _numbers(cells)
                except ValueError:
                    raise self._not_a_number(position, rows) from None
                if name in self._may_be_index and not all(_is_whole(cell) for cell in cells):
                    self._may_be_index.discard(name)
                with np.errstate(over="ignore"):
                    self._arrays[name][start:end, index] = numbers
        self._rows = end

    def complete(self) -> dict[str, Array]:
        """Return the arrays."""
        arrays: dict[str, Array] = {}
        for name, array in self._arrays.items():
            array = array[: self._rows]
            if not self._columns[name].is_vector:
                array = array[:, 0]
                whole = name in self._may_be_index and np.abs(array).max(initial=0) < 2**53
                with np.errstate(over="ignore"):
                    array = array.astype(np.int64 if whole else np.float32)
            arrays[name] = array
        if self._ids is not None:
            arrays["episode_index"] = self._episodes(self._ids[: self._rows])
        return arrays

    def _episodes(self, ids: Array) -> Array:
        """Return the number of each row's episode; refuse an id that returns after another one."""
        starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] + 1))
        _, first = np.unique(ids[starts], return_index=True)
        if len(first) < len(starts):
            row = int(starts[np.setdiff1d(np.arange(len(starts)), first)[0]])
            name = self._header[self._columns["episode_index"].positions[0]]
            raise DatasetError(
                f"{self._path}: {shown(name)} of row {row:,} is that of an earlier episode;"
                " expected the rows of an episode one after another"
            )
        return np.repeat(np.arange(len(starts)), np.diff(starts, append=len(ids)))

    def _not_a_number(self, position: int, rows: list[tuple[int, list[str]]]) -> DatasetError:
        for line, row in rows:
            try:
                _numbers([row[position]])
            except ValueError:
                cell, hint = row[position].strip(), ""
                if cell.startswith(("[", "(")):
                    hint = f" (write a column for each number: {self._header[position]}_0, {self._header[position]}_1)"
                return DatasetError(
                    f"{self._path}: {shown(self._header[position])} is {cell[:40]!r} in line {line};"
                    f" expected a number{hint}"
                )
        raise AssertionError("there is such a cell")


def _find_columns(header: list[str], wanted: Callable[[str], bool], path: Path) -> dict[str, _Column]:
    """Return the wanted arrays: a column of that name, or columns numbered from 0 or 1."""
    if all(_is_number(name) for name in header):
        raise DatasetError(f"{path}: the first line has no names; expected a header such as observation_0,action_0,…")
    found: dict[str, dict[int | None, int]] = {}
    for position, text in enumerate(header):
        name, index = _split(text, wanted)
        if name is None:
            continue
        if index in found.setdefault(name, {}):
            raise DatasetError(f"{path}: column {shown(text)} is there twice")
        found[name][index] = position
    columns = {}
    for name, places in found.items():
        if None in places:
            if len(places) > 1:
                raise DatasetError(f"{path}: there is a column {shown(name)}, and also columns with numbers after it")
            columns[name] = _Column([places[None]], is_vector=False)
            continue
        numbers = sorted(index for index in places if index is not None)
        if numbers[0] > 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            expected = next(n for n in range(numbers[0] if numbers[0] <= 1 else 0, len(numbers) + 2) if n not in places)
            raise DatasetError(f"{path}: column {shown(name)}_{expected} is missing beside {shown(name)}_{numbers[-1]}")
        columns[name] = _Column([places[index] for index in numbers], is_vector=True)
    return columns


def _split(text: str, wanted: Callable[[str], bool]) -> tuple[str | None, int | None]:
    """Return the array that a column belongs to and the number after its name; None for columns that are not read."""
    for name in (text, text.lower()):
        if name in _EPISODE_IDS:
            return "episode_index", None
        if wanted(name):
            return name, None
        match = _INDEXED.fullmatch(name)
        if match and wanted(match[1]):
            return match[1], int(match[2] or match[3])
    return None, None


def _size_and_lines(path: Path) -> tuple[int, int]:
    """Return the size of a file in bytes, and how many lines it has at most."""
    size = feeds = returns = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size, feeds, returns = size + len(block), feeds + block.count(b"\n"), returns + block.count(b"\r")
    return size, max(feeds, returns) + 1


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    while line := file.readline(_LINE_LIMIT + 1):
        if len(line) > _LINE_LIMIT:
            raise DatasetError(f"{path}: a line has more than {_LINE_LIMIT:,} characters; refused")
        yield line


def _numbers(cells: Iterable[str]) -> Array:
    cells = list(cells)
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        words = [_WORDS.get(cell.strip().lower()) for cell in cells]
        numbers = (float(cell) if word is None else word for cell, word in zip(cells, words, strict=True))
        return np.fromiter(numbers, np.float64, len(cells))


def _is_number(cell: str) -> bool:
    try:
        _numbers([cell])
    except ValueError:
        return False
    return True


def _is_whole(cell: str) -> bool:
    return cell.strip().lstrip("+-").isdecimal()
