"""Experiments from start to finish: train, resume, evaluate, load; what the command line and the API both call."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig, load_config
from rl_training.data import TransitionDataset
from rl_training.data.formats.storage import watch_bytes
from rl_training.envs.consent import approve
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.experiment.report import write_report
from rl_training.experiment.same_runs import run_identity, runs_of, url_of_run, urls_of_stack
from rl_training.experiment.video import check_renderer, record_episodes, video_format
from rl_training.export import BundlePolicy, Task, is_bundle, task_of
from rl_training.interrupts import stop_on_signals
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import remove_unstarted_run
from rl_training.runtime.checkpointing import CheckpointStore, find_checkpoint
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.outcome import RESULT, read_result
from rl_training.runtime.progress import Progress, ProgressCallback
from rl_training.runtime.remote.local_copy import fetch
from rl_training.runtime.remote.local_copy import policy as policy_files
from rl_training.runtime.remote.mirror import mirrored, new_run_folders, run_folder
from rl_training.runtime.run import (
    load_learner,
    resume,
    resume_stack,
    stack_folder,
    stack_members,
    train,
    train_stack,
)
from rl_training.runtime.run_lock import lock_configuration
from rl_training.runtime.settings import ConfigSource, read_config
from rl_training.seeding import EVALUATION_SEED
from rl_training.urls import Location, is_url

REPORT = "report.html"


def train_experiment(
    config: ConfigSource,
    *,
    name: str | None = None,
    progress_bar: bool = False,
    callbacks: Sequence[Callback] = (),
    dataset: TransitionDataset | None = None,
    new_dir: Path | None = None,
) -> TrainResult:
    """Train ``config`` in a new run folder, on a ``dataset`` in memory where one is given, and write its report."""
    config = read_config(config)
    with new_run_folders([config], name, None if new_dir is None else [new_dir]) as folders:
        with same_working_folder(), _with_progress(callbacks, progress_bar) as watched:
            new_dir = None if folders is None else folders[0]
            result = train(config, watched, run_name=name, dataset=dataset, new_dir=new_dir)
        report_run(result)
    return result


def train_or_resume(config: TrainConfig, *, name: str | None = None, progress_bar: bool = False) -> TrainResult:
    """Go on with the run of this configuration below its ``output_dir``, or start one where there is none.

    For schedulers that run the same command again. A run that is finished is returned as it ended; its report is
    written if a kill prevented that. While one process trains a configuration, a second one is refused.
    """
    approve(config.env_id)
    with contextlib.ExitStack() as entered:
        if is_url(config.output_dir):
            folder = entered.enter_context(mirrored(url_of_run(config, name)))
            found, new_dir = [folder] if folder.exists() else [], folder
        else:
            entered.enter_context(lock_configuration(Path(config.output_dir).absolute(), run_identity(config)))
            found, new_dir = runs_of(config), None
        for run_dir in found:
            result = read_result(run_dir)
            if result is not None and result.status in ("completed", "stopped"):
                if report_is_missing(run_dir):
                    report_run(result)
                return result
        for run_dir in found:
            if CheckpointStore(run_dir).candidates([]):  # there is none if it ended before its first checkpoint
                return resume_experiment(run_dir, progress_bar=progress_bar)
        if new_dir is not None and found:
            remove_unstarted_run(new_dir)
        return train_experiment(config, name=name, progress_bar=progress_bar, new_dir=new_dir)


def train_stack_experiment(
    configs: Sequence[TrainConfig], *, name: str | None = None, progress_bar: bool = False, resume_auto: bool = False
) -> list[TrainResult]:
    """Train several runs together on one device, each in a new run folder, and write their reports.

    ``resume_auto`` goes on with the stack of these configurations below their ``output_dir``, if there is one.
    """
    with contextlib.ExitStack() as entered:
        earlier: Path | None = None
        new_dirs: Sequence[Path] | None = None
        if resume_auto and is_url(configs[0].output_dir):
            new_dirs = [entered.enter_context(mirrored(url)) for url in urls_of_stack(configs, name)]
            if all(CheckpointStore(folder).candidates([]) for folder in new_dirs):
                earlier = new_dirs[0]
            for folder in new_dirs if earlier is None else ():
                if folder.exists():
                    remove_unstarted_run(folder)
        elif resume_auto:
            identity = {"stack": [run_identity(config) for config in configs]}
            entered.enter_context(lock_configuration(Path(configs[0].output_dir).absolute(), identity))
            earlier = _stack_of(configs)
        else:
            new_dirs = entered.enter_context(new_run_folders(configs, name, None))
        with same_working_folder(), _with_progress((), progress_bar) as callbacks:
            if earlier is not None:
                results = resume_stack(earlier, callbacks)
            else:
                results = train_stack(configs, callbacks, run_name=name, new_dirs=new_dirs)
        for result in results:
            report_run(result)
    return results


def resume_stack_experiment(
    run_dir: Location, *, progress_bar: bool = False, overrides: Iterable[str] = ()
) -> list[TrainResult]:
    """Continue all runs of the stack that a run belongs to, and write their reports again."""
    with stack_folder(run_dir) as folder:
        before = [read_result(member) for member in stack_members(folder)]
        with same_working_folder(), _with_progress((), progress_bar) as callbacks:
            results = resume_stack(folder, callbacks, overrides=overrides)
        if all(map(_is_unchanged, before, results)):
            steps = max(result.global_step for result in results)
            warnings.warn(
                f"nothing to do: the runs are complete at {steps:,} steps; {_longer(results[0])}",
                stacklevel=2,
            )
        for result in results:
            report_run(result)
    return results


def _stack_of(configs: Sequence[TrainConfig]) -> Path | None:
    """Return a run of the newest stack that has these configurations and a checkpoint."""
    for run_dir in runs_of(configs[0]):
        members = stack_members(run_dir)
        found = [load_config(member / "config.yaml") for member in members if (member / "config.yaml").is_file()]
        if [run_identity(config) for config in found] == [run_identity(config) for config in configs] and all(
            CheckpointStore(member).candidates([]) for member in members
        ):
            return run_dir
    return None


def resume_experiment(
    run_dir: Location,
    *,
    progress_bar: bool = False,
    callbacks: Sequence[Callback] = (),
    overrides: Iterable[str] = (),
    dataset: TransitionDataset | None = None,
) -> TrainResult:
    """Continue a run from its latest checkpoint, with changed settings where given, and write its report again."""
    with run_folder(run_dir) as folder:
        if not (folder / "config.yaml").is_file():
            raise CheckpointError(f"{folder}: not a run, there is no config.yaml in it")
        before = read_result(folder)
        with same_working_folder(), _with_progress(callbacks, progress_bar) as watched:
            result = resume(folder, watched, overrides=overrides, dataset=dataset)
        if _is_unchanged(before, result):
            warnings.warn(
                f"nothing to do: the run is complete at {result.global_step:,} steps; {_longer(result)}",
                stacklevel=2,
            )
        report_run(result)
    return result


def _is_unchanged(before: TrainResult | None, after: TrainResult) -> bool:
    counters = (after.global_step, after.update_count)
    return before is not None and (before.global_step, before.update_count) == counters


def _longer(result: TrainResult) -> str:
    """Return what makes a run longer that has nothing left to do."""
    if result.stop_reason == "max_updates":
        return f"a larger algo_kwargs.max_updates makes it longer, now {result.update_count}"
    return f"a larger total_timesteps makes it longer, e.g. total_timesteps={2 * result.global_step}"


def load_policy(path: Location, device: str = "cpu") -> tuple[Learner, TrainConfig, Path]:
    """Return the learner behind a run (its best checkpoint) or a checkpoint, its configuration, and the checkpoint."""
    checkpoint = find_checkpoint(fetch(path, policy_files))
    learner, config = load_learner(checkpoint, device)
    return learner, config, checkpoint


def load_predictor(path: Location, device: str = "cpu") -> tuple[Learner | BundlePolicy, Task, Path]:
    """Return what predicts actions, for a run, a checkpoint or a bundle: the policy, its task, and where it is from."""
    path = fetch(path, policy_files)
    if not path.exists():
        raise CheckpointError(f"{path}: neither a run nor a checkpoint nor a bundle: there is no such folder")
    if is_bundle(path):
        bundle = BundlePolicy(path)
        return bundle, bundle.contract.task, path
    learner, config, checkpoint = load_policy(path, device)
    return learner, task_of(config), checkpoint


def evaluate_experiment(
    path: Location,
    *,
    episodes: int = 100,
    seed: int = EVALUATION_SEED,
    video: Path | None = None,
    video_kind: str | None = None,
    device: str = "cpu",
    progress_bar: bool = False,
) -> dict[str, Any]:
    """Play seeded episodes with a trained policy and return the metrics, with the checkpoint or bundle they belong to.

    Args:
        path: a run or a checkpoint, or the URL of one.
        episodes: how many episodes to play.
        seed: the seed of the episodes.
        video: a folder for videos of the best, the worst and a random episode, and their ``index.json``.
        video_kind: ``mp4`` or ``gif``; unset: mp4 if it can be written, else gif.
        device: where the policy runs.
        progress_bar: whether to show progress on stderr.
    """
    kind = video_format(video_kind) if video is not None else ""
    video = video.absolute() if video is not None else None  # an environment may change the working folder
    learner, task, checkpoint = load_predictor(path, device)
    if task.env_id is None:
        raise ConfigError(f"{path}: this policy was trained without an env_id, so there is nothing to evaluate it in")
    evaluator = Evaluator(
        task.env_id,
        task.env_kwargs,
        episodes=episodes,
        seed=seed,
        reference=task.reference_scores,
        render_mode="rgb_array" if video else None,
    )
    files: list[Path] = []
    try:
        with Progress("evaluate", quiet=not progress_bar) as progress:
            if video is not None:
                check_renderer(evaluator)
            progress.start("", episodes, "episode")
            metrics = evaluator.run(learner, on_step=progress.update)
            if video is not None:
                files = record_episodes(
                    evaluator, learner.predict, video, format_=kind, checkpoint=checkpoint, progress=progress
                )
    finally:
        evaluator.close()
    answer: dict[str, Any] = {"checkpoint": str(checkpoint), "episodes": episodes, "seed": seed, "metrics": metrics}
    if video is not None:
        answer["videos"] = [str(file) for file in files]
    return answer


def report_run(result: TrainResult) -> None:
    """Write a run's report, unless it has no metrics yet. A report that cannot be written does not fail the run."""
    try:
        with stop_on_signals(lambda name: None):  # a signal ends the program when the report is written
            if read_metrics(result.run_dir / "metrics.csv"):
                write_report([result.run_dir], result.run_dir / REPORT)
    except RLTrainingError as error:
        warnings.warn(f"{error}; the run itself is not affected", stacklevel=3)


def report_is_missing(run_dir: Path) -> bool:
    """Return whether a run has no report, or one that is older than its end."""
    try:
        return (run_dir / REPORT).stat().st_mtime_ns < (run_dir / RESULT).stat().st_mtime_ns
    except OSError:
        return True


@contextlib.contextmanager
def same_working_folder() -> Iterator[None]:
    """Return to the working folder at the end: an environment may change it, and the next run needs it."""
    before = os.getcwd()
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _with_progress(callbacks: Sequence[Callback], progress_bar: bool) -> Iterator[list[Callback]]:
    """Return the callbacks, with one that shows progress if that is wanted: of reading the data, and of the run."""
    if not progress_bar:
        yield list(callbacks)
        return
    progress = ProgressCallback()
    try:
        with watch_bytes(progress.on_bytes):
            yield [*callbacks, progress]
    finally:
        progress.stop()
