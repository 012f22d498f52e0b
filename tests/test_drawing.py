"""The pictures of the built-in tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.envs.builtin import BitFlippingEnv, PointGoal1DEnv, PointReachGoalEnv
from rl_training.envs.drawing import BLUE, GREEN, GREY, INK, ORANGE, Picture


def test_a_disc_has_its_area_and_a_smooth_edge() -> None:
    picture = Picture(40, 30, (0, 0, 0))
    picture.disc((17.3, 14.6), 8.4, (200, 100, 0))
    frame = picture.to_array().astype(float)
    assert frame.shape == (30, 40, 3)
    assert frame[..., 0].sum() / 200 == pytest.approx(np.pi * 8.4**2, rel=0.01)
    np.testing.assert_array_equal(frame[14, 17], [200, 100, 0])
    edge = frame[14, :, 0]
    assert ((edge > 0) & (edge < 200)).any()


def test_a_path_and_a_box_have_their_areas() -> None:
    picture = Picture(60, 40, (0, 0, 0))
    picture.path([(10, 20), (30, 20), (50, 20)], 4, (100, 0, 0))
    assert picture.to_array()[..., 0].sum() / 100 == pytest.approx(40 * 4 + np.pi * 4, rel=0.02)
    picture = Picture(60, 40, (0, 0, 0))
    picture.path([(10, 20), (50, 20), (10, 20)], 4, (100, 0, 0), opacity=0.5)
    assert picture.to_array().max() == 50  # lines that overlap are not darker
    picture = Picture(60, 40, (0, 0, 0))
    picture.box((5, 6), (20, 10), (100, 0, 0))
    assert picture.to_array()[..., 0].sum() == 100 * 20 * 10
    picture.ring((40, 20), 10, 2, (0, 100, 0))
    assert picture.to_array()[..., 1].sum() / 100 == pytest.approx(np.pi * (11**2 - 9**2), rel=0.02)


def test_shapes_outside_the_picture_are_left_out() -> None:
    picture = Picture(20, 20)
    before = picture.to_array()
    picture.path([(-50, -50), (-40, -60)], 3, INK)
    picture.box((100, 100), (5, 5), INK)
    picture.disc((-20, 5), 4, INK)
    np.testing.assert_array_equal(picture.to_array(), before)


def place(env: Any, position: tuple[float, ...], goal: tuple[float, ...]) -> np.ndarray:
    env.reset(seed=0)
    env._position, env._goal, env._way = np.array(position), np.array(goal, np.float32), [np.array(position)]
    return env.render()


def test_the_mass_is_blue_until_it_is_at_the_goal() -> None:
    env = PointReachGoalEnv(render_mode="rgb_array")
    frame = place(env, (-0.5, 0.5), (0.5, -0.5))
    assert frame.shape == (240, 240, 3)
    assert frame.dtype == np.uint8
    assert tuple(frame[67, 67]) == BLUE  # left, and up
    goal = frame[173, 173].astype(int)
    assert goal[1] > goal[0] + 20  # a pale green
    assert tuple(place(env, (0.5, -0.5), (0.5, -0.5))[173, 173]) == GREEN
    assert tuple(place(PointGoal1DEnv(render_mode="rgb_array"), (0.5,), (-0.5,))[40, 173]) == BLUE


def test_the_way_of_the_mass_is_drawn_and_forgotten_at_a_reset() -> None:
    env = PointReachGoalEnv(render_mode="rgb_array")
    env.reset(seed=0)
    start = env.render()
    for _ in range(8):
        env.step(np.array([1.0, 0.3]))
    assert len(env._way) == 9
    assert (env.render() != start).any(axis=-1).sum() > 100
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), start)
    silent = PointReachGoalEnv()
    silent.reset(seed=0)
    silent.step(np.zeros(2))
    assert len(silent._way) == 1  # nothing is kept where nothing is drawn


@pytest.mark.parametrize("n_bits", [1, 4, 200])
def test_bits_that_differ_are_framed(n_bits: int) -> None:
    env = BitFlippingEnv(n_bits=n_bits, render_mode="rgb_array")
    env.reset(seed=0)
    env._bits, env._goal = np.zeros(n_bits, np.float32), np.zeros(n_bits, np.float32)
    env._bits[0] = 1
    frame = env.render()
    cell = max(4, min(24, 480 // n_bits))
    middle = cell // 2
    assert tuple(frame[4 + middle, 4 + middle]) == INK
    assert tuple(frame[8 + cell + middle, 4 + middle]) == GREY
    assert (frame == ORANGE).all(axis=-1).any() == (cell > 6)
    env._bits[0] = 0
    assert not (env.render() == ORANGE).all(axis=-1).any()
