"""Runs that are trained together: each has an ordinary folder, and the stack resumes exactly."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.config import TrainConfig, parse_config
from rl_training.errors import ConfigError
from rl_training.experiment.manager import resume_stack_experiment
from rl_training.interrupts import Interrupted
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import read_checkpoint
from rl_training.runtime.checkpointing import find_checkpoint
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.evaluation_process import EvaluationProcess
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run import load_learner
from rl_training.runtime.stack_runs import resume_stack, stack_members, train_stack
from rl_training.runtime.trainer import Trainer

SMALL = {"hidden_sizes": [8, 8], "batch_size": 16, "eval_interval": 60, "log_interval": 20}
ONLINE = {**SMALL, "learning_starts": 40, "checkpoint_interval": 30, "buffer_capacity": 2_000}


def configs(tmp_path: Path, seeds: tuple[int, ...] = (0, 1, 2), **changes: Any) -> list[TrainConfig]:
    kwargs = {**ONLINE, "backend": "sac", "normalize_observations": True, **changes.pop("algo_kwargs", {})}
    values = {
        "algo": "her",
        "env_id": "rl_training/PointReach2D-v0",
        "env_kwargs": {"max_steps": 10},
        "total_timesteps": 120,
        "eval_episodes": 1,
        "num_envs": 2,
        "output_dir": str(tmp_path),
        "algo_kwargs": kwargs,
        **changes,
    }
    return [parse_config({**values, "seed": seed}) for seed in seeds]


def last_state(result: TrainResult) -> dict[str, Any]:
    return read_checkpoint(find_checkpoint(result.run_dir, "latest"))[1]


def assert_same(one: Any, other: Any, path: str = "") -> None:
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other), path
    else:
        assert one == other, path


class StopAt(Callback):
    """Stops all runs of a stack as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer: Trainer) -> None:
        if trainer.state.global_step == self.step:
            import signal

            os.kill(os.getpid(), signal.SIGTERM)


def test_every_member_has_an_ordinary_run_folder(tmp_path: Path) -> None:
    results = train_stack(configs(tmp_path))
    assert [result.status for result in results] == ["completed"] * 3
    weights = []
    for seed, result in enumerate(results):
        assert result.global_step == 120
        assert result.update_count == 120 - 40
        rows = read_metrics(result.run_dir / "metrics.csv")
        assert rows[-1]["global_step"] == 120
        assert {"train/critic_loss", "eval/success_rate", "train/trivial_goal_share"} <= set(rows[-1])
        learner, config = load_learner(find_checkpoint(result.run_dir))
        assert config.seed == seed
        weights.append(learner.state_dict()["model.critic.mlp.output.weight"])
    assert not torch.equal(weights[0], weights[1])
    assert stack_members(results[1].run_dir) == [result.run_dir for result in results]


@pytest.mark.parametrize("backend", ["sac", "td3"])
def test_a_stack_resumes_exactly_as_a_whole(tmp_path: Path, backend: str) -> None:
    algo_kwargs = {"backend": backend}
    whole = train_stack(configs(tmp_path / "whole", algo_kwargs=algo_kwargs))
    parts = train_stack(configs(tmp_path / "parts", algo_kwargs=algo_kwargs), [StopAt(70)])
    assert [result.status for result in parts] == ["interrupted"] * 3
    assert {result.global_step for result in parts} == {70}
    resumed = resume_stack(parts[2].run_dir)
    assert [result.status for result in resumed] == ["completed"] * 3
    for one, other in zip(whole, resumed, strict=True):
        ours, theirs = last_state(one), last_state(other)
        assert_same(ours, theirs)


def test_a_kill_between_two_checkpoints_resumes_from_the_common_one(tmp_path: Path) -> None:
    whole = train_stack(configs(tmp_path / "whole"))
    parts = train_stack(configs(tmp_path / "parts"), [StopAt(90)])
    store = parts[2].run_dir / "checkpoints"  # as if the last member had not been saved at step 90 yet
    newest = find_checkpoint(parts[2].run_dir, "latest").name
    older = sorted(path.name for path in store.iterdir() if path.is_dir() and path.name < newest)[-1]
    (store / "latest").write_text(older + "\n")
    resumed = resume_stack(parts[0].run_dir)
    for one, other in zip(whole, resumed, strict=True):
        assert_same(last_state(one)["learner"], last_state(other)["learner"])


def test_a_member_that_diverges_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    runs = configs(tmp_path, algo_kwargs={"backend": "td3", "max_grad_norm": 1.0})
    broken = runs[1].model_copy(update={"algo_kwargs": {**runs[1].algo_kwargs, "learning_rate": 1e30}})
    others = [run.model_copy(update={"algo_kwargs": {**run.algo_kwargs, "learning_rate": 1e-3}}) for run in runs]
    with pytest.warns(UserWarning, match="has ended, the other runs go on"):
        results = train_stack([others[0], broken, others[2]])
    assert [result.status for result in results] == ["completed", "failed", "completed"]
    assert json.loads((results[1].run_dir / "result.json").read_text())["status"] == "failed"
    assert (results[1].run_dir / "traceback.txt").is_file()
    assert results[0].global_step == results[2].global_step == 120


def test_members_may_differ_in_numbers_only(tmp_path: Path) -> None:
    one, two = configs(tmp_path, (0, 1))
    with pytest.raises(ConfigError, match="num_envs = 2 and 1: runs of one stack must have the same num_envs"):
        train_stack([one, two.model_copy(update={"num_envs": 1})])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalize_observations", False),
        ("batch_size", 32),
        ("learning_starts", 60),
        ("gradient_updates_per_step", 0.5),
        ("eval_interval", None),
    ],
)
def test_members_have_the_same_networks_steps_and_updates(tmp_path: Path, key: str, value: Any) -> None:
    one, two = configs(tmp_path, (0, 1))
    with pytest.raises(ConfigError, match=f"algo_kwargs.{key} = .*: runs of one stack must have the same"):
        train_stack([one, two.model_copy(update={"algo_kwargs": {**two.algo_kwargs, key: value}})])
    assert not any(tmp_path.iterdir())


def test_a_complete_stack_can_only_be_made_longer(tmp_path: Path) -> None:
    runs = [result.run_dir for result in train_stack(configs(tmp_path, (0, 1), total_timesteps=60))]
    stored = [(run / "config.yaml").read_text() for run in runs]
    with pytest.raises(ConfigError, match="total_timesteps = 50: the run has 60 steps already; expected more"):
        resume_stack_experiment(runs[1], overrides=["total_timesteps=50"])
    assert [(run / "config.yaml").read_text() for run in runs] == stored
    with pytest.warns(UserWarning, match="nothing to do: the runs are complete at 60 steps"):
        resume_stack_experiment(runs[0])
    longer = resume_stack_experiment(runs[1], overrides=["total_timesteps=80"])
    assert [result.global_step for result in longer] == [80, 80]


def test_members_may_differ_in_the_numbers_of_learner_and_hindsight(tmp_path: Path) -> None:
    one, two = configs(tmp_path, (0, 1), total_timesteps=60)
    changes = {"gamma": 0.9, "tau": 1, "her_ratio": 0.5, "random_action_prob": 0.25}
    other = two.model_copy(update={"algo_kwargs": {**two.algo_kwargs, **changes}})
    with_same_keys = {"gamma": 0.99, "tau": 0.005, "her_ratio": 0.8, "random_action_prob": 0.5}
    first = one.model_copy(update={"algo_kwargs": {**one.algo_kwargs, **with_same_keys}})
    assert [result.update_count for result in train_stack([first, other])] == [20, 20]


def test_an_offline_algorithm_is_trained_as_a_stack(tmp_path: Path) -> None:
    kwargs = {**SMALL, "checkpoint_interval": None, "dataset_kind": "random", "dataset_size": 300}
    values = {"algo": "td3_bc", "env_id": "Pendulum-v1", "total_timesteps": 100, "output_dir": str(tmp_path)}
    values |= {"eval_episodes": 1, "algo_kwargs": kwargs}
    results = train_stack([parse_config({**values, "seed": seed}) for seed in (0, 1)])
    assert [result.update_count for result in results] == [100, 100]
    assert results[0].metrics != results[1].metrics


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[TrainResult]:
    """A stack that was not interrupted."""
    return train_stack(configs(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("cut_off", [0, 1, 2])
def test_an_evaluation_that_is_cut_off_is_repeated_for_the_runs_after_it_too(
    whole: list[TrainResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_off: int
) -> None:
    calls = iter(range(100))

    def interrupted(self: EvaluationProcess, *inputs: Any) -> dict[str, float]:
        if next(calls) == cut_off:
            raise Interrupted("SIGTERM")
        return run(self, *inputs)

    with monkeypatch.context() as patch:
        run = EvaluationProcess.run
        patch.setattr(EvaluationProcess, "run", interrupted)
        parts = train_stack(configs(tmp_path / "parts"))
    assert [result.status for result in parts] == ["interrupted"] * 3
    for one, other in zip(whole, resume_stack(parts[0].run_dir), strict=True):
        assert_same(last_state(one), last_state(other))
        times = {"time/fps", "time/updates_per_second"}
        ours, theirs = (
            [{key: row[key] for key in row.keys() - times} for row in read_metrics(result.run_dir / "metrics.csv")]
            for result in (one, other)
        )
        assert ours == theirs


def test_the_runs_are_evaluated_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("start", "run"):
        function = getattr(EvaluationProcess, name)

        def watched(self: Any, *inputs: Any, name: str = name, function: Any = function) -> Any:
            calls.append(name)
            return function(self, *inputs)

        monkeypatch.setattr(EvaluationProcess, name, watched)
    train_stack(configs(tmp_path, total_timesteps=60))
    assert calls == ["start"] * 3 + ["run"] * 3


def test_the_processes_of_evaluations_do_not_hold_the_locks_of_the_runs(tmp_path: Path) -> None:
    class Look(Callback):
        def on_training_start(self, trainer: Trainer) -> None:
            assert isinstance(trainer.evaluator, EvaluationProcess)
            pid = trainer.evaluator._process.pid
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
            self.locks = [name for name in links if name.endswith(".lock")]

    look = Look()
    train_stack(configs(tmp_path, total_timesteps=60), callbacks=[look])
    assert look.locks == []
