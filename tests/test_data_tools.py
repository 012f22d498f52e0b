"""The data doctor: each finding on a file broken for it, repair, conversion, collection, and the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rl_training import cli
from rl_training.data.dataset_loaders import load_transition_dataset, read_transitions, write_transitions
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import ConfigError, DatasetError
from rl_training.experiment.manager import train_experiment
from rl_training.tools.datasets import collect_dataset
from rl_training.tools.inspection import inspect_transitions
from rl_training.tools.repair import repair_transitions

POINT = "rl_training/PointReach2D-v0"
PENDULUM = "Pendulum-v1"


def good(episodes: int = 8, length: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    """Return smooth episodes that start near the origin and time out."""
    rng = np.random.default_rng(seed)
    start = rng.normal(0, 0.1, (episodes, 1, 3))
    drift = rng.normal(0, 0.1, (episodes, 1, 3)) + rng.normal(0, 0.02, (episodes, length + 1, 3))
    walk = (start + np.cumsum(drift, axis=1)).astype(np.float32)
    ends = np.zeros((episodes, length), bool)
    ends[:, -1] = True
    total = episodes * length
    return {
        "observations": walk[:, :-1].reshape(total, 3),
        "next_observations": walk[:, 1:].reshape(total, 3),
        "actions": rng.uniform(-0.9, 0.9, (total, 1)).astype(np.float32),
        "rewards": rng.normal(size=total).astype(np.float32),
        "terminated": np.zeros(total, bool),
        "truncated": ends.reshape(total),
    }


def found(values: Any, env_id: str | None = None) -> dict[str, set[str]]:
    report = inspect_transitions(values, env_id)
    return {"errors": {v.name for v in report.errors}, "warnings": {v.name for v in report.warnings}}


# Findings


def test_good_data_has_facts_and_nothing_against_it() -> None:
    report = inspect_transitions(good())
    assert report.is_sane
    assert report.warnings == []
    facts = report.facts
    assert facts["transitions"] == 320
    assert facts["episodes"] == 8
    assert facts["episode_length"] == {"min": 40.0, "mean": 40.0, "max": 40.0}
    assert facts["time_outs"] == 8
    assert facts["shapes"]["observations"] == [3]
    assert sum(facts["return_histogram"]["counts"]) == 8
    assert facts["action_saturation"] == [0.0]
    text = "\n".join(report.lines())
    assert "nothing wrong was found" in text
    assert "█" in text
    assert json.loads(json.dumps(report.to_json()))["is_sane"] is True
    assert inspect_transitions(TransitionDataset.from_dict(good())).to_json() == report.to_json()


def test_numbers_that_are_not_finite() -> None:
    values = good()
    values["rewards"][7] = np.nan
    values["observations"][[3, 50], 1] = np.inf
    report = inspect_transitions(values)
    rows = {finding.message.split()[0]: (finding.count, finding.first_row) for finding in report.errors}
    assert {finding.name for finding in report.errors} == {"not-finite"}
    assert rows == {"observations": (2, 3), "rewards": (1, 7)}
    assert json.dumps(report.to_json(), allow_nan=False)


def test_rows_that_jump_where_no_end_is_marked() -> None:
    values = good()
    values["truncated"][39] = False
    values["truncated"][199] = False
    finding = inspect_transitions(values).finding("jumps")
    assert finding is not None
    assert (finding.count, finding.first_row) == (2, 39)


def test_leaps_where_there_are_no_next_observations() -> None:
    values = good(length=150)
    del values["next_observations"]
    assert found(values) == {"errors": set(), "warnings": set()}
    values["truncated"][[149, 299]] = False
    finding = inspect_transitions(values).finding("leaps")
    assert finding is not None
    assert (finding.count, finding.first_row) == (2, 149)


def test_leaps_where_next_observations_follow_the_rows_across_ends() -> None:
    values = good(length=150)
    values["next_observations"] = np.roll(values["observations"], -1, axis=0)
    values["truncated"][:-1] = False
    finding = inspect_transitions(values).finding("leaps")
    assert finding is not None
    assert (finding.count, finding.first_row) == (7, 149)
    right = good(length=150)
    right["truncated"][149] = False  # here next observations contradict the following row
    assert found(right) == {"errors": {"jumps"}, "warnings": set()}


@pytest.mark.parametrize("has_next", [True, False])
def test_episodes_longer_than_the_time_limit(has_next: bool) -> None:
    values = good(length=200)
    values["next_observations"] = np.roll(values["observations"], -1, axis=0)
    if not has_next:
        del values["next_observations"]
    values["truncated"][799] = False
    finding = inspect_transitions(values, PENDULUM).finding("too-long")
    assert finding is not None
    assert (finding.count, finding.first_row) == (1, 600)
    values["truncated"][:] = False
    assert "too-long" in found(values, PENDULUM)["errors"]
    assert "too-long" not in found(values)["errors"]
    order = np.random.default_rng(0).permutation(1600)
    shuffled = {name: array[order] for name, array in good(length=200).items()}
    assert "too-long" not in found(shuffled, PENDULUM)["errors"]  # lengths mean nothing here


def test_data_recorded_under_another_limit_only_warns() -> None:
    report = found(good(length=250), PENDULUM)  # as of people who took longer than the task allows
    assert "too-long" in report["warnings"]
    assert "too-long" not in report["errors"]


@pytest.mark.parametrize("offset", [0, 2, -1])
def test_next_observations_that_are_misaligned(offset: int) -> None:
    values = good()
    values["next_observations"] = np.roll(values["observations"], -offset, axis=0)
    assert found(values)["errors"] == {"misaligned"}


def test_rows_in_any_order() -> None:
    values = good()
    order = np.random.default_rng(0).permutation(320)
    shuffled = {name: array[order] for name, array in values.items()}
    assert "shuffled" in found(shuffled)["warnings"]


def test_last_rows_that_look_into_the_next_episode() -> None:
    values = good()
    values["next_observations"] = np.roll(values["observations"], -1, axis=0)  # as automatic resets leave it
    finding = inspect_transitions(values).finding("crosses-episodes")
    assert finding is not None
    assert (finding.count, finding.first_row) == (7, 39)
    cut = good(episodes=1, length=320)
    cut["truncated"][99:320:100] = True  # one long episode in pieces goes on across its marks, and that is right
    assert found(cut)["errors"] == set()


def test_all_ends_that_cross_are_found_where_most_of_them_leap() -> None:
    values = good()
    rng = np.random.default_rng(5)
    values["observations"] += np.repeat(rng.normal(0, 20, (8, 3)), 40, axis=0).astype(np.float32)  # starts far apart
    near = values["observations"][119] + 0.01  # but this reset happens to lead nearby
    values["observations"][120:160] += near - values["observations"][120]
    values["next_observations"] = np.roll(values["observations"], -1, axis=0)
    finding = inspect_transitions(values).finding("crosses-episodes")
    assert finding is not None
    assert finding.count == 7


def test_crossings_that_nothing_is_learned_from_are_no_error() -> None:
    values = good()
    values["next_observations"] = np.roll(values["observations"], -1, axis=0)
    assert found({**values, "usable": ~values["truncated"]})["errors"] == set()
    ends = {"terminated": values["truncated"], "truncated": values["terminated"]}
    report = inspect_transitions({**values, **ends})
    assert report.is_sane
    assert report.facts["crossing_terminals"] == 7


def test_time_outs_marked_as_terminations() -> None:
    values = good(length=200)
    values["terminated"], values["truncated"] = values["truncated"], values["terminated"]
    assert found(values) == {"errors": set(), "warnings": {"timeouts-as-terminals"}}
    assert "timeouts-as-terminals" in found(values, PENDULUM)["errors"]  # whose limit is 200
    values["terminated"][[150, 333]] = True  # some episodes end early, others at the limit
    assert "timeouts-as-terminals" in found(values, PENDULUM)["errors"]
    half = good(length=200)
    half["terminated"] = half["truncated"] & (np.arange(1600) < 800)
    half["truncated"] &= ~half["terminated"]
    assert inspect_transitions(half, PENDULUM).finding("timeouts-as-terminals").count == 4  # type: ignore[union-attr]
    assert found(half) == {"errors": set(), "warnings": set()}
    right = good(length=200)
    right["terminated"][150], right["truncated"][150] = True, False
    assert "timeouts-as-terminals" not in found(right, PENDULUM)["errors"]


def test_no_marks_of_episodes() -> None:
    values = good(episodes=1)
    values["truncated"][:] = False
    assert found(values)["warnings"] == {"no-ends"}


def test_constant_and_saturated_dimensions() -> None:
    values = good()
    for name in ("observations", "next_observations"):
        values[name] = np.column_stack([values[name], np.full(320, 2.0), np.maximum(values[name][:, 0], 1e6)])
        values[name][:, 4] = np.clip(values[name][:, 0], -0.01, 0.01)
    values["actions"] = np.where(np.arange(320)[:, None] % 4 == 0, values["actions"], 1.0).astype(np.float32)
    report = inspect_transitions(values)
    assert {finding.name for finding in report.warnings} == {"constant", "saturated", "saturated-actions"}
    assert report.finding("constant").message.endswith("dimensions 3")  # type: ignore[union-attr]
    assert report.finding("saturated").message.endswith("dimensions 4")  # type: ignore[union-attr]
    assert report.facts["action_saturation"][0] == pytest.approx(0.75)


def test_actions_outside_the_space() -> None:
    values = good()
    values["actions"][5] = 1.5
    assert found(values)["warnings"] == {"actions-outside"}
    assert "actions-outside" not in found(values, PENDULUM)["errors"]  # whose bounds are [-2, 2]
    values["actions"][5] = 2.5
    finding = inspect_transitions(values, PENDULUM).finding("actions-outside")
    assert finding is not None
    assert (finding.count, finding.first_row) == (1, 5)
    assert "[-2, 2]" in finding.message
    discrete = {**good(), "actions": np.arange(320) % 3}
    discrete["observations"] = discrete["next_observations"] = np.random.default_rng(0).normal(size=(320, 4))
    assert "actions-outside" in found(discrete, "CartPole-v1")["errors"]


def test_duplicates() -> None:
    values = good()
    for array in values.values():
        array[80:120] = array[:40]
    report = inspect_transitions(values)
    assert report.is_sane
    assert report.finding("duplicates").count == 40  # type: ignore[union-attr]


def test_spaces_that_do_not_fit() -> None:
    finding = inspect_transitions(good(), "CartPole-v1").finding("spaces")
    assert finding is not None
    assert "observations 3, expected 4" in finding.message
    assert "actions 1 continuous, expected discrete" in finding.message


@pytest.fixture(scope="module")
def point_data() -> TransitionDataset:
    return collect_dataset(POINT, "random", episodes=6, seed=1)[0]


def test_rewards_that_disagree_with_the_environment(point_data: TransitionDataset) -> None:
    arrays = dict(point_data.arrays)
    assert found(arrays, POINT) == {"errors": set(), "warnings": set()}
    arrays["rewards"] = arrays["rewards"].copy()
    arrays["rewards"][11] += 0.5
    finding = inspect_transitions(arrays, POINT).finding("rewards-disagree")
    assert finding is not None
    assert (finding.count, finding.first_row) == (1, 11)
    arrays["rewards"] = point_data.arrays["rewards"] + 1
    assert found(arrays, POINT) == {"errors": set(), "warnings": {"rewards-shifted"}}


@pytest.mark.parametrize("fault", ["same row", "noise", "few"])
@pytest.mark.parametrize("has_next", [True, False])
def test_next_goals_that_are_misplaced_and_their_repair(
    point_data: TransitionDataset, fault: str, has_next: bool
) -> None:
    right = point_data.arrays["next_achieved_goals"]
    wrong = {"same row": point_data.arrays["achieved_goals"], "few": right.copy()}
    wrong["noise"] = np.random.default_rng(0).normal(size=right.shape).astype(np.float32)
    wrong["few"][[7, 60]] += 1
    arrays = {**point_data.arrays, "next_achieved_goals": wrong[fault]}
    if not has_next:
        del arrays["next_observations"]
    finding = inspect_transitions(arrays).finding("misaligned-goals")
    assert finding is not None
    assert ("same row" in finding.message) == (fault == "same row")
    assert (finding.count == 2) == (fault == "few")
    mended, notes = repair_transitions(arrays, POINT)
    assert len(notes) == 1
    dataset = TransitionDataset.from_dict(mended)
    if fault == "few" and has_next:
        assert dataset.usable is None
        np.testing.assert_array_equal(dataset.arrays["next_achieved_goals"], right)
    else:  # what the last rows achieved is not known
        assert dataset.usable is not None
        assert np.flatnonzero(~dataset.usable).tolist() == list(range(49, 300, 50))
        np.testing.assert_array_equal(dataset.arrays["next_achieved_goals"][dataset.usable], right[dataset.usable])
    assert found(dataset, POINT)["errors"] == set()


def test_whole_numbers_and_truth_values_are_compared_as_numbers() -> None:
    values = good()
    for kind in ("uint8", "bool"):
        for name in ("observations", "next_observations"):
            values[name] = ((values[name] > 0) * 200).astype(kind)
        assert found(values)["errors"] == set()


def test_huge_actions_take_no_memory() -> None:
    values = {**good(), "actions": np.arange(320) % 3}
    assert inspect_transitions(values).facts["action_counts"] == [107, 107, 106]
    values["actions"] = np.full(320, 2**40)
    assert inspect_transitions(values).facts["action_counts"] == "1 different actions up to 1,099,511,627,776"
    assert found({**values, "actions": np.full(320, -1)})["errors"] == {"refused"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_no_warning_of_numpy_leaks(number: float) -> None:
    for name in ("observations", "rewards"):
        values = good()
        values[name] = np.full(values[name].shape, number)
        assert found(values)["errors"] == ({"refused"} if number == 1e300 else {"not-finite"})


def test_what_training_refuses_is_an_error(point_data: TransitionDataset) -> None:
    goals = point_data.arrays
    narrow = {name: goals[name][:, :1] for name in ("achieved_goals", "next_achieved_goals")}
    one = {name: array for name, array in goals.items() if "desired" not in name}
    for values, env_id, message in (
        ({**good(), "terminated": np.full(320, 2)}, None, "terminated is 2 at row 0; expected 0 or 1"),
        ({**good(), "actions": np.full(320, -1)}, None, "-1 is below 0"),
        (one, None, "key 'desired_goals' is missing"),
        (one, POINT, "key 'desired_goals' is missing"),
        ({**goals, **narrow}, POINT, "differ in shape"),
    ):
        finding = inspect_transitions(values, env_id).finding("refused")
        assert finding is not None
        assert message in finding.message
    discrete = {**good(), "actions": np.full(320, -1)}
    discrete["observations"] = np.random.default_rng(0).normal(size=(320, 4))
    del discrete["next_observations"]
    assert found(discrete, "CartPole-v1")["errors"] == {"actions-outside"}  # which has told it already
    without = {name: array for name, array in goals.items() if "achieved" not in name}
    assert found(without, POINT)["errors"] == set()


def test_arrays_that_make_no_rows_are_refused() -> None:
    values = good()
    for change, message in (
        ({"rewards": values["rewards"][:-1]}, r"rewards has shape \(319,\)"),
        ({"next_observations": values["next_observations"][:, :2]}, r"expected \(320, 3\)"),
        ({"actions": np.array(["a"] * 320)}, "expected 320 rows of numbers"),
        ({"actions": np.zeros((320, 0))}, "expected at least one number per row"),
        ({name: array[:0] for name, array in values.items()}, "no transitions"),
    ):
        with pytest.raises(DatasetError, match=message):
            inspect_transitions({**values, **change})
    del values["rewards"]
    with pytest.raises(DatasetError, match="key 'rewards' is missing"):
        inspect_transitions(values)


# Repair


def test_repair_mends_what_inspection_found_and_leaves_the_source_alone() -> None:
    values = good(length=200)
    values["terminated"], values["truncated"] = values["truncated"], values["terminated"]
    values["terminated"][399] = False  # a jump
    values["rewards"][20] = np.nan
    values["observations"][750] = np.inf
    values["actions"][5] = 3.0
    before = {name: array.copy() for name, array in values.items()}
    arrays, notes = repair_transitions(values, PENDULUM)
    for name, array in values.items():
        np.testing.assert_array_equal(array, before[name])
    assert len(notes) == 4
    assert any("dropped 2 rows" in note for note in notes)
    dataset = TransitionDataset.from_dict(arrays)
    assert len(dataset) == 1598
    assert dataset.arrays["truncated"][19]  # the episode ends before the row that was dropped
    assert dataset.arrays["truncated"][398]  # and where the jump is, one row earlier now
    assert dataset.arrays["actions"][5] == 2.0
    assert not dataset.arrays["terminated"].any()
    assert dataset.episode_lengths.tolist() == [20, 179, 200, 200, 150, 49, *[200] * 4]
    assert inspect_transitions(dataset, PENDULUM).is_sane
    again, nothing = repair_transitions(dataset, PENDULUM)
    assert nothing == []
    np.testing.assert_array_equal(again["observations"], dataset.arrays["observations"])


@pytest.mark.parametrize("offset", [0, 2])
def test_repair_rebuilds_misaligned_next_observations(offset: int) -> None:
    values = good()
    right = values["next_observations"]
    values["next_observations"] = np.roll(values["observations"], -offset, axis=0)
    dataset = TransitionDataset.from_dict(repair_transitions(values)[0])
    assert dataset.usable is not None
    np.testing.assert_array_equal(dataset.arrays["next_observations"][dataset.usable], right[dataset.usable])
    assert int((~dataset.usable).sum()) == 8


def test_repair_takes_rows_that_look_into_the_next_episode_out_of_the_sample() -> None:
    values = good()
    values["next_observations"] = np.roll(values["observations"], -1, axis=0)
    dataset = TransitionDataset.from_dict(repair_transitions(values)[0])
    assert dataset.usable is not None
    assert np.flatnonzero(~dataset.usable).tolist() == list(range(39, 319, 40))
    assert inspect_transitions(dataset).is_sane
    assert repair_transitions(dataset)[1] == []


def test_repair_knows_time_outs_before_it_judges_what_last_rows_look_at() -> None:
    values = good(length=200)
    values["next_observations"] = np.roll(values["observations"], -1, axis=0)
    values["terminated"], values["truncated"] = values["truncated"], values["terminated"]
    assert "usable" not in repair_transitions(values)[0]  # nothing is learned from what follows a termination
    arrays, notes = repair_transitions(values, PENDULUM)
    assert len(notes) == 2
    assert np.flatnonzero(~arrays["usable"]).tolist() == list(range(199, 1599, 200))


def test_repair_hides_the_next_episode_from_hindsight(point_data: TransitionDataset) -> None:
    arrays = {**point_data.arrays, "terminated": point_data.arrays["truncated"], "truncated": np.zeros(300, bool)}
    names = ("observations", "achieved_goals", "desired_goals")
    arrays |= {f"next_{name}": np.roll(arrays[name], -1, axis=0) for name in names}
    assert inspect_transitions(arrays).finding("crosses-episodes").count == 5  # type: ignore[union-attr]
    mended, notes = repair_transitions(arrays)
    assert len(notes) == 1
    for name in names:
        np.testing.assert_array_equal(mended[f"next_{name}"][49:299:50], mended[name][49:299:50])
    assert inspect_transitions(mended).is_sane


def test_repair_says_what_it_left() -> None:
    assert any(note.startswith("left as it is: spaces: ") for note in repair_transitions(good(), "CartPole-v1")[1])
    values = good(length=150)
    del values["next_observations"]
    values["truncated"][[149, 299]] = False
    notes = repair_transitions(values)[1]
    assert len(notes) == 1
    assert notes[0].startswith("left as it is: leaps: after 2 rows")
    assert "ends of episodes that are not marked" in notes[0]
    with pytest.raises(DatasetError, match="terminated is 2 at row 0"):
        repair_transitions({**good(), "terminated": np.full(320, 2)})


def test_repair_without_an_environment_does_not_guess_bounds_or_limits() -> None:
    values = good(length=200)
    values["terminated"], values["truncated"] = values["truncated"], values["terminated"]
    values["actions"][5] = 3.0
    arrays, notes = repair_transitions(values)
    assert arrays["actions"][5] == 3.0
    assert arrays["terminated"].sum() == 8
    assert notes == ["actions outside [-1, 1] were left as they are: --env gives the bounds to clip them to"]
    values["rewards"][:] = np.nan
    with pytest.raises(DatasetError, match="nothing can be kept"):
        repair_transitions(values)


# Collection


def test_collected_data_is_seeded_whole_and_fit_for_its_environment(point_data: TransitionDataset) -> None:
    again = collect_dataset(POINT, "random", episodes=6, seed=1)[0]
    for name, array in point_data.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
    other = collect_dataset(POINT, "random", episodes=2, seed=2)[0]
    assert not np.array_equal(other.arrays["observations"][0], point_data.arrays["observations"][0])
    assert point_data.episode_lengths.tolist() == [50] * 6
    assert point_data.is_goal_conditioned
    assert not point_data.arrays["terminated"].any()
    assert not np.array_equal(point_data.arrays["desired_goals"][0], point_data.arrays["desired_goals"][50])
    assert collect_dataset("CartPole-v1", "random", episodes=2)[0].is_discrete
    pendulum = collect_dataset(PENDULUM, "random", episodes=1, env_kwargs={"g": 0.0})[0]
    assert 1.5 < np.abs(pendulum.arrays["actions"]).max() <= 2.0  # in the environment's units


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rl_training.config import parse_config

    settings = {"hidden_sizes": [8], "batch_size": 16, "learning_starts": 50, "buffer_capacity": 500}
    config = parse_config(
        {
            "algo": "her",
            "env_id": "rl_training/PointGoal1D-v0",
            "total_timesteps": 100,
            "eval_episodes": 1,
            "output_dir": str(tmp_path_factory.mktemp("runs")),
            "env_kwargs": {"max_steps": 30},
            "algo_kwargs": {**settings, "eval_interval": 100},
        }
    )
    return train_experiment(config).run_dir


def test_a_run_collects_in_its_own_environment_with_the_noise_asked_for(trained: Path) -> None:
    from rl_training.experiment.manager import load_policy

    exact, spec = collect_dataset(None, trained, episodes=2)
    assert spec is not None
    assert spec.id == "rl_training/PointGoal1D-v0"
    assert exact.episode_lengths.tolist() == [30, 30]
    learner = load_policy(trained)[0]
    observations = {
        "observation": exact.arrays["observations"],
        "achieved_goal": exact.arrays["achieved_goals"],
        "desired_goal": exact.arrays["desired_goals"],
    }
    np.testing.assert_allclose(learner.predict(observations), exact.arrays["actions"], atol=1e-5)
    noisy = collect_dataset(None, trained, episodes=2, noise=0.3)[0]
    assert not np.allclose(noisy.arrays["actions"][0], exact.arrays["actions"][0])
    assert np.abs(noisy.arrays["actions"]).max() <= 1
    np.testing.assert_array_equal(noisy.arrays["observations"][0], exact.arrays["observations"][0])
    with pytest.raises(ConfigError, match="trained with observation_dim 2"):
        collect_dataset(POINT, trained, episodes=1)


# The commands


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Answer]:
    """Return a function that runs the command line in this process and in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.delenv("RL_TRAINING_DATA", raising=False)

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["rl-training", "data", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return Answer(int(stop.value.code or 0), captured.out, captured.err)

    return run


def test_inspect_prints_a_report_or_one_json_object(run: Callable[..., Answer]) -> None:
    values = good()
    values["rewards"][3] = np.nan
    np.savez("a.npz", **values)
    answer = run("inspect", "a.npz")
    assert answer.code == 0
    assert "error: not-finite: rewards has NaN or infinity in 1 rows, first at row 3" in answer.out
    answer = run("inspect", "a.npz", "--env", PENDULUM, "--json")
    assert answer.code == 0
    report = json.loads(answer.out)
    assert report["errors"][0]["name"] == "not-finite"
    assert report["facts"]["transitions"] == 320
    assert run("inspect", "a.npz", "--strict").code == 2
    np.savez("b.npz", **good())
    assert run("inspect", "b.npz", "--strict").code == 0


RANDOM = ("collect", "--env", PENDULUM, "--policy", "random", "--episodes")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "none.npz"), "none.npz: no such file"),
        (("inspect", "empty.npz"), "it is empty"),
        (("inspect", "short.npz"), "short.npz: rewards has shape (319,)"),
        (("inspect", "a.npz", "--env", "Nope-v0"), "no such environment"),
        (("inspect", "minari:nope-v0"), "downloading is off"),
        (("convert", "a.npz", "b.what"), "the format is not clear from the name"),
        (("convert", "none.npz", "b.npz"), "no such file"),
        (("convert", "nan.npz", "b.npz"), "rewards is not finite, first at row 3"),
        (("collect", "--policy", "random", "--episodes", 1, "-o", "b.npz"), "--env is required"),
        (("collect", "--policy", "nope", "--episodes", 1, "-o", "b.npz"), "no such run"),
        ((*RANDOM, 1, "-o", "b"), "the format is not clear from the name"),
        ((*RANDOM, 1, "--noise", "nan", "-o", "b.pt"), "noise"),
        ((*RANDOM, 1, "--noise", 0.5, "-o", "b.pt"), "its actions are random already"),
        ((*RANDOM, 1, "-o", "minari:no id"), "is not the id of a Minari dataset"),
        ((*RANDOM, 0, "-o", "b.npz"), "episodes"),
        ((*RANDOM, 1, "-o", "a.npz/b.npz"), "cannot be written"),
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(
    run: Callable[..., Answer], arguments: tuple[object, ...], message: str
) -> None:
    if any("minari" in str(argument) for argument in arguments):
        pytest.importorskip("minari")
    values = good()
    np.savez("a.npz", **values)
    np.savez("short.npz", **{**values, "rewards": values["rewards"][:-1]})
    values["rewards"][3] = np.nan
    np.savez("nan.npz", **values)
    Path("empty.npz").touch()
    answer = run(*arguments)
    assert answer.code == 2, answer
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert sorted(path.name for path in Path().glob("*.*")) == ["a.npz", "empty.npz", "nan.npz", "short.npz"]


def test_convert_copies_exactly_and_says_what_repair_did(run: Callable[..., Answer]) -> None:
    write_transitions(TransitionDataset.from_dict(good()), "a.npz")
    answer = run("convert", "a.npz", "folder/b.pt")
    assert answer.code == 0, answer.err
    assert "320 transitions in folder/b.pt" in answer.out
    for name, array in load_transition_dataset("folder/b.pt").arrays.items():
        np.testing.assert_array_equal(array, load_transition_dataset("a.npz").arrays[name])
    assert "nothing needed repair" in run("convert", "a.npz", "c.npz", "--repair").out
    values = good()
    values["rewards"][3] = np.nan
    np.savez("nan.npz", **values)
    answer = run("convert", "nan.npz", "d.npz", "--repair", "--json")
    assert json.loads(answer.out)["repairs"] == [
        "dropped 1 rows that are not finite; the rest of 1 episodes is marked as fragments, which dataset_top_fraction"
        " leaves out"
    ]
    assert len(load_transition_dataset("d.npz")) == 319


def test_collect_writes_files_and_minari_datasets(run: Callable[..., Answer], trained: Path) -> None:
    random = ("collect", "--env", POINT, "--policy", "random", "--episodes", 3, "--set", "max_steps=10")
    answer = run(*random, "-o", "a.npz", "--json")
    assert answer.code == 0, answer.err
    summary = json.loads(answer.out)
    assert summary["transitions"] == 30
    assert summary["env_id"] == POINT
    assert load_transition_dataset("a.npz").episode_lengths.tolist() == [10] * 3
    answer = run("collect", "--policy", trained, "--episodes", 1, "--noise", 0.1, "--seed", 4, "-o", "b.npz")
    assert answer.code == 0, answer.err
    assert "30 transitions of 1 episodes in b.npz" in answer.out
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    answer = run(*random, "-o", "minari:point/random-v0")
    assert answer.code == 0, answer.err
    dataset = minari.load_dataset("point/random-v0")
    assert dataset.total_steps == 30
    np.testing.assert_array_equal(dataset.action_space.high, np.ones(2))
    assert "already" in run(*random, "-o", "minari:point/random-v0").err
    assert dataset.env_spec.id == POINT
    assert dataset.env_spec.kwargs == {"max_steps": 10}
    np.testing.assert_array_equal(
        read_transitions("minari:point/random-v0")["observations"], read_transitions("a.npz")["observations"]
    )


def test_unknown_names_and_endings_are_given_on_the_command_line(run: Callable[..., Answer]) -> None:
    values = good()
    values["sensor"], values["over"] = values.pop("observations"), values.pop("truncated")
    with open("log.data", "wb") as file:
        np.savez(file, **values)
    options = ("--kind", "npz", "--rename", "sensor=observations", "--rename", "over=timeouts")
    answer = run("inspect", "log.data", *options, "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["facts"]["episodes"] == 8
    assert run("convert", "log.data", "b.pt", *options).code == 0
    np.testing.assert_array_equal(load_transition_dataset("b.pt").arrays["observations"], values["sensor"])
    for wrong, message in (
        (("--kind", "npz"), "key 'observations' (or obs, "),
        (options[2:], "the format is not clear from the name"),
        (("--kind", "nope"), "dataset_kind 'nope' is not a file format"),
        (("--kind", "npz", "--rename", "sensor"), "--rename sensor: expected NAME=KEY"),
        (("--kind", "npz", "--rename", "none=observations"), "there is no 'none' to rename"),
    ):
        answer = run("inspect", "log.data", *wrong)
        assert answer.code == 2
        assert message in answer.err
        assert len(answer.err.splitlines()) == 1
    values["rewards"][3] = np.nan
    values["rew"] = values.pop("rewards")
    np.savez("nan.npz", **values)
    assert "not-finite: rew (rewards) has NaN" in run("inspect", "nan.npz", *options[2:]).out


def test_formats_that_names_do_not_tell_are_given_for_targets_too(run: Callable[..., Answer]) -> None:
    collect = ("collect", "--env", POINT, "--policy", "random", "--episodes", 2, "--set", "max_steps=5")
    assert run(*collect, "-o", "log.data", "--kind", "csv").code == 0
    assert Path("log.data").read_text().startswith("episode_index,observation_0,observation_1,")
    assert run("convert", "log.data", "copy.data", "--kind", "csv", "--target-kind", "npz").code == 0
    first, second = load_transition_dataset("log.data", "csv"), load_transition_dataset("copy.data", "npz")
    assert first.fingerprint() == second.fingerprint()
    assert run("convert", "copy.data", "test/copy-v0", "--kind", "npz", "--target-kind", "minari").code == 0
    assert read_transitions("minari:test/copy-v0")["observations"].shape == (10, 4)
    Path("folder").mkdir()
    for arguments, message in (
        ((*collect, "-o", "x.data"), "x.data: the format is not clear from the name"),
        ((*collect, "-o", "x.data", "--kind", "cvs"), "'cvs' cannot be written (did you mean 'csv'?); expected npz, "),
        ((*collect, "-o", "folder"), "folder: a folder; expected the name of a file"),
        (("convert", "log.data", "x.npz", "--kind", "scv"), "'scv' is not a file format (did you mean 'csv'?)"),
        (("convert", "log.data", "x.data", "--kind", "csv"), "x.data: the format is not clear from the name"),
        (("convert", "log.data", "x", "--kind", "csv", "--target-kind", "lerobot"), "'lerobot' cannot be written"),
        (("inspect", "log.data", "--kind", "lerobot"), "log.data: not the folder of a LeRobot dataset"),
    ):
        answer = run(*arguments)
        assert answer.code == 2
        assert message in answer.err
        assert len(answer.err.splitlines()) == 1
    assert not list(Path().glob("x*"))


def test_csv_goes_through_repair_and_back(run: Callable[..., Answer]) -> None:
    values = good()
    values["rewards"][5] = np.inf
    np.savez("a.npz", **values)
    assert run("convert", "a.npz", "b.csv", "--repair").code == 0
    assert run("convert", "a.npz", "b.npz", "--repair").code == 0
    assert run("convert", "b.csv", "c.npz").code == 0
    assert load_transition_dataset("c.npz").fingerprint() == load_transition_dataset("b.npz").fingerprint()
    text = Path("b.csv").read_text().splitlines()
    Path("cut.csv").write_text("\n".join(text[:20]) + "\n" + text[20][:30])
    answer = run("inspect", "cut.csv")
    assert (answer.code, len(answer.err.splitlines())) == (2, 1)
    assert "cut.csv: line 21 has " in answer.err


def test_interventions_are_counted_and_are_the_offline_data_of_a_run(tmp_path: Path) -> None:
    from rl_training.config import parse_config
    from rl_training.runtime import train_bc
    from rl_training.runtime.callbacks import Callback

    class Look(Callback):
        def on_training_start(self, trainer: Any) -> None:
            self.data = trainer.experience

    values = {**good(), "intervention": np.arange(320) % 40 > 30}
    assert inspect_transitions(TransitionDataset.from_dict(values)).facts["interventions"] == 72
    np.savez(tmp_path / "log.npz", **values)

    def train(**settings: Any) -> Any:
        look = Look()
        base = {"dataset_path": str(tmp_path / "log.npz"), "hidden_sizes": [8], **settings}
        config = {"algo": "bc", "total_timesteps": 2, "output_dir": str(tmp_path), "algo_kwargs": base}
        with pytest.warns(UserWarning, match="no env_id"):
            train_bc(parse_config(config), callbacks=[look])
        return look.data

    assert train().usable is None
    chosen = train(dataset_rows="interventions")
    np.testing.assert_array_equal(chosen.usable, values["intervention"])
    flagged = set(values["rewards"][values["intervention"]].tolist())
    assert set(chosen.sample(500).rewards.tolist()) <= flagged
    del values["intervention"]
    np.savez(tmp_path / "log.npz", **values)
    with pytest.raises(DatasetError, match=r"log\.npz: dataset_rows = 'interventions' needs a flag in each row"):
        train_bc(
            parse_config(
                {
                    "algo": "bc",
                    "total_timesteps": 2,
                    "output_dir": str(tmp_path / "none"),
                    "algo_kwargs": {"dataset_path": str(tmp_path / "log.npz"), "dataset_rows": "interventions"},
                }
            )
        )
    assert not (tmp_path / "none").exists()


def test_hindsight_relabels_interventions_only() -> None:
    from rl_training.data.hindsight_dataset import HindsightDataset
    from rl_training.envs.factory import make_env, space_spec
    from rl_training.envs.goals import GoalFunctions

    dataset, _ = collect_dataset(POINT, "random", episodes=3, env_kwargs={"max_steps": 10})
    flags = np.arange(30) % 10 >= 6  # the last four steps of each episode
    marked = TransitionDataset.from_dict({**dataset.arrays, "intervention": flags}).only_interventions()
    env = make_env(POINT)
    data = HindsightDataset(marked, space_spec(env), GoalFunctions(env))
    seen = {row.tobytes() for row in data.sample(300).observations[:, :4].numpy()}
    assert seen == {row.tobytes() for row in dataset.arrays["observations"][flags]}


def test_convert_replaces_a_file_only_when_told_to(run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez("a.npz", **good())
    Path("b.npz").write_bytes(b"precious")
    answer = run("convert", "a.npz", "b.npz")
    assert answer.code == 2
    assert "b.npz: exists already; expected another name, or --overwrite to replace it" in answer.err
    for reply, code in (("n", 2), ("y", 0)):
        asked: list[str] = []
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)

        def confirm(question: str, asked: list[str] = asked, reply: str = reply, **_: Any) -> bool:
            asked.append(question)
            return reply == "y"

        monkeypatch.setattr("typer.confirm", confirm)
        assert Path("b.npz").read_bytes() == b"precious"
        assert run("convert", "a.npz", "b.npz").code == code
        assert asked == ["b.npz exists already. Replace it?"]
    assert len(load_transition_dataset("b.npz")) == 320
    for option in ("--overwrite", "-y"):
        Path("b.npz").write_bytes(b"old")
        assert run("convert", "a.npz", "b.npz", option).code == 0
        assert len(load_transition_dataset("b.npz")) == 320


def test_what_repair_cuts_is_marked_and_not_among_the_best() -> None:
    values = good(length=40)
    values["rewards"] = np.full(320, -1, np.float32)
    values["observations"][[45, 100]] = np.nan  # in the second and the third episode
    arrays, notes = repair_transitions(values)
    assert "the rest of 2 episodes is marked as fragments" in notes[0]
    dataset = TransitionDataset.from_dict(arrays)
    assert dataset.episode_lengths.tolist() == [40, 5, 34, 20, 19, *[40] * 5]
    assert dataset.complete_episodes.tolist() == [True, *[False] * 4, *[True] * 5]
    assert dataset.top_episodes(0.2).episode_lengths.tolist() == [40]
    assert inspect_transitions(dataset).facts["fragments"] == 4
    assert repair_transitions(dataset)[1] == []


def test_a_run_on_a_file_replaces_random_play_and_warns_of_terminations_at_the_limit(tmp_path: Path) -> None:
    from rl_training.config import parse_config

    values = good()
    values["terminated"], values["truncated"] = values["truncated"], values["terminated"]
    np.savez(tmp_path / "log.npz", **values)
    settings = {"dataset_kind": "random", "dataset_path": str(tmp_path / "log.npz"), "hidden_sizes": [8]}
    config = parse_config({"algo": "bc", "total_timesteps": 2, "output_dir": str(tmp_path), "algo_kwargs": settings})
    with pytest.warns(UserWarning, match=r"log\.npz: 8 episodes of 40 steps are marked as terminated"):
        assert train_experiment(config).global_step == 2
