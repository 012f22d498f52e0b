"""Sweeps: the trials of a file, their states, the SLURM script, and a driver that is killed and started again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training import cli
from rl_training.config import parse_config
from rl_training.errors import CheckpointError, ConfigError, RunLockedError
from rl_training.experiment.report import write_report
from rl_training.experiment.run_folder import train_in_folder, train_stack_in_folders
from rl_training.runtime.checkpointing import resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.run_lock import lock_run
from rl_training.runtime.settings import complete_config, read_stack
from rl_training.scale import Sweep, Trial, read_sweep, trial_state
from rl_training.scale.board import state_lines, summary
from rl_training.scale.cluster import import_ray
from rl_training.scale.driver import check_sweep
from rl_training.scale.ranges import Range
from rl_training.scale.slurm import slurm_script
from rl_training.scale.trials import trial_name
from rl_training.tools.comparison import full_state, state_differences

TINY = {
    "total_timesteps": 120,
    "eval_episodes": 1,
    "loggers": ["csv"],
    "algo_kwargs.learning_starts": 60,
    "algo_kwargs.batch_size": 16,
    "algo_kwargs.hidden_sizes": [16, 16],
    "algo_kwargs.eval_interval": 40,
    "algo_kwargs.checkpoint_interval": 40,
    "algo_kwargs.log_interval": 20,
}


def sweep_file(tmp_path: Path, text: str = "", **values: Any) -> Path:
    """Write a sweep's file: of ``text``, or of a small default with ``values`` on top."""
    given = {"base": "her/point_goal", "set": TINY, "folder": str(tmp_path / "runs"), **values}
    file = tmp_path / "sweep.yaml"
    file.write_text(text or yaml.safe_dump(given, sort_keys=False))
    return file


def names(file: Path) -> list[str]:
    return [trial.name for trial in read_sweep(file).trials]


def final_state(run: Path) -> dict[str, Any]:
    rows = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_metrics(run / "metrics.csv")]
    return {**full_state(resolve_checkpoint(run / "checkpoints")), "metrics.csv": rows}


def command(*arguments: object) -> tuple[int, str]:
    """Run a command in this process, and return its exit code and stdout."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", ["rl-training", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
    return int(exit_info.value.code or 0), output.getvalue()


def test_grid_list_random_and_seeds_are_combined(tmp_path):
    space = {
        "grid": {"algo_kwargs.gamma": [0.9, 0.95]},
        "list": [{}, {"algo_kwargs.backend": "sac"}],
        "random": {"algo_kwargs.learning_rate": {"loguniform": [1e-4, 1e-2]}},
        "samples": 3,
    }
    sweep = read_sweep(sweep_file(tmp_path, sweep=space, seeds="3-4"))
    assert len(sweep.trials) == 2 * 2 * 3 * 2
    assert len({trial.name for trial in sweep.trials}) == 24
    rates = {trial.changes["algo_kwargs.learning_rate"] for trial in sweep.trials}
    assert len(rates) == 3
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    for trial in sweep.trials:
        assert trial.config.seed in (3, 4)
        assert trial.config.total_timesteps == 120
        assert trial.config.algo_kwargs["gamma"] == trial.changes["algo_kwargs.gamma"]
        assert trial.config.algo_kwargs["backend"] == trial.changes.get("algo_kwargs.backend", "ddpg")
        assert trial.run_dir == tmp_path / "runs" / trial.name


def test_more_samples_and_more_keys_keep_the_draws(tmp_path):
    rate, gamma = {"uniform": [1e-4, 1e-2]}, {"choice": [0.9, 0.95, 0.97]}
    keys = {"algo_kwargs.learning_rate": rate}

    def drawn(samples: int, **more: Any) -> list[float]:
        file = sweep_file(tmp_path, sweep={"random": {**keys, **more}, "samples": samples})
        return [trial.changes["algo_kwargs.learning_rate"] for trial in read_sweep(file).trials]

    four = drawn(4)
    assert drawn(4) == four
    assert drawn(6)[:4] == four
    assert drawn(4, **{"algo_kwargs.gamma": gamma}) == four
    assert len(set(four)) == 4


def test_names_depend_on_the_changes_only(tmp_path):
    assert trial_name("her/point_goal", {}, 2) == "her-point_goal-s2"
    one = {"algo_kwargs.learning_rate": 1e-3, "algo_kwargs.backend": "sac"}
    assert trial_name("x", one, 0) == "backend=sac-learning_rate=0.001-s0"
    assert trial_name("x", dict(reversed(one.items())), 0) == trial_name("x", one, 0)
    paths = [trial_name("x", {"env_kwargs.file": value}, 0) for value in ("a/b", "a b", "a-b")]
    assert len(set(paths)) == 3
    assert paths[2] == "env_kwargs.file=a-b-s0"
    long = [trial_name("x", {"algo_kwargs.hidden_sizes": [64] * 60 + [n]}, 0) for n in (1, 2)]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 130


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sweep": {"grid": {"algo_kwargs.gama": [0.9]}}}, r"unknown key 'algo_kwargs.gama' \(did you mean 'gamma'"),
        ({"sweep": {"grid": {"algo_kwargs.gamma": [0.9, 1.5]}}}, r"gamma = 1.5: .*expected less than 1"),
        ({"sweep": {"grid": {"algo_kwargs.gamma": []}}}, r"sweep.grid.algo_kwargs.gamma is empty"),
        ({"sweep": {"grid": {"algo_kwargs.gamma": 0.9}}}, r"sweep.grid.*expected a valid list"),
        ({"sweep": {"list": []}}, r"sweep.list is empty"),
        ({"sweep": {"grd": {}}}, r"unknown key 'sweep.grd' \(did you mean 'grid'"),
        ({"sweep": {"grid": {"seed": [1]}}}, r"'seed' cannot be set here: use seeds"),
        ({"set": {"output_dir": "x"}}, r"'output_dir' cannot be set here: use folder"),
        ({"sweep": {"random": {"algo_kwargs.gamma": {"uniform": [0.9, 0.99]}}}}, r"random and sweep.samples belong"),
        ({"sweep": {"random": {"algo_kwargs.gamma": {"unifrm": [1, 2]}}, "samples": 1}}, r"did you mean 'uniform'"),
        ({"sweep": {"random": {"algo_kwargs.tau": {"loguniform": [0, 1]}}, "samples": 1}}, r"expected bounds above 0"),
        ({"sweep": {"random": {"algo_kwargs.tau": {"uniform": [1, 0]}}, "samples": 1}}, r"the smaller bound first"),
        ({"sweep": {"random": {"algo_kwargs.tau": {"int": [0.5, 2]}}, "samples": 1}}, r"expected a list such as int"),
        ({"sweep": {"grid": {"algo_kwargs.tau": [0.5]}, "list": [{"algo_kwargs.tau": 1}]}}, r"in two of grid, list"),
        ({"sweep": {"list": [{}, {"algo_kwargs.gamma": 0.95}]}}, r"her-point_goal-s0 and gamma=0.95-s0 are the same"),
        ({"seeds": "0-"}, r"seeds '0-': expected a range"),
        ({"seeds": []}, r"seeds = \[\]: expected a range"),
        ({"base": "her/point_gol"}, r"no preset or file 'her/point_gol' \(did you mean 'her/point_goal'"),
        ({"workers": 0}, r"workers = 0: expected greater than or equal to 1"),
        ({"sweep": {"grid": {"a": list(range(101)), "b": list(range(101))}}}, r"more than 10,000 configurations"),
        ({"sweep": {"grid": {"a": list(range(11))}}, "seeds": "0-999"}, r"11,000 trials: expected at most 10,000"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_written(tmp_path, values, message):
    file = sweep_file(tmp_path, **values)
    with pytest.raises(ConfigError, match=message):
        read_sweep(file)
    assert os.listdir(tmp_path) == ["sweep.yaml"]


def test_the_base_may_be_a_file_beside_the_sweep_or_a_configuration(tmp_path):
    base = {"algo": "her", "env_id": "rl_training/PointGoal1D-v0", "total_timesteps": 300}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(base))
    beside = read_sweep(sweep_file(tmp_path, base="mine.yaml"))
    inside = read_sweep(sweep_file(tmp_path, base=base))
    assert beside.trials[0].config == inside.trials[0].config
    assert [beside.trials[0].name, inside.trials[0].name] == ["mine-s0", "her-s0"]
    assert read_sweep(sweep_file(tmp_path, seeds=[7, 2, 7])).trials[0].config.seed == 7


def test_an_environment_that_cannot_be_made_is_refused(tmp_path):
    file = sweep_file(tmp_path, sweep={"grid": {"env_id": ["rl_training/PointGoal1D-v0", "Nowhere-v0"]}})
    code, _ = command("sweep", file)
    assert code == 2
    assert not (tmp_path / "runs").exists()


def commands_of(script: str, index: int, folder: Path) -> list[str]:
    """Run the script for one task of the array, with a stand-in for rl-training, and return its arguments."""
    stand_in = folder / "bin" / "rl-training"
    stand_in.parent.mkdir(exist_ok=True)
    told = "import json, pathlib, sys; a = sys.argv[1:]; print(json.dumps([*a, pathlib.Path(a[1]).exists()]))"
    stand_in.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{told}' \"$@\"\n")
    stand_in.chmod(0o755)
    environment = {"PATH": f"{stand_in.parent}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": str(index)}
    ended = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout)


@pytest.mark.parametrize("inline", [False, True])
def test_the_slurm_script_has_the_same_trials(tmp_path, inline):
    values = {"algo": "her", "env_id": "rl_training/PointGoal1D-v0", "total_timesteps": 300}
    space = {"grid": {"algo_kwargs.backend": ["ddpg", "sac"], "algo_kwargs.hidden_sizes": [[16], [16, 16]]}}
    base = values if inline else "her/point_goal"
    sweep = read_sweep(sweep_file(tmp_path, base=base, sweep=space, seeds="0,3"))
    script = slurm_script(sweep)
    assert "#SBATCH --array=0-7\n" in script
    for index in (0, 5, 7):
        trial = sweep.trials[index]
        *arguments, source_exists = commands_of(script, index, tmp_path)
        assert (arguments[0], source_exists) == ("train", inline)
        changes = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--set"]
        (config,) = read_stack(arguments[1], changes, [int(arguments[arguments.index("--seed") + 1])])
        assert complete_config(config).model_copy(update={"output_dir": trial.config.output_dir}) == trial.config
        assert arguments[arguments.index("--run-dir") + 1] == str(trial.run_dir)
    with pytest.raises(subprocess.CalledProcessError):
        commands_of(script, 8, tmp_path)


def one_trial(tmp_path: Path, **values: Any) -> Trial:
    (trial,) = read_sweep(sweep_file(tmp_path, **values)).trials
    return trial


def longer(steps: int) -> dict[str, Any]:
    return {"set": {**TINY, "total_timesteps": steps}}


def test_a_folder_tells_the_state_of_its_trial(tmp_path):
    trial = one_trial(tmp_path)
    assert trial_state(trial).status == "missing"
    first = train_in_folder(trial.config, trial.run_dir)
    assert (first.run_dir, first.global_step) == (trial.run_dir, 120)
    state = trial_state(trial)
    assert (state.status, state.step, state.is_done) == ("completed", 120, True)
    assert state.metrics["eval/success_rate"] == first.metrics["eval/success_rate"]
    written = (trial.run_dir / "result.json").stat().st_mtime_ns
    assert train_in_folder(trial.config, trial.run_dir) == first
    assert (trial.run_dir / "result.json").stat().st_mtime_ns == written

    more = one_trial(tmp_path, **longer(160))
    assert more.run_dir == trial.run_dir
    assert (trial_state(more).status, trial_state(more).is_done) == ("unfinished", False)
    code, text = command("sweep", tmp_path / "sweep.yaml", "--dry-run", "--json")
    plan = json.loads(text)
    assert (code, plan["steps"], plan["seconds"]) == (0, 40, None)
    assert train_in_folder(more.config, more.run_dir).global_step == 160
    assert trial_state(more).is_done

    with pytest.raises(ConfigError, match=r"total_timesteps = 120: the run in .* has 160 steps already"):
        check_sweep(read_sweep(sweep_file(tmp_path)))
    sweep_file(tmp_path, set={**TINY, "algo_kwargs.gamma": 0.9})
    with pytest.raises(ConfigError, match=r"its run has algo_kwargs.gamma = 0.95, not 0.9; expected a new folder"):
        check_sweep(read_sweep(tmp_path / "sweep.yaml"))
    with pytest.raises(ConfigError, match=r"its run has algo_kwargs.gamma = 0.95, not 0.9"):
        train_in_folder(one_trial(tmp_path, set={**TINY, "algo_kwargs.gamma": 0.9}).config, trial.run_dir)

    # Killed before the first checkpoint: the run begins again in the same folder.
    shutil.rmtree(more.run_dir / "checkpoints")
    (more.run_dir / "result.json").unlink()
    with lock_run(more.run_dir), pytest.raises(RunLockedError, match="another process is training this run"):
        train_in_folder(more.config, more.run_dir)
    assert train_in_folder(more.config, more.run_dir).global_step == 160
    (more.run_dir / "notes.txt").write_text("mine")
    shutil.rmtree(more.run_dir / "checkpoints")
    with pytest.raises(CheckpointError, match=r"notes.txt is not a file of a run"):
        train_in_folder(more.config, more.run_dir)
    assert (more.run_dir / "notes.txt").read_text() == "mine"


def test_the_seeds_of_a_configuration_are_one_stack(tmp_path):
    space = {"grid": {"algo_kwargs.gamma": [0.9, 0.95]}}
    sweep = read_sweep(sweep_file(tmp_path, sweep=space, seeds="0-1", stack=True))
    assert [[trial.config.seed for trial in group] for group in sweep.groups] == [[0, 1], [0, 1]]
    assert all(len({trial.config.algo_kwargs["gamma"] for trial in group}) == 1 for group in sweep.groups)
    with pytest.raises(ConfigError, match="--slurm has a command for each seed"):
        slurm_script(sweep)

    group = sweep.groups[0]
    configs, folders = [trial.config for trial in group], [trial.run_dir for trial in group]
    first = train_stack_in_folders(configs, folders)
    assert [(result.run_dir, result.global_step) for result in first] == [(folder, 120) for folder in folders]
    assert all(trial_state(trial).is_done for trial in group)
    assert train_stack_in_folders(configs, folders) == first
    longer_ones = [config.model_copy(update={"total_timesteps": 160}) for config in configs]
    assert [result.global_step for result in train_stack_in_folders(longer_ones, folders)] == [160, 160]
    with pytest.raises(ConfigError, match="its run was not trained in this stack"):
        train_stack_in_folders(longer_ones[:1], folders[:1])
    shutil.rmtree(folders[1])  # killed before all had a checkpoint: all begin again
    assert [result.global_step for result in train_stack_in_folders(longer_ones, folders)] == [160, 160]


def test_two_drivers_exclude_each_other(tmp_path, capsys):
    file = sweep_file(tmp_path)
    (tmp_path / "runs").mkdir()
    with lock_run(tmp_path / "runs", "running this sweep"):
        code, _ = command("sweep", file)
    assert code == 2
    assert f"in use by process {os.getpid()}" in (error := capsys.readouterr().err)
    assert "which is running this sweep" in error


def test_without_ray_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _ = command("sweep", sweep_file(tmp_path))
    assert code == 2
    assert "[scale]" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert command("sweep", tmp_path / "sweep.yaml", "--dry-run")[0] == 0


def test_an_address_without_a_cluster_is_refused(tmp_path, capsys):
    for address, message in (("127.0.0.1:1", "no Ray cluster answers there"), ("here", "expected auto or host:port")):
        code, _ = command("sweep", sweep_file(tmp_path), "--ray-address", address)
        assert (code, message in capsys.readouterr().err) == (2, True)
    assert not (tmp_path / "runs").exists()


def test_draws_stay_in_their_range_and_probes_find_the_type():
    for one in (Range("k", "uniform", (0.5, 0.6)), Range("k", "loguniform", (1e-5, 1e-4)), Range("k", "int", (3, 5))):
        drawn = [one.draw(0, number) for number in range(50)]
        assert all(one.values[0] <= value <= one.values[1] for value in drawn)
        assert len(set(drawn)) == 3 if one.kind == "int" else len(set(drawn)) > 45  # numbers have four digits
        assert drawn != [one.draw(1, number) for number in range(50)]
    assert any(value != int(value) for value in Range("k", "uniform", (1.0, 8.0)).probes())


def test_the_table_shows_states_and_errors(tmp_path):
    trial = one_trial(tmp_path)
    states = {trial.name: trial_state(trial), "other": trial_state(trial, error="no\nsuch thing")}
    assert summary(states) == "2 trials: 1 missing, 1 failed"
    assert state_lines(states)[-1] == "failed         other: no\\nsuch thing"


@pytest.fixture
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each, on this machine."""
    pytest.importorskip("ray", reason="the extra 'scale' is not installed")
    import_ray("a test")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    yield cluster.address
    cluster.shutdown()


def kill_in_the_middle(file: Path, address: str, run: Path) -> None:
    """Start the sweep, and kill its driver alone when a run has a checkpoint and is not finished."""
    options = ["--ray-address", address, "--workers", "1", "-q"]
    driver = subprocess.Popen([sys.executable, "-m", "rl_training", "sweep", str(file), *options])
    end = time.monotonic() + 120
    while not (run / "checkpoints" / "latest").is_file():
        assert driver.poll() is None, "the sweep ended before it was killed"
        assert time.monotonic() < end, "no checkpoint within two minutes"
        time.sleep(0.01)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.slow
def test_a_killed_sweep_is_finished_on_two_nodes_and_equals_ordinary_runs(tmp_path, two_nodes):
    """Also: a trial that fails is reported, and the others go on."""
    points = [{}, {"algo_kwargs.backend": "sac"}, {"algo_kwargs.init_from": str(tmp_path / "nowhere")}]
    slow = {**TINY, "total_timesteps": 600}
    file = sweep_file(tmp_path, set=slow, sweep={"list": points})
    sweep: Sweep = read_sweep(file)
    first, second, wrong = sweep.trials
    kill_in_the_middle(file, two_nodes, first.run_dir)
    assert trial_state(first).status in ("running", "unfinished")

    code, text = command("sweep", file, "--ray-address", two_nodes, "--json")
    answer = json.loads(text)
    assert [trial["status"] for trial in answer["trials"]] == ["completed", "completed", "failed"]
    assert "nowhere" in answer["trials"][2]["error"]
    assert code == 1
    assert not wrong.run_dir.exists()
    for trial in (first, second):
        alone = tmp_path / "alone" / trial.name
        train_in_folder(parse_config(trial.config.model_dump(mode="json")), alone)
        assert state_differences(final_state(alone), final_state(trial.run_dir)) == []

    page = Path(answer["report"]).read_text()
    for trial in (first, second):
        assert f'href="{trial.name}/report.html"' in page
    assert write_report([sweep.folder], tmp_path / "again.html").is_file()
