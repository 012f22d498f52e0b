"""Convert datasets from one format to another, and collect new ones (``rl-training data``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rl_training.data.dataset_loaders import (
    DATA_FOLDER_VARIABLE,
    check_written_kind,
    kind_of,
    locate,
    read_transitions,
    write_transitions,
)
from rl_training.data.formats.minari_store import PREFIX, check_new
from rl_training.data.formats.storage import local_path, watch_bytes
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_raw_env, space_spec
from rl_training.envs.goals import extract_goal_parts, is_goal_space
from rl_training.envs.play import play
from rl_training.errors import ConfigError, DatasetError
from rl_training.runtime.progress import Progress
from rl_training.seeding import Stream, episode_seeds, stream_generator
from rl_training.tools.controllers import names_function, own_controller, scripted_controller
from rl_training.tools.repair import repair_transitions
from rl_training.types import SpaceSpec

Array = NDArray[Any]
Policy = Callable[[Any], Array]


def convert_dataset(
    source: str | Path,
    target: str | Path,
    *,
    repair: bool = False,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    kind: str | None = None,
    target_kind: str | None = None,
    rename: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> tuple[Path, int, list[str]]:
    """Copy a dataset into another format, and repair it on request.

    Args:
        source: a file, a folder or ``minari:ID``.
        target: the file to write, which is replaced if it exists, or a new ``minari:ID``.
        repair: whether to repair what can be repaired safely.
        env_id: the environment that the data comes from.
        env_kwargs: arguments of the environment.
        kind: the format of ``source``; unset: by its name.
        target_kind: the format of ``target``; unset: by its name.
        rename: unknown names in the source and the known names to use for them.
        progress: shows how much is read and written.

    Returns:
        The path of the new dataset, its number of rows, and a line for each repair.
    """
    check_target(target, target_kind)
    progress = progress or Progress("data convert", quiet=True)
    env_spec = None
    if env_id is not None:
        env = make_raw_env(env_id, env_kwargs)
        env_spec = env.spec
        env.close()
    with watch_bytes(progress.on_bytes):
        arrays: Mapping[str, Any] = read_dataset(source, kind=kind, rename=rename)
        notes: list[str] = []
        try:
            if repair:
                arrays, notes = repair_transitions(arrays, env_id, env_kwargs)
        except DatasetError as error:
            raise DatasetError(f"{source}: {error}") from None
        dataset = TransitionDataset.from_dict(arrays, where=str(source))
        return write_transitions(dataset, target, target_kind, env_spec=env_spec), len(dataset), notes


def read_dataset(
    source: str | Path, *, kind: str | None = None, rename: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Read the raw arrays of a file, a folder or ``minari:ID`` under our names."""
    if not str(source).startswith(PREFIX) and kind != "minari" and locate(source) is None:
        raise DatasetError(f"{source}: no such file, here or in ${DATA_FOLDER_VARIABLE}")
    return read_transitions(source, kind, rename=rename)


def check_target(target: str | Path, kind: str | None = None) -> Path | None:
    """Refuse a target that cannot be written before any work is done; return the file it would replace, if any."""
    check_written_kind(kind)
    if str(target).startswith(PREFIX) or kind == "minari":
        check_new(str(target).removeprefix(PREFIX))
        return None
    path = local_path(target)
    if path.is_dir():
        raise DatasetError(f"{path}: a folder; expected the name of a file")
    check_written_kind(kind or kind_of(path))
    return path if path.exists() else None


def collect_dataset(
    env_id: str | None,
    policy: str | Path,
    *,
    episodes: int,
    noise: float = 0.0,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> tuple[TransitionDataset, EnvSpec | None]:
    """Play whole episodes and return them as a dataset, with the specification of their environment.

    Args:
        env_id: the environment; None takes that of the run.
        policy: ``random``, ``scripted`` (the environment's hand-written controller, where there is one), a function of
            one's own, written ``module:function``, or a run or checkpoint. Only random actions and noise are drawn.
        episodes: how many episodes to play.
        noise: std of the noise on actions in [-1, 1]; for discrete actions the share of random ones.
        seed: the seed of all random numbers.
        env_kwargs: arguments of the environment; empty: those of the run.
        progress: shows the episodes played.
    """
    if not 0 <= noise < np.inf:
        raise ConfigError(f"--noise {noise}: expected a number of at least 0")
    if noise > 0 and str(policy) == "random":
        raise ConfigError(f"--noise {noise} with --policy random: its actions are random already; expected no --noise")
    learner = None
    own = names_function(str(policy)) and not Path(policy).exists()
    if str(policy) not in ("random", "scripted") and not own:
        from rl_training.experiment.manager import load_policy

        if not Path(policy).exists():
            raise ConfigError(
                f"--policy {str(policy)!r}: no such run or checkpoint;"
                " expected one, or random, scripted or module:function"
            )
        learner, config, _ = load_policy(Path(policy))
        if env_id is None or (env_id == config.env_id and not env_kwargs):
            env_id, env_kwargs = config.env_id, {**config.env_kwargs, **(env_kwargs or {})}
    if env_id is None:
        raise ConfigError(f"--env is required with --policy {policy}")
    controller = scripted_controller(env_id) if str(policy) == "scripted" else None
    env = make_raw_env(env_id, env_kwargs)
    try:
        spec = space_spec(env)
        if spec.is_discrete and noise > 1:
            raise ConfigError(f"--noise {noise}: the share of random actions; expected a number from 0 to 1")
        rng = stream_generator(seed, Stream.DATA_COLLECTION)
        if own:
            controller = own_controller(str(policy), spec)
        if controller is not None:
            act: Policy = _noisy(controller, spec, noise, rng)
        elif learner is None:
            act = _random_policy(spec, rng)
        else:
            for name in ("observation_dim", "goal_dim", "action_dim", "num_actions"):
                have, need = getattr(spec, name), getattr(learner.spec, name)
                if have != need:
                    raise ConfigError(f"--policy {policy}: it was trained with {name} {need}, {env_id} has {have}")
            act = _noisy(learner.predict, spec, noise, rng)
        progress = progress or Progress("data collect", quiet=True)
        return TransitionDataset.from_dict(_play(env, act, episodes, seed, progress), where=env_id), env.spec
    finally:
        env.close()


def _random_policy(spec: SpaceSpec, rng: np.random.Generator) -> Policy:
    def act(observation: Any) -> Array:
        if spec.num_actions is not None:
            return np.asarray(rng.integers(spec.num_actions))
        return spec.to_env(rng.uniform(-1, 1, spec.action_dim).astype(np.float32))

    return act


def _noisy(predict: Callable[..., Array], spec: SpaceSpec, noise: float, rng: np.random.Generator) -> Policy:
    """Return a policy with noise on its actions."""
    if noise == 0:
        return predict

    def act(observation: Any) -> Array:
        action = predict(observation)
        if spec.num_actions is not None:
            return np.asarray(rng.integers(spec.num_actions)) if rng.random() < noise else action
        noisy = spec.to_policy(action) + noise * rng.standard_normal(spec.action_dim)
        return spec.to_env(np.clip(noisy, -1, 1).astype(np.float32))

    return act


def _play(env: gym.Env[Any, Any], act: Policy, episodes: int, seed: int, progress: Progress) -> dict[str, Array]:
    """Play episodes, each with its own seed, and return the rows."""
    goal_task = is_goal_space(env.observation_space)
    names = ("observations", "achieved_goals", "desired_goals") if goal_task else ("observations",)
    lists: dict[str, list[Any]] = {}

    def add(**values: Any) -> None:
        for name, value in values.items():
            lists.setdefault(name, []).append(value)

    def parts(observation: Any, prefix: str = "") -> dict[str, Array]:
        arrays = extract_goal_parts(observation) if goal_task else (np.array(observation, np.float32),)
        return {f"{prefix}{name}": np.array(array) for name, array in zip(names, arrays, strict=True)}

    def choose(observation: Any) -> Any:
        row = parts(observation)  # copied first: the policy and the environment may reuse the arrays
        action = np.array(act(observation))
        add(actions=action, **row)
        return action if action.ndim else action[()]

    seeds = itertools.islice(episode_seeds(seed, Stream.DATA_COLLECTION), episodes)
    progress.start("", episodes, "episode")
    for step in play(env, choose, seeds):
        add(rewards=step.reward, terminated=step.terminated, truncated=step.truncated)
        add(**parts(step.next_observation, "next_"))
        if step.done:
            progress.advance(status=f"{len(lists['rewards']):,} transitions")
    return {name: np.asarray(values) for name, values in lists.items()}
