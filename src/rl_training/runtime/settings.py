"""All settings of a run, in typed groups.

Users write all settings flat, under ``algo_kwargs``. ``parse_run`` sorts them, once, into the groups of
``RunSettings``: each key belongs to the one settings class that declares it, in the module that uses it. Defaults that
differ between algorithms are data: a row of the table of algorithms, and the learner's ``run_defaults``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rl_training.algorithms.base import LearnerSettings
from rl_training.algorithms.table import ALGORITHMS, DEFAULT_BACKEND, Algorithm, find_algorithm
from rl_training.config import (
    Settings,
    TrainConfig,
    check_settings,
    config_path,
    load_config,
    parse_config,
    parse_overrides,
    read_yaml,
    unknown_key,
)
from rl_training.data.dataset_loaders import DatasetSettings, RewardSettings
from rl_training.data.hindsight_settings import HindsightSettings
from rl_training.data.replay_buffer import ReplaySettings
from rl_training.envs.factory import EnvSettings, split_env_kwargs
from rl_training.errors import ConfigError
from rl_training.runtime.controls import CollectionSettings, InitSettings, LoopSettings, PriorSettings
from rl_training.runtime.exploration import ExplorationSettings

GroupT = TypeVar("GroupT", bound=Settings)

ConfigSource = TrainConfig | Mapping[str, Any] | str | Path
"""What a run can be started from: a configuration, a mapping with its keys, a preset's name, or a YAML file."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of one run. Groups that do not apply, such as ``collection`` offline, hold their defaults."""

    algorithm: Algorithm
    backend: str | None
    """With hindsight, the learner's name; else None."""
    online: bool
    """Whether the run plays in ``env_id`` to collect data."""
    loop: LoopSettings
    learner: LearnerSettings
    dataset: DatasetSettings
    init: InitSettings
    collection: CollectionSettings
    exploration: ExplorationSettings
    replay: ReplaySettings
    prior: PriorSettings
    hindsight: HindsightSettings
    rewards: RewardSettings
    env: EnvSettings

    def to_algo_kwargs(self) -> dict[str, Any]:
        """Return ``algo_kwargs`` with every default written out, as plain values."""
        values: dict[str, Any] = {"online": self.online}
        if self.backend is not None:
            values["backend"] = self.backend
        for name in group_types(self.algorithm, self.online):
            values |= getattr(self, name).model_dump(mode="json")
        return values


def group_types(algorithm: Algorithm, online: bool) -> dict[str, type[Settings]]:
    """Return the groups of settings that a run of an algorithm has, with their classes."""
    groups: dict[str, type[Settings]] = {
        "loop": LoopSettings,
        "learner": algorithm.learner.Settings,
        "dataset": DatasetSettings,
        "init": InitSettings,
    }
    if online:
        groups |= {"collection": CollectionSettings, "exploration": ExplorationSettings, "prior": PriorSettings}
    if online or algorithm.hindsight:
        groups["replay"] = ReplaySettings
    # With hindsight the environment computes every reward, and only env_kwargs.wrappers.reward transforms it.
    return groups | ({"hindsight": HindsightSettings} if algorithm.hindsight else {"rewards": RewardSettings})


def read_config(source: ConfigSource, overrides: Iterable[str] = (), *, algo: str | None = None) -> TrainConfig:
    """Read and check a configuration with all its settings; ``algo`` is the expected algorithm, and the default."""
    if isinstance(source, (str, Path)):
        config = load_config(source, overrides)
    elif isinstance(source, TrainConfig):
        config = source
    else:
        config = parse_config({**({} if algo is None else {"algo": algo}), **source})
    if algo is not None and config.algo != algo:
        raise ConfigError(f"algo = {config.algo!r}: expected {algo!r} here")
    parse_run(config)
    return config


def read_stack(source: str | Path, overrides: Iterable[str], seeds: Sequence[int] | None) -> list[TrainConfig]:
    """Read the configurations of several runs from one preset or file.

    There is one for each seed and each member of the key ``stack``, which maps settings of the algorithm to lists of
    numbers, such as ``stack: {learning_rate: [1e-3, 3e-4]}``.
    """
    values = parse_overrides(overrides, read_yaml(config_path(source)))
    stack = values.pop("stack", {})
    if not isinstance(stack, dict) or not all(isinstance(numbers, list) and numbers for numbers in stack.values()):
        raise ConfigError(f"{source}: stack = {stack!r}: expected settings with lists, such as gamma: [0.95, 0.98]")
    lengths = {key: len(numbers) for key, numbers in stack.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigError(f"{source}: the lists of stack have the lengths {lengths}: expected the same length")
    configs = []
    for seed in [None] if seeds is None else seeds:
        for index in range(next(iter(lengths.values()), 1)):
            own = {key: numbers[index] for key, numbers in stack.items()}
            given = values if seed is None else {**values, "seed": seed}
            if own:
                given = {**given, "algo_kwargs": {**(given.get("algo_kwargs") or {}), **own}}
            config = parse_config(given, where=str(source))
            parse_run(config)
            configs.append(config)
    return configs


def complete_config(config: TrainConfig) -> TrainConfig:
    """Write every default out, so that a run's stored configuration means the same in later versions."""
    return config.model_copy(update={"algo_kwargs": parse_run(config).to_algo_kwargs()})


def parse_run(config: TrainConfig) -> RunSettings:
    """Sort ``algo_kwargs`` into groups and check them; the error names every wrong key."""
    given = dict(config.algo_kwargs)
    backend = given.pop("backend", DEFAULT_BACKEND) if _has_backend(config.algo) else None
    algorithm = find_algorithm(config.algo, backend)
    online = given.pop("online", None)
    online = algorithm.online if online is None else online
    if not isinstance(online, bool):
        raise ConfigError(f"algo_kwargs.online = {online!r}: expected true or false")
    groups = group_types(algorithm, online)
    owner = {key: name for name, group in groups.items() for key in group.model_fields}
    given = _with_defaults(given, algorithm, owner)
    problems = _unknown_keys(given, algorithm, owner)

    def parse(name: str, default_type: type[GroupT]) -> GroupT:
        group = groups.get(name, default_type)
        values = {key: value for key, value in given.items() if owner.get(key) == name}
        settings, found = check_settings(group, values, "algo_kwargs.")
        problems.extend(found)
        return settings if isinstance(settings, default_type) else default_type()

    run = RunSettings(
        algorithm=algorithm,
        backend=backend,
        online=online,
        loop=parse("loop", LoopSettings),
        learner=parse("learner", LearnerSettings),
        dataset=parse("dataset", DatasetSettings),
        init=parse("init", InitSettings),
        collection=parse("collection", CollectionSettings),
        exploration=parse("exploration", ExplorationSettings),
        replay=parse("replay", ReplaySettings),
        prior=parse("prior", PriorSettings),
        hindsight=parse("hindsight", HindsightSettings),
        rewards=parse("rewards", RewardSettings),
        env=split_env_kwargs(config.env_kwargs)[0],
    )
    if problems:
        raise ConfigError("\n".join(f"{config.algo}: {problem}" for problem in problems))
    _check_sizes(config, run)
    return run


def _has_backend(algo: str) -> bool:
    return algo in ALGORITHMS and ALGORITHMS[algo].hindsight


def _with_defaults(given: dict[str, Any], algorithm: Algorithm, owner: Mapping[str, str]) -> dict[str, Any]:
    """Replace unset (or null) values by the algorithm's own defaults."""
    defaults = {**algorithm.learner.run_defaults, **algorithm.defaults}
    filled = {key: value for key, value in defaults.items() if key in owner and given.get(key) is None}
    given = {**given, **filled}
    if algorithm.learner.one_actor_update_per_step and given.get("policy_delay") is None:
        updates = given.get("gradient_updates_per_step", defaults.get("gradient_updates_per_step"))
        if isinstance(updates, (int, float)) and 0 < updates < 2**31:  # anything else is refused with its own key
            given["policy_delay"] = max(1, round(updates))
    return given


def _unknown_keys(given: dict[str, Any], algorithm: Algorithm, owner: Mapping[str, str]) -> list[str]:
    """Return a line for each key that no group has; offline, drop settings of online runs that have their defaults."""
    online_only = {key: group for group in group_types(algorithm, online=True).values() for key in group.model_fields}
    problems = []
    for key in [key for key in given if key not in owner]:
        if key in online_only:
            default = {**algorithm.learner.run_defaults, **algorithm.defaults}.get(
                key, online_only[key].model_fields[key].get_default(call_default_factory=True)
            )
            if given[key] not in (None, default):
                problems.append(f"unknown key 'algo_kwargs.{key}' offline: it needs online: true")
        else:
            problems.append(unknown_key(key, [*owner, "online"], "algo_kwargs."))
        del given[key]
    return problems


def _check_sizes(config: TrainConfig, run: RunSettings) -> None:
    """Refuse settings that are valid one by one but not together."""
    if not run.online:
        if config.num_envs != 1:
            raise ConfigError(f"num_envs = {config.num_envs} collect nothing offline: expected 1, or online: true")
        if config.num_workers:
            raise ConfigError(
                f"num_workers = {config.num_workers} collect nothing offline: expected 0, or online: true"
            )
        return
    if config.num_workers and config.num_envs != 1:
        raise ConfigError(
            f"num_envs = {config.num_envs} and num_workers = {config.num_workers}: every worker plays in one"
            " environment; expected num_envs: 1"
        )
    if config.num_workers and run.algorithm.hindsight and run.hindsight.replaces_pursued:
        name, off = ("practice_goals", "false") if run.hindsight.practice_goals else ("next_goal_after", "null")
        raise ConfigError(
            f"algo_kwargs.{name} = {getattr(run.hindsight, name)} and num_workers = {config.num_workers}: workers do"
            f" not know the goals of the other workers; expected {name}: {off}, or num_workers: 0"
        )
    capacity, batch_size = run.replay.buffer_capacity, run.learner.batch_size
    if config.env_id is None:
        raise ConfigError(f"{config.algo}: key 'env_id' is required and missing")
    if batch_size > capacity:
        raise ConfigError(
            f"{config.algo}: algo_kwargs.batch_size = {batch_size} is larger than the buffer:"
            f" expected at most algo_kwargs.buffer_capacity = {capacity}"
        )
    if capacity < config.num_envs:
        raise ConfigError(
            f"algo_kwargs.buffer_capacity = {capacity} holds less than one step of all environments:"
            f" expected at least num_envs = {config.num_envs}"
        )
    if run.collection.learning_starts >= config.total_timesteps:
        raise ConfigError(
            f"algo_kwargs.learning_starts = {run.collection.learning_starts} leaves nothing to learn from:"
            f" expected less than total_timesteps = {config.total_timesteps}"
        )
