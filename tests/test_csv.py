"""CSV files: which columns are read, and what a wrong file is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.errors import DatasetError

NAMES = "observation_0,observation_1,action_0,reward,terminated,truncated"
ROWS = ["0,1,0.5,1,0,0", "2,3,-0.5,0,1,0", "4,5,0.25,-1,0,0", "6,7,1,0.5,0,1"]


def csv(folder: Path, *lines: str) -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_column_for_each_number(tmp_path: Path) -> None:
    data = load_transition_dataset(csv(tmp_path, NAMES, *ROWS)).arrays
    assert data["observations"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert data["actions"].tolist() == [[0.5], [-0.5], [0.25], [1]]
    assert data["rewards"].tolist() == [1, 0, -1, 0.5]
    assert data["terminated"].tolist() == [False, True, False, False]
    assert data["truncated"].tolist() == [False, False, False, True]
    assert all(array.dtype == np.float32 for array in data.values() if array.dtype != bool)


@pytest.mark.parametrize(
    "header",
    [
        "obs_1,obs_2,act_1,rew,terminal,timeout",
        "observation.0,observation.1,actions.0,rewards,terminals,timeouts",
        "state[0],state[1],action[0],reward,terminated,truncated",
        " Observation_0, Observation_1 ,Action_0,Reward,Terminated,Truncated",
        '"observation.state_0","observation.state_1","action_0","next.reward","next.terminated","next.truncated"',
    ],
)
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_names_and_separators_of_others(header: str, separator: str, tmp_path: Path) -> None:
    expected = load_transition_dataset(csv(tmp_path, NAMES, *ROWS))
    lines = [line.replace(",", separator) for line in (header, *ROWS)]
    (tmp_path / "other.csv").write_text("\ufeff\r\n" + "\r\n".join(lines), encoding="utf-8")
    assert load_transition_dataset(tmp_path / "other.csv").fingerprint() == expected.fingerprint()


def test_columns_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    names = [f"obs_{index}" for index in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)]
    path = csv(tmp_path, ",".join([*names, "action_0", "reward", "done"]), ",".join(map(str, range(14))))
    with pytest.raises(DatasetError, match="done is 13"):
        load_transition_dataset(path)
    path = csv(tmp_path, ",".join([*names, "action_0", "reward", "done"]), "10,2,0,1,3,4,5,6,7,8,9,0,0,1")
    assert load_transition_dataset(path).arrays["observations"].tolist() == [list(range(11))]


@pytest.mark.parametrize(("name", "ids"), [("episode", "1 1 7 7"), ("episode_id", "b b a a"), ("Episode", "x x y y")])
def test_one_column_of_ids_ends_the_episodes(name: str, ids: str, tmp_path: Path) -> None:
    rows = [f"{row},{id_}" for row, id_ in zip(["0,0,0", "1,1,1", "2,2,2", "3,3,3"], ids.split(), strict=True)]
    dataset = load_transition_dataset(csv(tmp_path, f"obs_0,action_0,reward,{name}", *rows))
    assert dataset.episode_lengths.tolist() == [2, 2]
    assert dataset.arrays["truncated"].tolist() == [False, True, False, True]
    mixed = [rows[0], rows[2], rows[1], rows[3]]
    with pytest.raises(DatasetError, match=f"{name} of row 2 is that of an earlier episode"):
        load_transition_dataset(csv(tmp_path, f"obs_0,action_0,reward,{name}", *mixed))


def test_goals_and_words_for_flags(tmp_path: Path) -> None:
    header = "obs_0,achieved_goal_0,achieved_goal_1,desired_goal_0,desired_goal_1,action_0,reward,done,intervention"
    path = csv(tmp_path, header, "0,1,2,3,4,0,0,False,true", "", "5,6,7,8,9,0,0, TRUE ,0")
    dataset = load_transition_dataset(path)
    assert dataset.arrays["desired_goals"].tolist() == [[3, 4], [8, 9]]
    assert dataset.arrays["terminated"].tolist() == [False, True]
    assert dataset.arrays["interventions"].tolist() == [True, False]


def test_whole_numbers_in_one_column_are_indices_of_actions(tmp_path: Path) -> None:
    for header, cells, discrete in (
        ("action", ("0", "3"), True),
        ("action", ("0", "3.0"), False),
        ("action_0", ("0", "3"), False),
    ):
        dataset = load_transition_dataset(
            csv(tmp_path, f"obs_0,{header},reward,done", f"0,{cells[0]},0,0", f"0,{cells[1]},0,1")
        )
        assert dataset.is_discrete == discrete
        assert dataset.actions.reshape(-1).tolist() == [0, 3]
    path = csv(tmp_path, "obs_0,button,reward,done", "0,2,0,0", "0,1,0,1")
    assert load_transition_dataset(path, rename={"button": "actions"}).is_discrete


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([NAMES, ROWS[0], "0,1,2"], "line 3 has 3 values; expected 6, as the header has"),
        ([NAMES, *ROWS, "0,1,x,1,0,0"], "action_0 is 'x' in line 6; expected a number"),
        ([NAMES, "0,1,,1,0,0"], "action_0 is '' in line 2; expected a number"),
        (["observation,action,reward,done", '"[0, 1]",0,0,1'], r"'\[0, 1\]' in line 2; .*observation_0, observation_1"),
        (ROWS, "the first line has no names; expected a header such as observation_0"),
        (["obs_0,obs_2,action_0,reward,done", "0,0,0,0,1"], "column obs_1 is missing beside obs_2"),
        (["obs_2,action_0,reward,done", "0,0,0,1"], "column obs_0 is missing beside obs_2"),
        (["obs_0,obs_0,action_0,reward,done", "0,0,0,0,1"], "column obs_0 is there twice"),
        (["obs,obs_0,action_0,reward,done", "0,0,0,0,1"], "a column obs, and also columns with numbers after it"),
        (["obs_0,action_0,done", "0,0,1"], r"key 'rewards' .*is missing; found action_0, done, obs_0"),
        (["algo: bc", "total: 2", "x: {a: 1, b: 2}"], "key 'observations' .*is missing; found algo: bc"),
        ([NAMES], "there are no transitions in it"),
        ([""], "the first line has no names"),
        ([NAMES, '"0'], "not a CSV file that can be read: unexpected end of data"),
        ([NAMES, "nan,1,0,1,0,1"], r"observation \(observations\) is not finite, first at row 0"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        load_transition_dataset(csv(tmp_path, *lines))
    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(NAMES, encoding="utf-16")
    with pytest.raises(DatasetError, match="it is not UTF-8 text"):
        load_transition_dataset(tmp_path / "a.csv")
