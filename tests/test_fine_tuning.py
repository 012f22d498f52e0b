"""An offline policy goes online: what is taken over, what collects, Cal-QL's bound, and cloning at first."""

from __future__ import annotations

import copy
import json
import math
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import StopAt
from rl_training import cli
from rl_training.algorithms import CQL, SAC
from rl_training.config import TrainConfig, load_config, parse_config
from rl_training.data import TransitionDataset
from rl_training.data.dataset_loaders import load_transition_dataset, write_transitions
from rl_training.errors import ConfigError, DatasetError
from rl_training.experiment.manager import load_policy
from rl_training.models import DeterministicActor, GaussianActor, SquashedGaussianActor
from rl_training.models.actors import load_actor
from rl_training.runtime import Callback, TrainResult
from rl_training.runtime.checkpointing import find_checkpoint, read_checkpoint, resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run import resume, train
from rl_training.tools.datasets import collect_dataset
from rl_training.types import Batch, SpaceSpec

PENDULUM, POINT = "Pendulum-v1", "rl_training/PointGoal1D-v0"
SHORT = {"max_episode_steps": 40}


class Studio:
    """Makes offline runs, each once for the whole module, and configurations that go on from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, TrainResult] = {}

    def data(self, env_id: str) -> Path:
        path = self.folder / f"{Path(env_id).name}.npz"
        if not path.exists():
            env_kwargs = SHORT if env_id == PENDULUM else {}
            write_transitions(collect_dataset(env_id, "random", episodes=5, env_kwargs=env_kwargs)[0], path)
        return path

    def source(self, algo: str, env_id: str = PENDULUM, **kwargs: Any) -> TrainResult:
        """Return an offline run of a few updates."""
        key = json.dumps([algo, env_id, kwargs])
        if key not in self._runs:
            settings = {"dataset_path": str(self.data(env_id)), "hidden_sizes": [16, 16], "batch_size": 16, **kwargs}
            values = {"algo": algo, "env_id": env_id, "total_timesteps": 20, "eval_episodes": 1, "seed": 3}
            values |= {"output_dir": str(self.folder / "runs"), "algo_kwargs": settings}
            values |= {"env_kwargs": SHORT if env_id == PENDULUM else {}}
            self._runs[key] = train(parse_config(values))
        return self._runs[key]

    def config(self, algo: str, run_dir: Path | str | None, folder: Path, **changes: Any) -> TrainConfig:
        """Return the configuration of a run that starts from ``run_dir`` and plays, with another seed."""
        kwargs = {
            "online": True,
            "init_from": None if run_dir is None else str(run_dir),
            "hidden_sizes": [16, 16],
            "batch_size": 16,
            "buffer_capacity": 500,
            "learning_starts": 20,
            "eval_interval": 20,
            "checkpoint_interval": 10,
            "log_interval": 10,
            **changes.pop("algo_kwargs", {}),
        }
        values = {"algo": algo, "env_id": PENDULUM, "total_timesteps": 40, "eval_episodes": 1, "env_kwargs": SHORT}
        return parse_config({**values, "output_dir": str(folder / "runs"), "algo_kwargs": kwargs, **changes})


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Studio:
    return Studio(tmp_path_factory.mktemp("sources"))


class Start(Callback):
    """Remembers the learner as it was before the first step."""

    def on_training_start(self, trainer):
        self.weights = {name: value.clone() for name, value in trainer.learner.state_dict().items()}
        self.optimizers = copy.deepcopy(trainer.learner.training_state()["optimizers"])
        observations = torch.randn(50, trainer.learner.spec.policy_dim, generator=torch.Generator().manual_seed(0))
        self.actions = trainer.learner.act(observations)
        self.updates = trainer.learner.update_count


def fine_tune(config: TrainConfig, *callbacks: Callback) -> TrainResult:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="init_from: .* differ")
        return train(config, callbacks=callbacks)


def learned(run_dir: Path) -> dict[str, Any]:
    """Return the state of the learner that ``init_from`` takes from a run."""
    return read_checkpoint(find_checkpoint(run_dir), part="learner")[1]["learner"]


SAME = [
    pytest.param("iql", {}, id="iql"),
    pytest.param("awac", {}, id="awac"),
    pytest.param("cql", {}, id="cql"),
    pytest.param("cql", {"calibrated": True}, id="cal-ql"),
    pytest.param("td3_bc", {"normalize_observations": True}, id="td3_bc"),
    pytest.param("bc", {"policy": "gaussian"}, id="bc"),
]


@pytest.mark.parametrize(("algo", "options"), SAME)
def test_the_same_algorithm_takes_everything_over(studio, tmp_path, algo, options):
    source, start = studio.source(algo, **options), Start()
    state = learned(source.run_dir)
    config = studio.config(
        algo, source.run_dir, tmp_path, algo_kwargs={"dataset_path": studio.data(PENDULUM), **options}
    )
    result = fine_tune(config, start)
    assert start.weights.keys() == state["module"].keys()
    assert [name for name, value in state["module"].items() if not torch.equal(value, start.weights[name])] == []
    assert start.optimizers.keys() == state["optimizers"].keys()
    for name, moments in state["optimizers"].items():
        assert moments, name
        for index, values in moments.items():
            assert all(torch.equal(value, start.optimizers[name][index][key]) for key, value in values.items())
    assert start.updates == 0  # the counters are the new run's own

    # The policy is evaluated as it was handed over, and then learns from prior and fresh data.
    rows = read_metrics(result.run_dir / "metrics.csv")
    assert (rows[0]["global_step"], rows[0]["update_count"]) == (0, 0)
    assert [row["global_step"] for row in rows if "eval/mean_reward" in row] == [0, 20, 40]
    assert (result.global_step, result.update_count) == (40, 20)
    assert rows[-1]["train/offline_share"] == 0.5
    after = learned(result.run_dir / "checkpoints" / "latest")["module"]
    assert any(not torch.equal(value, start.weights[name]) for name, value in after.items())


def test_the_evaluation_at_step_0_is_that_of_the_source(studio, tmp_path):
    source = studio.source("iql")
    config = studio.config("iql", source.run_dir, tmp_path, seed=3)  # evaluations are seeded by the run
    rows = read_metrics(fine_tune(config).run_dir / "metrics.csv")
    assert rows[0]["eval/mean_reward"] == source.metrics["best/mean_reward"]


@pytest.mark.parametrize("keep", [True, False])
def test_moments_are_kept_or_not(studio, tmp_path, keep):
    source, start = studio.source("iql"), Start()
    config = studio.config("iql", source.run_dir, tmp_path, algo_kwargs={"init_optimizers": keep})
    fine_tune(config, start)
    assert set(start.optimizers) == {"actor", "critic", "value"}
    assert all(bool(moments) == keep for moments in start.optimizers.values())
    module = learned(source.run_dir)["module"]
    assert all(torch.equal(value, start.weights[name]) for name, value in module.items())


OTHERS = [
    pytest.param("bc", {}, "sac", id="bc-sac"),
    pytest.param("bc", {}, "td3", id="bc-td3"),
    pytest.param("bc", {"policy": "gaussian"}, "sac", id="bc-gaussian-sac"),
    pytest.param("bc", {"normalize_observations": True}, "rlpd", id="bc-normalised-rlpd"),
    pytest.param("iql", {}, "awac", id="iql-awac"),
    pytest.param("td3_bc", {}, "sac", id="td3_bc-sac"),
    pytest.param("cql", {}, "td3", id="cql-td3"),
]


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        ({}, {"alpha": 0.05, "cql_alpha": 0.5}, {"log_alpha": 0.05, "log_cql_alpha": 0.5}),
        ({"alpha": 0.0}, {"initial_alpha": 0.5}, {"log_alpha": 0.5}),
        ({"lagrange": 1.0}, {"cql_alpha": 0.5}, {"log_cql_alpha": 0.5}),
        ({"initial_alpha": 0.3}, {"initial_alpha": 0.9}, {"log_alpha": 0.3}),
    ],
)
def test_a_weight_is_taken_over_only_if_both_runs_learn_it(studio, tmp_path, there, here, expected):
    start = Start()
    fine_tune(studio.config("cql", studio.source("cql", **there).run_dir, tmp_path, algo_kwargs=here), start)
    for name, value in expected.items():
        assert start.weights[name].exp().item() == pytest.approx(value, rel=0.05)  # the source has learned a little


@pytest.mark.parametrize(("algo", "options", "other"), OTHERS)
def test_another_algorithm_takes_the_policy_over(studio, tmp_path, algo, options, other):
    source, start = studio.source(algo, **options), Start()
    kept = {key: value for key, value in options.items() if key == "normalize_observations"}
    kept |= {"offline_batch_ratio": 0} if other == "rlpd" else {}
    kept |= {"gradient_updates_per_step": 1}
    config = studio.config(other, source.run_dir, tmp_path, algo_kwargs=kept)
    with pytest.warns(UserWarning, match="init_from: .* differ, so only the policy is loaded"):
        result = train(config, callbacks=[start])
    learner, _, _ = load_policy(source.run_dir)
    observations = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(start.actions, learner.act(observations))
    assert start.actions.std() > 0
    assert not any(start.optimizers.values())
    if other == "td3":  # the target follows at once
        for name in ("mlp.output.weight", "mlp.hidden.0.bias"):
            assert torch.equal(start.weights[f"model.target_actor.{name}"], start.weights[f"model.actor.{name}"])
    assert result.update_count == 20
    assert read_metrics(result.run_dir / "metrics.csv")[0]["global_step"] == 0


def test_an_offline_run_may_start_from_another_one_too(studio, tmp_path):
    source, start = studio.source("iql"), Start()
    config = parse_config(
        {
            "algo": "iql",
            "env_id": PENDULUM,
            "env_kwargs": SHORT,
            "total_timesteps": 10,
            "eval_episodes": 1,
            "output_dir": str(tmp_path / "runs"),
            "algo_kwargs": {
                "dataset_path": str(studio.data(PENDULUM)),
                "hidden_sizes": [16, 16],
                "init_from": str(source.run_dir / "checkpoints" / "latest"),
            },
        }
    )
    result = fine_tune(config, start)
    assert (result.global_step, result.update_count) == (10, 10)
    latest = learned(source.run_dir / "checkpoints" / "latest")["module"]
    assert all(torch.equal(value, start.weights[name]) for name, value in latest.items())


def test_hindsight_goes_on_with_its_backends_own_learner(studio, tmp_path):
    source, start = studio.source("iql", POINT), Start()
    config = studio.config(
        "her",
        source.run_dir,
        tmp_path,
        env_id=POINT,
        env_kwargs={},
        total_timesteps=80,
        algo_kwargs={"backend": "iql", "learning_starts": 50},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left behind, so nothing is said
        train(config, callbacks=[start])
    module = learned(source.run_dir)["module"]
    assert module.keys() == start.weights.keys()
    assert all(torch.equal(value, start.weights[name]) for name, value in module.items())


class FirstActions(Callback):
    """Compares what was played with what the policy says, before anything was learned."""

    def on_step(self, trainer):
        if trainer.state.global_step == 10:
            ring = trainer.replay.ring
            observations, played = (ring.rows[:10, ring.columns[name]] for name in ("observation", "action"))
            self.follows = bool(torch.allclose(trainer.learner.act(observations), played, atol=1e-6))
            assert trainer.state.update_count == 0


def test_a_run_on_a_dataset_in_memory_asks_for_it_again(studio, tmp_path):
    config = studio.config("sac", None, tmp_path, algo_kwargs={"online": None, "init_from": None})
    config = config.model_copy(update={"algo_kwargs": {k: v for k, v in config.algo_kwargs.items() if v is not None}})
    data = load_transition_dataset(studio.data(PENDULUM))
    broken = train(config, callbacks=[StopAt(33)], dataset=data)
    with pytest.raises(DatasetError, match="was started with offline data and is resumed without"):
        resume(broken.run_dir)
    with pytest.raises(DatasetError, match="dataset: this is not the data the run was started with"):
        resume(broken.run_dir, dataset=data.with_reward_transform(scale=2.0))
    assert resume(broken.run_dir, dataset=data).global_step == 40


def test_actions_outside_their_bounds_are_clipped_and_counted(studio, tmp_path):
    class Look(Callback):
        def on_training_start(self, trainer):
            self.actions = trainer.experience.actions[:, 0].tolist()

    data = load_transition_dataset(studio.data(PENDULUM)).arrays
    data["actions"] = np.where(np.arange(len(data["rewards"]))[:, None] < 50, 3.0, 0.5)
    values = {"algo": "bc", "total_timesteps": 2, "output_dir": str(tmp_path), "algo_kwargs": {"hidden_sizes": [8]}}
    for env_id, message, inside in ((PENDULUM, r"task, \[-2, 2\]", 0.25), (None, r"assumed bounds, \[-1, 1\]", 0.5)):
        config = parse_config({**values, "env_id": env_id, "eval_episodes": 1, "env_kwargs": SHORT if env_id else {}})
        look = Look()
        with pytest.warns(UserWarning, match=rf"25\.0% of the rows have actions outside .*{message}: they are clipped"):
            train(config, callbacks=[look], dataset=TransitionDataset.from_dict(data))
        assert look.actions == [1.0] * 50 + [inside] * 150


def test_the_policy_collects_from_the_first_step(studio, tmp_path):
    source = studio.source("td3_bc")
    trained, untrained = FirstActions(), FirstActions()
    fine_tune(studio.config("td3_bc", source.run_dir, tmp_path, algo_kwargs={"exploration_noise": 0.0}), trained)
    fine_tune(studio.config("td3_bc", None, tmp_path, algo_kwargs={"exploration_noise": 0.0}), untrained)
    assert trained.follows
    assert not untrained.follows  # a new policy waits until learning_starts


def test_a_fine_tuned_run_is_resumed_without_its_source(studio, tmp_path):
    shutil.copytree(studio.source("cql").run_dir, tmp_path / "source")
    kwargs = {"dataset_path": str(studio.data(PENDULUM)), "exploration_noise": 0.1}
    config = studio.config("cql", tmp_path / "source", tmp_path, algo_kwargs=kwargs)
    straight = train(config)
    early, late = (train(config, callbacks=[StopAt(step)]) for step in (5, 33))
    shutil.rmtree(tmp_path / "source")
    final = load_file(resolve_checkpoint(straight.run_dir / "checkpoints") / "learner.safetensors")
    log = lasting_rows(straight.run_dir)
    assert [row["global_step"] for row in log if "eval/mean_reward" in row] == [0, 20, 40]
    for broken in (early, late):
        assert broken.status == "interrupted"
        finished = resume(broken.run_dir)
        assert finished.metrics == straight.metrics
        other = load_file(resolve_checkpoint(broken.run_dir / "checkpoints") / "learner.safetensors")
        assert [name for name, value in final.items() if not torch.equal(value, other[name])] == []
        assert lasting_rows(broken.run_dir) == log  # step 0 is evaluated once


def lasting_rows(run_dir: Path) -> list[dict[str, float]]:
    rows = read_metrics(run_dir / "metrics.csv")
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


# Wrong input


@pytest.mark.parametrize(
    ("algo", "target", "changes", "message"),
    [
        pytest.param(
            "iql", "iql", {"hidden_sizes": [16, 8]}, "does not fit this run: .*expected the same networks", id="hidden"
        ),
        pytest.param("bc", "sac", {"hidden_sizes": [16, 8]}, "expected the same hidden_sizes", id="hidden-other"),
        pytest.param("bc", "sac", {"hidden_sizes": [16]}, "does not fit this run", id="fewer-layers"),
        pytest.param("bc", "sac", {"hidden_sizes": [16, 16, 16]}, "expected the same hidden_sizes", id="more-layers"),
        pytest.param("cql", "cql", {"num_critics": 3}, "does not fit this run", id="critics"),
        pytest.param("iql", "iql", {"normalize_observations": True}, "does not fit this run: .*normalizer", id="stats"),
        pytest.param(
            "bc",
            "sac",
            {"normalize_observations": True},
            "normalize_observations is False in the other run",
            id="stats-other",
        ),
    ],
)
def test_a_run_that_does_not_fit_is_refused(studio, tmp_path, algo, target, changes, message):
    config = studio.config(target, studio.source(algo).run_dir, tmp_path, algo_kwargs=changes)
    with pytest.raises(ConfigError, match=rf"(?s)algo_kwargs\.init_from = .*{message}"):
        fine_tune(config)
    assert not (tmp_path / "runs").exists()


def test_a_policy_of_another_task_is_refused(studio, tmp_path):
    for run, message in (
        (studio.source("iql", POINT), "observation_dim is 2 in that run and 3 in this one"),
        (studio.source("bc", "CartPole-v1"), "observation_dim is 4 in that run and 3 in this one"),
    ):
        with pytest.raises(ConfigError, match=rf"init_from.*does not fit this run: {message}"):
            fine_tune(studio.config("iql", run.run_dir, tmp_path))
    flat = studio.config("sac", studio.source("bc", "MountainCarContinuous-v0").run_dir, tmp_path, env_id=POINT)
    with pytest.raises(ConfigError, match="goal_dim is 0 in that run and 1 in this one"):
        fine_tune(flat.model_copy(update={"env_kwargs": {}}))
    values = studio.config("dqn", studio.source("bc", "CartPole-v1").run_dir, tmp_path, env_id="CartPole-v1")
    with pytest.raises(ConfigError, match="has no policy network"):
        fine_tune(values)
    assert not (tmp_path / "runs").exists()


def test_what_is_no_run_is_refused(studio, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        with pytest.raises(ConfigError, match=rf"algo_kwargs\.init_from = '.*{name}'"):
            fine_tune(studio.config("iql", tmp_path / name, tmp_path))
    assert not (tmp_path / "runs").exists()


# The command line


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Return a function that runs the command line here and returns its exit code and output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rl-training", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def offline_file(studio, tmp_path) -> Path:
    """The configuration with which the source was trained, as a file."""
    values = load_config(studio.source("iql").run_dir / "config.yaml").model_dump(mode="json")
    kwargs = {key: values["algo_kwargs"][key] for key in ("dataset_path", "hidden_sizes", "batch_size")}
    (tmp_path / "iql.yaml").write_text(json.dumps({**values, "output_dir": "runs", "algo_kwargs": kwargs}))
    return tmp_path / "iql.yaml"


SETS = ("--set", "total_timesteps=30", "--set", "algo_kwargs.learning_starts=20")


def test_init_from_on_the_command_line_goes_online(studio, command, offline_file, tmp_path):
    shutil.copytree(studio.source("iql").run_dir, tmp_path / "source")
    code, out, err = command("train", offline_file, "--init-from", "source", *SETS, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["global_step"], answer["update_count"]) == (30, 10)
    kwargs = load_config(Path(answer["run_dir"]) / "config.yaml").algo_kwargs
    assert kwargs["online"] is True
    assert kwargs["init_from"] == str(tmp_path / "source")
    rows = read_metrics(Path(answer["run_dir"]) / "metrics.csv")
    assert (rows[0]["global_step"], rows[-1]["train/offline_share"]) == (0, 0.5)
    shutil.rmtree(tmp_path / "source")
    assert command("resume", answer["run_dir"])[0] == 0


def test_set_still_decides_whether_it_plays(studio, command, offline_file):
    run_dir = studio.source("iql").run_dir
    offline = ("--set", "algo_kwargs.online=false", "--set", "total_timesteps=7")
    code, out, err = command("train", offline_file, "--init-from", run_dir, *offline, "--json")
    assert code == 0, err
    assert json.loads(out)["update_count"] == 7


@pytest.mark.parametrize("name", ["a run", "run #1", "best: 1", "[x]", "it's"])
def test_init_from_takes_any_path(studio, command, offline_file, tmp_path, name):
    shutil.copytree(studio.source("iql").run_dir, tmp_path / name)
    code, _, err = command("train", offline_file, "--init-from", tmp_path / name, *SETS)
    assert code == 0, err


def test_a_wrong_init_from_on_the_command_line(command, offline_file, tmp_path):
    code, out, err = command("train", offline_file, "--init-from", "nowhere", *SETS)
    assert (code, out) == (2, "")
    assert "init_from" in err
    assert "nowhere" in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["iql.yaml"]


# Cal-QL


SPEC = SpaceSpec(observation_dim=3, action_dim=2)


def random_batch(size: int = 12, seed: int = 0, **changes: Any) -> Batch:
    g = torch.Generator().manual_seed(seed)
    batch = Batch(
        observations=torch.randn(size, 3, generator=g),
        actions=torch.rand(size, 2, generator=g) * 1.8 - 0.9,
        rewards=torch.randn(size, generator=g),
        next_observations=torch.randn(size, 3, generator=g),
        terminated=(torch.rand(size, generator=g) < 0.3).float(),
    )
    return batch._replace(**changes)


def reference_gap(learner: CQL, batch: Batch, bounds: torch.Tensor) -> torch.Tensor:
    """Return the paper's regulariser row by row, with what the learner is about to draw."""
    generator, count, size = learner.generator.clone_state(), learner.settings.cql_actions, len(batch.rewards)
    random = torch.rand(size, count, 2, generator=generator) * 2 - 1
    both = torch.cat([batch.observations, batch.next_observations])
    drawn, log_probs = learner.model.actor.sample(both, generator, count)
    gaps = []
    for row in range(size):
        terms = []
        for actions, weights, bound in (
            (random[row], torch.full((count,), math.log(0.25)), -math.inf),  # uniform on a square of area 4
            (drawn[row], log_probs[row], bounds[row]),
            (drawn[size + row], log_probs[size + row], bounds[row]),
        ):
            values = learner.model.critic(batch.observations[row].expand(count, -1), actions)
            terms.append(values.clamp(min=float(bound)) - weights)
        mean = torch.cat(terms, dim=1).exp().mean(dim=1).log()
        taken = learner.model.critic(batch.observations[row : row + 1], batch.actions[row : row + 1])[:, 0]
        gaps.append(mean - taken)
    return torch.stack(gaps).mean(dim=0).detach()


def test_policy_actions_count_with_at_least_the_return():
    learner = CQL(SPEC, {"hidden_sizes": [16, 16], "calibrated": True, "cql_actions": 4})
    returns = torch.linspace(-1, 1, 12)  # below and above what new critics say
    batch = random_batch(returns=returns)
    expected = reference_gap(learner, batch, returns)
    start = learner.generator.get_state()

    def gap(batch: Batch, calibrated: bool = True) -> torch.Tensor:
        learner.settings = learner.settings.model_copy(update={"calibrated": calibrated})
        learner.generator.set_state(start)
        return learner.conservative_gap(batch).detach()

    torch.testing.assert_close(gap(batch), expected)
    free = reference_gap_at(learner, start, batch)
    assert (expected > free + 1e-3).all()
    # Without returns, with returns that bind nothing, and where it is off, it is CQL's own.
    torch.testing.assert_close(gap(random_batch()), free)
    torch.testing.assert_close(gap(batch._replace(returns=torch.full((12,), -torch.inf))), free)
    torch.testing.assert_close(gap(batch, calibrated=False), free)
    # Fresh rows have no bound: those of the first half alone make the difference.
    half = torch.cat([returns[6:], torch.full((6,), -torch.inf)])
    learner.generator.set_state(start)
    torch.testing.assert_close(gap(batch._replace(returns=half)), reference_gap_at(learner, start, batch, half))


def reference_gap_at(
    learner: CQL, start: torch.Tensor, batch: Batch, bounds: torch.Tensor | None = None
) -> torch.Tensor:
    learner.generator.set_state(start)
    return reference_gap(learner, batch, torch.full((len(batch.rewards),), -torch.inf) if bounds is None else bounds)


def test_values_below_the_return_are_not_pushed_down():
    """With returns far above all values, only random actions are still pushed down."""
    learner = CQL(SPEC, {"hidden_sizes": [16, 16], "calibrated": True, "cql_actions": 4})
    learner.generator.manual_seed(1)
    batch = random_batch(returns=torch.full((12,), 50.0))
    gap = learner.conservative_gap(batch).sum()
    taken = learner.model.critic(batch.observations, batch.actions).mean(dim=1).sum()
    parameters = list(learner.model.critic.parameters())
    # Against returns of 50 the share of random actions in the log-sum-exp is nil: what remains is the data's own term.
    for found, expected in zip(
        torch.autograd.grad(gap, parameters), torch.autograd.grad(-taken, parameters), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def plain_returns(dataset: TransitionDataset, gamma: float, worst: float | None = None) -> list[float]:
    arrays, following, returns = dataset.arrays, 0.0, []
    worst = float(arrays["rewards"].min()) if worst is None else worst
    rest = min(worst, worst / (1 - gamma))  # of an episode that was cut off, as bad as it can get
    for reward, terminated, truncated in zip(
        arrays["rewards"][::-1], arrays["terminated"][::-1], arrays["truncated"][::-1], strict=True
    ):
        if terminated:
            following = 0.0
        elif truncated:
            following = rest
        following = float(reward) + gamma * following
        returns.append(following)
    return returns[::-1]


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99])
def test_returns_to_go_are_those_of_a_plain_loop(gamma):
    rng = np.random.default_rng(0)
    lengths = [1, 7, 1, 30, 2, 13]
    ends = np.zeros(sum(lengths), bool)
    ends[np.cumsum(lengths) - 1] = True
    terminated = ends & (rng.random(len(ends)) < 0.5)
    dataset = TransitionDataset.from_dict(
        {
            "observations": rng.normal(size=(len(ends), 3)),
            "actions": rng.uniform(-1, 1, (len(ends), 2)),
            "rewards": rng.normal(size=len(ends)),
            "terminated": terminated,
            "truncated": ends & ~terminated,
        }
    )
    before = dataset.arrays["rewards"].copy()
    found = dataset.returns_to_go(gamma)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, plain_returns(dataset, gamma), rtol=1e-5, atol=1e-5)
    bounded = dataset.returns_to_go(gamma, (-5.0, 5.0))
    np.testing.assert_allclose(bounded, plain_returns(dataset, gamma, -5.0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(dataset.arrays["rewards"], before)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.0), (0.0, 1.0)])
def test_the_returns_of_a_time_out_never_exceed_what_the_policy_can_be_worth(low, high):
    # The episode never meets its goal: its value is low at every step for ever, or any more than that.
    steps, gamma = 50, 0.99
    timed_out = {
        "observations": np.arange(steps)[:, None],
        "actions": np.zeros((steps, 1)),
        "rewards": np.full(steps, low),
        "terminated": np.zeros(steps, bool),
        "truncated": np.arange(steps) == steps - 1,
    }
    found = TransitionDataset.from_dict(timed_out).returns_to_go(gamma, (low, high))
    np.testing.assert_allclose(found, low / (1 - gamma), rtol=1e-4)
    ended = {**timed_out, "terminated": timed_out["truncated"], "truncated": timed_out["terminated"]}
    np.testing.assert_allclose(
        TransitionDataset.from_dict(ended).returns_to_go(gamma)[0], low * (1 - gamma**steps) / (1 - gamma), rtol=1e-4
    )


def test_a_calibrated_run_samples_discounted_transformed_returns(studio, tmp_path):
    class Look(Callback):
        def on_training_end(self, trainer):
            self.prior, self.batch = trainer.experience.offline, trainer.experience.sample(8)

    look = Look()
    kwargs = {"calibrated": True, "gamma": 0.8, "reward_scale": 0.1, "dataset_path": str(studio.data(PENDULUM))}
    fine_tune(studio.config("cql", None, tmp_path, algo_kwargs={**kwargs, "max_updates": 3}), look)
    raw = load_transition_dataset(studio.data(PENDULUM))
    assert look.prior.arrays["rewards"] == pytest.approx(raw.arrays["rewards"] * 0.1, rel=1e-4)
    np.testing.assert_allclose(look.prior.returns, plain_returns(look.prior, 0.8), rtol=1e-4, atol=1e-5)
    assert look.batch.returns[:4].isfinite().all()
    assert (look.batch.returns[4:] == -torch.inf).all()
    other = Look()
    fine_tune(
        studio.config("cql", None, tmp_path, algo_kwargs={**kwargs, "calibrated": False, "max_updates": 3}), other
    )
    assert other.prior.returns is None
    assert other.batch.returns is None


# CQL's first updates


def test_the_actor_clones_the_data_at_first():
    learner = CQL(SPEC, {"hidden_sizes": [16, 16], "bc_updates": 3, "cql_alpha": 0.1})
    batch = random_batch()
    for count, cloning in ((1, True), (3, True), (4, False), (9, False)):
        learner.update_count = count
        generator = learner.generator.clone_state()
        actions, log_probs = learner.model.actor.sample(batch.observations, generator)
        values = learner.model.critic(batch.observations, actions).amin(dim=0)
        likelihood = learner.model.actor.log_prob(batch.observations, batch.actions)
        expected = (-likelihood if cloning else log_probs - values).mean()  # at first the temperature is 1
        loss, found, metrics = learner.actor_loss(batch)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(found, log_probs.detach())
        torch.testing.assert_close(metrics["train/entropy"], -log_probs.mean().detach())


def test_critics_have_no_say_until_cloning_is_over():
    """Two learners whose critics differ have the same actor as long as it clones, and no longer."""
    first, second = (CQL(SPEC, {"hidden_sizes": [16, 16], "bc_updates": 3, "cql_alpha": 0.1}) for _ in range(2))
    with torch.no_grad():
        for parameter in second.model.critic.parameters():
            parameter.mul_(2.0)
    for update in range(1, 6):
        kinds = {learner.update_kind for learner in (first, second)}
        assert kinds == {((None, True), update <= 3)}
        for learner in (first, second):
            learner.update(random_batch(seed=update))
        same = torch.equal(first.model.actor.mlp.output.weight, second.model.actor.mlp.output.weight)
        assert same == (update <= 3)


def test_cql_imitates_all_rows_of_logged_data():
    arrays = random_batch()
    logged = TransitionDataset.from_dict(
        {name: getattr(arrays, name).numpy() for name in ("observations", "actions", "rewards", "terminated")}
    )
    learner = CQL(SPEC, {"hidden_sizes": [16, 16], "bc_weight": 2.0, "bc_q_filter": False})
    batch = logged.sample(7)
    errors = (learner.act(batch.observations) - batch.actions).square().mean(dim=1)
    torch.testing.assert_close(learner.actor_loss(batch)[-1]["train/bc_loss"], errors.mean())
    mixed = learner.actor_loss(batch._replace(offline_rows=5))[-1]
    torch.testing.assert_close(mixed["train/bc_loss"], errors[:5].mean())


def test_without_cloning_the_actors_loss_is_sacs_from_the_start():
    batch = random_batch()
    learner, plain = (kind(SPEC, {"hidden_sizes": [16, 16]}) for kind in (CQL, SAC))
    torch.testing.assert_close(learner.actor_loss(batch)[0], plain.actor_loss(batch)[0])


# Policies of different kinds


KINDS = {"deterministic": DeterministicActor, "gaussian": GaussianActor, "squashed": SquashedGaussianActor}


def make_actor(kind: str, seed: int, hidden: tuple[int, ...] = (8, 8), spec: SpaceSpec = SPEC) -> Any:
    actor = KINDS[kind](spec, hidden, torch.Generator().manual_seed(seed))
    if kind == "gaussian":
        with torch.no_grad():
            actor.log_std.copy_(torch.linspace(-1.5, -0.5, spec.action_dim))
    return actor


def mean_action(actor: Any, observations: torch.Tensor) -> torch.Tensor:
    return actor(observations) if isinstance(actor, DeterministicActor) else actor.mode(observations)


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_policies_are_adopted_between_all_kinds(source, target):
    old, new = make_actor(source, seed=1), make_actor(target, seed=2)
    observations = torch.randn(20, 3)
    assert not torch.allclose(mean_action(old, observations), mean_action(new, observations), atol=1e-2)
    state = {name: value.clone() for name, value in old.state_dict().items()}
    load_actor(new, old.state_dict())
    torch.testing.assert_close(mean_action(new, observations), mean_action(old, observations))
    assert all(torch.equal(value, state[name]) for name, value in old.state_dict().items())
    expected = {  # the deviation of the new policy
        "deterministic": torch.full((20, 2), -2.0),
        "gaussian": torch.tensor([-1.5, -0.5]).expand(20, 2),
        "squashed": old(observations)[1] if source == "squashed" else None,
    }[source]
    if target == "squashed":
        torch.testing.assert_close(new(observations)[1], expected)
    elif target == "gaussian":
        torch.testing.assert_close(new.log_std.data, torch.full((2,), -2.0) if source == "squashed" else expected[0])
    # It goes on learning: what was adopted are parameters, not a view of the other's.
    with torch.no_grad():
        next(iter(new.parameters())).add_(1.0)
    assert torch.equal(old.state_dict()["mlp.hidden.0.weight"], state["mlp.hidden.0.weight"])


@pytest.mark.parametrize("hidden", [(8, 9), (8,), (8, 8, 8)])
@pytest.mark.parametrize("target", KINDS)
def test_other_hidden_layers_are_refused_and_nothing_changes(target, hidden):
    new = make_actor(target, seed=2)
    before = {name: value.clone() for name, value in new.state_dict().items()}
    with pytest.raises(ValueError, match="expected the same hidden_sizes"):
        load_actor(new, make_actor("deterministic", 1, hidden).state_dict())
    assert all(torch.equal(value, before[name]) for name, value in new.state_dict().items())


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize(("there", "here"), [(3, 1), (1, 3)])
def test_another_number_of_actions_is_refused(source, target, there, here):
    old, new = (
        make_actor(kind, seed, spec=SpaceSpec(observation_dim=3, action_dim=size))
        for seed, (kind, size) in enumerate(((source, there), (target, here)))
    )
    with pytest.raises(ValueError, match=r"the other policy has \d outputs"):
        load_actor(new, old.state_dict())


# The squashed density


def test_the_density_of_given_actions_is_that_of_drawn_ones():
    actor = make_actor("squashed", seed=0)
    observations = torch.randn(500, 3)
    actions, log_probs = actor.sample(observations, torch.Generator().manual_seed(1))
    inside = (actions.abs() < 0.99).all(dim=1)
    assert inside.sum() > 200
    found = actor.log_prob(observations, actions)
    torch.testing.assert_close(found[inside], log_probs[inside], rtol=1e-3, atol=1e-3)


def test_the_density_integrates_to_one_and_is_finite_at_the_bounds():
    spec = SpaceSpec(observation_dim=3, action_dim=1)
    actor = make_actor("squashed", seed=0, spec=spec)
    grid = torch.linspace(-1, 1, 20_001)[1:-1, None]
    observations = torch.randn(1, 3).expand(len(grid), -1)
    total = actor.log_prob(observations, grid).exp().mean() * 2
    assert total.item() == pytest.approx(1.0, abs=0.02)
    edges = torch.tensor([[1.0], [-1.0]])
    log_probs = actor.log_prob(observations[:2], edges)
    assert log_probs.isfinite().all()
    gradients = torch.autograd.grad(log_probs.sum(), list(actor.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
