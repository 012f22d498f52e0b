"""Counts of achieved and pursued goals, what hindsight makes of them, and practising achieved goals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ending_env import EndingEnv
from rl_training.data.goal_cells import LARGEST_WEIGHT, MOST_CELLS, PLAIN_WEIGHT, GoalCells
from rl_training.envs import GoalRewards
from rl_training.envs.builtin import PointReachGoalEnv
from rl_training.errors import ConfigError
from rl_training.runtime.practice import Practice
from test_her_replay_buffer import ExactMatch, Near, make, play


def path(*goals: tuple[float, float]) -> np.ndarray:
    return np.array(goals, np.float32)


def test_goals_that_are_pursued_more_often_than_achieved_are_wanted() -> None:
    cells = GoalCells(2, 1.0)
    for _ in range(9):
        cells.add(path((0.5, 0.5), (5.5, 0.5)), path((5.5, 0.5))[0])
    cells.add(path((0.5, 0.5), (20.5, 0.5)), path((20.5, 0.5))[0])
    for _ in range(8):
        cells.add(path((0.5, 0.5)), path((20.5, 0.5))[0])
    common, rare, start = cells.wanted(path((5.6, 0.6), (20.6, 0.6), (0.6, 0.6)))
    # 9 of 18 episodes pursued each place; 9 of 10 counted goals were achieved at the first one, 1 at the second. A
    # pursued goal counts one ninth for each cell around it.
    assert common == pytest.approx(PLAIN_WEIGHT + 0.9 * (0.5 / 9) / 0.9, rel=1e-4)
    assert rare == pytest.approx(PLAIN_WEIGHT + 0.9 * (0.5 / 9) / 0.1, rel=1e-4)
    assert start == pytest.approx(PLAIN_WEIGHT)  # nobody pursued it
    assert cells.wanted(path((50.0, 50.0)))[0] == pytest.approx(PLAIN_WEIGHT)


def test_a_weight_is_bounded() -> None:
    cells = GoalCells(1, 1.0)
    cells.add(np.array([[0.5]] + [[9.5]] * 20_000, np.float32), np.array([3.5], np.float32))
    cells.add(np.array([[0.5], [3.5]], np.float32), np.array([3.5], np.float32))
    assert cells.wanted(np.array([[3.5]], np.float32))[0] == LARGEST_WEIGHT


def test_the_nearest_achieved_goal_stands_in_for_one_that_was_never_achieved() -> None:
    cells = GoalCells(2, 1.0)
    assert cells.nearest(path((7.0, 7.0))[0]) is None  # nothing was achieved yet
    cells.add(path((0.5, 0.5), (1.5, 2.5), (3.5, 3.5)), path((9.0, 9.0))[0])
    assert cells.nearest(path((3.9, 3.9))[0]) is None  # its cell was reached
    assert cells.nearest(path((3.5, 4.2))[0]) is None  # within the tolerance of one that was
    np.testing.assert_array_equal(cells.nearest(path((3.5, 9.0))[0]), (3.5, 3.5))
    np.testing.assert_array_equal(cells.nearest(path((0.0, 5.0))[0]), (1.5, 2.5))


def test_nothing_stands_in_for_a_goal_in_a_space_that_is_too_large_to_cover() -> None:
    cells = GoalCells(1, 1.0)
    line = np.arange(2 * MOST_CELLS, dtype=np.float32)[:, None]
    cells.add(line[: MOST_CELLS - 10], line[0])
    assert cells.nearest(line[-1]) == line[MOST_CELLS - 11]
    cells.add(line[:MOST_CELLS], line[0])
    assert len(cells) == MOST_CELLS
    assert cells.nearest(line[-1]) is None


def test_a_goal_of_the_grid_is_practised_even_if_the_grid_is_full() -> None:
    cells = GoalCells(1, 1.0)
    line = np.arange(2 * MOST_CELLS, dtype=np.float32)[:, None]
    cells.add(line[:10], line[20])  # pursued, so its cell is one of the grid's
    cells.add(line[30:], line[20])
    assert len(cells) == MOST_CELLS
    assert cells.nearest(line[20]) == line[30]


def test_the_state_is_complete() -> None:
    rng = np.random.default_rng(0)
    cells, copy = GoalCells(3, 0.5), GoalCells(3, 0.5)
    for _ in range(30):
        cells.add(rng.normal(size=(12, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32))
    copy.load_state_dict(cells.state_dict())
    goals = rng.normal(size=(50, 3)).astype(np.float32)
    for part in (cells, copy):
        part.add(goals[:10], goals[0])
    np.testing.assert_array_equal(cells.wanted(goals), copy.wanted(goals))
    assert len(cells) == len(copy) > 256


def test_hindsight_prefers_goals_that_are_pursued() -> None:
    def share(priority: str) -> float:
        buffer = make(goals=Near(), goal_priority=priority, practice_goals=True, her_ratio=1.0)
        play(buffer, [10] * 8)
        assert buffer.cells is not None
        for _ in range(20):  # a goal of episode 3
            buffer.cells.add(np.full((2, 2), 50.0, np.float32), np.array([3.0, 9.0], np.float32))
        goals = buffer.sample(4000).observations[:, 2:]
        return float(((goals[:, 0] == 3) & (goals[:, 1] == 9)).float().mean())

    assert share("uniform") < 0.05
    assert share("pursued") > 0.2


def test_a_task_without_a_tolerance_needs_a_scale() -> None:
    with pytest.raises(ConfigError, match="practice_goals: the environment has no distance_threshold"):
        make(goals=ExactMatch(), practice_goals=True)
    assert make(goals=ExactMatch(), practice_goals=True, motion_scale=2.0).cells is not None


@pytest.fixture
def practice() -> Practice:
    cells = GoalCells(2, 0.05)
    cells.add(path((0.0, 0.0), (0.1, 0.1), (0.2, 0.2)), path((0.9, 0.9))[0])
    return Practice(cells, GoalRewards(PointReachGoalEnv()), num_envs=3)


def observations(desired: np.ndarray, achieved: np.ndarray) -> dict[str, Any]:
    return {"observation": np.zeros((3, 4)), "desired_goal": desired, "achieved_goal": achieved}


def test_practised_episodes_show_another_goal_and_are_judged_by_it(practice: Practice) -> None:
    desired = path((0.9, 0.9), (0.1, 0.1), (0.8, 0.8))
    practice.begin(np.array([True, True, False]), desired)
    assert practice.active.tolist() == [True, False, False]
    shown = practice.show(observations(desired, np.zeros((3, 2))))
    np.testing.assert_allclose(shown["desired_goal"], path((0.2, 0.2), (0.1, 0.1), (0.8, 0.8)))
    after = observations(desired, path((0.21, 0.21), (0.1, 0.1), (0.8, 0.8)))
    rewards, terminated = practice.judge(after, np.array([-1.0, 7.0, 8.0]), np.array([True, True, False]))
    assert rewards.tolist() == [0.0, 7.0, 8.0]  # the first met the goal it pursued
    assert terminated.tolist() == [False, True, False]


def test_practice_can_be_undone_and_restored(practice: Practice) -> None:
    undo, before = practice.undo_point(), practice.state_dict()
    practice.begin(np.ones(3, bool), path((0.9, 0.9), (0.9, 0.9), (0.9, 0.9)))
    changed = practice.state_dict()
    undo()
    np.testing.assert_array_equal(practice.active, before["active"])
    practice.load_state_dict(changed)
    assert practice.active.all()


NONE = np.zeros(3, bool)


@pytest.fixture
def holding() -> Practice:
    """Three environments; a goal that is held for two steps is replaced."""
    cells = GoalCells(2, 0.05)
    practice = Practice(cells, GoalRewards(PointReachGoalEnv()), num_envs=3, nearest=False, hold=2)
    practice.begin(np.ones(3, bool), path((0.1, 0.1), (0.5, 0.5), (0.9, 0.9)))
    return practice


def test_a_goal_that_is_held_gives_way_to_that_of_an_earlier_episode(holding: Practice) -> None:
    desired, going_on = path((0.1, 0.1), (0.5, 0.5), (0.9, 0.9)), np.ones(3, bool)
    there = observations(desired, path((0.11, 0.1), (0.0, 0.0), (0.9, 0.9)))
    away = observations(desired, path((0.3, 0.1), (0.0, 0.0), (0.9, 0.9)))
    assert not holding.replace_held(there, NONE, going_on).any()
    # The first leaves its goal and has to hold it again; the third has held it for two steps.
    assert holding.replace_held(away, NONE, going_on).tolist() == [False, False, True]
    np.testing.assert_allclose(holding.show(away)["desired_goal"], path((0.1, 0.1), (0.5, 0.5), (0.1, 0.1)))
    assert holding.reached.tolist() == [False, False, True]
    assert not holding.replace_held(there, NONE, going_on).any()
    assert holding.replace_held(there, NONE, going_on).tolist() == [True, False, False]
    np.testing.assert_allclose(holding.pursued[0], [0.5, 0.5])  # the next one in turn
    holding.begin(np.array([False, False, True]), desired)
    assert holding.reached.tolist() == [True, False, False]
    assert holding.active.tolist() == [True, False, False]


def test_a_goal_that_is_met_already_is_not_the_next_one(holding: Practice) -> None:
    desired = path((0.1, 0.1), (0.5, 0.5), (0.9, 0.9))
    for _ in range(2):  # the first goal in turn is its own
        replaced = holding.replace_held(observations(desired, path((0.1, 0.1), (0, 0), (0, 0))), NONE, np.ones(3, bool))
    assert replaced.tolist() == [True, False, False]
    np.testing.assert_allclose(holding.pursued[0], [0.5, 0.5])


def test_an_episode_that_ends_keeps_its_goal(holding: Practice) -> None:
    desired = path((0.1, 0.1), (0.5, 0.5), (0.9, 0.9))
    for _ in range(3):
        assert not holding.replace_held(observations(desired, desired), NONE, np.zeros(3, bool)).any()
    assert not holding.reached.any()


def test_holding_can_be_undone_and_restored(holding: Practice) -> None:
    desired = path((0.1, 0.1), (0.5, 0.5), (0.9, 0.9))
    undo, before = holding.undo_point(), holding.state_dict()
    for _ in range(2):
        holding.replace_held(observations(desired, desired), NONE, np.ones(3, bool))
    desired = path((0.2, 0.2), (0.3, 0.3), (0.4, 0.4))
    holding.begin(np.array([True, True, False]), desired)
    holding.replace_held(observations(desired, desired), NONE, np.ones(3, bool))
    changed = holding.state_dict()
    assert changed["held"].tolist() == [1, 1, 0]
    assert changed["reached"].tolist() == [False, False, True]
    undo()
    for key, value in holding.state_dict().items():
        np.testing.assert_array_equal(value, before[key])
    holding.load_state_dict(changed)
    for key, value in holding.state_dict().items():
        np.testing.assert_array_equal(value, changed[key])
    assert len(changed["earlier"]) == 5


# Environments that end an episode when its goal is met, and do not say so


@pytest.fixture
def ending() -> Practice:
    """Three environments whose episodes are known to end when their goal is met; two of them practise."""
    cells = GoalCells(2, 0.05)
    cells.add(path((0.0, 0.0), (0.1, 0.1), (0.2, 0.2)), path((0.9, 0.9))[0])
    practice = Practice(cells, GoalRewards(EndingEnv()), num_envs=3)
    practice._goals.ends_when_met = True
    practice.begin(np.ones(3, bool), path((0.9, 0.9), (0.1, 0.1), (0.15, 0.9)))
    assert practice.active.tolist() == [True, False, True]
    return practice


def test_a_practised_goal_that_is_met_ends_its_episode(ending: Practice) -> None:
    desired = path((0.9, 0.9), (0.1, 0.1), (0.15, 0.9))
    after = observations(desired, path((0.2, 0.21), (0.1, 0.1), (0.0, 0.0)))
    rewards, ended = ending.judge(after, np.array([-1.0, 0.0, -1.0]), np.array([False, True, False]))
    assert (rewards.tolist(), ended.tolist()) == ([0.0, 0.0, -1.0], [True, True, False])
    replaced = ending.replace_held(after, ended, ~np.array([False, True, False]))
    assert replaced.tolist() == [True, False, False]
    # The goals in turn: (0.9, 0.9) is practised as (0.2, 0.2), which is met; (0.1, 0.1) is not.
    np.testing.assert_allclose(ending.pursued[0], [0.1, 0.1])
    assert not ending.reached.any()  # it was not the environment's own goal


def test_without_another_goal_the_own_one_follows(ending: Practice) -> None:
    ending._earlier = []
    after = observations(path((0.9, 0.9), (0.1, 0.1), (0.15, 0.9)), path((0.2, 0.2), (0, 0), (0, 0)))
    replaced = ending.replace_held(after, np.array([True, False, False]), np.ones(3, bool))
    assert replaced.tolist() == [True, False, False]
    assert ending.active.tolist() == [False, False, True]


def test_the_next_goal_is_practised_if_it_was_never_achieved(ending: Practice) -> None:
    ending._earlier = [path((0.7, 0.7))[0]]
    assert ending._another(path((0.0, 0.0))[0]) == pytest.approx([0.2, 0.2])


def test_practice_learns_from_the_goals_that_environments_gave(ending: Practice) -> None:
    ending._goals.ends_when_met = None
    desired = path((0.9, 0.9), (0.1, 0.1), (0.15, 0.9))
    practised = observations(desired, path((0.2, 0.2), (0.5, 0.5), (0.5, 0.5)))  # the first meets what it pursues
    ending.judge(practised, np.full(3, -1.0), np.zeros(3, bool))
    assert ending._goals.ends_when_met is None
    own = observations(desired, path((0.9, 0.9), (0.5, 0.5), (0.5, 0.5)))
    _, ended = ending.judge(own, np.array([0.0, -1.0, -1.0]), np.array([True, False, False]))
    assert ending._goals.ends_when_met
    assert not ended.any()  # to the policy, which pursued another goal, it is a time-out


def test_a_state_without_held_goals_is_restored(practice: Practice) -> None:
    practice.load_state_dict({"active": np.ones(3, bool), "pursued": np.zeros((3, 2), np.float32)})
    assert practice.active.all()
    assert not practice.reached.any()
