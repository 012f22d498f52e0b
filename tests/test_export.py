"""Policy bundles: the same actions without torch, a contract that is checked, and folders that are whole or absent."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import cli
from rl_training.algorithms.base import Learner
from rl_training.algorithms.table import ALGORITHMS
from rl_training.config import parse_config
from rl_training.errors import BundleError, ConfigError, MissingExtraError
from rl_training.experiment.manager import evaluate_experiment, load_policy
from rl_training.export import BundlePolicy, export_policy, is_bundle, verify_bundle
from rl_training.export.bundle import golden_inputs, learner_files, shareable_config, write_folder
from rl_training.export.contract import contract_text, read_contract
from rl_training.export.graph import learner_outputs, policy_network
from rl_training.runtime.run import train
from rl_training.types import SpaceSpec

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
pytest.importorskip("onnxruntime", reason="the extra export is not installed")

BOUNDS = {"action_low": (-2.0, 0.0), "action_high": (2.0, 0.5)}
WITHOUT_TORCH = """
import importlib.util, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "rl_training", "gymnasium", "onnx"):
            raise ImportError(f"{name} is not on this robot")
sys.meta_path.insert(0, Blocked())
def load(folder, name="example"):
    spec = importlib.util.spec_from_file_location(name, f"{folder}/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""


def run_command(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
    """Run the command line in this process and return exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["rl-training", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code, out.getvalue(), err.getvalue()


def make_learner(
    name: str, *, goals: bool = False, normalize: bool = False, discrete: bool = False, **settings: Any
) -> Learner:
    """Return a learner whose weights and normaliser are not those it starts with."""
    bounds: dict[str, Any] = {} if discrete else BOUNDS
    spec = SpaceSpec(5, 1 if discrete else 2, 3 if goals else 0, num_actions=4 if discrete else None, **bounds)
    values = {"hidden_sizes": (32, 32), "normalize_observations": normalize, **settings}
    learner = ALGORITHMS[name].learner(spec, values, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    size = spec.policy_dim
    scale = torch.logspace(-1, 1, size)
    learner.observe(torch.randn(200, size, generator=generator) * scale + scale)
    return learner


def write_bundle(learner: Learner, folder: Path, **task: Any) -> Path:
    config = parse_config({"algo": "sac", "env_id": None, "total_timesteps": 1, **task})
    training = {"algorithm": "sac", "learner": type(learner).__name__, "seed": 0, "global_step": 1, "update_count": 1}
    facts = {**training, "evaluation": {}, "config": config.model_dump(mode="json")}
    write_folder(folder, learner_files(learner, config, facts)[1])
    return folder


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every algorithm, with and without goals and normalisation."""
    for name, row in ALGORITHMS.items():
        for discrete in (False, True):
            if row.learner.actions not in ("discrete" if discrete else "continuous", "any"):
                continue
            for goals in (False, True):
                for normalize in (False, True):
                    options = {"goals": goals, "normalize": normalize, "discrete": discrete}
                    yield name, options
                    if name == "bc" and not discrete and goals == normalize:
                        yield name, {**options, "policy": "gaussian"}


def test_every_policy_is_the_same_without_torch(tmp_path: Path) -> None:
    """10,000 random inputs; the other process has numpy and onnxruntime only."""
    expected = {}
    for number, (name, options) in enumerate(cases()):
        learner = make_learner(name, **options)
        folder = write_bundle(learner, tmp_path / f"{number:03}-{name}")
        inputs = golden_inputs(learner, 10_000, seed=5)
        outputs = learner_outputs(learner, inputs)
        ports = {
            port.name: inputs[:, :5] if port.name == "observation" else inputs[:, 5:]
            for port in read_contract(folder).inputs
        }
        np.savez(folder / "many.npz", **ports)
        expected[folder.name] = (options, outputs)
    script = (
        WITHOUT_TORCH
        + f"""
import numpy as np, pathlib
for folder in sorted(pathlib.Path({str(tmp_path)!r}).iterdir()):
    example = load(folder)
    inputs = dict(np.load(folder / "many.npz"))
    names = [item["name"] for item in example.CONTRACT["outputs"]]
    outputs = dict(zip(names, example.SESSION.run(names, inputs)))
    outputs["single"] = np.stack([example.act(*row) for row in zip(*(values[:20] for values in inputs.values()))])
    np.savez(folder / "found.npz", **outputs)
"""
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(expected) > 50
    for name, (options, outputs) in expected.items():
        found = dict(np.load(tmp_path / name / "found.npz"))
        single = found.pop("single")
        assert found.keys() == outputs.keys(), name
        for key, values in outputs.items():
            assert found[key].shape == values.shape, (name, key)
            assert found[key].dtype == values.dtype, (name, key)
            if options["discrete"] and key == "action":
                assert (found[key] != values).mean() < 1e-3, name  # a tie may be rounded either way
            else:
                difference = np.abs(found[key] - values) / np.maximum(1.0, np.abs(values))
                assert difference.max() <= 1e-5, (name, key, options)
        np.testing.assert_allclose(single, found["action"][:20], atol=1e-5)


def test_the_outputs_besides_the_action_describe_the_policy() -> None:
    low, high = (np.asarray(BOUNDS[key], np.float32) for key in ("action_low", "action_high"))
    for name in ("sac", "iql"):
        learner = make_learner(name, normalize=True)
        inputs = golden_inputs(learner, 500)
        outputs = learner_outputs(learner, inputs)
        draws = np.stack([learner.predict(inputs[:1].repeat(5_000, 0), deterministic=False)]).reshape(-1, 2)
        noise = np.random.default_rng(0).normal(size=(5_000, 2))
        raw = outputs["mean"][0] + outputs["std"][0] * noise
        if name == "sac":
            raw = low + (np.tanh(raw) + 1) / 2 * (high - low)
        mine = np.clip(raw, low, high)
        half = (high - low) / 2
        np.testing.assert_allclose(mine.mean(0) / half, draws.mean(0) / half, atol=0.06)
        np.testing.assert_allclose(mine.std(0) / half, draws.std(0) / half, atol=0.06)
    discrete = make_learner("bc", discrete=True)
    outputs = learner_outputs(discrete, golden_inputs(discrete, 50))
    np.testing.assert_array_equal(outputs["logits"].argmax(1), outputs["action"])


def test_inputs_far_from_the_statistics_are_clipped_as_in_training(tmp_path: Path) -> None:
    learner = make_learner("td3", normalize=True)
    bundle = BundlePolicy(write_bundle(learner, tmp_path / "bundle"))
    inputs = 1000 * golden_inputs(learner, 100)
    np.testing.assert_allclose(bundle.predict(inputs), learner.predict(inputs), atol=1e-5)


def test_a_std_stays_within_its_limits(tmp_path: Path) -> None:
    learner = make_learner("sac")
    found = BundlePolicy(write_bundle(learner, tmp_path / "bundle")).outputs(1000 * golden_inputs(learner, 100))["std"]
    assert (found.min(), found.max()) == (pytest.approx(np.exp(-10.0)), pytest.approx(np.exp(2.0)))


def test_a_policy_of_two_layers_of_256_is_small(tmp_path: Path) -> None:
    folder = write_bundle(make_learner("rlpd", goals=True, hidden_sizes=(256, 256)), tmp_path / "bundle")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of a goal task with bounds and a normaliser."""
    config = {
        "algo": "her",
        "env_id": "rl_training/PointReach2D-v0",
        "total_timesteps": 150,
        "eval_episodes": 2,
        "output_dir": str(tmp_path_factory.mktemp("runs")),
        "algo_kwargs": {
            "backend": "sac",
            "hidden_sizes": [16, 16],
            "batch_size": 16,
            "learning_starts": 60,
            "eval_interval": 150,
            "normalize_observations": True,
        },
    }
    return train(parse_config(config)).run_dir


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "policy"
    export_policy(run, folder)
    return folder


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(exported, tmp_path / "bundle"))


def reseal(bundle: Path, **changes: Any) -> None:
    """Make the checksums right again after a file or a field of the contract was changed on purpose."""
    values = json.loads((bundle / "contract.json").read_text())
    values.pop("sha256")
    values |= changes
    for name, entry in values["files"].items():
        content = (bundle / name).read_bytes()
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    values["sha256"] = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    (bundle / "contract.json").write_text(json.dumps(values))


def test_the_contract_says_what_the_policy_takes_and_how_it_was_trained(run: Path, exported: Path) -> None:
    learner, _, checkpoint = load_policy(run)
    contract = json.loads((exported / "contract.json").read_text())
    assert [(port["name"], port["shape"], port["dtype"]) for port in contract["inputs"]] == [
        ("observation", ["batch", 4], "float32"),
        ("desired_goal", ["batch", 2], "float32"),
    ]
    action, mean, std = contract["outputs"]
    assert (action["low"], action["high"], action["optional"]) == ([-1, -1], [1, 1], False)
    assert (mean["name"], std["name"], mean["optional"]) == ("mean", "std", True)
    assert learner.normalizer is not None
    np.testing.assert_allclose(contract["normalizer"]["mean"], learner.normalizer.mean, rtol=1e-6)
    np.testing.assert_allclose(contract["normalizer"]["std"], learner.normalizer.variance.sqrt(), rtol=1e-6)
    assert contract["task"]["env_id"] == "rl_training/PointReach2D-v0"
    training = contract["training"]
    assert (training["algorithm"], training["learner"], training["global_step"]) == ("her", "SAC", 150)
    assert training["evaluation"]["eval/mean_reward"] == pytest.approx(-50, abs=50)
    assert f"{training['global_step']:09d}-{training['update_count']:09d}" == checkpoint.name
    assert contract["policy"]["kind"] == policy_network(learner).kind == "squashed_gaussian"
    for name, entry in contract["files"].items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == entry["sha256"]
    assert {file.name for file in exported.iterdir()} == {*contract["files"], "contract.json", "README.md"}


def test_nothing_in_a_bundle_names_a_place_on_this_machine(run: Path, exported: Path) -> None:
    for file in exported.iterdir():
        assert str(run.parent).encode() not in file.read_bytes(), file.name
    paths = {"dataset_path": "/home/me/logged.npz", "init_from": "/home/me/runs/first"}
    config = parse_config({"algo": "iql", "total_timesteps": 1, "output_dir": "/home/me", "algo_kwargs": paths})
    assert "/home/me" not in shareable_config(config).to_yaml()
    assert shareable_config(config).algo_kwargs["dataset_path"] == "logged.npz"


def test_the_same_checkpoint_gives_the_same_bytes(run: Path, exported: Path, tmp_path: Path) -> None:
    export_policy(run, tmp_path / "again")
    for file in exported.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_weights_are_in_a_safetensors_file(run: Path, exported: Path) -> None:
    from safetensors.numpy import load_file

    weights = load_file(exported / "policy.safetensors")
    actor = load_policy(run)[0].get_submodule("model.actor.mlp").state_dict()
    for name, value in actor.items():
        np.testing.assert_array_equal(weights.pop(name), value.numpy())
    assert weights.keys() == {"normalizer.mean", "normalizer.std"}


def test_predict_and_evaluate_take_a_bundle(run: Path, exported: Path) -> None:
    line = '{"observation": [0.1, 0, 0, 0.2], "desired_goal": [0.5, -0.5]}\n[0.1, 0, 0, 0.2, 0.5, -0.5]\n'
    answers = [run_command("predict", path, "--obs", "-", stdin=line) for path in (run, exported)]
    assert [code for code, _, _ in answers] == [0, 0]
    (mine, same), (theirs, _) = ([json.loads(line)["action"] for line in out.splitlines()] for _, out, _ in answers)
    np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert mine == same
    metrics = [evaluate_experiment(path, episodes=3)["metrics"] for path in (run, exported)]
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-3)
    code, out, _ = run_command("evaluate", exported, "--episodes", 1, "--json")
    assert (code, json.loads(out)["checkpoint"]) == (0, str(exported))


def test_a_discrete_bundle_predicts_an_index(tmp_path: Path) -> None:
    learner = make_learner("dqn", discrete=True)
    folder = write_bundle(learner, tmp_path / "bundle")
    code, out, _ = run_command("predict", folder, "--obs", "-", stdin="[1, 0, 0, 2, -1]\n")
    expected = int(learner.predict(np.asarray([1, 0, 0, 2, -1], np.float32)))
    assert (code, json.loads(out)["action"]) == (0, expected)
    code, _, err = run_command("evaluate", folder)
    assert code == 2
    assert "without an env_id" in err


def test_observations_of_another_size_are_refused(bundle: Path) -> None:
    policy = BundlePolicy(bundle)
    with pytest.raises(ConfigError, match="expected 6"):
        policy.predict(np.zeros(5, np.float32))
    with pytest.raises(ConfigError, match="deterministic"):
        policy.predict(np.zeros(6, np.float32), deterministic=False)
    code, _, err = run_command("predict", bundle, "--obs", "-", stdin="[1, 2]\n")
    assert code == 2
    assert "expected a list of 6 numbers, found 2" in err


# verify


def test_a_good_bundle_passes(exported: Path) -> None:
    code, out, err = run_command("verify", exported)
    assert (code, err) == (0, "")
    assert "256 test vectors" in out
    found = json.loads(run_command("verify", exported, "--json")[1])
    assert found["passed"]
    assert 0 < max(found["largest_differences"].values()) <= 1e-5


@pytest.mark.parametrize(
    "name", ["policy.onnx", "policy.safetensors", "golden.npz", "example.py", "ros2_node.py", "contract.json"]
)
@pytest.mark.parametrize("damage", ["changed", "cut off", "missing", "a folder"])
def test_damage_is_named_in_one_line(bundle: Path, name: str, damage: str) -> None:
    file = bundle / name
    content = file.read_bytes()
    file.unlink()
    if damage == "changed":
        file.write_bytes(content.replace(content[-50:-40], b"0" * 10))
    elif damage == "cut off":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "a folder":
        file.mkdir()
    code, out, err = run_command("verify", bundle)
    assert code == (2 if name == "contract.json" else 1)
    assert out == ""
    assert len(err.splitlines()) == 1
    assert name in err
    if name in ("policy.onnx", "contract.json"):
        assert run_command("predict", bundle, "--obs", "-")[0] == 2


def test_a_card_may_be_edited(bundle: Path) -> None:
    (bundle / "README.md").write_text("my own words")
    assert verify_bundle(bundle).passed


def test_another_policy_with_right_checksums_differs_from_the_golden_vectors(bundle: Path, tmp_path: Path) -> None:
    graph = onnx.load(bundle / "policy.onnx")
    bias = next(tensor for tensor in graph.graph.initializer if tensor.name == "output.bias")
    changed = onnx.numpy_helper.to_array(bias) + 1e-3
    bias.CopyFrom(onnx.numpy_helper.from_array(changed.astype(np.float32), bias.name))
    (bundle / "policy.onnx").write_bytes(graph.SerializeToString())
    reseal(bundle)
    code, _, err = run_command("verify", bundle)
    assert code == 1
    assert "differs from golden.npz by" in err


def test_a_discrete_action_may_differ_only_at_a_tie(tmp_path: Path) -> None:
    folder = write_bundle(make_learner("dqn", discrete=True), tmp_path / "bundle")
    assert verify_bundle(folder).passed
    golden = dict(np.load(folder / "golden.npz"))
    golden["action"] = (golden["action"] + 1) % 4
    np.savez(folder / "golden.npz", **golden)
    reseal(folder)
    assert "action differs" in verify_bundle(folder).problems[0]


def hostile_graph(bundle: Path, kind: str) -> None:
    model = onnx.load(bundle / "policy.onnx")
    if kind == "operator":
        model.graph.node.append(onnx.helper.make_node("Loop", ["a"], ["b"]))
    elif kind == "domain":
        model.graph.node[0].domain = "evil"
    elif kind == "outside":
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../../../etc/passwd")
    elif kind == "ports":
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7
    elif kind == "node":
        model.graph.node[-1].input[0] = "nowhere"
    content = b"\x00" * 50 if kind == "bytes" else model.SerializeToString()
    (bundle / "policy.onnx").write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("operator", "it holds Loop"),
        ("domain", "refused"),
        ("outside", "weights are in another file"),
        ("ports", "not those of the contract"),
        ("node", "cannot be loaded"),
        ("bytes", "not an ONNX model"),
    ],
)
def test_a_hostile_graph_is_refused(bundle: Path, kind: str, message: str) -> None:
    hostile_graph(bundle, kind)
    reseal(bundle)
    code, _, err = run_command("verify", bundle)
    assert code == 1
    assert message in err
    assert len(err.splitlines()) == 1
    with pytest.raises(BundleError, match=message):
        BundlePolicy(bundle)


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": []},
        {"inputs": [{"name": "observation", "shape": ["batch", -4], "dtype": "float32", "units": ""}]},
        {"inputs": [{"name": "observation", "shape": ["batch", 10**12], "dtype": "float32", "units": ""}]},
        {"inputs": [{"name": "desired_goal", "shape": ["batch", 4], "dtype": "float32", "units": ""}]},
        {
            "outputs": [
                {"name": "action", "shape": ["batch", 2], "dtype": "float32", "units": "", "low": [1], "high": [2]}
            ]
        },
        {"outputs": [{"name": "std", "shape": ["batch", 2], "dtype": "float32", "units": ""}]},
        {"tolerance": "large"},
        {"tolerance": 1e9},
        {"files": {}},
        {"policy": None},
        {"format_version": 2},
        {"format": "\x1b[31mother"},
        {"surprise": 1},
    ],
)
def test_a_contract_that_makes_no_sense_is_refused(bundle: Path, changes: dict[str, Any]) -> None:
    reseal(bundle, **changes)
    code, _, err = run_command("verify", bundle)
    assert code in (1, 2)
    assert len(err.splitlines()) == 1
    assert "\x1b" not in err
    assert "unexpected" not in err


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": NaN}', "\udcff", '{"format": {}}'])
def test_a_contract_that_is_no_contract_is_refused(bundle: Path, text: str) -> None:
    (bundle / "contract.json").write_text(text, errors="surrogateescape")
    code, _, err = run_command("verify", bundle)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "contract.json" in err


@pytest.mark.parametrize("kind", ["objects", "shape", "names", "empty"])
def test_golden_vectors_that_do_not_fit_are_refused(bundle: Path, kind: str) -> None:
    golden = dict(np.load(bundle / "golden.npz"))
    if kind == "objects":
        golden["action"] = np.array([{}], dtype=object)
    elif kind == "shape":
        golden["action"] = golden["action"][:-1]
    elif kind == "names":
        del golden["observation"]
    elif kind == "empty":
        golden = {name: values[:0] for name, values in golden.items()}
    np.savez(bundle / "golden.npz", **golden)
    reseal(bundle)
    code, _, err = run_command("verify", bundle)
    assert code == 1
    assert "golden.npz" in err


def test_what_is_no_bundle_is_named(tmp_path: Path, run: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path, run):
        code, _, err = run_command("verify", path)
        assert code == 2
        assert "not a policy bundle" in err


def test_a_bundle_of_others_may_not_import_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundle_task.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = write_bundle(make_learner("sac"), tmp_path / "bundle", env_id="bundle_task:Lift-v0")
    code, _, err = run_command("evaluate", folder, "--episodes", 1)
    assert code == 2
    assert "--trust" in err
    assert "bundle_task" not in sys.modules
    assert run_command("predict", folder, "--obs", "-", stdin="[0, 0, 0, 0, 0]\n")[0] == 0


# export


def test_export_writes_a_folder_once(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "bundle"
    code, out, _ = run_command("export", run, "-o", target)
    assert code == 0
    assert "observation float32 [batch, 4]" in out
    before = (target / "contract.json").stat().st_ino
    code, _, err = run_command("export", run, "-o", target)
    assert code == 2
    assert "--overwrite" in err
    assert (target / "contract.json").stat().st_ino == before
    code, out, _ = run_command("export", run / "checkpoints" / "latest", "-o", target, "--overwrite", "--json")
    assert code == 0
    assert json.loads(out)["contract"]["training"]["global_step"] == 150
    assert (target / "contract.json").stat().st_ino != before
    assert [path.name for path in target.parent.iterdir()] == ["bundle"]


def test_other_folders_are_never_replaced(run: Path, exported: Path, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (bundle / "mine.txt").write_text("mine")
    (tmp_path / "link").symlink_to(exported)
    (tmp_path / "file").write_text("mine")
    for name in ("notes", "bundle", "link", "file"):
        code, _, err = run_command("export", run, "-o", tmp_path / name, "--overwrite")
        assert code == 2
        assert name in err
    assert (tmp_path / "notes" / "mine.txt").read_text() == (bundle / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("existing", [False, True])
def test_an_export_that_fails_leaves_what_was_there(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    target = bundle if existing else tmp_path / "new"
    rename = os.rename

    def fail(source: Any, destination: Any) -> None:
        if Path(destination) == target and Path(source).name == f".{target.name}.tmp":
            raise OSError(28, "No space left on device")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(BundleError, match="No space left"):
        write_folder(target, {"contract.json": b"new"})
    assert is_bundle(bundle)
    assert verify_bundle(bundle).passed
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_policy_with_wrong_numbers_is_not_exported(tmp_path: Path) -> None:
    learner = make_learner("sac")
    with torch.no_grad():
        learner.get_submodule("model.actor.mlp.output").bias.fill_(float("nan"))
    with pytest.raises(BundleError, match="not finite"):
        write_bundle(learner, tmp_path / "bundle")


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_a_missing_package_names_its_extra(
    run: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"\[export\]"):
        BundlePolicy(exported)
    if module == "onnx":
        code, _, err = run_command("export", run, "-o", tmp_path / "bundle")
        assert code == 2
        assert "[export]" in err
        assert list(tmp_path.iterdir()) == []


# The examples in a bundle


def test_the_example_runs_from_the_bundle_alone(bundle: Path) -> None:
    text = (bundle / "example.py").read_text()
    assert len(text.splitlines()) <= 32
    script = WITHOUT_TORCH + "import runpy; runpy.run_path('example.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script], cwd=bundle, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "256 actions" in done.stdout
    assert float(done.stdout.split()[-1]) <= 1e-5


def test_the_ros_node_acts_on_fresh_and_finite_inputs_only(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(bundle)
    for name in ("example", "ros2_node"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import ros2_node

    controller = ros2_node.Controller()
    assert controller.step(0.0) is None
    assert controller.receive("observation", [0.1, 0.2, 0.3, 0.4], now=1.0)
    assert controller.step(1.0) is None  # there is no goal yet
    assert controller.receive("desired_goal", [0.5, 0.5], now=1.0)
    action = controller.step(1.1)
    expected = BundlePolicy(bundle).predict(np.asarray([0.1, 0.2, 0.3, 0.4, 0.5, 0.5], np.float32))
    np.testing.assert_allclose(action, expected, atol=1e-6)
    assert controller.step(2.0) is None  # the observation is too old
    assert not controller.receive("observation", [0.1, 0.2], now=2.0)
    assert not controller.receive("observation", [0.1, 0.2, 0.3, float("nan")], now=2.0)
    assert controller.step(2.0) is None
    controller.policy = lambda *_: np.asarray([np.nan, 0.0])
    assert controller.receive("observation", [0.1, 0.2, 0.3, 0.4], now=3.0)
    assert controller.step(3.0) is None
    for name in ("example", "ros2_node"):
        sys.modules.pop(name, None)


def test_a_contract_keeps_its_texts(tmp_path: Path) -> None:
    folder = write_bundle(make_learner("sac"), tmp_path / "bundle", env_id="a[\n 1,\n 2\n]b")
    contract = read_contract(folder)
    assert contract.task.env_id == "a[\n 1,\n 2\n]b"
    assert '"shape": ["batch", 5]' in contract_text(contract)
