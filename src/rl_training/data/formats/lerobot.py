"""LeRobot datasets, versions 2 and 3: a folder with ``meta/info.json`` and Parquet files in ``data/chunk-…/``.

Version 2 has one file for each episode (``episode_000000.parquet``), version 3 files of many episodes
(``file-000.parquet``). Rows are the same in both, so the rows say where episodes end.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats import parquet
from rl_training.data.formats.columns import ALIASES, MERGED, SUCCESS, is_known
from rl_training.data.formats.hostile_files import read_json
from rl_training.errors import DatasetError, shown

Array = NDArray[Any]

_EPISODE, _FRAME, _REWARD = "episode_index", "frame_index", "next.reward"
_UNREAD = ("video", "image")
_OTHER_STATE = "observation.environment_state"


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is the folder of a LeRobot dataset."""
    return (path / "meta" / "info.json").is_file()


def read(path: Path, wanted: Callable[[str], bool] = is_known) -> tuple[dict[str, Array], list[str]]:
    """Return the wanted columns in the order of episodes and frames, and all names. Images are not read.

    Demonstrations without rewards get rewards of 0, with a warning: cloning does not use them.
    """
    info, features = _info(path)
    arrays, names = parquet.read_files(path, _files, lambda name: wanted(name) or name in (_EPISODE, _FRAME))
    for name in (_EPISODE, _FRAME):
        if name not in arrays:
            raise DatasetError(f"{path}: column {name!r} is missing in data; found {', '.join(sorted(names)[:30])}")
    rows = len(arrays[_EPISODE])
    _check_features(arrays, features, path)
    arrays = _in_order(arrays, path)
    frames = arrays.pop(_FRAME)
    episodes = int((frames == 0).sum())
    for key, found in (("total_frames", rows), ("total_episodes", episodes)):
        if info[key] != found:
            raise DatasetError(
                f"{path}: meta/info.json has {key} {info[key]:,}, but the data has {found:,}: files are missing"
                " (--kind parquet or dataset_kind: parquet reads those that are there)"
            )
    ended = {*ALIASES["terminated"], *ALIASES["truncated"], *MERGED, "terminated", "truncated"}
    if SUCCESS in arrays and not ended & arrays.keys():
        arrays["next.done"] = np.append(frames[1:] == 0, True)  # canonical divides these ends by success
    if not {"rewards", *ALIASES["rewards"]} & arrays.keys():
        warnings.warn(f"{shown(path)}: there are no rewards in it; they are 0, which only bc can use", stacklevel=2)
        arrays[_REWARD] = np.zeros(rows, np.float32)
    return arrays, names


def _info(path: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """Return the totals and the features of ``meta/info.json``."""
    file = path / "meta" / "info.json"
    if not is_folder(path):
        raise DatasetError(f"{path}: not the folder of a LeRobot dataset: it has no meta/info.json")
    info = read_json(file)
    if not isinstance(info, dict):
        raise DatasetError(f"{file}: holds a {type(info).__name__}; expected an object")
    version = info.get("codebase_version")
    if not isinstance(version, str) or not re.fullmatch(r"v?[23](\.\d+)*", version):
        raise DatasetError(f"{file}: codebase_version is {version!r}; expected v2.0, v2.1 or v3.0")
    totals = {key: info.get(key) for key in ("total_frames", "total_episodes")}
    for key, total in totals.items():
        if isinstance(total, bool) or not isinstance(total, int) or total < 0:
            raise DatasetError(f"{file}: {key} is {str(total)[:40]!r}; expected a whole number")
    features = info.get("features")
    if not isinstance(features, dict) or not all(isinstance(feature, dict) for feature in features.values()):
        raise DatasetError(f"{file}: features is missing or not an object of objects")
    unread = [name for name, feature in features.items() if feature.get("dtype") in _UNREAD or name == _OTHER_STATE]
    if unread:
        warnings.warn(f"{shown(path)}: not read: {shown(', '.join(sorted(unread)[:10]))}", stacklevel=3)
    return {key: int(total) for key, total in totals.items() if total is not None}, features


def _files(path: Path) -> list[Path]:
    """Return the data files in the order of their numbers: chunk-1000 comes after chunk-999."""
    files = (path / "data").glob("chunk-*/*.parquet")
    found = sorted(
        files, key=lambda file: [int(number) for number in re.findall(r"\d{1,18}", f"{file.parent.name}/{file.name}")]
    )
    if not found:
        raise DatasetError(f"{path}: there are no files data/chunk-*/*.parquet")
    return found


def _check_features(arrays: dict[str, Array], features: dict[str, Any], path: Path) -> None:
    """Compare the columns with the shapes that the metadata declares."""
    for name, array in arrays.items():
        shape = features.get(name, {}).get("shape")
        if shape is None:
            continue
        if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise DatasetError(
                f"{path}: meta/info.json has shape {str(shape)[:40]!r} for {shown(name)}; expected a list"
            )
        declared = 1
        for size in shape:
            declared *= size
        if declared != array[:1].size and len(array):
            raise DatasetError(
                f"{path}: {name} has rows of shape {array.shape[1:]}; meta/info.json declares {str(shape)[:40]}"
            )


def _in_order(arrays: dict[str, Array], path: Path) -> dict[str, Array]:
    """Return the rows sorted by episode and frame; refuse episodes with missing or repeated frames."""
    rows = len(arrays[_EPISODE])
    for name, array in arrays.items():
        if name in (_EPISODE, _FRAME) and (array.size != rows or array.dtype.kind not in "iu"):
            raise DatasetError(
                f"{path}: {name} has shape {array.shape} and dtype {array.dtype}; expected whole numbers"
            )
    episode, frame = arrays[_EPISODE].reshape(rows), arrays[_FRAME].reshape(rows)
    order = np.lexsort((frame, episode))
    if not np.array_equal(order, np.arange(rows)):
        arrays = {name: array[order] for name, array in arrays.items()}
        episode, frame = episode[order], frame[order]
    starts = np.flatnonzero(np.append(True, episode[1:] != episode[:-1])[:rows])
    expected = np.arange(rows) - np.repeat(starts, np.diff(starts, append=rows))
    wrong = np.flatnonzero(frame != expected)
    if len(wrong):
        row = wrong[0]
        raise DatasetError(f"{path}: episode {episode[row]} has frame {frame[row]}; expected frame {expected[row]}")
    return {**arrays, _EPISODE: episode, _FRAME: frame}
