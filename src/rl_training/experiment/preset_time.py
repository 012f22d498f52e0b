"""How long a run takes on this machine, estimated from its first steps."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.config import TrainConfig, parse_config
from rl_training.errors import RLTrainingError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import train
from rl_training.runtime.settings import parse_run

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer

_STEPS, _SECONDS = 90, 1.5
"""A measurement ends after so many steps with updates, or after so many seconds of them."""


@dataclass(frozen=True)
class Duration:
    """How long a preset takes on this machine: seconds, or why that could not be measured."""

    seconds: float | None
    problem: str = ""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"unknown ({self.problem})"
        if self.seconds < 100:
            return f"about {max(1, round(self.seconds))} s"
        minutes = self.seconds / 60
        return f"about {minutes:.0f} min" if minutes < 100 else f"about {minutes / 60:.1f} h"


def measure_duration(config: TrainConfig) -> Duration:
    """Train for a moment in a temporary folder and estimate how long the whole run takes.

    Data that the configuration names is replaced by a little random play, so the file need not be there. Steps before
    learning starts are counted like the others, so the estimate is a little high.
    """
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            settings = parse_run(config)
            result = train(_without_waiting(config, folder, settings.dataset.names_dataset), [clock])
        except (RLTrainingError, OSError) as error:
            return Duration(None, str(error).splitlines()[0])
    if result.status == "interrupted":
        return Duration(None, "interrupted")
    first = len(clock.steps) // 3  # the steps before it warm up
    seconds_per_step = (clock.steps[-1] - clock.steps[first]) / (len(clock.steps) - 1 - first) / config.num_envs
    evaluations = math.ceil(config.total_timesteps / (settings.loop.eval_interval or config.total_timesteps))
    playing = evaluations * config.eval_episodes * (clock.evaluated - clock.steps[-1])
    return Duration(seconds_per_step * config.total_timesteps + playing)


def _without_waiting(config: TrainConfig, folder: str, with_data: bool) -> TrainConfig:
    """Return the configuration with a short start, little data, and one evaluation of one episode at the end."""
    kwargs: dict[str, Any] = {**config.algo_kwargs, "eval_interval": None}
    if with_data:
        kwargs = {key: value for key, value in kwargs.items() if not key.startswith("dataset_")}
        kwargs |= {"dataset_kind": "random", "dataset_size": 500}
    for key, short in (("learning_starts", 100), ("offline_pretrain_updates", 0)):
        if key in kwargs:
            kwargs[key] = short
    return parse_config({**config.model_dump(), "eval_episodes": 1, "output_dir": folder, "algo_kwargs": kwargs})


class _Clock(Callback):
    """Notes when the first steps with updates and the evaluation after them are done, and ends the run."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.evaluated = 0.0

    def on_step(self, trainer: Trainer) -> None:
        if trainer.state.update_count:
            self.steps.append(time.perf_counter())
        count = len(self.steps)
        if count == _STEPS or (count > _STEPS // 6 and self.steps[-1] - self.steps[0] > _SECONDS):
            trainer.state.stop("measured")

    def on_evaluation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.evaluated = time.perf_counter()
