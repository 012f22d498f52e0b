"""The command line: what it prints where, its exit codes, and what bad input gets."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training import cli
from rl_training.algorithms.base import Learner
from rl_training.algorithms.table import ALGORITHMS
from rl_training.config import load_config, parse_config, preset_names
from rl_training.experiment import manager
from rl_training.runtime.collector import Collector
from rl_training.runtime.controls import TrainResult
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.settings import group_types, parse_run
from warm_process import WarmProcess, WarmPython

POINT = "rl_training/PointGoal1D-v0"
ANSWER_KEYS = {"run_dir", "status", "stop_reason", "global_step", "update_count", "metrics"}
TINY = [
    "total_timesteps=120",
    "eval_episodes=2",
    "env_kwargs={}",
    "algo_kwargs.learning_starts=50",
    "algo_kwargs.batch_size=16",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.buffer_capacity=1000",
    "algo_kwargs.eval_interval=60",
    "algo_kwargs.log_interval=30",
]


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert len(self.out.splitlines()) == 1, self.out
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command line in this process; what escapes it is a traceback to a user."""

    def run(*arguments: object, stdin: str = "") -> Answer:
        monkeypatch.setattr(sys, "argv", ["rl-training", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return Answer(int(exit_.value.code or 0), out, err)

    return run


def tiny(*sets: str) -> list[str]:
    return [part for setting in (*TINY, *sets) for part in ("--set", setting)]


@pytest.fixture
def train(run: Run, tmp_path: Path) -> Run:
    """Return a function that trains a tiny run below ``tmp_path / "runs"``."""

    def train(*sets: str, preset: str = "her/point_goal", options: tuple[object, ...] = ()) -> Answer:
        return run("train", preset, *tiny(*sets), "--output-dir", tmp_path / "runs", *options)

    return train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run, to be read and never written to."""
    from rl_training.experiment.manager import train_experiment
    from rl_training.runtime.settings import read_config

    folder = tmp_path_factory.mktemp("trained")
    config = read_config("her/point_goal", [*TINY, f"output_dir={folder}"])
    return train_experiment(config, name="her/point_goal").run_dir


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A finished run that a test may spoil."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def assert_clear(answer: Answer, *words: str, code: int = 2) -> None:
    """Check for an error in one or two lines of stderr that holds ``words``, and nothing on stdout."""
    assert answer.code == code, answer
    assert answer.out == ""
    lines = answer.err.strip().splitlines()
    assert lines[0].startswith("error: "), answer.err
    assert len(lines) <= 2, answer.err
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send SIGINT, as Ctrl-C does, at one step of training."""
    real, count = Collector.step, [0]

    def counted(self: Collector, *arguments: Any) -> Any:
        count[0] += 1
        if count[0] == step:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *arguments)

    monkeypatch.setattr(Collector, "step", counted)


class TestTrain:
    def test_json_is_one_object_on_stdout(self, train: Run, tmp_path: Path) -> None:
        answer = train(options=("--json",))
        assert answer.code == 0
        result = answer.json
        assert set(result) == ANSWER_KEYS
        assert (result["status"], result["stop_reason"]) == ("completed", "total_timesteps")
        assert (result["global_step"], result["update_count"]) == (120, 70)
        assert {"eval/mean_reward", "eval/success_rate"} <= set(result["metrics"])
        run_dir = Path(result["run_dir"])
        assert run_dir.parent == tmp_path / "runs"
        for name in ("config.yaml", "metrics.csv", "report.html", "checkpoints", "replay"):
            assert (run_dir / name).exists()
        assert "step 120 of 120" in answer.err

    def test_without_json_a_person_is_told_where_everything_is(self, train: Run, tmp_path: Path) -> None:
        answer = train()
        assert answer.code == 0
        (run_dir,) = (tmp_path / "runs").iterdir()
        assert "completed: total_timesteps after 120 steps and 70 updates" in answer.out
        for path in (run_dir, run_dir / "checkpoints", run_dir / "report.html"):
            assert str(path) in answer.out

    def test_the_run_is_named_after_preset_changes_and_seed(self, train: Run) -> None:
        run_dir = Path(train(options=("--json", "--seed", 5)).json["run_dir"])
        assert run_dir.name.startswith(f"her-point_goal-total_timesteps=120+{len(TINY) - 1}-s5-")
        assert load_config(run_dir / "config.yaml").seed == 5

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ([], "her-point_reach-s0"),
            (["algo_kwargs.batch_size=128"], "her-point_reach-batch_size=128-s0"),
            (["algo_kwargs.batch_size=64", "algo_kwargs.batch_size=128"], "her-point_reach-batch_size=128-s0"),
            (["seed=0", "output_dir=runs"], "her-point_reach-s0"),
            (["algo_kwargs.tau=0.1", "algo_kwargs.gamma=1e-1"], "her-point_reach-tau=0.1-gamma=1e-1-s0"),
            (["algo_kwargs.hidden_sizes=[8, 8]"], "her-point_reach-hidden_sizes=8-8-s0"),
            (["env_id=rl_training/PointGoal1D-v0"], "her-point_reach-env_id=PointGoal1D-v0-s0"),
            ([f"algo_kwargs.batch_size={1:0200}", "algo_kwargs.tau=0.1"], "her-point_reach-tau=0.1+1-s0"),
        ],
    )
    def test_names_carry_what_was_changed(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: list[str], name: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("rl_training.runtime.run.run_to_end", lambda trainer: 1 / 0)
        run("train", "her/point_reach", *(part for change in changes for part in ("--set", change)))
        (run_dir,) = (tmp_path / "runs").iterdir()
        assert run_dir.name.rsplit("-", 2)[0] == name
        assert len(run_dir.name) <= 62

    def test_a_seed_decides_the_result(self, train: Run) -> None:
        one, two, other = (train(options=("--json", "--seed", seed)).json for seed in (3, 3, 4))
        assert one["metrics"] == two["metrics"]
        assert one["run_dir"] != two["run_dir"]
        logs = [list(csv.DictReader((Path(r["run_dir"]) / "metrics.csv").open())) for r in (one, two, other)]
        losses = [[row["train/critic_loss"] for row in log] for log in logs]
        assert losses[0] == losses[1] != losses[2]

    def test_several_seeds_are_several_runs_and_one_object(self, train: Run) -> None:
        result = train(options=("--json", "--seeds", "0-1")).json
        assert [set(one) for one in result["runs"]] == [ANSWER_KEYS] * 2
        assert [load_config(Path(one["run_dir"]) / "config.yaml").seed for one in result["runs"]] == [0, 1]
        for name, mean in result["metrics"].items():
            assert mean == pytest.approx(np.mean([one["metrics"][name] for one in result["runs"]]))
        assert set(result) == {"runs", "metrics", "std", "worst"}
        for name in ("eval/success_rate", "eval/mean_reward"):
            values = [one["metrics"][name] for one in result["runs"]]
            assert result["std"][name] == pytest.approx(np.std(values))
            assert result["worst"][name] == min(values)
        assert result["std"]["eval/mean_reward"] > 0

    def test_several_seeds_end_with_a_table(self, train: Run) -> None:
        numbers = train(options=("--json", "--seeds", "0-1")).json
        answer = train(options=("--seeds", "0-1"))
        table = answer.out.partition("\n2 seeds ")[2].splitlines()
        assert table[0].split() == ["mean", "std", "worst"]
        for line, label, name in zip(
            table[1:], ("success rate", "mean return"), ("eval/success_rate", "eval/mean_reward"), strict=True
        ):
            assert line.startswith(label)
            expected = [numbers[key][name] for key in ("metrics", "std", "worst")]
            assert line.removeprefix(label).split() == [f"{value:.2f}" for value in expected]
        assert "worst" not in train(options=("--seeds", "0")).out

    def test_a_task_without_success_has_a_table_of_returns(self, train: Run) -> None:
        answer = train(preset="ddpg/pendulum", options=("--seeds", "0-1"))
        assert answer.out.partition("\n2 seeds ")[2].splitlines()[1].startswith("mean return")

    def test_runs_that_differ_in_more_than_the_seed_are_not_called_seeds(self, train: Run) -> None:
        assert "\n2 runs " in train(options=("--set", "stack.gamma=[0.9,0.95]")).out

    def test_a_list_of_seeds(self, train: Run) -> None:
        result = train(options=("--json", "--seeds", "7,3")).json
        assert [load_config(Path(one["run_dir"]) / "config.yaml").seed for one in result["runs"]] == [7, 3]

    def test_a_yaml_file(self, train: Run, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text(f"algo: her\nenv_id: {POINT}\ntotal_timesteps: 1e3\n")
        run_dir = Path(train(preset=str(file), options=("--json",)).json["run_dir"])
        assert run_dir.name.startswith("mine-total_timesteps=120")

    def test_the_kept_configuration_is_complete(self, train: Run) -> None:
        run_dir = Path(train(options=("--json",)).json["run_dir"])
        kept = load_config(run_dir / "config.yaml")
        assert kept.algo_kwargs["hidden_sizes"] == [8]
        assert {"gamma", "goal_selection_strategy", "train_frequency", "backend"} <= set(kept.algo_kwargs)

    def test_a_budget_of_updates(self, train: Run) -> None:
        result = train("algo_kwargs.max_updates=5", options=("--json",)).json
        assert (result["stop_reason"], result["update_count"]) == ("max_updates", 5)
        assert result["global_step"] < 120

    def test_early_stopping_is_a_status_of_its_own(self, train: Run) -> None:
        result = train("algo_kwargs.early_stopping={reward_threshold: -1000}", options=("--json",)).json
        assert result["status"] == "stopped"
        assert result["stop_reason"].startswith("early stopping: eval/mean_reward")
        assert result["global_step"] == 60

    @pytest.mark.parametrize("preset", ["ddpg/pendulum", "dqn/cartpole"])
    def test_tasks_without_goals(self, train: Run, preset: str) -> None:
        result = train(preset=preset, options=("--json",)).json
        assert result["update_count"] == {"ddpg/pendulum": 70, "dqn/cartpole": 35}[preset]
        assert "eval/success_rate" not in result["metrics"]


class TestInterruption:
    @pytest.mark.parametrize("step", [5, 70])
    def test_ctrl_c_saves_a_checkpoint_and_exits_with_3(
        self, train: Run, run: Run, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        # At step 5 nothing has been logged yet.
        interrupt_at(monkeypatch, step)
        answer = train(options=("--json",))
        assert answer.code == 3, answer
        result = answer.json
        assert (result["status"], result["stop_reason"]) == ("interrupted", "interrupted by SIGINT")
        assert result["global_step"] == step
        resumed = run("resume", result["run_dir"], "--json")
        assert resumed.code == 0
        assert resumed.json["global_step"] == 120
        assert resumed.json["run_dir"] == result["run_dir"]

    def test_a_person_is_told_how_to_go_on(self, train: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        interrupt_at(monkeypatch, 70)
        answer = train()
        assert answer.code == 3
        (run_dir,) = (tmp_path / "runs").iterdir()
        assert f"rl-training resume {run_dir}" in answer.out

    def test_the_seeds_that_follow_are_not_started(self, train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        interrupt_at(monkeypatch, 70)
        answer = train(options=("--json", "--seeds", "0-2"))
        assert answer.code == 3
        assert [one["status"] for one in answer.json["runs"]] == ["interrupted"]

    def test_the_table_leaves_out_what_was_interrupted(self, train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        interrupt_at(monkeypatch, 2 * 120 + 5)  # in the third run, before it was evaluated
        answer = train(options=("--seeds", "0-3"))
        assert answer.code == 3
        assert re.search(r"^2 seeds +mean +std +worst$", answer.out, re.MULTILINE)

    def test_an_interrupted_and_resumed_run_equals_one_that_never_stopped(
        self, train: Run, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = train(options=("--json",)).json
        with monkeypatch.context() as patch:
            interrupt_at(patch, 70)
            broken = train(options=("--json",)).json
        resumed = run("resume", broken["run_dir"], "--json").json
        assert {**resumed, "run_dir": None} == {**whole, "run_dir": None}

    @pytest.mark.parametrize("vectorization", ["sync", "async"])
    def test_ctrl_c_in_a_terminal(self, tmp_path: Path, command_group, vectorization: str) -> None:
        """A terminal sends SIGINT to every process of the group, those of asynchronous environments included."""
        vectorized = f"env_kwargs.vectorization={vectorization}"
        sets = tiny("total_timesteps=1000000", "num_envs=2", "compile=false", vectorized)
        process = command_group("train", "her/point_goal", *sets, "--output-dir", tmp_path, "--json")
        assert process.stderr.readline().startswith("run folder ")
        assert "step 60 of 1,000,000" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 3, err
        assert "Traceback" not in err
        assert json.loads(out)["status"] == "interrupted"
        assert (Path(json.loads(out)["run_dir"]) / "checkpoints" / "latest").exists()


class TestVanishingFolder:
    def test_a_run_folder_that_is_deleted_meanwhile_is_an_error_and_no_traceback(
        self, train: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        real, count = Collector.step, [0]

        def counted(self: Collector, *arguments: Any) -> Any:
            count[0] += 1
            if count[0] == 70:
                shutil.rmtree(tmp_path / "runs")
            return real(self, *arguments)

        monkeypatch.setattr(Collector, "step", counted)
        answer = train(options=("--json",))
        assert answer.code == 2
        assert answer.out == ""
        assert "Traceback" not in answer.err
        assert "runs" in answer.err.splitlines()[-1]


class ImageEnv(gym.Env[Any, Any]):
    observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((16, 16, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((16, 16, 3), np.uint8), 0.0, False, True, {}


@pytest.fixture
def image_env() -> Iterator[str]:
    gym.register("rl_training_tests/Image-v0", entry_point=ImageEnv)
    yield "rl_training_tests/Image-v0"
    gym.registry.pop("rl_training_tests/Image-v0")


BAD_SETTINGS: list[tuple[str, list[str], list[str]]] = [
    ("misspelt setting", ["algo_kwargs.batchsize=4"], ["algo_kwargs.batchsize", "'batch_size'"]),
    ("misspelt key", ["total_timestep=5"], ["total_timestep", "'total_timesteps'"]),
    ("misspelt section", ["algo_kwarg.tau=0.1"], ["algo_kwarg", "'algo_kwargs'"]),
    ("misplaced setting", ["batch_size=4"], ["batch_size", "algo_kwargs"]),
    ("misspelt nested key", ["algo_kwargs.early_stopping.patiance=3"], ["patiance", "'patience'"]),
    ("misspelt wrapper", ["env_kwargs.wrappers.reward.scal=3"], ["env_kwargs.wrappers.reward.scal", "'scale'"]),
    ("misspelt argument", ["env_kwargs.max_step=3"], ["max_step", "'max_steps'"]),
    ("misspelt wrappers", ["env_kwargs.wrapper.reward.scale=3"], ["wrapper", "'wrappers'"]),
    ("wrong type", ["algo_kwargs.batch_size=many"], ["algo_kwargs.batch_size = 'many'", "integer"]),
    ("fraction of a step", ["total_timesteps=1.5"], ["total_timesteps = 1.5"]),
    ("list for a mapping", ["algo_kwargs=[1]"], ["algo_kwargs = [1]"]),
    ("argument of a wrong type", ["env_kwargs.action_scale=big"], ["action_scale"]),
    ("ratio above 1", ["algo_kwargs.her_ratio=1.5"], ["algo_kwargs.her_ratio = 1.5", "less than or equal to 1"]),
    ("probability above 1", ["algo_kwargs.random_action_prob=1.5"], ["algo_kwargs.random_action_prob = 1.5"]),
    ("negative probability", ["algo_kwargs.random_action_prob=-1"], ["algo_kwargs.random_action_prob = -1"]),
    ("batch above the buffer", ["algo_kwargs.buffer_capacity=8"], ["batch_size = 16", "buffer_capacity = 8"]),
    ("buffer below an episode", ["algo_kwargs.buffer_capacity=20"], ["buffer_capacity = 20", "51"]),
    ("memory nobody has", ["algo_kwargs.buffer_capacity=1e13"], ["buffer_capacity"]),
    ("no steps", ["total_timesteps=0"], ["total_timesteps = 0", "greater than 0"]),
    ("no learning", ["algo_kwargs.learning_starts=120"], ["learning_starts = 120", "total_timesteps = 120"]),
    ("two ratios", ["algo_kwargs.her_ratio=0.5", "algo_kwargs.n_sampled_goal=2"], ["her_ratio", "n_sampled_goal"]),
    ("unknown algorithm", ["algo=hre"], ["algo = 'hre'", "'her'"]),
    ("unknown backend", ["algo_kwargs.backend=dddpg"], ["algo_kwargs.backend = 'dddpg'", "'ddpg'"]),
    ("no goals", ["env_id=Pendulum-v1"], ["env_id", "Pendulum-v1", "desired_goal"]),
    ("backend for indices", ["algo_kwargs.backend=dqn"], ["backend", "ddpg, td3, sac"]),
    ("unknown environment", ["env_id=CartPole-v9"], ["env_id 'CartPole-v9'", "'CartPole-v1'"]),
    ("environment without its namespace", ["env_id=PointGoal1D-v0"], [f"'{POINT}'"]),
    ("unknown module", ["env_id=nowhere:Env-v0"], ["env_id 'nowhere:Env-v0'", "nowhere"]),
    ("empty module", ["env_id=':Env-v0'"], ["env_id"]),
    ("unknown device", ["device=tpu"], ["device = 'tpu'", "cpu, cuda, cuda:N or auto"]),
    ("absent device", ["device=cuda:99"], ["device = 'cuda:99'"]),
    ("no equals sign", ["seed"], ["--set 'seed'", "key.path=value"]),
    ("nothing below a number", ["total_timesteps.x=1"], ["total_timesteps.x", "120"]),
    ("unfinished list", ["algo_kwargs.hidden_sizes=[1, 2"], ["algo_kwargs.hidden_sizes", "[1, 2"]),
]


class TestBadInput:
    @pytest.mark.parametrize(("sets", "words"), [case[1:] for case in BAD_SETTINGS], ids=[c[0] for c in BAD_SETTINGS])
    def test_a_bad_setting_is_one_clear_message_and_nothing_is_written(
        self, train: Run, tmp_path: Path, sets: list[str], words: list[str]
    ) -> None:
        assert_clear(train(*sets), *words)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("preset", "words"),
        [
            ("her/point_reech", ["her/point_reech", "'her/point_reach'"]),
            ("point_goal", ["point_goal", "'her/point_goal'"]),
            ("nowhere.yaml", ["nowhere.yaml"]),
        ],
    )
    def test_an_unknown_preset_or_file(self, train: Run, tmp_path: Path, preset: str, words: list[str]) -> None:
        assert_clear(train(preset=preset), *words)
        assert list(tmp_path.iterdir()) == []

    def test_image_observations(self, train: Run, tmp_path: Path, image_env: str) -> None:
        for preset in ("her/point_goal", "ddpg/pendulum"):
            assert_clear(train(f"env_id={image_env}", preset=preset), image_env)
        assert "images are not supported" in train(f"env_id={image_env}", preset="ddpg/pendulum").err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("preset", "env_id", "words"),
        [
            ("ddpg/pendulum", "CartPole-v1", ["algo", "discrete", "dqn"]),
            ("sac/pendulum", "CartPole-v1", ["algo", "discrete", "dqn"]),
            ("dqn/cartpole", "Pendulum-v1", ["algo", "continuous", "ddpg, td3, sac"]),
        ],
    )
    def test_actions_that_do_not_suit_the_algorithm(
        self, train: Run, tmp_path: Path, preset: str, env_id: str, words: list[str]
    ) -> None:
        assert_clear(train(f"env_id={env_id}", preset=preset), env_id, *words)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("seeds", ["", "a", "1-0", "0-", "-1", "0,", "0 - 3", "0-999999", "99999999999"])
    def test_bad_seeds(self, train: Run, tmp_path: Path, seeds: str) -> None:
        assert_clear(train(options=(f"--seeds={seeds}",)), "seed")
        assert list(tmp_path.iterdir()) == []

    def test_one_seed_and_several_exclude_each_other(self, train: Run) -> None:
        assert_clear(train(options=("--seed", 1, "--seeds", "0-1")), "--seed and --seeds")

    @pytest.mark.parametrize("seed", ["-1", "99999999999"])
    def test_a_seed_out_of_range(self, train: Run, seed: str) -> None:
        assert_clear(train(options=(f"--seed={seed}",)), f"seed = {seed}")

    @pytest.mark.parametrize("text", ["", "- 1\n", "a: [1", "algo: her\nalgo: sac\n", "\tx: 1\n"])
    def test_a_file_that_is_no_configuration(self, train: Run, tmp_path: Path, text: str) -> None:
        file = tmp_path / "bad.yaml"
        file.write_text(text)
        assert_clear(train(preset=str(file)), str(file))
        assert list(tmp_path.iterdir()) == [file]

    def test_an_output_folder_that_is_a_file(self, run: Run, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        for folder in (blocked, blocked / "below"):
            assert_clear(run("train", "her/point_goal", *tiny(), "--output-dir", folder), "output_dir", str(folder))

    @pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
    def test_a_read_only_output_folder(self, run: Run, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        assert_clear(run("train", "her/point_goal", *tiny(), "--output-dir", tmp_path / "runs"), "output_dir")

    @pytest.mark.parametrize(
        "arguments",
        [
            ["train"],
            ["trian"],
            ["train", "her/point_goal", "--sed", "1"],
            ["evaluate", "x", "--episodes=0"],
            ["evaluate", "x", "--episodes=9999999"],
        ],
    )
    def test_wrong_usage_exits_with_2(self, run: Run, arguments: list[str]) -> None:
        answer = run(*arguments)
        assert answer.code == 2
        assert "rl-training" in answer.err

    @pytest.mark.parametrize("command", ["resume", "evaluate", "report"])
    def test_a_folder_that_is_no_run(self, run: Run, tmp_path: Path, command: str) -> None:
        for path in (tmp_path, tmp_path / "missing"):
            assert_clear(run(command, path), str(path))


class TestEvaluate:
    def test_a_run_a_checkpoint_and_a_pointer_agree(self, run: Run, trained: Path) -> None:
        best = (trained / "checkpoints" / "best").read_text().strip()
        answers = [
            run("evaluate", path, "--episodes", 3, "--json").json
            for path in (trained, trained / "checkpoints" / "best", trained / "checkpoints" / best)
        ]
        assert answers[0] == answers[1] == answers[2]
        assert answers[0]["episodes"] == 3
        assert Path(answers[0]["checkpoint"]).name == best

    def test_a_seed_decides_the_metrics(self, run: Run, trained: Path) -> None:
        one, two, other = (
            run("evaluate", trained, "--episodes", 4, "--seed", seed, "--json").json for seed in (1, 1, 2)
        )
        assert one == two
        assert one["seed"] == 1
        assert one["metrics"] != other["metrics"]

    def test_a_person_gets_the_same_numbers(self, run: Run, trained: Path) -> None:
        metrics = run("evaluate", trained, "--episodes", 3, "--json").json["metrics"]
        text = run("evaluate", trained, "--episodes", 3).out
        assert f"success rate   {metrics['eval/success_rate']:.2f}" in text
        assert f"mean return    {metrics['eval/mean_reward']:.2f}" in text

    def test_nothing_is_written(self, run: Run, copy: Path) -> None:
        before = sorted(copy.rglob("*"))
        run("evaluate", copy, "--episodes", 1)
        assert sorted(copy.rglob("*")) == before

    def test_a_run_without_its_configuration_file_still_plays(self, run: Run, copy: Path) -> None:
        (copy / "config.yaml").unlink()
        assert run("evaluate", copy, "--episodes", 1, "--json").code == 0

    def test_an_unknown_device(self, run: Run, trained: Path) -> None:
        assert_clear(run("evaluate", trained, "--device", "tpu"), "device = 'tpu'")


class TestPredict:
    GOAL = json.dumps({"observation": [0.1, 0.0], "desired_goal": [0.5]})
    FLAT = json.dumps([0.1, 0.0, 0.5])

    def test_a_goal_and_a_flat_list_get_the_same_action(self, run: Run, trained: Path) -> None:
        answer = run("predict", trained, "--obs", "-", stdin=f"{self.GOAL}\n\n{self.FLAT}\n")
        assert answer.code == 0
        one, two = (json.loads(line)["action"] for line in answer.out.splitlines())
        assert one == two
        assert len(one) == 1
        assert -1.0 <= one[0] <= 1.0

    def test_a_file_is_read_like_stdin(self, run: Run, trained: Path, tmp_path: Path) -> None:
        file = tmp_path / "observations.jsonl"
        file.write_text(f"{self.FLAT}\n[0.1, 0.0, -0.5]\n")
        from_file = run("predict", trained, "--obs", file)
        assert from_file.code == 0
        assert len(from_file.out.splitlines()) == 2
        assert from_file.out == run("predict", trained, "--obs", "-", stdin=file.read_text()).out

    def test_achieved_goals_are_allowed_and_change_nothing(self, run: Run, trained: Path) -> None:
        whole = json.dumps({"observation": [0.1, 0.0], "desired_goal": [0.5], "achieved_goal": [0.1]})
        answer = run("predict", trained, "--obs", "-", stdin=f"{whole}\n{self.FLAT}")
        assert len(set(answer.out.splitlines())) == 1

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("[0, 0]", "3 numbers"),
            ("[0, 0, 0, 0]", "3 numbers"),
            ("[[0, 0, 0]]", "3 numbers"),
            ("5", "3 numbers"),
            ('"text"', "3 numbers"),
            ('["a", 0, 0]', "3 numbers"),
            ("[0, 0, null]", "numbers"),
            ("[0, 0, NaN]", "finite"),
            ("[0, 0, Infinity]", "finite"),
            ("[0, 0, 1e99]", "finite"),
            ("not json", "not a JSON value"),
            ("[0, 0, 0", "not a JSON value"),
            ("[" * 5000, "not a JSON value"),
            ('{"observation": [0, 0]}', "'desired_goal' is missing"),
            ('{"observation": [0, 0], "desired_goal": [0], "goal": 1}', "unknown key 'goal'"),
            ('{"observation": [0], "desired_goal": [0]}', "observation: expected a list of 2 numbers"),
            ('{"observation": [0, 0], "desired_goal": 0}', "desired_goal: expected a list of 1 number"),
        ],
    )
    def test_a_bad_line_is_named(self, run: Run, trained: Path, tmp_path: Path, line: str, words: str) -> None:
        file = tmp_path / "observations.jsonl"
        file.write_text(f"{self.FLAT}\n\n{line}\n")
        answer = run("predict", trained, "--obs", file)
        assert len(answer.out.splitlines()) == 1  # the good line before it
        assert_clear(answer._replace(out=""), f"{file}, line 3", words)

    def test_text_in_place_of_a_number_is_refused(self, run: Run, trained: Path) -> None:
        assert_clear(run("predict", trained, "--obs", "-", stdin='["0", 0, 0]'), "line 1", "numbers")

    def test_standard_input_is_called_by_its_name(self, run: Run, trained: Path) -> None:
        assert_clear(run("predict", trained, "--obs", "-", stdin="x"), "line 1")

    def test_no_nan_is_printed(self, run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Numbers near the end of float32 are finite, and what a network makes of them may not be."""
        monkeypatch.setattr(Learner, "predict", lambda *_: np.array([np.nan], np.float32))
        answer = run("predict", trained, "--obs", "-", stdin="[3.4e38, -3.4e38, 3.4e38]")
        assert_clear(answer, "line 1", "no finite action")

    def test_a_missing_or_binary_file(self, run: Run, trained: Path, tmp_path: Path) -> None:
        assert_clear(run("predict", trained, "--obs", tmp_path / "missing"), "--obs", "missing")
        binary = tmp_path / "binary"
        binary.write_bytes(b"\xff\xfe\x00")
        assert_clear(run("predict", trained, "--obs", binary), str(binary))


class TestResume:
    def test_a_finished_run_has_nothing_left_to_do(self, run: Run, copy: Path) -> None:
        result = run("resume", copy, "--json").json
        assert set(result) == ANSWER_KEYS
        assert (result["status"], result["global_step"], result["update_count"]) == ("completed", 120, 70)

    def test_a_finished_run_says_so_in_one_line(self, run: Run, copy: Path) -> None:
        warnings = [line for line in run("resume", copy).err.splitlines() if line.startswith("warning")]
        assert warnings == [
            "warning: nothing to do: the run is complete at 120 steps; a larger total_timesteps makes it longer,"
            " e.g. total_timesteps=240"
        ]

    def test_set_lengthens_a_run(self, run: Run, copy: Path) -> None:
        settings = ("--set", "total_timesteps=180", "--set", "algo_kwargs.eval_interval=30")
        answer = run("resume", copy, *settings, "--json")
        assert (answer.json["global_step"], answer.json["update_count"]) == (180, 130)
        assert "nothing to do" not in answer.err
        assert "step 150 of 180" in answer.err
        kept = load_config(copy / "config.yaml")
        assert (kept.total_timesteps, kept.algo_kwargs["eval_interval"]) == (180, 30)
        assert run("resume", copy, "--json").json["global_step"] == 180

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--set", "algo_kwargs.batchsize=4"), "did you mean 'batch_size'"),
            (("--set", "total_timesteps=60"), "total_timesteps = 60: the run has 120 steps already"),
            (("--set", "num_envs=2", "--set", "total_timesteps=180"), "num_envs"),
            (("--set", "total_timesteps=180", "--verify"), "--set and --verify"),
        ],
    )
    def test_a_change_that_does_not_fit_leaves_the_run_alone(
        self, run: Run, copy: Path, options: tuple[str, ...], words: str
    ) -> None:
        before = (copy / "config.yaml").read_text()
        answer = run("resume", copy, *options)
        assert (answer.code, answer.out) == (2, "")
        assert words in answer.err
        assert (copy / "config.yaml").read_text() == before

    def test_verify_names_what_is_damaged(self, run: Run, copy: Path) -> None:
        newest = max((copy / "checkpoints").glob("*/learner.safetensors"))
        newest.write_bytes(b"")
        assert f"damaged        {newest}" in run("resume", copy, "--verify").out

    def test_a_longer_budget_goes_on(self, run: Run, copy: Path) -> None:
        config = copy / "config.yaml"
        config.write_text(config.read_text().replace("total_timesteps: 120", "total_timesteps: 180"))
        result = run("resume", copy, "--json").json
        assert (result["global_step"], result["update_count"]) == (180, 130)

    @pytest.mark.parametrize("spoil", ["12", "120,70,", "1,2\n3", "\x00\x00"])
    def test_a_log_that_broke_off_in_mid_line_is_cut_back(self, run: Run, copy: Path, spoil: str) -> None:
        log = copy / "metrics.csv"
        whole = list(csv.DictReader(log.open()))
        log.write_text(log.read_text() + spoil)
        answer = run("resume", copy, "--json")
        assert answer.code == 0
        assert list(csv.DictReader(log.open()))[: len(whole)] == whole

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("num_envs: 1", "num_envs: 2"),
            ("buffer_capacity: 1000", "buffer_capacity: 60"),
            ("hidden_sizes:\n  - 8", "hidden_sizes:\n  - 9"),
            (POINT, "rl_training/PointReach2D-v0"),
        ],
    )
    def test_a_configuration_that_no_longer_fits_is_explained(self, run: Run, copy: Path, old: str, new: str) -> None:
        config = copy / "config.yaml"
        text = config.read_text().replace("total_timesteps: 120", "total_timesteps: 180")
        assert old.replace("  ", "    ") in text or old in text
        text = text.replace(old.replace("  ", "    "), new.replace("  ", "    ")).replace(old, new)
        config.write_text(text)
        key = new.split(":")[0] if ":" in new else "env_id"
        assert_clear(run("resume", copy), key)

    def test_a_resumed_run_may_be_told_to_evaluate_more_often(self, run: Run, copy: Path) -> None:
        config = copy / "config.yaml"
        text = config.read_text().replace("total_timesteps: 120", "total_timesteps: 180")
        config.write_text(text.replace("eval_interval: 60", "eval_interval: 20"))
        answer = run("resume", copy, "--json")
        assert answer.code == 0
        assert "step 140 of 180" in answer.err

    def test_a_missing_checkpoint(self, run: Run, copy: Path) -> None:
        shutil.rmtree(copy / "checkpoints")
        assert_clear(run("resume", copy), str(copy), "checkpoint")

    @pytest.mark.parametrize("command", ["resume", "evaluate"])
    @pytest.mark.parametrize("key", ["config", "spec", "files", "state", "global_step"])
    def test_a_manifest_with_a_hole_is_a_damaged_checkpoint(self, run: Run, copy: Path, command: str, key: str) -> None:
        for manifest in (copy / "checkpoints").glob("*/manifest.json"):
            content = json.loads(manifest.read_text())
            del content[key]
            manifest.write_text(json.dumps(content))
        assert_clear(run(command, copy), "manifest.json")

    def test_a_damaged_file_is_named(self, run: Run, copy: Path) -> None:
        for file in (copy / "checkpoints").glob("*/learner.safetensors"):
            file.write_bytes(b"\x00" * 100)
        for command in ("resume", "evaluate"):
            assert_clear(run(command, copy), "learner.safetensors", "damaged")


class TestReport:
    def test_one_run_and_several(self, run: Run, trained: Path, copy: Path, tmp_path: Path) -> None:
        file = tmp_path / "new folder" / "page.html"
        answer = run("report", trained, "-o", file)
        assert (answer.code, answer.out.strip()) == (0, str(file))
        page = file.read_text()
        assert trained.name in page
        assert "Success rate" in page
        assert run("report", trained, copy, "-o", file).code == 0
        assert "2 runs" in file.read_text()

    @pytest.mark.parametrize("text", ["", "garbage\n1,2\n", "global_step,update_count,x\n1,2,words\n", "\x00"])
    def test_a_run_without_readable_metrics(self, run: Run, copy: Path, tmp_path: Path, text: str) -> None:
        (copy / "metrics.csv").write_text(text)
        assert_clear(run("report", copy, "-o", tmp_path / "page.html"), str(copy), "metrics")
        assert not (tmp_path / "page.html").exists()

    def test_a_run_without_its_configuration(self, run: Run, copy: Path, tmp_path: Path) -> None:
        (copy / "config.yaml").unlink()
        assert_clear(run("report", copy, "-o", tmp_path / "page.html"), "config.yaml")

    def test_a_page_that_cannot_be_written(self, run: Run, trained: Path, tmp_path: Path) -> None:
        assert_clear(run("report", trained, "-o", tmp_path), str(tmp_path))
        (tmp_path / "file").write_text("")
        assert_clear(run("report", trained, "-o", tmp_path / "file" / "page.html"), "page.html")


class TestInformation:
    def test_presets_are_listed_with_their_environments(self, run: Run) -> None:
        answer = run("presets")
        assert answer.code == 0
        listed = dict(line.split()[:2] for line in answer.out.splitlines() if re.match(r"\w+/\w+ ", line))
        assert list(listed) == preset_names()
        assert listed["her/point_reach"] == "rl_training/PointReach2D-v0,"

    def test_a_preset_is_shown_as_a_file_that_can_be_used(self, run: Run, tmp_path: Path) -> None:
        answer = run("presets", "her/point_reach")
        assert answer.code == 0
        file = tmp_path / "mine.yaml"
        file.write_text(answer.out)
        assert load_config(file) == load_config("her/point_reach")

    def test_an_unknown_preset_gets_the_nearest(self, run: Run) -> None:
        assert_clear(run("presets", "sac/pendolum"), "sac/pendolum", "'sac/pendulum'")
        assert_clear(run("presets", "hre"), "'hre'", "'her'")

    def test_the_presets_of_an_algorithm(self, run: Run) -> None:
        lines = [line for line in run("presets", "her").out.splitlines() if re.match(r"\w+/\w+ ", line)]
        assert [line.split()[0] for line in lines] == [name for name in preset_names() if name.startswith("her/")]

    def test_presets_are_aligned(self, run: Run) -> None:
        for text in (run("presets").out, run("presets", "td3_bc").out):
            lines = [line for line in text.splitlines() if re.match(r"\w+/\w+ ", line)]
            assert len({line.index(line.split()[1]) for line in lines}) == 1

    def test_settings_lists_the_algorithms(self, run: Run) -> None:
        lines = run("settings").out.splitlines()
        assert [line.split()[0] for line in lines] == list(ALGORITHMS)
        assert run("settings", "--json").json == {name: row.description for name, row in ALGORITHMS.items()}

    @pytest.mark.parametrize("algo", ["her", "rlpd", "iql"])
    def test_settings_lists_every_key_that_is_accepted(self, run: Run, algo: str) -> None:
        answer = run("settings", algo, "--json").json
        assert answer["groups"][0]["name"] == "learner"
        settings = {setting["key"]: setting for group in answer["groups"] for setting in group["settings"]}
        classes = group_types(ALGORITHMS[algo], online=True)
        keys = {key for group in classes.values() for key in group.model_fields}
        assert set(settings) == keys | {"online"} | ({"backend"} if algo == "her" else set())
        needs_online = {group["name"] for group in answer["groups"] if group["needs_online"]}
        assert needs_online == ({"collection", "exploration", "replay", "prior"} if algo == "iql" else set())
        # The defaults are those of a run that is told nothing else.
        defaults = {"algo": algo, "env_id": POINT, "total_timesteps": 2000, "algo_kwargs": {}}
        resolved = parse_run(parse_config(defaults)).to_algo_kwargs()
        assert {key: settings[key]["value"] for key in resolved} == resolved
        text = run("settings", algo).out
        for setting in settings.values():
            assert re.search(rf"^  {setting['key']} +{re.escape(setting['default'])} ", text, re.MULTILINE)
            assert setting["meaning"] in re.sub(r"\s+", " ", text)

    def test_settings_of_an_unknown_algorithm(self, run: Run) -> None:
        assert_clear(run("settings", "herr"), "'herr'", "'her'")

    def test_only_presets_are_shown(self, run: Run, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("not a preset")
        assert_clear(run("presets", secret), str(secret))

    def test_a_fit_environment(self, run: Run) -> None:
        answer = run("check-env", POINT)
        assert (answer.code, answer.err) == (0, "")
        assert f"{POINT} is fit for HER" in answer.out
        for word in (
            "compute_reward",
            "compute_terminated",
            "compute_truncated",
            "is_success",
            "observation 2, goal 1",
        ):
            assert word in answer.out

    def test_a_fit_environment_in_json(self, run: Run) -> None:
        report = run("check-env", POINT, "--json").json
        assert report["fit_for_her"] is True
        assert report["problems"] == []

    def test_an_unfit_environment_exits_with_2_and_says_why(self, run: Run) -> None:
        answer = run("check-env", "CartPole-v1")
        assert answer.code == 2
        assert "CartPole-v1 is not fit for HER" in answer.out
        assert "achieved_goal" in answer.err
        report = run("check-env", "CartPole-v1", "--json")
        assert report.code == 2
        assert report.json["fit_for_her"] is False

    def test_a_reason_names_the_environment_once(self, run: Run) -> None:
        answer = run("check-env", "FrozenLake-v1")
        assert answer.code == 2
        assert answer.err.count("FrozenLake-v1") == 1

    @pytest.mark.parametrize("env_id", ["PointGoal1D-v0", "rl_training/PointGoal1D", "rl_training/PointGoal1D-v7"])
    def test_an_unknown_environment_gets_the_nearest(self, run: Run, env_id: str) -> None:
        assert_clear(run("check-env", env_id), env_id, f"'{POINT}'")

    def test_doctor(self, run: Run) -> None:
        facts = run("doctor", "--json").json
        problems = facts.pop("problems")
        assert {"rl-training", "python", "torch", "gymnasium", "cuda", "cpu"} <= set(facts)
        answer = run("doctor")
        assert answer.code == 0
        assert all(name in answer.out and value in answer.out for name, value in facts.items())
        assert all(problem in answer.out for problem in problems)

    def test_help_lists_every_command(self, run: Run) -> None:
        answer = run("--help")
        assert answer.code == 0
        for command in (
            "train",
            "resume",
            "evaluate",
            "predict",
            "report",
            "presets",
            "settings",
            "check-env",
            "doctor",
        ):
            assert command in answer.out

    @pytest.mark.parametrize(
        "command",
        [
            *("", "train", "resume", "evaluate", "predict", "report", "presets", "settings", "check-env", "doctor"),
            *("data", "data inspect", "data convert", "data collect"),
        ],
    )
    def test_help_is_plain_and_fits_80_columns(self, run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        text = run(*command.split(), "--help").out
        assert max(map(len, text.splitlines())) <= 80
        assert not re.search(r"[<>{}](?!=)|\.\.\.$", text.replace("[ARGS]...", "").replace("RUN...", "")), text
        monkeypatch.setenv("COLUMNS", "200")
        wide = run(*command.split(), "--help").out
        assert set(text.split()) == set(wide.split())  # no word is broken at 80 columns


TALKING = """
import ctypes, os
import gymnasium as gym
from rl_training.envs.goals import PointGoal1DEnv

class Talking(PointGoal1DEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        print("printed by python")
        os.write(1, b"printed by descriptor\\n")
        ctypes.CDLL(None).printf(b"printed by library\\n")

gym.register("Talking-v0", Talking, max_episode_steps=50)
"""


class TestProcess:
    """What only a process of its own shows: the real exit status, and that nothing else reaches stdout."""

    def test_success(self, tmp_path: Path, warm_python: WarmPython) -> None:
        command = ("train", "her/point_goal", *tiny(), "--output-dir", tmp_path, "--json")
        process = warm_python.run("-m", "rl_training", *command)
        assert process.returncode == 0
        assert set(json.loads(process.stdout)) == ANSWER_KEYS

    @pytest.mark.parametrize("vectorization", ["sync", "async"])
    def test_what_an_environment_prints_is_not_among_the_answers(
        self, tmp_path: Path, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch, vectorization: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("talking.py").write_text(TALKING)
        options = ("--set", f"env_kwargs.vectorization={vectorization}", "--json")
        command = ("train", "her/point_goal", *tiny(), "--set", "env_id=talking:Talking-v0", *options)
        process = warm_python.run("-m", "rl_training", *command, "--output-dir", tmp_path / "runs")
        assert process.returncode == 0, process.stderr
        assert set(json.loads(process.stdout)) == ANSWER_KEYS
        for kind in ("python", "descriptor", "library"):
            assert f"printed by {kind}" in process.stderr

    def test_predicting_does_not_import_the_compiler(self, trained: Path) -> None:
        """torch._dynamo takes seconds to import, and only torch.compile needs it."""
        command = [sys.executable, "-X", "importtime", "-m", "rl_training", "predict", str(trained), "--obs", "-"]
        process = subprocess.run(command, input="[0, 0, 0]", capture_output=True, text=True, timeout=120, check=True)
        assert "action" in process.stdout
        imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
        assert "torch" in imported
        assert imported.isdisjoint({"torch._dynamo", "tensorboard", "matplotlib", "pandas"})

    def test_a_mistake(self, tmp_path: Path, warm_python: WarmPython) -> None:
        process = warm_python.run("-m", "rl_training", "train", "her/point_reech", "--output-dir", tmp_path)
        assert process.returncode == 2
        assert process.stdout == ""
        assert process.stderr.startswith("error: no preset or file 'her/point_reech'")
        assert len(process.stderr.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_reader_that_has_seen_enough_is_no_traceback(
        self, trained: Path, tmp_path: Path, command_group: Callable[..., WarmProcess]
    ) -> None:
        """As with ``| head -n 1``."""
        file = tmp_path / "many.jsonl"
        file.write_text("[0, 0, 0]\n" * 3000)
        process = command_group("predict", trained, "--obs", file)
        assert "action" in process.stdout.readline()
        process.stdout.close()
        _, err = process.communicate()
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('output_dir="a\\0b"', r"output_dir = a\x00b: expected a text without NUL"),
        ('algo_kwargs.init_from="a\\0b"', r"algo_kwargs.init_from = a\x00b: expected a text without NUL"),
        ('algo_kwargs.init_from="a\\ud800b"', r"algo_kwargs.init_from = a\ud800b: expected a text"),
        ('env_kwargs={names: [x, "a\\0b"]}', r"env_kwargs.names.1 = a\x00b: expected a text without NUL"),
        ("algo_kwargs.buffer_capacity=9223372036854775808", "algo_kwargs.buffer_capacity = 9223372036854775808"),
        ("algo_kwargs.batch_size=9223372036854775808", "algo_kwargs.batch_size = 9223372036854775808"),
        ("algo_kwargs.hidden_sizes=[1000000000000]", "algo_kwargs.hidden_sizes = [1000000000000]: expected sizes from"),
        ("algo_kwargs.hidden_sizes=[99999999999999999999999]", "algo_kwargs.hidden_sizes = [99999999999999999999999]"),
        (f"algo_kwargs.hidden_sizes={[8] * 65}", "algo_kwargs.hidden_sizes"),
        ("algo_kwargs.dataset_size=99999999999999999999", "algo_kwargs.dataset_size = 99999999999999999999"),
        ("eval_episodes=99999999999999999999", "eval_episodes = 99999999999999999999"),
        ("env_kwargs.worker_timeout=1e300", "env_kwargs.worker_timeout = 1e+300"),
    ],
)
def test_absurd_values_get_one_message(train: Run, run: Run, setting: str, words: str) -> None:
    answer = train(setting) if not setting.startswith("output") else run("train", "her/point_goal", *tiny(setting))
    assert answer.code == 2, answer
    assert answer.err.count("error:") == 1
    assert words in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("argument", ["run\udcff", "\udc80.yaml"])
@pytest.mark.parametrize("command", ["evaluate", "train", "report", "predict"])
def test_arguments_that_are_not_utf8_are_refused(run: Run, command: str, argument: str) -> None:
    answer = run(command, argument)
    assert (answer.code, answer.out) == (2, "")
    assert (
        answer.err == f"error: argument {argument.encode('unicode_escape', 'surrogatepass').decode()}: expected UTF-8\n"
    )


def test_control_characters_of_an_argument_do_not_reach_the_terminal(run: Run) -> None:
    answer = run("evaluate", "run\x1b[31m\nerror: another")
    assert answer.code == 2
    assert answer.err.startswith(r"error: run\x1b[31m\nerror: another: neither a run")
    assert len(answer.err.splitlines()) == 1


def test_a_bug_is_one_message_with_its_traceback_in_a_file(run: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("rl_training.cli.lookup.preset_names", lambda: 1 / 0)
    answer = run("presets")
    assert answer.code == 1
    assert answer.err.startswith("error: unexpected ZeroDivisionError: division by zero (test_cli.py, line ")
    assert "Traceback" in (tmp_path / "rl_training" / "traceback.txt").read_text()


def test_an_interrupted_run_says_so_once_and_names_no_missing_page(train: Run, monkeypatch) -> None:
    real = Collector.step

    def struck(self: Collector, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(Collector, "step", real)
        return real(self, *arguments)

    monkeypatch.setattr(Collector, "step", struck)
    answer = train()
    assert answer.code == 3
    assert answer.out.startswith("interrupted by SIGTERM after 1 steps")
    assert "plots" not in answer.out


@pytest.mark.parametrize("seeds", [(), ("--seeds", "0-1")])
def test_json_has_null_for_what_is_not_finite(
    train: Run, run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch, seeds: tuple[str, ...]
) -> None:
    real_run, real_train = Evaluator.run, manager.train_experiment

    def diverged(self: Evaluator, *arguments: Any, **options: Any) -> dict[str, float]:
        return {**real_run(self, *arguments, **options), "eval/mean_reward": float("nan")}

    def trained_badly(*arguments: Any, **options: Any) -> TrainResult:
        result = real_train(*arguments, **options)
        return dataclasses.replace(result, metrics={**result.metrics, "eval/mean_reward": float("inf")})

    def parse(text: str) -> Any:
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))

    monkeypatch.setattr(manager, "train_experiment", trained_badly)
    assert parse(train(options=("--json", *seeds)).out)["metrics"]["eval/mean_reward"] is None
    monkeypatch.setattr(Evaluator, "run", diverged)
    assert parse(run("evaluate", trained, "--episodes", 1, "--json").out)["metrics"]["eval/mean_reward"] is None
