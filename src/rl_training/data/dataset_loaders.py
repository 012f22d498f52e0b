"""Read logged transitions from files of several formats, and write them. Reading never executes code from a file."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from gymnasium.envs.registration import EnvSpec
from pydantic import Field, model_validator

from rl_training.config import Settings
from rl_training.data.formats import csv_file, hdf5, lerobot, minari_store, npz, parquet, torch_file
from rl_training.data.formats.columns import ALIASES, Columns, canonical, check_rename, is_known
from rl_training.data.formats.storage import local_path
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import ConfigError, DatasetError, did_you_mean, shown

__all__ = [
    "ALIASES",
    "DatasetSettings",
    "RewardSettings",
    "canonical",
    "find_file",
    "load_transition_dataset",
    "read_transitions",
    "warn_of_terminations_at_limit",
    "write_transitions",
]

DATA_FOLDER_VARIABLE = "RL_TRAINING_DATA"

SUFFIXES = {
    ".npz": "npz",
    ".pt": "pt",
    ".pth": "pt",
    ".hdf5": "hdf5",
    ".h5": "hdf5",
    ".parquet": "parquet",
    ".csv": "csv",
}
"""File suffixes and their formats."""

_WRITTEN = {"npz": npz, "pt": torch_file, "hdf5": hdf5, "parquet": parquet, "csv": csv_file}
_READ = {**_WRITTEN, "lerobot": lerobot}

READ_KINDS = (*_READ, "minari")
"""The formats that can be read."""
WRITTEN_KINDS = (*_WRITTEN, "minari")
"""The formats that can be written."""


class DatasetSettings(Settings):
    """Where logged transitions come from."""

    dataset_kind: Literal["random", "npz", "pt", "hdf5", "minari", "parquet", "csv", "lerobot"] | None = Field(
        None,
        description="the format; unset: by the file's name; random: random play in env_id, if no file is given",
    )
    dataset_path: Path | None = Field(
        None, description=f"the file; a name without a folder is also looked up in the folder ${DATA_FOLDER_VARIABLE}"
    )
    dataset_id: str | None = Field(None, description="a Minari dataset")
    dataset_download: bool = Field(False, description="download the Minari dataset if it is not on this machine")
    dataset_size: int = Field(10_000, ge=1, le=2**40, description="transitions that random play collects")
    dataset_top_fraction: float = Field(
        1.0, gt=0, le=1, description="keep this share of the episodes, those with the highest returns"
    )
    dataset_rows: Literal["all", "interventions"] = Field(
        "all", description="which rows are sampled; interventions: those with the flag intervention"
    )
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

    @model_validator(mode="before")
    @classmethod
    def _file_instead_of_random_play(cls, values: Any) -> Any:
        """Let a file or a Minari id replace ``random``, so that a preset with random play can be given a file."""
        if not isinstance(values, dict) or values.get("dataset_kind") != "random":
            return values
        has_file = any(values.get(key) is not None for key in ("dataset_path", "dataset_id"))
        return {**values, "dataset_kind": None} if has_file else values

    @property
    def source(self) -> str:
        """The name of the data in errors."""
        return str(self.dataset_path or self.dataset_id or "dataset")

    @property
    def names_dataset(self) -> bool:
        """Whether the settings name logged data."""
        return any(value is not None for value in (self.dataset_kind, self.dataset_path, self.dataset_id))


class RewardSettings(Settings):
    """The transform of rewards. It applies to both offline and online data."""

    reward_scale: Annotated[float, Field()] | Literal["auto"] = Field(
        1.0, description="factor of the reward; auto: scale the dataset's returns to a range of 1,000"
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
        """Return the transform of rewards, or None if it changes nothing; ``auto`` uses the dataset's returns."""
        scale = self.reward_scale
        if scale == "auto":
            if dataset is None:
                raise ConfigError("algo_kwargs.reward_scale = 'auto' needs logged data: expected a dataset")
            returns = dataset.episode_returns[dataset.complete_episodes]
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
    rename: Mapping[str, str] | None = None,
) -> TransitionDataset:
    """Read a dataset from a file, or by its Minari id.

    Args:
        path: a file, the folder of a Minari or LeRobot dataset, or ``minari:ID``.
        kind: the format; unset: by the name.
        dataset_id: a Minari dataset, instead of ``path``.
        download: whether to download a Minari dataset that is not on this machine.
        rename: unknown names in the file and the known names to use for them: ``{"sensor": "observations"}``.
    """
    columns = read_transitions(path, kind, dataset_id=dataset_id, download=download, rename=rename)
    return TransitionDataset.from_dict(columns, where=str(path if path is not None else dataset_id))


def read_transitions(
    path: str | Path | None = None,
    kind: str | None = None,
    *,
    dataset_id: str | None = None,
    download: bool = False,
    rename: Mapping[str, str] | None = None,
) -> Columns:
    """Read the arrays of a dataset under our names, unchecked: ``TransitionDataset.from_dict`` checks them."""
    check_rename(rename or {})
    if path is not None and str(path).startswith(minari_store.PREFIX):
        path, kind, dataset_id = None, "minari", str(path)[len(minari_store.PREFIX) :]
    if kind == "minari" and path is not None and dataset_id is None and not local_path(path).exists():
        path, dataset_id = None, str(path)
    if dataset_id is not None:
        if path is not None or kind not in (None, "minari"):
            raise DatasetError(
                f"dataset_id = {dataset_id!r} names a Minari dataset: expected no dataset_path and no dataset_kind"
            )
        rows, names = minari_store.read(dataset_id, download=download)
        return canonical(rows, dataset_id, names, rename)
    if path is None:
        missing = "dataset_id" if kind == "minari" else "dataset_path"
        raise DatasetError(f"{missing} is required" + (f" for dataset_kind {kind!r}" if kind else ""))
    found = find_file(path)
    kind = kind or kind_of(found)
    if kind == "minari":
        rows, names = minari_store.read_folder(found)
    elif kind in _READ:
        rows, names = _READ[kind].read(found, lambda name: is_known(name) or name in (rename or {}))
    else:
        hint = did_you_mean(kind, READ_KINDS)
        raise DatasetError(f"dataset_kind {kind!r} is not a file format{hint}; expected {', '.join(READ_KINDS)}")
    return canonical(rows, str(found), names, rename)


def warn_of_terminations_at_limit(
    dataset: TransitionDataset, time_limit: int | None = None, *, where: str = "dataset"
) -> None:
    """Warn if episodes that reach the time limit are marked as terminated, as ``data inspect`` does.

    Args:
        dataset: the data of a run.
        time_limit: the environment's time limit; None: use the length of the longest episodes.
        where: the name of the data in the warning.
    """
    rows = dataset.terminations_at_limit(time_limit)
    if len(rows):
        length = int(dataset.episode_lengths.max()) if time_limit is None else time_limit
        warnings.warn(
            f"{shown(where)}: {len(rows):,} episodes of {length:,} steps are marked as terminated."
            f" {'That is the time limit' if time_limit is not None else 'If that is a time limit'}, so they are"
            " time-outs, and the learner treats the limit as the end of the task"
            " (rl-training data convert --repair --env ENV_ID corrects them)",
            stacklevel=2,
        )


def write_transitions(
    dataset: TransitionDataset, path: str | Path, kind: str | None = None, *, env_spec: EnvSpec | None = None
) -> Path:
    """Write a dataset so that reading it gives the same arrays, and return its path.

    A file is written under a temporary name and renamed when it is complete. For Minari, ``path`` is
    ``minari:ID`` (or an id, with the kind given) and ``env_spec`` is the environment to record with it.
    """
    text = str(path)
    check_written_kind(kind)
    if text.startswith(minari_store.PREFIX) or kind == "minari":
        return minari_store.write(dataset, text.removeprefix(minari_store.PREFIX), env_spec=env_spec)
    target = local_path(path)
    kind = kind or kind_of(target)
    check_written_kind(kind)
    _WRITTEN[kind].write(dataset, target)
    return target


def check_written_kind(kind: str | None) -> None:
    """Refuse a format that is unknown or can only be read."""
    if kind is not None and kind not in WRITTEN_KINDS:
        hint = did_you_mean(kind, WRITTEN_KINDS)
        raise DatasetError(f"dataset_kind {kind!r} cannot be written{hint}; expected {', '.join(WRITTEN_KINDS)}")


def kind_of(path: Path) -> str:
    """Return the format, judged by a file's name or a folder's content."""
    if path.is_dir():
        if minari_store.is_folder(path):
            return "minari"
        return "lerobot" if lerobot.is_folder(path) else "parquet"
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise DatasetError(
            f"{path}: the format is not clear from the name; expected a suffix among {', '.join(SUFFIXES)},"
            " or minari:ID, or the format (--kind, --target-kind for a converted file, or dataset_kind)"
        )
    return kind


def find_file(path: str | Path) -> Path:
    """Return the file or folder at ``path``, or in the folder that ``RL_TRAINING_DATA`` names."""
    found, folder = locate(path), os.environ.get(DATA_FOLDER_VARIABLE)
    if found is not None:
        return found
    where = f"nor in ${DATA_FOLDER_VARIABLE} = {folder}" if folder else f"and ${DATA_FOLDER_VARIABLE} is not set"
    raise DatasetError(
        f"dataset_path = {str(path)!r}: no such file here, {where};"
        f" give it with --set algo_kwargs.dataset_path=FILE or set {DATA_FOLDER_VARIABLE} to its folder"
    )


def locate(path: str | Path) -> Path | None:
    """Return the file or folder at ``path`` or in the data folder, or None if there is none."""
    direct = local_path(path)
    folder = os.environ.get(DATA_FOLDER_VARIABLE)
    for candidate in [direct, *([Path(folder) / direct] if folder else [])]:
        try:
            if candidate.is_file() or candidate.is_dir():
                return candidate
            if candidate.exists():
                raise DatasetError(f"{candidate}: neither a regular file nor a folder")
        except OSError as error:  # a folder that may not be read, or a name that is too long
            raise DatasetError(f"{candidate}: cannot be read: {error.strerror or error}") from None
    return None
