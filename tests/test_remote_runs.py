"""Runs at fsspec URLs: they are trained in a local copy, mirrored while they train, and used from any machine."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bucket_filesystem import Bucket
from conftest import StopAt, make_tiny_config
from rl_training import HER, cli
from rl_training.config import TrainConfig, load_config, parse_config
from rl_training.errors import CheckpointError, ConfigError, RemoteError, RunLockedError
from rl_training.experiment.manager import (
    evaluate_experiment,
    resume_experiment,
    resume_stack_experiment,
    train_experiment,
    train_or_resume,
    train_stack_experiment,
)
from rl_training.experiment.run_folder import train_in_folder
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import CheckpointStore, read_whole, resolve_checkpoint
from rl_training.runtime.logging import read_metrics
from rl_training.runtime.remote import mirror
from rl_training.runtime.remote.folder import INDEX, Index, RemoteFolder
from rl_training.runtime.remote.local_copy import fetch, fetch_runs, is_uploaded, policy, records, url_of
from rl_training.scale.driver import run_sweep
from rl_training.scale.slurm import slurm_script
from rl_training.scale.sweep_file import read_sweep
from rl_training.scale.trials import trial_state
from rl_training.scale.worker import train_trials
from rl_training.tools.comparison import full_state, state_differences
from rl_training.urls import canonical, is_url, local_folder, parent

URL = "bucket://b/run"
TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch) -> Callable[[str], None]:
    """Use a bucket and a cache of the test; the function goes to another machine, whose cache is another folder."""
    monkeypatch.setenv("BUCKET", str(tmp_path / "bucket"))
    monkeypatch.setattr(mirror, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(mirror, "_RETRY_SECONDS", (0.02, 0.05))
    monkeypatch.setattr(mirror, "_LAST_TRIES", (0.0, 0.01))
    Bucket.writes.clear()
    yield_to = functools.partial(monkeypatch.setenv, "RL_TRAINING_CACHE")

    def go_to(name: str) -> None:
        yield_to(str(tmp_path / f"cache-{name}" / "runs"))

    go_to("a")
    return go_to


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, Any]:
    """The final state of a run of the tiny configuration in an ordinary folder."""
    config = tiny(tmp_path_factory.mktemp("undisturbed"))
    return final_state(train_experiment(config).run_dir)


def final_state(run: Path) -> dict[str, Any]:
    rows = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_metrics(run / "metrics.csv")]
    state = {**full_state(resolve_checkpoint(run / "checkpoints")), "metrics.csv": rows}
    return {**state, "episodes.csv": (run / "episodes.csv").read_text()}


def tiny(tmp_path: Path, **changes: Any) -> TrainConfig:
    settings = {"gradient_updates_per_step": 0.2, **changes.pop("algo_kwargs", {})}
    return make_tiny_config(tmp_path, loggers=["csv"], algo_kwargs=settings, **changes)


def at_url(tmp_path: Path, **changes: Any) -> TrainConfig:
    return tiny(tmp_path, output_dir="bucket://b/runs", **changes)


def bucket(tmp_path: Path, name: str = "run") -> Path:
    return tmp_path / "bucket" / "b" / name


def command(*arguments: object) -> tuple[int, str, str]:
    """Run a command in this process, and return its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["rl-training", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
    return int(exit_info.value.code or 0), out.getvalue(), err.getvalue()


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert state_differences(one, other) == []
    assert one["metrics.csv"] == other["metrics.csv"]
    assert one["episodes.csv"] == other["episodes.csv"]


def no_network(path: str) -> None:
    if not path.endswith(".lock"):
        raise OSError("no network")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def wait_for_upload() -> None:
    """Wait until what is in the local copies now is uploaded."""
    for one in list(mirror._active.values()):
        wait_for(lambda one=one: one._uploaded == one._state())


class At(Callback):
    """Calls a function once, after a step."""

    def __init__(self, step: int, call: Callable[[], object]) -> None:
        self.step, self.call = step, call

    def on_step(self, trainer: Any) -> None:
        if trainer.state.global_step == self.step:
            self.call()


def test_a_run_at_a_url_is_the_run_in_a_folder(tmp_path, machine, undisturbed):
    config = tmp_path / "config.yaml"
    config.write_text(at_url(tmp_path).to_yaml())
    code, out, err = command("train", config, "--output-dir", f"file://{tmp_path}/there", "--json", "--quiet")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    url, copy = answer["url"], Path(answer["run_dir"])
    assert url.startswith(f"file://{tmp_path}/there/config-s0-")
    assert copy == local_folder(url)
    there = Path(url.removeprefix("file://"))
    files = {path.relative_to(there) for path in there.rglob("*") if path.is_file()}
    assert files == {p.relative_to(copy) for p in copy.rglob("*") if p.is_file()} - {Path(".lock")} | {Path(INDEX)}
    assert [path.name for path in there.parent.iterdir()] == [there.name]  # the lock is gone
    same(final_state(there), undisturbed)
    assert load_config(f"{url}/config.yaml").output_dir == f"file://{tmp_path}/there"
    with pytest.raises(ConfigError, match=r"no file file:///.*/other\.yaml"):
        load_config(f"{url}/other.yaml")

    machine("b")
    code, out, _ = command("evaluate", url, "--episodes", 2, "--quiet", "--json")
    assert code == 0
    assert json.loads(out)["metrics"] == evaluate_experiment(there, episodes=2)["metrics"]
    assert not (local_folder(url) / "replay").exists()  # a policy does not need it
    assert command("report", url, "-o", tmp_path / "page.html", "--quiet")[0] == 0
    checkpoint = f"{url}/checkpoints/{resolve_checkpoint(there / 'checkpoints').name}"
    assert command("evaluate", checkpoint, "--episodes", 1, "--quiet")[0] == 0
    assert command("resume", url, "--verify")[1].startswith("exact")
    same(final_state(local_folder(url)), undisturbed)


@pytest.mark.parametrize(
    ("protocol", "write"),
    [("disk", "replay/ 1"), ("disk", "metrics.csv 2"), ("disk", "mirror.json 2"), ("bucket", "manifest.json 2")],
)
def test_a_kill_in_the_middle_of_an_upload_loses_nothing(tmp_path, machine, undisturbed, warm_python, protocol, write):
    url = f"{protocol}://b/run"
    config = tmp_path / "config.yaml"
    config.write_text(at_url(tmp_path).to_yaml())
    code = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); import bucket_filesystem;"
        "from rl_training.runtime.remote import mirror; mirror._POLL_SECONDS = 0.001;"
        "from rl_training import cli; cli.main()"
    )
    environment = {**os.environ, "BUCKET_KILL": write}
    answer = warm_python.run("-c", code, "train", config, "--run-dir", url, "--quiet", env=environment)
    assert answer.returncode == -9, answer.stderr
    machine("b")
    with pytest.warns(UserWarning, match="took over the lock of process"):
        result = train_in_folder(load_config(config), url)
    same(final_state(result.run_dir), undisturbed)
    same(final_state(bucket(tmp_path)), undisturbed)
    index = json.loads((bucket(tmp_path) / INDEX).read_text())
    left = {str(p.relative_to(bucket(tmp_path))) for p in bucket(tmp_path).rglob("*") if p.is_file()}
    assert left == {*index["files"], INDEX}  # what the killed upload left is removed


def test_a_reader_finds_a_complete_checkpoint_at_any_moment(tmp_path, monkeypatch):
    checked = []

    def check(path: str) -> None:
        run = bucket(tmp_path)
        if (run / "checkpoints" / "latest").is_file():
            read_whole(resolve_checkpoint(run / "checkpoints"))  # raises an error if a file is damaged or missing
            checked.append(path)
        index = Index.parse((run / INDEX).read_bytes(), "") if (run / INDEX).is_file() else None
        for name in index.files if index is not None else ():
            assert (run / name).is_file(), (path, name)

    config = at_url(tmp_path, algo_kwargs={"checkpoint_interval": 25, "keep_checkpoints": 2})
    monkeypatch.setattr(Bucket, "after_write", staticmethod(check))
    train_in_folder(config, URL, callbacks=[At(step, wait_for_upload) for step in (101, 176, 226)])
    monkeypatch.setattr(Bucket, "after_write", staticmethod(lambda path: None))
    assert len(checked) > 20
    written = {name for name in Bucket.writes if name.endswith("/manifest.json")}
    assert len(written) > len(list(bucket(tmp_path).rglob("manifest.json")))  # checkpoints were removed meanwhile
    check("")


def test_only_what_changed_is_uploaded_and_downloaded(tmp_path, machine):
    config = at_url(tmp_path, total_timesteps=200)
    train_in_folder(config, URL)
    before = {path.name for path in bucket(tmp_path).rglob("*.safetensors")}
    fixed = {path.parent.name for path in bucket(tmp_path).rglob("manifest.json")}
    Bucket.writes.clear()
    assert train_in_folder(config, URL).status == "completed"
    assert set(Bucket.writes) == {"b/.run.lock"}  # nothing was to be done
    machine("b")
    fetch(URL, policy)
    copy = local_folder(URL)
    times = {path: path.stat().st_mtime_ns for path in copy.rglob("*.safetensors")}
    assert times
    Bucket.writes.clear()
    train_in_folder(config.model_copy(update={"total_timesteps": 300}), URL)
    again = [name for name in Bucket.writes if name.startswith("b/run/replay/") and Path(name).name in before]
    again += [name for name in Bucket.writes if Path(name).parent.name in fixed]
    assert again == []
    assert all(path.stat().st_mtime_ns == then for path, then in times.items() if path.exists())


def test_uploads_that_fail_are_tried_again_and_do_not_stop_the_run(tmp_path, monkeypatch, undisturbed):
    def up() -> None:
        Bucket.before_write = staticmethod(lambda path: None)

    monkeypatch.setattr(Bucket, "before_write", staticmethod(no_network))
    wait = At(50, lambda: wait_for(lambda: mirror._active[URL]._failure != ""))
    with pytest.warns(UserWarning, match=r"bucket://b/run: cannot be written to: no network; training goes on") as seen:
        result = train_in_folder(at_url(tmp_path), URL, callbacks=[wait, At(250, up)])
    assert sum("training goes on" in str(one.message) for one in seen) == 1  # one outage, one warning
    assert is_uploaded(result.run_dir)
    same(final_state(bucket(tmp_path)), undisturbed)


def test_if_the_last_upload_fails_the_message_says_what_to_do(tmp_path, monkeypatch, undisturbed):
    config = tmp_path / "config.yaml"
    config.write_text(at_url(tmp_path).to_yaml())
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "before_write", staticmethod(no_network))
        code, _, err = command("train", config, "--run-dir", URL, "--quiet")
    copy = local_folder(URL)
    assert code == 1
    assert f"only in {copy}. Upload it with: rl-training resume {URL}" in err
    same(final_state(copy), undisturbed)
    assert not (bucket(tmp_path) / INDEX).exists()
    assert command("resume", URL, "--quiet")[0] == 0
    same(final_state(bucket(tmp_path)), undisturbed)
    assert is_uploaded(copy)


def test_a_failed_run_is_uploaded_with_its_traceback(tmp_path):
    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(Exception, match="callback At failed with ValueError: broken"):
        train_in_folder(at_url(tmp_path), URL, callbacks=[At(120, fail)])
    assert "ValueError: broken" in (bucket(tmp_path) / "traceback.txt").read_text()
    assert json.loads((bucket(tmp_path) / "result.json").read_text())["status"] == "failed"
    assert CheckpointStore(bucket(tmp_path)).candidates([])[0].name.startswith("000000120-")


def test_an_interrupted_run_goes_on_elsewhere_and_its_result_is_gone_meanwhile(
    tmp_path, machine, monkeypatch, undisturbed
):
    result = train_experiment(at_url(tmp_path), callbacks=[StopAt(170)])
    url = url_of(result.run_dir)
    assert url is not None
    there = bucket(tmp_path, "runs") / result.run_dir.name
    assert json.loads((there / "result.json").read_text())["status"] == "interrupted"
    machine("b")
    seen = []

    def look(path: str) -> None:
        if not path.endswith(".lock") and (there / "result.json").exists():
            seen.append(json.loads((there / "result.json").read_text())["status"])

    monkeypatch.setattr(Bucket, "after_write", staticmethod(look))
    result = resume_experiment(url, callbacks=[At(250, wait_for_upload)])
    assert (result.status, set(seen)) == ("completed", {"completed"})
    same(final_state(there), undisturbed)


def test_a_second_machine_is_refused_until_the_lock_ends(tmp_path):
    (tmp_path / "bucket" / "b").mkdir(parents=True)
    lock = tmp_path / "bucket" / "b" / ".run.lock"
    holder = {"process": 12, "host": "elsewhere", "time": time.time() - 50, "token": "x"}
    lock.write_text(json.dumps(holder))
    message = r"run: in use by process 12 on elsewhere, last seen 5\d s ago\. .* remove bucket://b/\.run\.lock"
    with pytest.raises(RunLockedError, match=message):
        train_in_folder(at_url(tmp_path), URL)
    assert json.loads(lock.read_text()) == holder
    lock.write_text(json.dumps({**holder, "time": time.time() - 200}))
    with pytest.warns(UserWarning, match="took over the lock of process 12 on elsewhere"):
        train_in_folder(at_url(tmp_path, total_timesteps=120), URL)
    assert not lock.exists()


def test_a_process_whose_lock_was_taken_over_uploads_nothing_more(tmp_path):
    lock = tmp_path / "bucket" / "b" / ".run.lock"

    def take() -> None:
        wait_for_upload()
        lock.write_text(json.dumps({"process": 12, "host": "elsewhere", "time": time.time(), "token": "x"}))
        Bucket.writes.clear()

    with pytest.warns(UserWarning, match="another process has taken over this run"):
        result = train_in_folder(at_url(tmp_path), URL, callbacks=[At(120, take)])
    assert (result.status, is_uploaded(result.run_dir), Bucket.writes) == ("completed", False, [])
    assert lock.exists()


def test_a_copy_that_is_behind_the_url_is_moved_aside_if_it_was_changed(tmp_path, machine, monkeypatch, undisturbed):
    train_in_folder(at_url(tmp_path), URL, callbacks=[StopAt(120)])
    copy = local_folder(URL)
    monkeypatch.setattr(Bucket, "before_write", staticmethod(no_network))
    with pytest.warns(UserWarning, match="no network"):
        resume_experiment(URL, callbacks=[StopAt(200)])
    monkeypatch.setattr(Bucket, "before_write", staticmethod(lambda path: None))
    machine("b")
    resume_experiment(URL, callbacks=[StopAt(150)])
    machine("a")
    with pytest.warns(UserWarning, match=r"changed elsewhere since then, so its earlier local copy was moved to"):
        result = resume_experiment(URL)
    same(final_state(result.run_dir), undisturbed)
    (kept,) = (tmp_path / "cache-a" / "replaced").iterdir()
    assert resolve_checkpoint(kept / "checkpoints").name.startswith("000000200-")
    assert result.run_dir == copy


def test_a_copy_that_is_ahead_of_the_url_goes_on_from_there(tmp_path, monkeypatch, undisturbed):
    class Start(Callback):
        def on_training_start(self, trainer: Any) -> None:
            started.append(trainer.state.global_step)

    started: list[int] = []
    train_in_folder(at_url(tmp_path), URL, callbacks=[StopAt(120)])
    monkeypatch.setattr(Bucket, "before_write", staticmethod(no_network))
    with pytest.warns(UserWarning, match="no network"):
        resume_experiment(URL, callbacks=[StopAt(200)])
    monkeypatch.setattr(Bucket, "before_write", staticmethod(lambda path: None))
    assert resolve_checkpoint(fetch(URL, policy) / "checkpoints").name.startswith("000000200-")
    result = resume_experiment(URL, callbacks=[Start()])
    assert started == [200]
    same(final_state(bucket(tmp_path)), undisturbed)
    assert is_uploaded(result.run_dir)


def test_a_copy_that_was_not_changed_follows_the_url(tmp_path, machine, undisturbed, recwarn):
    train_in_folder(at_url(tmp_path), URL, callbacks=[StopAt(120)])
    machine("b")
    resume_experiment(URL, callbacks=[StopAt(200)])
    machine("a")
    same(final_state(resume_experiment(URL).run_dir), undisturbed)
    assert [str(one.message) for one in recwarn if "moved" in str(one.message)] == []


def test_a_run_that_was_removed_at_the_url_is_started_anew(tmp_path, undisturbed):
    train_in_folder(at_url(tmp_path), URL, callbacks=[StopAt(120)])
    shutil.rmtree(bucket(tmp_path))
    with pytest.warns(UserWarning, match="bucket://b/run is gone"):
        result = train_in_folder(at_url(tmp_path), URL)
    same(final_state(result.run_dir), undisturbed)
    assert is_uploaded(result.run_dir)


def test_a_run_that_was_copied_to_a_url_by_other_means_is_used(tmp_path, machine, undisturbed):
    result = train_experiment(tiny(tmp_path), callbacks=[StopAt(120)])
    shutil.copytree(result.run_dir, bucket(tmp_path))
    assert (fetch(URL, records) / "metrics.csv").is_file()
    same(final_state(resume_experiment(URL).run_dir), undisturbed)
    machine("b")
    same(final_state(fetch(URL)), undisturbed)


def test_resume_auto_continues_the_run_at_the_url_from_any_machine(tmp_path, machine, undisturbed):
    config = at_url(tmp_path)
    first = train_experiment(config, callbacks=[StopAt(120)])
    train_experiment(at_url(tmp_path, seed=1, total_timesteps=120))
    machine("b")
    result = train_or_resume(config)
    assert (result.run_dir.name, result.status) == (first.run_dir.name, "completed")
    same(final_state(result.run_dir), undisturbed)
    machine("c")
    Bucket.writes.clear()
    assert train_or_resume(config).status == "completed"
    assert [name for name in Bucket.writes if not name.endswith(".lock")] == []
    other = at_url(tmp_path, seed=2, total_timesteps=120)
    name = train_or_resume(other).run_dir.name
    machine("d")
    assert train_or_resume(other).run_dir.name == name


def test_a_stack_at_a_url_goes_on_elsewhere(tmp_path, machine):
    configs = [at_url(tmp_path, seed=seed, total_timesteps=200) for seed in (0, 1)]
    results = train_stack_experiment(configs, name="pair", resume_auto=True)
    urls = [str(url_of(result.run_dir)) for result in results]
    straight = train_stack_experiment([tiny(tmp_path, seed=seed, total_timesteps=200) for seed in (0, 1)])
    straight = resume_stack_experiment(straight[0].run_dir, overrides=["total_timesteps=300"])
    expected = [final_state(result.run_dir) for result in straight]
    machine("b")
    Bucket.writes.clear()
    assert [result.status for result in train_stack_experiment(configs, name="pair", resume_auto=True)]
    longer = resume_stack_experiment(urls[0], overrides=["total_timesteps=300"])
    for result, url, state in zip(longer, urls, expected, strict=True):
        same(final_state(bucket(tmp_path, "runs") / url.rpartition("/")[2]), state)
        assert (bucket(tmp_path, "runs") / result.run_dir.name / "report.html").is_file()


def test_the_folder_of_runs_is_not_taken_for_a_run(tmp_path):
    config = at_url(tmp_path, total_timesteps=120)
    run = train_experiment(config).run_dir
    (bucket(tmp_path, "runs") / run.name / "wandb").mkdir()
    (bucket(tmp_path, "runs") / run.name / "wandb" / "config.yaml").write_text("")
    assert fetch_runs("bucket://b/runs") == fetch_runs("bucket://b") == fetch_runs(str(url_of(run))) == [run]
    for url in ("bucket://b/runs", "bucket://b"):
        with pytest.raises(CheckpointError, match="there is no run, checkpoint or bundle"):
            fetch(url)
        with pytest.raises(CheckpointError, match="not a run"):
            resume_experiment(url)
        with pytest.raises((CheckpointError, ConfigError), match=r"is not a file of a run|expected a folder in it"):
            train_in_folder(config, url)
    shutil.rmtree(tmp_path / "bucket")
    with pytest.raises(CheckpointError, match="not a run"):
        resume_experiment("bucket://b/runs")
    assert (run / "result.json").is_file()  # the local copies below are left alone


def test_managed_classes_take_urls():
    values = {**tiny(Path("unused")).model_dump(), "output_dir": "memory://managed", "total_timesteps": 120}
    model = HER(values)
    result = model.learn()
    url = url_of(result.run_dir)
    assert url is not None
    assert url.startswith("memory://managed/")
    assert model.learn(40).global_step == 160
    shutil.rmtree(result.run_dir.parents[1])
    assert HER.load(url).checkpoint.name == model.checkpoint.name
    assert HER(values).resume(url, total_timesteps=200).global_step == 200
    assert RemoteFolder(url).read("result.json") == (result.run_dir / "result.json").read_bytes()


def test_a_policy_at_a_url_is_improved(tmp_path, machine):
    train_in_folder(at_url(tmp_path, total_timesteps=150), URL)
    machine("b")
    config = tmp_path / "config.yaml"
    config.write_text(tiny(tmp_path, total_timesteps=120).to_yaml())
    code, out, err = command("train", config, "--init-from", URL, "--json", "--quiet")
    assert code == 0, err
    assert load_config(Path(json.loads(out)["run_dir"]) / "config.yaml").algo_kwargs["init_from"] == URL


def sweep_file(tmp_path: Path) -> Path:
    values = {**tiny(tmp_path).model_dump(mode="json"), "total_timesteps": 120}
    values.pop("output_dir")
    values.pop("seed")
    space = {"grid": {"algo_kwargs.gamma": [0.9, 0.95]}}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({"base": values, "sweep": space, "folder": "bucket://b/sweep"}))
    return file


def test_a_sweep_at_a_url_is_not_run_again_on_another_machine(tmp_path, machine):
    sweep = read_sweep(sweep_file(tmp_path))
    assert [str(trial.location) for trial in sweep.trials] == [f"bucket://b/sweep/gamma={x}-s0" for x in (0.9, 0.95)]
    assert "--run-dir bucket://b/sweep/gamma=0.9-s0" in slurm_script(sweep)
    for trial in sweep.trials:
        assert train_trials([trial.config.model_dump(mode="json")], [str(trial.location)], os.getcwd()) == ""
    machine("b")
    Bucket.writes.clear()
    states, interrupted = run_sweep(read_sweep(sweep.path))
    assert (interrupted, [state.status for state in states.values()]) == (False, ["completed"] * 2)
    assert [name for name in Bucket.writes if "gamma" in name] == []
    code, out, _ = command("sweep", sweep.path, "--json", "--quiet")
    answer = json.loads(out)
    assert (code, answer["folder"]) == (0, "bucket://b/sweep")
    assert (bucket(tmp_path, "sweep") / "report.html").read_text() == Path(answer["report"]).read_text()
    machine("c")
    assert command("report", "bucket://b/sweep", "-o", tmp_path / "page.html", "-q")[0] == 0
    assert "0.95" in (tmp_path / "page.html").read_text()


def test_a_trial_that_runs_elsewhere_is_followed(tmp_path, machine, monkeypatch):
    monkeypatch.setattr("rl_training.scale.trials._SOON", 0.0)
    (trial, _) = read_sweep(sweep_file(tmp_path)).trials
    seen = []

    def look() -> None:
        wait_for_upload()
        machine("b")
        seen.append(trial_state(trial, running=True))
        machine("a")

    assert trial_state(trial).status == "missing"
    train_in_folder(trial.config, trial.location, callbacks=[At(110, look)])
    assert (seen[0].status, seen[0].step) == ("running", 100)
    machine("b")
    assert trial_state(trial).status == "completed"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s9://b/runs", "unknown protocol 's9' (did you mean 's3'?); expected one that fsspec knows, such as s3, gs"),
        ("s3:///", "expected a folder such as s3://bucket/runs"),
        ("s3:/b/runs", "expected a URL such as s3://b/runs, or a path"),
        ("s3://b/runs?x", "expected a plain URL"),
        ("s3://b/../runs", "without '.' and '..'"),
    ],
)
def test_a_wrong_url_is_named_before_anything_is_written(tmp_path, url, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(tiny(tmp_path).to_yaml())
    code, _, err = command("train", config, "--output-dir", url, "--quiet")
    assert (code, message in err, len(err.splitlines())) == (2, True, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    config.write_text(tiny(tmp_path).to_yaml())
    monkeypatch.setitem(sys.modules, "s3fs", None)
    code, _, err = command("train", config, "--output-dir", "s3://b/runs", "--quiet")
    assert (code, "pip install s3fs" in err) == (2, True)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    code, _, err = command("evaluate", "s3://b/runs/x", "--quiet")
    assert (code, "[remote]" in err) == (2, True)
    monkeypatch.undo()


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="bucket://b/run: not a run"):
        resume_experiment(URL)
    with pytest.raises(CheckpointError, match="bucket://b/run: there is no run, checkpoint or bundle"):
        fetch(URL)
    code, _, err = command("export", URL, "-o", "s3://b/x")
    assert (code, "--output s3:/b/x: expected a path on this machine" in err) == (2, True)
    assert not list(tmp_path.rglob("*.lock"))


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "a\\..\\outside", "a//b", "C:outside"])
def test_an_index_cannot_name_files_outside(tmp_path, name):
    bucket(tmp_path).mkdir(parents=True)
    (bucket(tmp_path) / INDEX).write_text(json.dumps({"format": 1, "version": "x", "files": {name: {"text": "bad"}}}))
    with pytest.raises(RemoteError, match="is not in its folder"):
        fetch(URL)
    assert not list(tmp_path.rglob("*outside*"))


@pytest.mark.parametrize("whole", [True, False])
def test_a_url_cannot_bring_a_record_that_names_files_outside(tmp_path, whole):
    outside = tmp_path / "outside"
    outside.write_text("keep")
    entry = {"bytes": 4, "sha256": "", "mtime": 1}
    record = {"url": "bucket://b/run/inner", "files": {str(outside): entry, "../../outside": entry}}
    write_index(bucket(tmp_path), {"config.yaml": "", ".inner.mirror.json": json.dumps(record), ".lock": "x"})
    write_index(bucket(tmp_path, "run/inner"), {"config.yaml": ""})
    if whole:
        fetch(URL)
    else:
        with mirror.folder_of_runs(URL):
            pass
    assert [path.name for path in local_folder(URL).iterdir()] == ["config.yaml"]
    (local_folder(URL) / ".inner.mirror.json").write_text(json.dumps(record))  # as if it had been brought all the same
    fetch(f"{URL}/inner")
    assert outside.read_text() == "keep"


def write_index(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: {"text": text} for name, text in texts.items()}
    (folder / INDEX).write_text(json.dumps({"format": 1, "version": "x", "files": files}))


@pytest.mark.parametrize(
    "entry",
    [{"text": "\ud800"}, {"bytes": float("inf"), "sha256": "", "mtime": 1}, {"bytes": 1, "sha256": "", "mtime": 2**80}],
)
def test_an_index_that_cannot_be_is_taken_for_a_cut_off_one(entry):
    assert Index.parse(json.dumps({"format": 1, "version": "x", "files": {"config.yaml": entry}}).encode(), URL) is None


def test_an_index_that_was_cut_off_is_replaced_by_the_list_of_files(tmp_path, machine, undisturbed):
    train_in_folder(at_url(tmp_path), URL, callbacks=[StopAt(120)])
    file = bucket(tmp_path) / INDEX
    file.write_bytes(file.read_bytes()[:100])
    assert Index.parse(file.read_bytes(), URL) is None
    machine("b")
    same(final_state(resume_experiment(URL).run_dir), undisturbed)
    assert Index.parse(file.read_bytes(), URL) is not None


def test_files_that_a_cut_off_upload_left_are_uploaded_again(tmp_path, machine, undisturbed):
    train_in_folder(at_url(tmp_path), URL, callbacks=[StopAt(120)])
    run = bucket(tmp_path)
    with (run / "metrics.csv").open("a+") as log:
        log.seek(0)
        log.write("999," + log.read().splitlines()[-1].partition(",")[2] + "\n")
    (run / "checkpoints" / "latest").write_text("000000999-000000999\n")  # the next thing to be uploaded was the index
    (run / "checkpoints" / "000000999-000000999").mkdir()
    (run / "checkpoints" / "000000999-000000999" / "manifest.json").write_text("{}")
    machine("b")
    resume_experiment(URL, callbacks=[StopAt(121)])
    assert resolve_checkpoint(run / "checkpoints").name.startswith("000000121-")
    machine("c")
    same(final_state(resume_experiment(URL).run_dir), undisturbed)
    assert not (run / "checkpoints" / "000000999-000000999" / "manifest.json").exists()


def test_output_dir_is_a_path_or_a_url(tmp_path):
    config = parse_config({"algo": "her", "total_timesteps": 1, "output_dir": "S3://bucket//runs/"})
    assert config.output_dir == "s3://bucket/runs"
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert load_config(file).output_dir == "s3://bucket/runs"
    assert load_config(file, ["output_dir=runs"]).output_dir == Path("runs")
    assert not is_url("runs/x")
    assert canonical("file://x") == f"file://{Path('x').absolute()}"
    assert [parent(url) for url in ("file:///x", "s3://b/x/y/")] == ["file:///", "s3://b/x"]
    with pytest.raises(ConfigError, match="output_dir = 3: expected a path or a URL"):
        parse_config({"algo": "her", "total_timesteps": 1, "output_dir": 3})


def test_local_copies_of_different_urls_are_different_folders(tmp_path):
    urls = ["s3://b/a b", "s3://b/a_b", "s3://b/a%b", "gs://b/a_b", "sftp://me:secret@host/a_b"]
    folders = [local_folder(url) for url in urls]
    assert len(set(folders)) == len(urls)
    assert folders[1] == tmp_path / "cache-a" / "runs" / "s3" / "b" / "a_b"
    assert "secret" not in str(folders[-1])


def test_the_version_is_printed_without_importing_torch():
    code = (
        "import sys; sys.argv = ['rl-training', '--version']\n"
        "from rl_training.__main__ import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'fsspec', 'ray'} & set(sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.count(".") == 2
