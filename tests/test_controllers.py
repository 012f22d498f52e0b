"""Controllers written by hand: they solve their tasks, and what they do can be recorded."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from rl_training import cli
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError
from rl_training.tools.controllers import scripted_controller
from rl_training.tools.datasets import collect_dataset
from rl_training.tools.inspection import inspect_transitions

POINTS = ["rl_training/PointGoal1D-v0", "rl_training/PointReach2D-v0"]


def play(env_id: str, seed: int) -> tuple[bool, bool]:
    """Return whether an episode begins at its goal, and whether it ends there."""
    env, act = make_env(env_id), scripted_controller(env_id)
    observation, info = env.reset(seed=seed)
    begins, done = bool(info.get("is_success", False)), False
    while not done:
        action = act(observation)
        assert action.dtype == np.float32
        assert env.action_space.contains(action)
        observation, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    env.close()
    return begins, bool(info["is_success"])


@pytest.mark.parametrize("env_id", POINTS)
def test_points_reach_their_goals(env_id):
    outcomes = [play(env_id, seed) for seed in range(20)]
    assert all(ends for _, ends in outcomes)
    assert sum(begins for begins, _ in outcomes) <= 3  # there was something to do


@pytest.mark.parametrize("env_id", ["FetchReach-v4", "FetchPush-v4"])
def test_the_arm_reaches_and_pushes(env_id):
    pytest.importorskip("gymnasium_robotics")
    assert [play(env_id, seed)[1] for seed in range(3)] == [True] * 3


def test_a_controller_looks_at_the_observation_alone():
    """It has no memory, so it can take over anywhere."""
    act = scripted_controller(POINTS[1])
    observation = {
        "observation": np.array([0.0, 0.0, 0.0, 0.0], np.float32),
        "achieved_goal": np.zeros(2, np.float32),
        "desired_goal": np.array([0.5, -0.1], np.float32),
    }
    first = act(observation)
    act({**observation, "desired_goal": np.array([-0.5, 0.5], np.float32)})
    np.testing.assert_array_equal(act(observation), first)
    assert first[0] == 1.0  # full speed ahead
    assert -1.0 < first[1] < 0.0
    fast = {**observation, "observation": np.array([0.45, -0.1, 1.0, 0.0], np.float32)}
    assert act(fast)[0] < 0  # and braking in time


@pytest.mark.parametrize("env_id", POINTS)
def test_scripted_episodes_are_recorded(env_id):
    dataset, spec = collect_dataset(env_id, "scripted", episodes=5, seed=2)
    assert spec is not None
    assert spec.id == env_id
    assert dataset.episode_lengths.tolist() == [50] * 5
    assert dataset.is_goal_conditioned
    assert (dataset.arrays["rewards"][dataset.episode_ends - 1] == 0).all()  # every episode ends at its goal
    assert inspect_transitions(dataset, env_id).is_sane
    act = scripted_controller(env_id)
    for row in (0, 10, 60):
        observation = {
            "observation": dataset.arrays["observations"][row],
            "achieved_goal": dataset.arrays["achieved_goals"][row],
            "desired_goal": dataset.arrays["desired_goals"][row],
        }
        np.testing.assert_array_equal(act(observation), dataset.arrays["actions"][row])
    again, _ = collect_dataset(env_id, "scripted", episodes=5, seed=2)
    np.testing.assert_array_equal(again.arrays["observations"], dataset.arrays["observations"])
    # The same episodes as random play would have, and other actions in them.
    random, _ = collect_dataset(env_id, "random", episodes=5, seed=2)
    np.testing.assert_array_equal(random.arrays["observations"][::50], dataset.arrays["observations"][::50])
    assert random.episode_returns.mean() < dataset.episode_returns.mean() - 5


def test_noise_disturbs_what_the_controller_does():
    exact, _ = collect_dataset(POINTS[1], "scripted", episodes=2)
    noisy, _ = collect_dataset(POINTS[1], "scripted", episodes=2, noise=0.5)
    assert not np.allclose(exact.arrays["actions"][0], noisy.arrays["actions"][0])
    np.testing.assert_array_equal(exact.arrays["observations"][0], noisy.arrays["observations"][0])
    assert np.abs(noisy.arrays["actions"]).max() <= 1.0


def test_the_environments_arguments_are_used():
    dataset, _ = collect_dataset(POINTS[1], "scripted", episodes=2, env_kwargs={"max_steps": 12})
    assert dataset.episode_lengths.tolist() == [12, 12]


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "rl_training/PointReach3D-v0", "rl_training/BitFlipping-v0"])
def test_an_environment_without_controller_is_told_which_have_one(env_id):
    with pytest.raises(ConfigError, match="no controller for") as error:
        scripted_controller(env_id)
    assert env_id in str(error.value)
    for known in (*POINTS, "FetchReach-v4", "FetchPush-v4"):
        assert known in str(error.value)
    with pytest.raises(ConfigError, match="--policy scripted: there is no controller"):
        collect_dataset(env_id, "scripted", episodes=1)
    with pytest.raises(ConfigError, match="did you mean 'rl_training/PointReach2D-v0'"):
        scripted_controller("rl_training/PointReach2-v0")


def test_scripted_needs_an_environment():
    with pytest.raises(ConfigError, match="--env is required with --policy scripted"):
        collect_dataset(None, "scripted", episodes=1)


OWN = """
import numpy as np

def steer(observation):
    position, velocity = np.split(observation["observation"], 2)
    action = 8 * (observation["desired_goal"] - position) - 2 * velocity
    observation["observation"][:] = 0.0  # what a controller does to its argument is not recorded
    return action

def three(observation): return [1.0, 2.0, 3.0]
def nan(observation): return [float("nan"), 0.0]
def words(observation): return "left"
def fails(observation): raise ValueError("no idea")
def leaves(observation): raise SystemExit(0)
def balance(observation): return observation[2] > 0
def far(observation): return 2
number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of controllers in the current folder, which is not importable by itself."""
    (tmp_path / "own_controllers.py").write_text(OWN)
    (tmp_path / "broken_controllers.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    yield "own_controllers"
    for name in ("own_controllers", "broken_controllers"):
        sys.modules.pop(name, None)


def test_a_controller_of_ones_own_is_recorded(own_module):
    path = list(sys.path)
    dataset, _ = collect_dataset(POINTS[1], f"{own_module}:steer", episodes=4, seed=1)
    assert sys.path == path  # the current folder was importable only while the module was imported
    assert (dataset.arrays["rewards"][dataset.episode_ends - 1] == 0).all()  # every episode ends at its goal
    assert inspect_transitions(dataset, POINTS[1]).is_sane
    assert np.abs(dataset.arrays["actions"]).max() == 1.0  # clipped to the environment's bounds
    np.testing.assert_array_equal(dataset.arrays["observations"][1:50], dataset.arrays["next_observations"][:49])


def test_actions_are_in_the_environments_units(own_module, tmp_path):
    (tmp_path / "own_controllers.py").write_text("def push(observation): return [1.5]\n")
    dataset, _ = collect_dataset("Pendulum-v1", f"{own_module}:push", episodes=1)
    assert (dataset.arrays["actions"] == 1.5).all()
    noisy, _ = collect_dataset("Pendulum-v1", f"{own_module}:push", episodes=1, noise=0.1)
    assert noisy.arrays["actions"].std() == pytest.approx(0.2, rel=0.3)  # 0.1 in [-1, 1] is 0.2 in [-2, 2]


def test_a_controller_of_discrete_actions(own_module):
    dataset, _ = collect_dataset("CartPole-v1", f"{own_module}:balance", episodes=3)
    assert set(np.unique(dataset.arrays["actions"])) == {0, 1}


@pytest.mark.parametrize(
    ("env_id", "policy", "words"),
    [
        (POINTS[1], "nowhere:steer", "module 'nowhere' cannot be imported: ModuleNotFoundError"),
        (POINTS[1], "broken_controllers:steer", "No module named 'nothing_of_this_name'"),
        (POINTS[1], "own_controllers:stear", r"no such function in the module .* \(did you mean 'steer'\?\)"),
        (POINTS[1], "own_controllers:number", "expected a function, found int"),
        (POINTS[1], "own_controllers:three", r"returned \[1.0, 2.0, 3.0\] of shape \(3,\); expected 2 finite numbers"),
        (POINTS[1], "own_controllers:nan", r"returned \[nan, 0.0\] of shape \(2,\); expected 2 finite numbers"),
        (POINTS[1], "own_controllers:words", "returned 'left' of shape .*; expected 2 finite numbers"),
        (POINTS[1], "own_controllers:fails", "own_controllers:fails failed: ValueError: no idea"),
        (POINTS[1], "own_controllers:leaves", "own_controllers:leaves failed: SystemExit"),
        ("CartPole-v1", "own_controllers:far", "returned 2 of shape .*; expected an integer from 0 to 1"),
        (POINTS[1], "own-controllers:steer", "no such run or checkpoint; expected one, or random, scripted or module"),
    ],
)
def test_a_controller_that_does_not_work_is_one_message(own_module, env_id, policy, words):
    with pytest.raises(ConfigError, match=words) as error:
        collect_dataset(env_id, policy, episodes=1)
    assert str(error.value).startswith("--policy ")
    assert "\n" not in str(error.value)


def test_the_command_line_takes_a_controller_and_asks_before_overwriting(own_module, monkeypatch, capsys):
    def run(*options: str) -> tuple[int, str, str]:
        arguments = ("--env", POINTS[0], "--policy", f"{own_module}:steer", "--episodes", "1", "-o", "demos.npz")
        monkeypatch.setattr(sys, "argv", ["rl-training", "data", "collect", *arguments, *options])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    assert run()[0] == 0
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err == "error: demos.npz: exists already; expected another name, or --overwrite to replace it\n"
    for option in ("--overwrite", "-y"):
        assert run(option)[0] == 0


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(env_id: str) -> tuple[int, str, str]:
        arguments = ("--env", env_id, "--policy", "scripted", "--episodes", "3", "-o", "demos.npz", "--json")
        monkeypatch.setattr(sys, "argv", ["rl-training", "data", "collect", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    code, out, err = run("Pendulum-v1")
    assert (code, out) == (2, "")
    assert "rl_training/PointReach2D-v0" in err
    assert list(tmp_path.iterdir()) == []
    code, out, err = run(POINTS[1])
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["episodes"], answer["transitions"], answer["env_id"]) == (3, 150, POINTS[1])
    dataset = load_transition_dataset("demos.npz")
    assert dataset.is_goal_conditioned
    assert answer["mean_return"] == pytest.approx(dataset.episode_returns.mean())
