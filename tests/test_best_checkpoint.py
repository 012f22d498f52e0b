"""Which checkpoint is ``best``: the best evaluation, by success and then by return; the earlier one of two equals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from conftest import StopAt
from rl_training import DDPG, TrainConfig
from rl_training.runtime.checkpointing import find_checkpoint, resolve_checkpoint
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.logging import read_metrics

Score = float | tuple[float, float]
"""A return, or a success rate and a return."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Score]], None]:
    """Return a function that fixes what the evaluations to come will say."""
    scores: Iterator[Score] = iter(())

    def run(self: Evaluator, learner: object, **_: object) -> dict[str, float]:
        score = next(scores)
        if isinstance(score, tuple):
            return {"eval/success_rate": score[0], "eval/mean_reward": score[1]}
        return {"eval/mean_reward": score}

    def follow(values: list[Score]) -> None:
        nonlocal scores
        scores = iter(values)

    monkeypatch.setattr(Evaluator, "run", run)
    return follow


@pytest.fixture
def config(tiny_config: Callable[..., TrainConfig]) -> TrainConfig:
    """A run of 50 steps with an evaluation every 10, a checkpoint every 10, and weights that move at every step."""
    intervals = {"eval_interval": 10, "checkpoint_interval": 10, "log_interval": 10, "learning_starts": 2}
    return tiny_config("ddpg", total_timesteps=50, algo_kwargs=intervals)


def best_step(run_dir: Path) -> int:
    return int(resolve_checkpoint(run_dir / "checkpoints", "best").name.partition("-")[0])


SCORES: list[tuple[list[Score], int]] = [
    ([1.0, 2.0, 3.0, 4.0, 5.0], 50),
    ([5.0, 4.0, 3.0, 2.0, 1.0], 10),
    ([-9.0, -2.0, -5.0, -3.0, -4.0], 20),
    ([1.0, 7.0, 7.0, 3.0, 7.0], 20),
    ([(0.2, 100.0), (0.6, -5.0), (0.4, 50.0), (0.5, 70.0), (0.1, 90.0)], 20),
    ([(0.6, -5.0), (0.6, -7.0), (0.6, -3.0), (0.5, 0.0), (0.6, -4.0)], 30),
    ([(0.0, -50.0), (0.0, -20.0), (0.0, -30.0), (0.0, -20.0), (0.0, -25.0)], 20),
]


@pytest.mark.parametrize(("scores", "expected"), SCORES)
def test_best_is_the_best_evaluation(config, script, scores, expected) -> None:
    script(scores)
    run_dir = DDPG(config).learn().run_dir
    assert best_step(run_dir) == expected
    assert find_checkpoint(run_dir) == resolve_checkpoint(run_dir / "checkpoints", "best")  # what is loaded by default
    assert resolve_checkpoint(run_dir / "checkpoints", "latest").name.startswith("000000050")
    evaluated = [row["eval/mean_reward"] for row in read_metrics(run_dir / "metrics.csv")]
    assert evaluated == [score[1] if isinstance(score, tuple) else score for score in scores]


def test_best_holds_the_weights_of_its_own_step(config, script) -> None:
    script([1.0, 5.0, 2.0, 3.0, 4.0])
    run_dir = DDPG(config).learn().run_dir
    script([1.0, 5.0])
    short = DDPG(config.model_copy(update={"total_timesteps": 20})).learn().run_dir
    best, latest, expected = (
        DDPG.load(find_checkpoint(path, prefer)).learner.state_dict()
        for path, prefer in ((run_dir, "best"), (run_dir, "latest"), (short, "latest"))
    )
    assert all(torch.equal(best[name], value) for name, value in expected.items())
    assert any(not torch.equal(best[name], value) for name, value in latest.items())


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1.0, 5.0, 2.0], [3.0, 4.0], 20),
        ([1.0, 5.0, 2.0], [5.0, 5.0], 20),
        ([1.0, 5.0, 2.0], [6.0, 4.0], 40),
        ([(0.5, -5.0), (0.9, -9.0), (0.4, 0.0)], [(0.6, 0.0), (0.9, -10.0)], 20),
        ([(0.5, -5.0), (0.9, -9.0), (0.4, 0.0)], [(0.6, 0.0), (0.9, -8.0)], 50),
    ],
)
def test_best_survives_a_resume(config, script, before, after, expected) -> None:
    script(before)
    model = DDPG(config)
    broken = model.learn(callbacks=[StopAt(35)])
    assert broken.status == "interrupted"
    assert best_step(broken.run_dir) == 20
    script(after)
    assert model.resume(broken.run_dir).status == "completed"
    assert best_step(broken.run_dir) == expected
