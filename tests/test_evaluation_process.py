"""Evaluation in another process: the same numbers, several at a time, and clear errors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rl_training.algorithms import SAC, Learner
from rl_training.envs.factory import space_spec
from rl_training.errors import EnvFailedError, WorkerError
from rl_training.interrupts import Interrupted, stop_on_signals
from rl_training.runtime.evaluation_process import EvaluationProcess
from rl_training.runtime.evaluator import Evaluator
from scripted_env import ENV_ID, ScriptedEnv

Start = Callable[..., EvaluationProcess]


def learner_of(seed: int = 3) -> Learner:
    return SAC(space_spec(ScriptedEnv()), {"hidden_sizes": [8]}, seed=seed)


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def begin(**env_kwargs: Any) -> EvaluationProcess:
        started.append(EvaluationProcess(Evaluator(ENV_ID, env_kwargs, episodes=3), learner_of()))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def test_the_numbers_are_those_of_the_evaluator(start: Start) -> None:
    process, evaluator = start(action_reward=1.0), Evaluator(ENV_ID, {"action_reward": 1.0}, episodes=3)
    for seed in (4, 5):  # the weights of the moment count, not those of the start
        learner = learner_of(seed)
        assert process.run(learner) == evaluator.run(learner)
        assert process.last_episodes == evaluator.last_episodes


def test_a_started_evaluation_has_the_weights_of_its_start(start: Start) -> None:
    first, second = start(action_reward=1.0), start(action_reward=1.0)
    first.start(learner_of(4))
    second.start(learner_of(5))
    later = learner_of(6)
    expected = [Evaluator(ENV_ID, {"action_reward": 1.0}, episodes=3).run(learner_of(seed)) for seed in (4, 5)]
    assert [first.run(later), second.run(later)] == expected


def test_an_error_of_the_environment_is_raised_here(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ScriptedEnv, action: Any) -> None:
        raise RuntimeError("the motor is off")

    monkeypatch.setattr(ScriptedEnv, "step", fail)  # the process has it too
    with pytest.raises(EnvFailedError, match="the motor is off"):
        start().run(learner_of())


def test_a_process_that_ends_is_named(start: Start) -> None:
    process = start()
    assert process._process.pid is not None
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="the process of the evaluation ended with exit code -9"):
        process.run(learner_of())


def test_a_request_to_stop_ends_the_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEnv, "step", lambda self, action: time.sleep(60.0))
    process = start()
    with stop_on_signals(lambda name: None):
        process.start(learner_of())
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            process.run(learner_of())
