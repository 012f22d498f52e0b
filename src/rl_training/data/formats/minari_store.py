"""Minari datasets in the local root (``MINARI_DATASETS_PATH``): found, listed and written through Minari's own API."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rl_training.data.formats import hdf5
from rl_training.data.formats.episodes import join, split
from rl_training.data.formats.hostile_files import check_memory, read_json
from rl_training.data.formats.storage import check_room, load_extra
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

PREFIX = "minari:"
"""The prefix of a dataset's id that is given as a path."""

_EPISODE_BYTES = 1 << 15  # more than what HDF5 adds to the data of an episode


def read(dataset_id: str, *, download: bool = False) -> tuple[dict[str, Array], list[str]]:
    """Return a dataset's rows under our names, and the names it has; only ``download`` uses the network."""
    minari = load_extra("minari", "reading Minari datasets")
    folder = _folder(dataset_id)
    if not (folder / "data").exists():
        if not download:
            raise DatasetError(
                f"no Minari dataset {dataset_id!r} in {_root()}, and downloading is off"
                " (dataset_download: true fetches it)"
            )
        try:
            minari.download_dataset(dataset_id)
        except Exception as error:  # the network and its clients may raise anything
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            raise DatasetError(f"Minari dataset {dataset_id!r} cannot be downloaded: {reason}") from None
    return read_folder(folder)


def read_folder(folder: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the rows of the Minari dataset in ``folder``, the one that contains ``data``."""
    if _check(folder) == "hdf5":
        return hdf5.read(folder / "data" / "main_data.hdf5")
    minari = load_extra("minari", "reading Minari datasets")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = minari.MinariDataset(folder / "data")
        rows = join(_episodes(dataset), str(folder))
    except DatasetError:
        raise
    except ImportError:
        load_extra("pyarrow", "reading Minari datasets")
        raise
    except Exception as error:  # a damaged dataset makes Minari raise AssertionError, KeyError, OSError, ArrowInvalid
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DatasetError(f"{folder}: not a Minari dataset that can be read: {reason}") from None
    return rows, list(rows)


def write(dataset: TransitionDataset, dataset_id: str, *, env_spec: EnvSpec | None = None) -> Path:
    """Write a dataset into Minari's local root, if the id is not taken, and return its folder."""
    load_extra("h5py", "writing Minari datasets")
    minari = load_extra("minari", "writing Minari datasets")
    folder = check_new(dataset_id)
    storage_type = load_extra("minari.dataset.minari_storage", "writing Minari datasets").MinariStorage
    buffer_type = load_extra("minari.data_collector", "writing Minari datasets").EpisodeBuffer
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    observation_space, action_space = _spaces(dataset, env_spec)
    try:
        _root().mkdir(parents=True, exist_ok=True)
        size = sum(array.nbytes for array in dataset.arrays.values())
        check_room(_root(), size + _EPISODE_BYTES * len(dataset.episode_ends))  # HDF5 crashes if a write fails
        namespace = dataset_id.rpartition("/")[0]
        namespaces = load_extra("minari.namespace", "writing Minari datasets")
        if namespace and namespace not in namespaces.list_local_namespaces():
            namespaces.create_namespace(namespace)
        (temporary / "data").mkdir(parents=True)
        storage = storage_type.new(
            temporary / "data", observation_space=observation_space, action_space=action_space, env_spec=env_spec
        )
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": minari.__version__})
        storage.update_episodes(buffer_type(**episode) for episode in split(dataset))
        os.replace(temporary, folder)
    except (OSError, RuntimeError) as error:  # h5py raises RuntimeError if a write fails
        raise DatasetError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def check_new(dataset_id: str) -> Path:
    """Return the folder of a new dataset of this id, or say that the id is wrong or taken."""
    folder = _folder(dataset_id)
    if folder.exists():
        raise DatasetError(f"there is a Minari dataset {dataset_id!r} already: {folder}")
    return folder


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is the folder of a Minari dataset."""
    return (path / "data" / "metadata.json").is_file()


def _root() -> Path:
    return Path(load_extra("minari.storage", "Minari datasets").get_dataset_path()).absolute()


def _folder(dataset_id: str) -> Path:
    """Return the folder of a dataset; an invalid id is refused, so it cannot name a folder outside the root."""
    parse = load_extra("minari.dataset.minari_dataset", "Minari datasets").parse_dataset_id
    try:
        parse(dataset_id)
    except (ValueError, TypeError):
        raise DatasetError(
            f"{dataset_id!r} is not the id of a Minari dataset; expected one such as D4RL/door/human-v2"
        ) from None
    return _root() / dataset_id


def _check(folder: Path) -> str:
    """Return the data format of a dataset; refuse one for which Minari would run code or fill memory."""
    file = folder / "data" / "metadata.json"
    metadata = read_json(file)
    for key in ("observation_space", "action_space"):
        if not isinstance(metadata, dict) or not isinstance(metadata.get(key), str):
            # If the spaces are missing, Minari makes the environment that the metadata names, which can run any code.
            raise DatasetError(f"{file}: key {key!r} is missing")
    data_format = str(metadata.get("data_format", "hdf5"))
    if data_format != "hdf5":  # one folder per episode; Minari reads up to ``total_episodes`` of them
        parts = [path for path in (folder / "data").glob("*/*") if path.is_file()]
        claimed, found = metadata.get("total_episodes", 0), len({path.parent for path in parts})
        if not isinstance(claimed, int) or claimed > found:
            raise DatasetError(f"{file}: total_episodes is {claimed!r}, but the data has {found:,} episodes; refused")
        check_memory(2 * sum(path.stat().st_size for path in parts), str(folder))
    return data_format


def _episodes(dataset: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    keys = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    for episode in dataset.iterate_episodes():
        yield f"episode_{episode.id}", {key: getattr(episode, key) for key in keys}


def _spaces(dataset: TransitionDataset, env_spec: EnvSpec | None) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return spaces that contain the data; the action space is the environment's, if it is known and contains them."""
    spec = dataset.spec

    def box(size: int) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    observation: spaces.Space[Any] = box(spec.observation_dim)
    if dataset.is_goal_conditioned:
        goal = {name: box(spec.goal_dim) for name in ("achieved_goal", "desired_goal")}
        observation = spaces.Dict({"observation": observation, **goal})
    action: spaces.Space[Any] = box(spec.action_dim) if spec.num_actions is None else spaces.Discrete(spec.num_actions)
    if env_spec is not None:
        env = env_spec.make()
        extremes = dataset.actions.min(axis=0), dataset.actions.max(axis=0)
        if all(extreme in env.action_space for extreme in extremes):
            action = env.action_space
        env.close()
    return observation, action
