"""What a user looks up: presets with scores and times, doctor, help, shell completion."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from rl_training.cli.entry import app
from rl_training.cli.help import EXAMPLES
from rl_training.config import load_config, preset_names
from rl_training.experiment.doctor import variable_clashes, version_clashes
from rl_training.experiment.preset_table import read_preset
from rl_training.experiment.preset_time import Duration, measure_duration
from test_cli import Run, run  # noqa: F401 (a fixture)

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
GOAL_PRESETS = {
    "FetchReach-v4": "her/fetch_reach",
    "FetchPush-v4": "her/fetch_push",
    "FetchPickAndPlace-v4": "her/fetch_pick_and_place",
    "FetchSlide-v4": "her/fetch_slide",
    "PointMaze_Medium-v3": "her/point_maze",
}
CPU_PRESETS = {
    "FetchPush-v4": "her/fetch_push_cpu",
    "PointMaze_Medium-v3": "her/point_maze_cpu",
    "PandaPickAndPlace-v3": "her/panda_pick_and_place_cpu",
}
UNMEASURED = {f"her/{task}" for task in ("hand_reach", "panda_push", "panda_pick_and_place")}


class TestPresets:
    @pytest.mark.parametrize("name", preset_names())
    def test_every_preset_says_what_it_is_for_and_what_to_expect(self, name: str) -> None:
        preset = read_preset(name)
        assert re.fullmatch(r"[A-Z].{20,110}\.", preset.purpose)
        if name in UNMEASURED:
            assert preset.expect == "not measured yet"
            return
        assert re.fullmatch(r"(success rate|return) -?[\d.,]+ \((1 seed|\d seeds, worst -?[\d.,]+)\)", preset.expect)

    def test_goal_tasks_have_one_set_of_settings(self) -> None:
        tasks = ["fetch_push", "fetch_pick_and_place", "fetch_slide", "point_maze", "hand_reach", "panda_push"]
        presets = [load_config(f"her/{task}") for task in [*tasks, "panda_pick_and_place"]]
        assert len({preset.num_envs for preset in presets}) == 1
        for preset in presets[1:]:
            differing = {key for key, value in preset.algo_kwargs.items() if presets[0].algo_kwargs[key] != value}
            assert differing <= {"gamma"}
            assert preset.algo_kwargs.keys() == presets[0].algo_kwargs.keys()
        for task in ("fetch_push", "point_maze", "panda_pick_and_place"):
            large, small = load_config(f"her/{task}"), load_config(f"her/{task}_cpu")
            assert small.total_timesteps == large.total_timesteps
            for preset in (large, small):
                preset.algo_kwargs.pop("overlap_collection", None)
                preset.algo_kwargs.pop("batch_size")
            assert small.algo_kwargs == large.algo_kwargs

    def test_expected_scores_are_the_measured_ones(self) -> None:
        measured: dict[str, list[tuple[str, float]]] = {}
        for file in RESULTS.glob("learning_*.json"):
            for row in json.loads(file.read_text()):
                # The default backend of her/point_reach is written out there.
                if row["overrides"] in ([], ["algo_kwargs.backend=ddpg"]):
                    kind = "success rate" if "eval/success_rate" in row else "return"
                    score = row["eval/success_rate" if kind == "success rate" else "eval/mean_reward"]
                    measured.setdefault(row["preset"], []).append((kind, score))
        for file_name, presets in (("goals.json", GOAL_PRESETS), ("goals_cpu.json", CPU_PRESETS)):
            for row in json.loads((RESULTS / file_name).read_text()):
                measured.setdefault(presets[row["task"]], []).append(("success rate", row["curve"][-1][1]))
        assert len(measured) > 20
        for name, rows in measured.items():
            kind, scores = rows[0][0], [score for _, score in rows]
            form = ".2f" if kind == "success rate" else ",.0f"
            mean, worst = format(sum(scores) / len(scores), form), format(min(scores), form)
            seeds = f"{len(scores)} seeds, worst {worst}" if len(scores) > 1 else "1 seed"
            assert read_preset(name).expect == f"{kind} {mean} ({seeds})", name

    def test_the_list_shows_purpose_and_score(self, run: Run) -> None:  # noqa: F811
        text = re.sub(r"\s+", " ", run("presets", "her").out)
        for name in (name for name in preset_names() if name.startswith("her/")):
            assert f"{read_preset(name).purpose} expect {read_preset(name).expect}" in text
        answer = run("presets", "her/point_goal", "--json").json
        assert answer == {
            "her/point_goal": {
                "env_id": "rl_training/PointGoal1D-v0",
                "total_timesteps": 3000,
                "purpose": read_preset("her/point_goal").purpose,
                "expect": read_preset("her/point_goal").expect,
            }
        }

    def test_the_time_is_measured_and_leaves_nothing_behind(self, run: Run, tmp_path: Path) -> None:  # noqa: F811
        before = sorted(Path.cwd().iterdir())
        answer = run("presets", "bc/pendulum", "--time")
        assert re.match(r"# Time on this machine: about \d+ (s|min)\n", answer.out)
        file = tmp_path / "mine.yaml"
        file.write_text(answer.out)
        assert load_config(file) == load_config("bc/pendulum")  # the time is a comment
        assert sorted(Path.cwd().iterdir()) == before

    def test_the_estimate_grows_with_the_run(self) -> None:
        small = ["algo_kwargs.hidden_sizes=[8]", "compile=false"]  # a long run would be compiled for some seconds
        config = load_config("her/point_goal", small)
        long = load_config("her/point_goal", [*small, "total_timesteps=3000000"])
        short_time, long_time = measure_duration(config), measure_duration(long)
        assert short_time.seconds is not None
        assert long_time.seconds is not None
        assert 200 < long_time.seconds / short_time.seconds < 5000  # a thousand times as many steps and evaluations

    def test_a_preset_that_cannot_run_here_says_why(self) -> None:
        duration = measure_duration(load_config("her/point_goal", ["env_id=no_such_module:Env-v0"]))
        assert duration.seconds is None
        assert "no_such_module" in str(duration)

    @pytest.mark.parametrize(
        ("seconds", "text"), [(0.2, "about 1 s"), (99, "about 99 s"), (150, "about 2 min"), (9000, "about 2.5 h")]
    )
    def test_durations_are_readable(self, seconds: float, text: str) -> None:
        assert str(Duration(seconds)) == text


class TestDoctor:
    def test_mujoco_4_with_gymnasium_robotics_1_4_2(self) -> None:
        (problem,) = version_clashes({"mujoco": "4.0.0", "gymnasium-robotics": "1.4.2"}, ["mujoco<3.4,>=3.1"])
        assert "mujoco 4.0.0 and gymnasium-robotics 1.4.2" in problem
        assert 'pip install "mujoco<3.4"' in problem
        assert version_clashes({"mujoco": "3.3.7", "gymnasium-robotics": "1.4.2"}, ["mujoco<3.4,>=3.1"]) == []
        assert version_clashes({"mujoco": "4.0.0", "gymnasium-robotics": "1.5.0"}, []) == []

    def test_versions_outside_what_the_package_asks_for(self) -> None:
        (problem,) = version_clashes({"gymnasium": "0.29.1", "torch": "2.13.0+cpu"}, ["gymnasium>=1.1", "torch>=2.4"])
        assert "gymnasium 0.29.1 is outside >=1.1" in problem

    def test_variables(self, tmp_path: Path) -> None:
        assert variable_clashes({"RL_TRAINING_DATA": str(tmp_path), "MUJOCO_GL": "egl"}) == []
        data, rendering = variable_clashes({"RL_TRAINING_DATA": str(tmp_path / "no"), "MUJOCO_GL": "disabled"})
        assert "no such folder" in data
        assert "--video" in rendering

    def test_problems_are_printed(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
        monkeypatch.setenv("RL_TRAINING_DATA", "/no/such/folder")
        answer = run("doctor")
        assert answer.code == 0
        assert "problem: RL_TRAINING_DATA = /no/such/folder" in answer.out
        assert run("doctor", "--json").json["problems"]


def commands() -> dict[str, object]:
    """Return every command by the words that call it."""
    root = get_command(app)
    found = {}
    for name, command in root.commands.items():
        below = getattr(command, "commands", None)
        found |= {f"{name} {inner}": each for inner, each in below.items()} if below else {name: command}
    return found


@pytest.mark.parametrize("name", commands())
def test_help_is_complete(name: str) -> None:
    command = commands()[name]
    assert command.help
    assert [parameter.name for parameter in command.params if not getattr(parameter, "help", None)] == []
    words = name.split()
    for example in EXAMPLES[name]:
        program, *arguments = shlex.split(example)
        assert program == "rl-training"
        assert arguments[: len(words)] == words
        command.make_context(name, arguments[len(words) :])  # it can be parsed


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash(tmp_path: Path) -> None:
    """The script that --show-completion prints completes in a real bash."""
    (tmp_path / "runs" / "first-s0").mkdir(parents=True)
    (tmp_path / "runs" / "first-s0" / "config.yaml").touch()
    program = "import sys; sys.argv[0] = 'rl-training'; from rl_training.__main__ import main; main()"
    (tmp_path / "rl-training").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    (tmp_path / "rl-training").chmod(0o755)
    tries = [("tr",), ("train", "her/point_r"), ("train", "--resume-"), ("evaluate", "r"), ("train", "mine.y")]
    script = ['eval "$(rl-training --show-completion bash)"']
    for words in tries:
        script += [f"COMP_WORDS=(rl-training {' '.join(words)}); COMP_CWORD={len(words)}; COMPREPLY=()"]
        script += ["_rl_training_completion rl-training", 'echo "${COMPREPLY[*]}"']
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    answer = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert answer.stderr == ""
    assert answer.stdout.splitlines() == [
        "train",
        "her/point_reach her/point_reach_demos",
        "--resume-auto",
        "runs/first-s0",
        "",  # the shell completes file names
    ]


@pytest.mark.parametrize(("words", "expected"), [("train her/point_g", '"her/point_goal"'), ("train mine", "_files")])
def test_completion_in_zsh(words: str, expected: str) -> None:
    code = "import sys; sys.argv[0] = 'rl-training'; from rl_training.__main__ import main; main()"
    environment = {"_RL_TRAINING_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"rl-training {words}"}
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert expected in answer.stdout, answer.stderr
