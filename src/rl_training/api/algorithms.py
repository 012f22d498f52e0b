"""Managed classes: an algorithm with its configuration, run folder and policy in one object.

They follow Stable-Baselines3's manners: ``learn``, ``predict``, ``save``, ``load``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rl_training.algorithms.table import ALGORITHMS, Algorithm
from rl_training.config import TrainConfig, load_config, parse_config, preset_names
from rl_training.errors import CheckpointError, ConfigError, EnvError
from rl_training.seeding import EVALUATION_SEED
from rl_training.urls import Location, to_location

# The rest is imported inside the methods, so that ``from rl_training import HER`` takes little longer than torch.
if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rl_training.algorithms.base import Learner
    from rl_training.data import TransitionDataset
    from rl_training.envs.objects import EnvSource
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.controls import TrainResult
    from rl_training.runtime.settings import ConfigSource
    from rl_training.types import Observation

ManagedT = TypeVar("ManagedT", bound="ManagedAlgorithm")


class ManagedAlgorithm:
    """One algorithm, ready to learn.

    Attributes:
        config: the configuration.
        learner: the policy; untrained until ``learn`` or ``load``.
        run_dir: the run's folder, once there is one.
        checkpoint: the checkpoint the policy came from, once there is one.
    """

    algo: ClassVar[str]

    def __init__(self, config: ConfigSource, *, env: EnvSource | None = None, name: str | None = None) -> None:
        """Check the configuration.

        Args:
            config: a ``TrainConfig``, a mapping (``algo`` may be left out), a preset or a YAML file.
            env: the environment, instead of ``env_id``: an id, an environment with its wrappers, or a function that
                builds one.
            name: how run folders are called.
        """
        from rl_training.envs.objects import register_env
        from rl_training.runtime.settings import read_config

        if env is not None:
            config = _with_env(config, register_env(env))
        self.config, self.name = read_config(config, algo=self.algo), name
        self.run_dir: Path | None = None
        self.checkpoint: Path | None = None
        self._learner: Learner | None = None
        self._done, self._steps_done = False, 0

    @classmethod
    def from_preset(cls: type[ManagedT], preset: str, **overrides: Any) -> ManagedT:
        """Take a preset such as ``point_reach``; keyword arguments replace its keys, ``algo_kwargs`` are merged."""
        known = [name.partition("/")[2] for name in preset_names() if name.startswith(f"{cls.algo}/")]
        name = f"{cls.algo}/{preset}" if preset in known else preset
        config = load_config(name).model_dump()
        for key, value in overrides.items():
            merge = isinstance(value, Mapping) and isinstance(config.get(key), dict)
            config[key] = {**config[key], **value} if merge else value
        return cls(config, name=name)

    @classmethod
    def load(cls: type[ManagedT], path: str | Path, device: str = "cpu") -> ManagedT:
        """Load the policy of a run (its best checkpoint), of a checkpoint, or of what ``save`` wrote; or of its URL."""
        from rl_training.experiment.manager import load_policy

        learner, config, checkpoint = load_policy(to_location(path), device)
        managed = cls(config)
        managed._learner, managed.checkpoint = learner, checkpoint
        return managed

    @property
    def learner(self) -> Learner:
        """The policy."""
        if self._learner is None:
            if self.config.env_id is None:
                raise CheckpointError(f"{type(self).__name__} has no env_id: call learn() or load() first")
            from rl_training.envs.factory import make_env, space_spec
            from rl_training.runtime.build import build_learner
            from rl_training.runtime.run import resolve_device
            from rl_training.runtime.settings import parse_run

            env = make_env(self.config.env_id, self.config.env_kwargs)
            try:
                settings, device = parse_run(self.config), resolve_device(self.config.device)
                self._learner = build_learner(self.config, settings, space_spec(env), device)
            finally:
                env.close()
        return self._learner

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        reset: bool = False,
        dataset: TransitionDataset | None = None,
        progress_bar: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> TrainResult:
        """Train and keep the best policy: in a new run folder at first, then further in the same one.

        Args:
            total_timesteps: how far to train; unset: as configured. A second call adds as many steps to a run that is
                complete; without a number, it first finishes a run that was interrupted or stopped early.
            reset: whether to start afresh, in a new run folder.
            dataset: offline data in memory; it replaces what the configuration names.
            progress_bar: whether to show progress on stderr.
            callbacks: called by the loop.
        """
        from rl_training.experiment.manager import train_experiment

        if self.run_dir is None or reset:
            if total_timesteps is not None:
                self.config = parse_config({**self.config.model_dump(), "total_timesteps": total_timesteps})
            result = train_experiment(
                self.config, name=self.name, progress_bar=progress_bar, callbacks=callbacks, dataset=dataset
            )
            return self._keep(result)
        steps = total_timesteps
        if steps is None and self._done:
            steps = self.config.total_timesteps
        overrides = [] if steps is None else [f"total_timesteps={self._steps_done + steps}"]
        return self._continue(self.run_dir, overrides, dataset, progress_bar, callbacks)

    def resume(
        self,
        run_dir: str | Path,
        *,
        total_timesteps: int | None = None,
        dataset: TransitionDataset | None = None,
        progress_bar: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> TrainResult:
        """Continue a run from its latest checkpoint under its own configuration, up to ``total_timesteps`` if given."""
        from rl_training.envs.objects import is_object_id
        from rl_training.runtime.remote.local_copy import fetch, identity
        from rl_training.runtime.settings import read_config

        config = load_config(fetch(run_dir, identity) / "config.yaml")
        if is_object_id(config.env_id) and config.env_id != self.config.env_id:
            raise EnvError(
                f"{run_dir}: it was trained on an environment given as an object: expected the same one as"
                f" {type(self).__name__}(config, env=...)"
            )
        self.config = read_config(config, algo=self.algo)
        overrides = [] if total_timesteps is None else [f"total_timesteps={total_timesteps}"]
        return self._continue(to_location(run_dir), overrides, dataset, progress_bar, callbacks)

    def predict(self, observation: Observation, deterministic: bool = True) -> tuple[NDArray[Any], None]:
        """Return the action for one observation, or a batch of them, and None (there is no recurrent state)."""
        return self.learner.predict(observation, deterministic), None

    def evaluate(self, episodes: int = 100, seed: int = EVALUATION_SEED) -> dict[str, float]:
        """Play seeded episodes with the trained policy."""
        from rl_training.experiment.manager import evaluate_experiment

        answer: dict[str, float] = evaluate_experiment(self._trained(), episodes=episodes, seed=seed)["metrics"]
        return answer

    def save(self, path: str | Path) -> Path:
        """Copy the trained policy's checkpoint to a new folder ``path``, without the replay buffer."""
        target = Path(path)
        if target.exists():
            raise ConfigError(f"{target}: exists already")
        shutil.copytree(self._trained(), target)
        return target

    def _trained(self) -> Path:
        if self.checkpoint is None:
            raise CheckpointError(f"{type(self).__name__} is not trained yet: call learn() or load() first")
        return self.checkpoint

    def _continue(
        self,
        run_dir: Location,
        overrides: list[str],
        dataset: TransitionDataset | None,
        progress_bar: bool,
        callbacks: Sequence[Callback],
    ) -> TrainResult:
        from rl_training.experiment.manager import resume_experiment

        return self._keep(
            resume_experiment(
                run_dir, progress_bar=progress_bar, callbacks=callbacks, overrides=overrides, dataset=dataset
            )
        )

    def _keep(self, result: TrainResult) -> TrainResult:
        """Load the best policy of a run that ended."""
        from rl_training.experiment.manager import load_policy
        from rl_training.runtime.checkpointing import find_checkpoint

        self.run_dir, self._done, self._steps_done = result.run_dir, result.status == "completed", result.global_step
        self._learner, _, self.checkpoint = load_policy(find_checkpoint(result.run_dir), self.config.device)
        return result

    def __repr__(self) -> str:
        where = f", run_dir={str(self.run_dir)!r}" if self.run_dir is not None else ""
        return f"{type(self).__name__}(env_id={self.config.env_id!r}, seed={self.config.seed}{where})"


def _with_env(config: ConfigSource, env_id: str) -> ConfigSource:
    """Return a configuration with another ``env_id``."""
    if isinstance(config, (str, Path)):
        config = load_config(config)
    values = config.model_dump() if isinstance(config, TrainConfig) else dict(config)
    return {**values, "env_id": env_id}


def managed_class(row: Algorithm) -> type[ManagedAlgorithm]:
    """Return the managed class of a row of the table of algorithms."""
    members = {"algo": row.name, "__doc__": f"{row.description}.", "__module__": "rl_training.api"}
    return type(row.class_name, (ManagedAlgorithm,), members)


MANAGED_CLASSES = {row.class_name: managed_class(row) for row in ALGORITHMS.values()}
