"""Reading logged transitions from the files people have. Loading never executes code from a file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rl_training.config import Settings
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import DatasetError

Array = NDArray[Any]

DATA_FOLDER_VARIABLE = "RL_TRAINING_DATA"

ALIASES = {
    "observations": ("obs", "states", "state"),
    "next_observations": ("next_obs", "next_states", "next_state", "obs_next"),
    "actions": ("act", "acts", "action"),
    "rewards": ("rew", "rews", "reward"),
    "terminated": ("terminals", "terminations", "terminal", "dones", "done"),
    "truncated": ("timeouts", "truncations", "timeout"),
}
"""Our names, and those in use elsewhere. A merged ``dones`` counts as termination."""


class DatasetSettings(Settings):
    """Where logged transitions come from, and what is done to their rewards."""

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
    reward_scale: Annotated[float, Field()] | Literal["auto"] = Field(
        1.0, description="factor of the reward; auto: returns then span 1,000 from worst episode to best"
    )
    reward_shift: float = Field(0.0, description="added to the reward after scaling")
    reward_clip_min: float | None = Field(None, description="lower bound of the reward after shifting")
    reward_clip_max: float | None = Field(None, description="upper bound of the reward after shifting")

    def transform_rewards(self, dataset: TransitionDataset) -> TransitionDataset:
        """Return the dataset with its rewards scaled, shifted and clipped as asked."""
        scale = self.reward_scale
        if scale == "auto":
            returns = dataset.episode_returns
            spread = float(returns.max() - returns.min())
            scale = 1000.0 / spread if spread > 0 else 1.0
        transform = RewardTransformConfig(
            scale=scale, shift=self.reward_shift, clip_min=self.reward_clip_min, clip_max=self.reward_clip_max
        )
        return dataset if transform == RewardTransformConfig() else dataset.with_reward_transform(transform)


def load_transition_dataset(
    path: str | Path | None = None,
    kind: str | None = None,
    *,
    dataset_id: str | None = None,
    download: bool = False,
) -> TransitionDataset:
    """Read a dataset from a file, or by its Minari id."""
    if path is None:
        raise DatasetError("dataset_path is required")
    found = find_file(path)
    return TransitionDataset.from_dict(read_npz(found), where=str(found))


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
    try:
        with np.load(path, allow_pickle=False) as archive:
            return canonical({key: archive[key] for key in archive.files})
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise DatasetError(f"{path}: not an npz file that can be read: {error}") from None


def canonical(values: dict[str, Any]) -> dict[str, Any]:
    """Rename arrays to our names and drop those we do not know; ``episode_lengths`` become time-outs."""
    arrays: dict[str, Any] = {}
    for name, aliases in ALIASES.items():
        for alias in (name, *aliases):
            if alias in values:
                arrays[name] = values[alias]
                break
    if "episode_lengths" in values and "rewards" in arrays:
        ends = np.cumsum(values["episode_lengths"]) - 1
        arrays.setdefault("terminated", np.zeros(len(arrays["rewards"]), bool))
        truncated = np.array(arrays.get("truncated", np.zeros(len(arrays["rewards"]), bool)))
        truncated[ends] = True
        arrays["truncated"] = truncated & ~np.asarray(arrays["terminated"]).astype(bool).reshape(-1)
    return arrays
