"""Reading logged transitions from the files people have. Loading never executes code from a file."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rl_training.config import Settings
from rl_training.data.formats import hdf5, minari_store, npz, parquet, torch_file
from rl_training.data.formats.columns import ALIASES, canonical
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import ConfigError, DatasetError, did_you_mean

__all__ = [
    "ALIASES",
    "DatasetSettings",
    "RewardSettings",
    "canonical",
    "find_file",
    "load_transition_dataset",
    "read_npz",
    "read_transitions",
    "write_transitions",
]

Array = NDArray[Any]

DATA_FOLDER_VARIABLE = "RL_TRAINING_DATA"

SUFFIXES = {
    ".npz": "npz",
    ".pt": "pt",
    ".pth": "pt",
    ".hdf5": "hdf5",
    ".h5": "hdf5",
    ".parquet": "parquet",
}
"""The kind of file that a name's ending stands for."""

_FORMATS = {"npz": npz, "pt": torch_file, "hdf5": hdf5, "parquet": parquet}


class DatasetSettings(Settings):
    """Where logged transitions come from."""

    dataset_kind: Literal["random", "npz", "pt", "hdf5", "minari", "parquet"] | None = Field(
        None, description="the format; unset: told from the file's name. random: play at random in env_id"
    )
    dataset_path: Path | None = Field(
        None, description=f"the file; a name alone is also looked for in the folder ${DATA_FOLDER_VARIABLE}"
    )
    dataset_id: str | None = Field(None, description="a Minari dataset")
    dataset_download: bool = Field(False, description="whether a Minari dataset that is not here may be downloaded")
    dataset_size: int = Field(10_000, ge=1, description="transitions that random play collects")
    dataset_top_fraction: float = Field(1.0, gt=0, le=1, description="keep this share of episodes, by return")
    action_low: tuple[float, ...] | None = Field(
        None, description="lowest value of each action, for data without an env_id; unset: -1"
    )
    action_high: tuple[float, ...] | None = Field(
        None, description="highest value of each action, for data without an env_id; unset: 1"
    )

    @model_validator(mode="after")
    def _bounds(self) -> DatasetSettings:
        low, high = self.action_low, self.action_high
        if (low is None) != (high is None):
            raise ValueError("action_low and action_high belong together: expected both or neither")
        if low is not None and high is not None and (len(low) != len(high) or not all(map(operator.lt, low, high))):
            raise ValueError(f"action_low = {list(low)} is not below action_high = {list(high)} in every action")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> DatasetSettings:
        if self.dataset_kind == "random" and (self.dataset_path is not None or self.dataset_id is not None):
            given = "dataset_path" if self.dataset_path is not None else "dataset_id"
            raise ValueError(f"dataset_kind = 'random' reads no file: expected no {given}, or another dataset_kind")
        return self

    @property
    def source(self) -> str:
        """How an error should call the data."""
        return str(self.dataset_path or self.dataset_id or "dataset")

    @property
    def names_dataset(self) -> bool:
        """Whether there is logged data at all."""
        return any(value is not None for value in (self.dataset_kind, self.dataset_path, self.dataset_id))


class RewardSettings(Settings):
    """What is done to rewards, those of logged data and those of fresh play alike."""

    reward_scale: Annotated[float, Field()] | Literal["auto"] = Field(
        1.0, description="factor of the reward; auto: returns then span 1,000 from worst episode to best"
    )
    reward_shift: float = Field(0.0, description="added to the reward after scaling")
    reward_clip_min: float | None = Field(None, description="lower bound of the reward after shifting")
    reward_clip_max: float | None = Field(None, description="upper bound of the reward after shifting")

    @model_validator(mode="after")
    def _ordered(self) -> RewardSettings:
        low, high = self.reward_clip_min, self.reward_clip_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"reward_clip_min = {low:g} is above reward_clip_max = {high:g}")
        return self

    def reward_transform(self, dataset: TransitionDataset | None) -> RewardTransformConfig | None:
        """Return what to do to rewards, None where that is nothing; ``auto`` looks at the dataset."""
        scale = self.reward_scale
        if scale == "auto":
            if dataset is None:
                raise ConfigError("algo_kwargs.reward_scale = 'auto' looks at logged data: expected a dataset")
            returns = dataset.episode_returns
            spread = float(returns.max() - returns.min())
            scale = 1000.0 / spread if spread > 0 else 1.0
        transform = RewardTransformConfig(
            scale=scale, shift=self.reward_shift, clip_min=self.reward_clip_min, clip_max=self.reward_clip_max
        )
        return None if transform == RewardTransformConfig() else transform


def load_transition_dataset(
    path: str | Path | None = None,
    kind: str | None = None,
    *,
    dataset_id: str | None = None,
    download: bool = False,
) -> TransitionDataset:
    """Read a dataset from a file, or by its Minari id.

    Args:
        path: a file, the folder of a Minari or LeRobot dataset, or ``minari:ID``.
        kind: the format; unset, it is told from the name.
        dataset_id: a Minari dataset, instead of ``path``.
        download: whether a Minari dataset that is not here may be fetched.
    """
    where = str(path if path is not None else dataset_id)
    return TransitionDataset.from_dict(
        read_transitions(path, kind, dataset_id=dataset_id, download=download), where=where
    )


def read_transitions(
    path: str | Path | None = None,
    kind: str | None = None,
    *,
    dataset_id: str | None = None,
    download: bool = False,
) -> dict[str, Any]:
    """Read the arrays of a dataset under our names, as they are: ``TransitionDataset.from_dict`` checks them."""
    if path is not None and str(path).startswith(minari_store.PREFIX):
        path, kind, dataset_id = None, "minari", str(path)[len(minari_store.PREFIX) :]
    if kind == "minari" and path is not None and dataset_id is None and not Path(path).exists():
        path, dataset_id = None, str(path)
    if dataset_id is not None:
        if path is not None or kind not in (None, "minari"):
            raise DatasetError(
                f"dataset_id = {dataset_id!r} is for Minari alone: leave dataset_path and dataset_kind unset"
            )
        rows, names = minari_store.read(dataset_id, download=download)
        return canonical(rows, dataset_id, names)
    if path is None:
        missing = "dataset_id" if kind == "minari" else "dataset_path"
        raise DatasetError(f"{missing} is required" + (f" for dataset_kind {kind!r}" if kind else ""))
    found = find_file(path)
    kind = kind or kind_of(found)
    if kind == "minari":
        rows, names = minari_store.read_folder(found)
    elif kind in _FORMATS:
        rows, names = _FORMATS[kind].read(found)
    else:
        raise DatasetError(f"dataset_kind {kind!r} is not a file's; expected {', '.join([*_FORMATS, 'minari'])}")
    return canonical(rows, str(found), names)


def write_transitions(
    dataset: TransitionDataset, path: str | Path, kind: str | None = None, *, env_spec: EnvSpec | None = None
) -> Path:
    """Write a dataset so that reading it gives the same arrays, and return where it lies.

    A file appears under its name only when it is complete. For Minari, ``path`` is ``minari:ID`` (or an id, with the
    kind given) and ``env_spec`` is the environment to record with it.
    """
    text = str(path)
    if text.startswith(minari_store.PREFIX) or kind == "minari":
        return minari_store.write(dataset, text.removeprefix(minari_store.PREFIX), env_spec=env_spec)
    target = Path(path).expanduser()
    kind = kind or kind_of(target)
    if kind not in _FORMATS:
        raise DatasetError(f"dataset_kind {kind!r} cannot be written; expected {', '.join([*_FORMATS, 'minari'])}")
    _FORMATS[kind].write(dataset, target)
    return target


def kind_of(path: Path) -> str:
    """Tell the format from a name, or from what a folder holds."""
    if path.is_dir():
        return "minari" if minari_store.is_folder(path) else "parquet"
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        hint = did_you_mean(path.suffix.lower(), SUFFIXES)
        raise DatasetError(
            f"{path}: the name does not tell the format{hint}; expected an ending among {', '.join(SUFFIXES)},"
            " or minari:ID, or dataset_kind"
        )
    return kind


def find_file(path: str | Path) -> Path:
    """Return a file that is where ``path`` says, or in the folder that ``RL_TRAINING_DATA`` names."""
    direct = Path(path).expanduser()
    folder = os.environ.get(DATA_FOLDER_VARIABLE)
    candidates = [direct, *([Path(folder) / direct] if folder else [])]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    where = f"nor in ${DATA_FOLDER_VARIABLE} = {folder}" if folder else f"and ${DATA_FOLDER_VARIABLE} is not set"
    raise DatasetError(
        f"dataset_path = {str(path)!r}: no such file here, {where};"
        f" give it with --set algo_kwargs.dataset_path=FILE or set {DATA_FOLDER_VARIABLE} to its folder"
    )


def read_npz(path: Path) -> dict[str, Array]:
    """Read the arrays of an npz file under our names."""
    arrays, names = npz.read(path)
    return canonical(arrays, str(path), names)
