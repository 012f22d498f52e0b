"""Managed classes: an algorithm with its configuration, run folder and policy in one object.

They follow Stable-Baselines3's manners: ``learn``, ``predict``, ``save``, ``load``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from numpy.typing import NDArray

from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig, load_config, parse_config, preset_names
from rl_training.data import TransitionDataset
from rl_training.envs.factory import make_env, space_spec
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.manager import (
    EVALUATION_SEED,
    evaluate_experiment,
    load_policy,
    resume_experiment,
    train_experiment,
)
from rl_training.experiment.registry import recipe_for
from rl_training.runtime.assembly import build_learner
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import find_checkpoint
from rl_training.runtime.controls import TrainResult
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

    def __init__(self, config: TrainConfig | Mapping[str, Any] | str | Path, *, name: str | None = None) -> None:
        """Check the configuration: a ``TrainConfig``, a mapping (``algo`` may be left out), a preset or a YAML file."""
        if isinstance(config, (str, Path)):
            config = load_config(config)
        elif not isinstance(config, TrainConfig):
            config = parse_config({"algo": self.algo, **config}, where=type(self).__name__)
        if config.algo != self.algo:
            raise ConfigError(f"algo = {config.algo!r}: {type(self).__name__} expects {self.algo!r}")
        recipe_for(self.algo).settings(config)
        self.config, self.name = config, name
        self.run_dir: Path | None = None
        self.checkpoint: Path | None = None
        self._learner: Learner | None = None

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
        """Load the policy of a run (its best checkpoint), of a checkpoint, or of what ``save`` wrote."""
        learner, config, checkpoint = load_policy(Path(path), device)
        managed = cls(config)
        managed._learner, managed.checkpoint = learner, checkpoint
        return managed

    @property
    def learner(self) -> Learner:
        """The policy."""
        if self._learner is None:
            if self.config.env_id is None:
                raise CheckpointError(f"{type(self).__name__} has no env_id: call learn() or load() first")
            env = make_env(self.config.env_id, self.config.env_kwargs)
            try:
                self._learner = build_learner(recipe_for(self.algo), self.config, space_spec(env))
            finally:
                env.close()
        return self._learner

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        dataset: TransitionDataset | None = None,
        progress_bar: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> TrainResult:
        """Train in a new run folder and keep the best policy; a ``dataset`` in memory replaces the configured one."""
        if total_timesteps is not None:
            self.config = parse_config({**self.config.model_dump(), "total_timesteps": total_timesteps})
        return self._adopt(
            train_experiment(
                self.config, name=self.name, progress_bar=progress_bar, callbacks=callbacks, dataset=dataset
            )
        )

    def resume(
        self, run_dir: str | Path, *, dataset: TransitionDataset | None = None, progress_bar: bool = False
    ) -> TrainResult:
        """Go on with a run from its latest checkpoint, under the configuration it was started with."""
        self.config = type(self)(Path(run_dir) / "config.yaml").config
        return self._adopt(resume_experiment(Path(run_dir), progress_bar=progress_bar, dataset=dataset))

    def predict(self, observation: Observation, deterministic: bool = True) -> tuple[NDArray[Any], None]:
        """Return the action for one observation, or a batch of them, and None (there is no recurrent state)."""
        return self.learner.predict(observation, deterministic), None

    def evaluate(self, episodes: int = 100, seed: int = EVALUATION_SEED) -> dict[str, float]:
        """Play seeded episodes with the trained policy."""
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

    def _adopt(self, result: TrainResult) -> TrainResult:
        self.run_dir = result.run_dir
        self._learner, _, self.checkpoint = load_policy(find_checkpoint(result.run_dir), self.config.device)
        return result


class DDPG(ManagedAlgorithm):
    """Deep Deterministic Policy Gradient."""

    algo = "ddpg"


class TD3(ManagedAlgorithm):
    """Twin Delayed DDPG."""

    algo = "td3"


class SAC(ManagedAlgorithm):
    """Soft Actor-Critic."""

    algo = "sac"


class DQN(ManagedAlgorithm):
    """Double Deep Q-Network."""

    algo = "dqn"


class HER(ManagedAlgorithm):
    """Hindsight Experience Replay over the ``backend`` learner."""

    algo = "her"


class BC(ManagedAlgorithm):
    """Behavioural cloning."""

    algo = "bc"


class TD3BC(ManagedAlgorithm):
    """TD3 with a behavioural-cloning term."""

    algo = "td3_bc"


class IQL(ManagedAlgorithm):
    """Implicit Q-learning."""

    algo = "iql"


class CQL(ManagedAlgorithm):
    """Conservative Q-learning."""

    algo = "cql"


class DiscreteCQL(ManagedAlgorithm):
    """Conservative Q-learning on discrete actions."""

    algo = "discrete_cql"


class AWAC(ManagedAlgorithm):
    """Advantage-weighted actor-critic."""

    algo = "awac"


class RLPD(ManagedAlgorithm):
    """SAC over prior and fresh data, with an ensemble of normalised critics."""

    algo = "rlpd"
