"""``share``: a folder for the Hugging Face hub, uploaded only when asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.config import load_config, parse_config
from rl_training.errors import BundleError
from rl_training.export import verify_bundle
from rl_training.export.share import push_share, require_repository
from rl_training.runtime.run import train
from test_export import run_command

pytest.importorskip("onnx", reason="the extra export is not installed")
hub = pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {
        "algo": "her",
        "env_id": "rl_training/PointGoal1D-v0",
        "total_timesteps": 110,
        "eval_episodes": 1,
        "output_dir": str(tmp_path_factory.mktemp("runs")),
        "algo_kwargs": {"hidden_sizes": [8], "batch_size": 8, "learning_starts": 100},
    }
    return train(parse_config(config)).run_dir


class FakeApi:
    """Takes the place of ``HfApi`` and remembers what it was asked to do."""

    calls: list[tuple[str, dict[str, Any]]]
    failure: Exception | None = None

    def create_repo(self, repo_id: str, **options: Any) -> str:
        if self.failure is not None:
            raise self.failure
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, **options: Any) -> None:
        self.calls.append(("upload_folder", options))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> type[FakeApi]:
    class Api(FakeApi):
        calls: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012 (of this class, new for each test)

    monkeypatch.setattr(hub, "HfApi", Api)
    return Api


def test_a_dry_run_writes_the_folder_and_uploads_nothing(run: Path, tmp_path: Path, api: type[FakeApi]) -> None:
    folder = tmp_path / "share"
    code, out, err = run_command("share", run, "--hub", "me/point-goal", "--dry-run", "-o", folder, "--json")
    assert (code, err, api.calls) == (0, "", [])
    answer = json.loads(out)
    assert (answer["repository"], answer["address"]) == ("me/point-goal", None)
    assert sorted(answer["files"]) == sorted(file.name for file in folder.iterdir())
    assert verify_bundle(folder).passed
    config = load_config(folder / "config.yaml")
    assert (config.algo, config.env_id, str(config.output_dir)) == ("her", "rl_training/PointGoal1D-v0", "runs")
    for file in folder.iterdir():
        assert str(run.parent).encode() not in file.read_bytes(), file.name
        assert "replay" not in file.name


def test_the_card_has_a_model_index_that_the_hub_reads(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "share"
    assert run_command("share", run, "--hub", "me/point-goal", "--dry-run", "-o", folder)[0] == 0
    card = hub.ModelCard.load(folder / "README.md")
    (success,) = [result for result in card.data.eval_results if result.metric_type == "success_rate"]
    contract = json.loads((folder / "contract.json").read_text())
    assert success.metric_value == contract["training"]["evaluation"]["eval/success_rate"]
    assert success.dataset_name == "rl_training/PointGoal1D-v0"
    assert {"reinforcement-learning", "onnx", "her"} <= set(card.data.tags)
    assert card.data.library_name == "rl_training"
    assert "`desired_goal` | float32 | [batch, 1]" in card.text
    shown = yaml.safe_load(card.text.partition("```yaml\n")[2].partition("```")[0])
    assert shown == yaml.safe_load((folder / "config.yaml").read_text())


def test_an_upload_makes_the_repository_and_sends_the_folder(
    run: Path, tmp_path: Path, api: type[FakeApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_command("share", run, "--hub", "me/point-goal", "--private")
    assert code == 0
    assert "https://huggingface.co/me/point-goal" in out
    (created, options), (uploaded, upload) = api.calls
    assert (created, uploaded) == ("create_repo", "upload_folder")
    assert options == {"repo_id": "me/point-goal", "repo_type": "model", "private": True, "exist_ok": True}
    assert (upload["repo_id"], upload["folder_path"]) == ("me/point-goal", Path("point-goal"))
    assert (tmp_path / "point-goal" / "policy.onnx").is_file()


def test_a_failed_upload_is_one_message_and_keeps_the_folder(run: Path, tmp_path: Path, api: type[FakeApi]) -> None:
    api.failure = RuntimeError("401 Client Error:\nInvalid username or password.")
    code, out, err = run_command("share", run, "--hub", "me/point-goal", "-o", tmp_path / "share")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "401 Client Error: Invalid username or password." in err
    assert "hf auth login" in err
    assert verify_bundle(tmp_path / "share").passed


def test_wrong_input_is_refused_before_anything_is_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "share"
    for name in ("point-goal", "me/", "me/a b", "../x", "me/..", "a/b/c", "me/x.git"):
        code, _, err = run_command("share", run, "--hub", name, "--dry-run", "-o", target)
        assert code == 2
        assert "user/point-reach" in err
    with pytest.raises(BundleError):
        push_share(target, "nobody")
    require_repository("me/point_goal-v0.1")
    code, _, err = run_command("share", tmp_path / "nowhere", "--hub", "me/x", "--dry-run", "-o", target)
    assert code == 2
    assert "neither a run nor a checkpoint" in err
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, err = run_command("share", run, "--hub", "me/x", "-o", target)
    assert code == 2
    assert "[hub]" in err
    assert not target.exists()
    assert run_command("share", run, "--hub", "me/x", "--dry-run", "-o", target)[0] == 0  # it needs no hub
    assert run_command("share", run, "--hub", "me/x", "--dry-run", "-o", target)[0] == 2
    assert run_command("share", run, "--hub", "me/x", "--dry-run", "-o", target, "--overwrite")[0] == 0
