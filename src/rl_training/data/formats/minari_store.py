"""Minari datasets, through Minari's own API on the local root (``MINARI_DATASETS_PATH``)."""

from __future__ import annotations

import json
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
from rl_training.data.formats.limits import load_extra
from rl_training.errors import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

Array = NDArray[Any]

PREFIX = "minari:"
"""What comes before a dataset's id where a path is expected."""


def read(dataset_id: str, *, download: bool = False) -> tuple[dict[str, Array], list[str]]:
    """Return a dataset's rows under our names, and the names it has; ask the network only with ``download``."""
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
        except Exception as error:  # whatever the network and its clients raise
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            raise DatasetError(f"Minari dataset {dataset_id!r} cannot be downloaded: {reason}") from None
    return read_folder(folder)


def read_folder(folder: Path) -> tuple[dict[str, Array], list[str]]:
    """Return the rows of the Minari dataset in ``folder``, the one that has ``data`` in it."""
    minari = load_extra("minari", "reading Minari datasets")
    _check(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = minari.MinariDataset(folder / "data")
        rows = join(_episodes(dataset), str(folder))
    except DatasetError:
        raise
    except ImportError:
        load_extra("h5py", "reading Minari datasets")
        raise
    except Exception as error:  # a damaged dataset makes Minari raise AssertionError, KeyError, OSError, ArrowInvalid
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DatasetError(f"{folder}: not a Minari dataset that can be read: {reason}") from None
    return rows, list(rows)


def write(dataset: TransitionDataset, dataset_id: str, *, env_spec: EnvSpec | None = None) -> Path:
    """Write a dataset into Minari's local root, where there is none of that id, and return its folder."""
    load_extra("h5py", "writing Minari datasets")
    minari = load_extra("minari", "writing Minari datasets")
    folder = check_new(dataset_id)
    storage_type = load_extra("minari.dataset.minari_storage", "writing Minari datasets").MinariStorage
    buffer_type = load_extra("minari.data_collector", "writing Minari datasets").EpisodeBuffer
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    observation_space, action_space = _spaces(dataset, env_spec)
    try:
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
    except OSError as error:
        raise DatasetError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def check_new(dataset_id: str) -> Path:
    """Return where a dataset of this id would lie, or say that the id is wrong or taken."""
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
    """Return where the dataset of an id lies; an id that is none cannot lead out of the root."""
    parse = load_extra("minari.dataset.minari_dataset", "Minari datasets").parse_dataset_id
    try:
        parse(dataset_id)
    except (ValueError, TypeError):
        raise DatasetError(
            f"{dataset_id!r} is not the id of a Minari dataset; expected one such as D4RL/door/human-v2"
        ) from None
    return _root() / dataset_id


def _check(folder: Path) -> None:
    """Refuse a dataset that Minari would have to execute code for, or whose arrays claim too much."""
    file = folder / "data" / "metadata.json"
    try:
        metadata = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{file}: cannot be read: {error}") from None
    for key in ("observation_space", "action_space"):
        if not isinstance(metadata, dict) or not isinstance(metadata.get(key), str):
            # Without its spaces Minari makes the environment that the metadata names, whatever code that runs.
            raise DatasetError(f"{file}: key {key!r} is missing")
    if metadata.get("data_format", "hdf5") == "hdf5":
        hdf5.check_file(folder / "data" / "main_data.hdf5")


def _episodes(dataset: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    keys = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
    for episode in dataset.iterate_episodes():
        yield f"episode_{episode.id}", {key: getattr(episode, key) for key in keys}


def _spaces(dataset: TransitionDataset, env_spec: EnvSpec | None) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return spaces that hold the data; those of actions are the environment's where it is known and they do."""
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
