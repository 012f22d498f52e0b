# ruff: noqa: F401, F811 (fixtures of another module)
"""Whatever an environment does wrong is one message that names it, with a checkpoint from which the run goes on."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.factory import make_env, make_raw_env, make_vector_env
from rl_training.errors import EnvError, EnvFailedError, RunFailedError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint_files import read_manifest
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run import resume, train
from rl_training.tools.comparison import full_state, state_differences
from test_cli import Answer, Run, run

FAULT = "TEST_FAULT"  # a variable of the environment, so that worker processes have it as well


class StubbornError(Exception):
    """It cannot be sent to another process, nor printed."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(lambda: one + two)

    def __str__(self) -> str:
        raise RuntimeError("no text")


def leave() -> None:
    sys.exit(7)


def fail(error: BaseException) -> Any:
    raise error


GOOD = np.zeros(3, np.float32)
STEPS: dict[str, Any] = {
    "an observation of another shape": lambda: (np.zeros(4, np.float32), 0.0, False, False, {}),
    "an observation with one more axis": lambda: (np.zeros((1, 3), np.float32), 0.0, False, False, {}),
    "a scalar observation": lambda: (0.5, 0.0, False, False, {}),
    "an observation of texts": lambda: (np.array(["a", "b", "c"]), 0.0, False, False, {}),
    "an observation of objects": lambda: (np.array([None, 1, 2], object), 0.0, False, False, {}),
    "a ragged observation": lambda: ([[1], [2, 3], []], 0.0, False, False, {}),
    "no observation": lambda: (None, 0.0, False, False, {}),
    "a dictionary as observation": lambda: ({"observation": GOOD}, 0.0, False, False, {}),
    "a complex observation": lambda: (np.zeros(3, complex), 0.0, False, False, {}),
    "no reward": lambda: (GOOD, None, False, False, {}),
    "an array as reward": lambda: (GOOD, np.zeros(2), False, False, {}),
    "a text as reward": lambda: (GOOD, "1.0", False, False, {}),
    "a complex reward": lambda: (GOOD, 1j, False, False, {}),
    "a ragged reward": lambda: (GOOD, [[1], [2, 3]], False, False, {}),
    "terminated None": lambda: (GOOD, 0.0, None, False, {}),
    "truncated as text": lambda: (GOOD, 0.0, False, "no", {}),
    "terminated as array": lambda: (GOOD, 0.0, np.zeros(2, bool), False, {}),
    "truncated 2": lambda: (GOOD, 0.0, False, 2, {}),
    "info None": lambda: (GOOD, 0.0, False, False, None),
    "info as list": lambda: (GOOD, 0.0, False, False, []),
    "four values": lambda: (GOOD, 0.0, False, {}),
    "six values": lambda: (GOOD, 0.0, False, False, {}, 1),
    "nothing": lambda: None,
    "a list": lambda: [GOOD, 0.0, False, False, {}],
    "a ValueError": lambda: fail(ValueError("the joint is out of range")),
    "an assertion": lambda: fail(AssertionError()),
    "an error that cannot be sent": lambda: fail(StubbornError(1, 2)),
    "StopIteration": lambda: fail(StopIteration()),
    "RecursionError": lambda: fail(RecursionError("too deep")),
    "MemoryError": lambda: fail(MemoryError()),
    "BrokenPipeError": lambda: fail(BrokenPipeError(32, "Broken pipe")),
    "KeyboardInterrupt": lambda: fail(KeyboardInterrupt()),
    "sys.exit": leave,
    "sys.exit with a text": lambda: sys.exit("good bye"),
    "an error of several lines with colours": lambda: fail(ValueError("red \x1b[31m\nFile one\nFile two")),
}
RESETS: dict[str, Any] = {
    "reset: no tuple": lambda: GOOD,
    "reset: three values": lambda: (GOOD, {}, 1),
    "reset: None": lambda: None,
    "reset: info None": lambda: (GOOD, None),
    "reset: another shape": lambda: (np.zeros(2, np.float32), {}),
    "reset: an error": lambda: fail(OSError("no display")),
    "reset: sys.exit": leave,
}
BUILDS = ("no observation_space", "no action_space", "a space that is none", "a failing property", "__init__ raises")
BUILDS += ("__init__ exits", "actions without bounds", "actions without a range", "images", "a text space")
RUNNING = [*STEPS, *RESETS]


class Faulty(gym.Env):
    """Does one thing wrong, in its 12th step, its second reset or from the start, as long as it is told to."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as Gymnasium has it)
    steps = 0

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        fault = os.environ.get(FAULT)
        if fault in ("no observation_space", "a failing property"):
            del self.observation_space
        elif fault == "no action_space":
            del self.action_space
        elif fault == "a space that is none":
            self.observation_space = (3,)
        elif fault == "__init__ raises":
            raise KeyError("asset")
        elif fault == "__init__ exits":
            sys.exit(4)
        elif fault == "actions without bounds":
            self.action_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        elif fault == "actions without a range":
            self.action_space = gym.spaces.Box(1, 1, (1,))
        elif fault == "images":
            self.observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        elif fault == "a text space":
            self.observation_space = gym.spaces.Text(3)

    def __getattr__(self, name: str) -> Any:
        if name == "observation_space" and os.environ.get(FAULT) == "a failing property":
            raise ZeroDivisionError
        raise AttributeError(name)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        fault = os.environ.get(FAULT, "")
        if fault in RESETS and self.steps:
            return RESETS[fault]()
        self.left = 10
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.steps, self.left = self.steps + 1, self.left - 1
        fault = os.environ.get(FAULT, "")
        if self.steps >= 12 and fault in STEPS:
            return STEPS[fault]()
        if fault == "a hang" and self.steps >= 12:
            time.sleep(60)
        observation = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if fault == "NaN" and self.steps >= 12:
            observation[1] = np.nan
        return observation, float(observation[0]), False, self.left == 0, {}

    def render(self):
        if os.environ.get(FAULT) == "render raises":
            raise RuntimeError("no display")
        return np.zeros((16, 16, 3), np.uint8)

    def close(self):
        if os.environ.get(FAULT) == "close raises":
            raise RuntimeError("already gone")


@pytest.fixture(autouse=True)
def faulty(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(FAULT, raising=False)
    gym.register("Faulty-v0", entry_point=Faulty)
    yield
    gym.registry.pop("Faulty-v0")


@pytest.fixture
def config(tiny_config, tmp_path: Path):
    """Return a function that writes a small configuration."""

    def write(**env_kwargs: Any) -> Path:
        file = tmp_path / "faulty.yaml"
        settings = {"learning_starts": 30, "eval_interval": 200, "log_interval": 10, "checkpoint_interval": 1000}
        values = {"total_timesteps": 60, "num_envs": 2, "env_kwargs": env_kwargs, "algo_kwargs": settings}
        file.write_text(tiny_config("ddpg", env_id="Faulty-v0", **values).to_yaml())
        return file

    return write


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that went well."""
    from rl_training.config import parse_config

    gym.register("Faulty-v0", entry_point=Faulty)
    folder = tmp_path_factory.mktemp("trained")
    values = {
        "algo": "ddpg",
        "env_id": "Faulty-v0",
        "total_timesteps": 20,
        "eval_episodes": 1,
        "output_dir": str(folder),
        "env_kwargs": {"worker_timeout": 2.0},
    }
    settings = {"learning_starts": 10, "hidden_sizes": [4], "batch_size": 4, "buffer_capacity": 100}
    run_dir = train(parse_config({**values, "algo_kwargs": settings})).run_dir
    gym.registry.pop("Faulty-v0")
    return run_dir


def one_message(answer: Answer, code: int, *words: str) -> str:
    """Check the exit code, that there is no traceback, and that one message has the words."""
    assert answer.code == code, answer
    assert "Traceback" not in answer.err
    assert "\x1b[31m" not in answer.err
    (line,) = [line for line in answer.err.splitlines() if line.startswith("error:")]
    for word in ("Faulty-v0", *words):
        assert word in line, line
    return line


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("fault", RUNNING)
def test_training_keeps_a_checkpoint_and_goes_on(run: Run, config, tmp_path, monkeypatch, fault, vectorization) -> None:
    monkeypatch.setenv(FAULT, fault)
    answer = run("train", config(vectorization=vectorization))
    call = "reset" if fault in RESETS else "step"
    line = one_message(answer, 1, f": {call} ", "A checkpoint was saved at step ", "traceback.txt")
    assert re.match(r"error: environment [01], env_id 'Faulty-v0': ", line)
    (run_dir,) = (tmp_path / "runs").iterdir()
    step = int(re.search(r"saved at step (\d+)", line)[1])
    assert step == (18 if fault in RESETS else 22)  # the whole step is undone, for both environments
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["status"], result["global_step"]) == ("failed", step)
    assert read_manifest(resolve_checkpoint(run_dir / "checkpoints"))["global_step"] == step
    trace = (run_dir / "traceback.txt").read_text()
    assert "Traceback" in trace
    if "raise" in fault or fault in ("sys.exit", "a ValueError"):
        assert "test_faulty_envs.py" in trace
    monkeypatch.delenv(FAULT)
    if fault in ("a ValueError", "reset: an error"):
        assert run("resume", run_dir).code == 0
        assert json.loads((run_dir / "result.json").read_text())["status"] == "completed"
        assert not (run_dir / "traceback.txt").exists()


@pytest.mark.parametrize("fault", RUNNING)
def test_evaluation_and_collection_name_the_environment(run: Run, trained, tmp_path, monkeypatch, fault) -> None:
    monkeypatch.setenv(FAULT, fault)
    call = "reset" if fault in RESETS else "step"
    one_message(run("evaluate", trained, "--episodes", 3), 1, f": {call} ")
    target = tmp_path / "data.npz"
    one_message(run("data", "collect", "--policy", trained, "--episodes", 3, "-o", target), 1, f": {call} ")
    assert not target.exists()


@pytest.mark.parametrize("fault", BUILDS)
def test_what_cannot_be_built_is_refused(run: Run, config, trained, tmp_path, monkeypatch, fault) -> None:
    monkeypatch.setenv(FAULT, fault)
    for vectorization in ("sync", "async"):
        one_message(run("train", config(vectorization=vectorization)), 2)
    one_message(run("data", "collect", "--policy", "random", "--env", "Faulty-v0", "--episodes", 1, "-o", "x.npz"), 2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_close_that_fails_is_a_warning(run: Run, config, monkeypatch, vectorization) -> None:
    monkeypatch.setenv(FAULT, "close raises")
    answer = run("train", config(vectorization=vectorization))
    assert answer.code == 0
    assert "Traceback" not in answer.err
    assert "Faulty-v0': close raised RuntimeError: already gone" in answer.err


def test_a_picture_that_cannot_be_drawn(run: Run, trained, monkeypatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setenv(FAULT, "render raises")
    one_message(run("evaluate", trained, "--episodes", 1, "--video"), 2, ": render raised RuntimeError: no display")
    assert not (trained / "videos").exists()


@pytest.mark.parametrize("command", ["train", "evaluate", "collect"])
def test_an_environment_that_hangs_is_given_up(run: Run, config, trained, tmp_path, monkeypatch, command) -> None:
    monkeypatch.setenv(FAULT, "a hang")
    started = time.monotonic()
    limit = ("--set", "worker_timeout=0.5")
    collect = ("data", "collect", "--policy", "random", "--env", "Faulty-v0", "--episodes", 3, *limit)
    answer = {
        "train": lambda: run("train", config(worker_timeout=0.5)),
        "evaluate": lambda: run("evaluate", trained, "--episodes", 3),
        "collect": lambda: run(*collect, "-o", tmp_path / "x.npz"),
    }[command]()
    one_message(answer, 1, "step did not return within")
    assert time.monotonic() - started < 20


def test_numbers_that_are_not_finite_in_an_evaluation(run: Run, trained, monkeypatch) -> None:
    monkeypatch.setenv(FAULT, "NaN")
    answer = run("evaluate", trained, "--episodes", 3)
    assert answer.code == 1
    assert "the environment of the evaluation returned nan in observation[1]" in answer.err


class Switch(Callback):
    """Makes the environments faulty from a step on: the evaluation at that step is the first that notices."""

    def __init__(self, step: int, fault: str) -> None:
        self.step, self.fault = step, fault

    def on_step(self, trainer) -> None:
        if trainer.state.global_step == self.step:
            os.environ[FAULT] = self.fault


@pytest.mark.parametrize("step", [150, 300], ids=["between", "at the end"])
def test_an_evaluation_that_failed_is_done_when_the_run_goes_on(tiny_config, monkeypatch, step) -> None:
    """The run then has the same rows, the same best checkpoint and the same weights as one that did not fail."""
    monkeypatch.setenv(FAULT, "")
    config = tiny_config("ddpg", env_id="Faulty-v0", eval_episodes=3)
    whole = train(config)
    with pytest.raises(EnvFailedError, match=rf"step raised ValueError.*saved at step {step}"):
        train(config, callbacks=[Switch(step, "a ValueError")])
    monkeypatch.setenv(FAULT, "")
    (run_dir,) = [path for path in config.output_dir.iterdir() if path != whole.run_dir]
    assert resume(run_dir).metrics == whole.metrics
    rows = [read_metrics(path / "metrics.csv") for path in (run_dir, whole.run_dir)]
    timeless = [[{k: v for k, v in row.items() if not k.startswith("time/")} for row in part] for part in rows]
    assert timeless[0] == timeless[1]
    ends = [full_state(resolve_checkpoint(path / "checkpoints")) for path in (run_dir, whole.run_dir)]
    assert state_differences(*ends) == []


class Exits(Callback):
    def on_step(self, trainer) -> None:
        if trainer.state.global_step == 40:
            sys.exit("enough")


class Raises(Callback):
    def on_evaluation(self, trainer, metrics) -> None:
        raise LookupError("no such panel")


@pytest.mark.parametrize(
    ("callback", "words"), [(Exits(), "SystemExit: enough"), (Raises(), "LookupError: no such panel")]
)
def test_a_callback_that_fails_is_named(tiny_config, callback, words) -> None:
    config = tiny_config("ddpg")
    name = type(callback).__name__
    with pytest.raises(RunFailedError, match=rf"callback {name} failed with {words}.*A checkpoint was saved"):
        train(config, callbacks=[callback])
    (run_dir,) = config.output_dir.iterdir()
    assert json.loads((run_dir / "result.json").read_text())["status"] == "failed"
    assert words in (run_dir / "traceback.txt").read_text()
    assert resume(run_dir).status == "completed"


def test_a_missing_key_of_a_goal_observation_is_named() -> None:
    env = make_raw_env("rl_training/PointGoal1D-v0")
    env.reset(seed=0)
    inner = env.unwrapped
    real = inner.step

    def step(action):
        observation, *rest = real(action)
        del observation["achieved_goal"]
        return (observation, *rest)

    inner.step = step  # type: ignore[method-assign]
    with pytest.raises(EnvFailedError, match="without 'achieved_goal'; found observation, desired_goal"):
        env.step(env.action_space.sample())


def test_the_number_of_the_environment_is_in_the_message() -> None:
    envs = make_vector_env("CartPole-v1", {"wrappers": {"reward": {"scale": 2.0}}}, 2)
    envs.reset(seed=0)
    envs.envs[1].unwrapped.step = lambda action: None  # type: ignore[attr-defined]
    with pytest.raises(EnvFailedError, match="environment 1, env_id 'CartPole-v1': step raised TypeError"):
        envs.step(np.array([0, 1]))


def test_a_limit_of_seconds_that_no_timer_has() -> None:
    with pytest.raises(Exception, match="worker_timeout"):
        make_env("CartPole-v1", {"worker_timeout": 1e300})


def test_a_constructor_that_hangs_is_given_up() -> None:
    def slow() -> gym.Env:
        time.sleep(60)
        return Faulty()

    gym.register("Slow-v0", entry_point=slow)
    try:
        with pytest.raises(EnvError, match=r"env_id 'Slow-v0' was not built within 0\.2 seconds"):
            make_env("Slow-v0", {"worker_timeout": 0.2})
    finally:
        gym.registry.pop("Slow-v0")
