"""Whatever comes in from outside, only this package's own errors come out, soon, and nothing is written elsewhere.

Each target gets some hundred damaged inputs; ``RL_TRAINING_FUZZ=10000`` asks for that many each. A failure names the
seed of its input, and ``RL_TRAINING_FUZZ_SEED`` starts with another one.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rl_training.config import config_path
from rl_training.data.dataset_loaders import load_transition_dataset, write_transitions
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import RLTrainingError
from rl_training.experiment.manager import load_policy
from rl_training.experiment.observations import parse_observation
from rl_training.runtime.assembly import assemble
from rl_training.runtime.checkpoint_files import sealed
from rl_training.runtime.checkpointing import CheckpointStore, resolve_checkpoint
from rl_training.runtime.run import train
from rl_training.runtime.settings import read_config
from warm_process import WarmPython

COUNT = int(os.environ.get("RL_TRAINING_FUZZ", "0"))
FIRST = int(os.environ.get("RL_TRAINING_FUZZ_SEED", "0"))
SECONDS = 20
"""No single input may take longer."""

ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**64, -(2**63), 0.5, 1e308, math.nan, math.inf, "", "x", "\0", "../../etc/passwd",
    "é" * 50, [], [[]], {}, {"a": {"b": None}}, [1, "2", None], "1e5", "cuda:7", "__tensor__",
]  # fmt: skip


def mutate_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Change, cut, insert, repeat or blank a few bytes."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        position = int(rng.integers(len(data) + 1))
        length = int(rng.integers(1, 33))
        kind = int(rng.integers(6))
        if kind == 0 and position < len(data):
            data[position] ^= 1 << int(rng.integers(8))
        elif kind == 1 and position < len(data):
            data[position] = int(rng.integers(256))
        elif kind == 2:
            data[position:position] = rng.bytes(length)
        elif kind == 3:
            del data[position : position + length]
        elif kind == 4:
            data[position : position + length] = bytes(len(data[position : position + length]))
        else:
            data[position:] = data[position : position + length] if rng.random() < 0.5 else b""
    return bytes(data)


def mutate_tree(tree: Any, rng: np.random.Generator) -> Any:
    """Replace, remove, rename or misplace a few nodes of nested mappings and lists."""
    tree = copy.deepcopy(tree)
    for _ in range(int(rng.integers(1, 4))):
        holders: list[Any] = []
        stack = [tree]
        while stack:
            node = stack.pop()
            if isinstance(node, (dict, list)) and node:
                holders.append(node)
                stack += node.values() if isinstance(node, dict) else node
        if not holders:
            break
        holder = holders[int(rng.integers(len(holders)))]
        key = (
            list(holder)[int(rng.integers(len(holder)))] if isinstance(holder, dict) else int(rng.integers(len(holder)))
        )
        kind = int(rng.integers(5))
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[f"{key}_"] = holder.pop(key)
        elif kind == 2:
            other = holders[int(rng.integers(len(holders)))]
            holder[key] = copy.deepcopy(other)
        else:
            holder[key] = copy.deepcopy(ODD[int(rng.integers(len(ODD)))])
    return tree


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail, rather than hang, when one input takes too long."""

    def late(*_details: object) -> None:
        raise TimeoutError(f"no answer within {seconds} seconds")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def fuzz(attempt: Callable[[np.random.Generator], object], quick: int, folder: Path) -> float:
    """Make many attempts: each may succeed or raise this package's error, and writes nothing beside ``folder``.

    Returns:
        The share of inputs that were refused, which tells damage from noise that nobody looks at.
    """
    refused = 0
    before = {path for path in folder.parent.rglob("*") if folder not in path.parents}
    for seed in range(FIRST, FIRST + (COUNT or quick)):
        try:
            with within(SECONDS):
                attempt(np.random.default_rng(seed))
        except RLTrainingError:
            refused += 1
        except BaseException as error:
            error.add_note(f"seed {seed}") if hasattr(error, "add_note") else print(f"seed {seed}")
            raise
    assert {path for path in folder.parent.rglob("*") if folder not in path.parents} == before
    return refused / (COUNT or quick)


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder that may be written to."""
    folder = tmp_path / "outer" / "sandbox"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("preset", ["her/point_reach", "sac/pendulum", "iql/hopper"])
@pytest.mark.parametrize("level", ["bytes", "structure"])
def test_configurations(preset: str, level: str, sandbox: Path) -> None:
    content, file = config_path(preset).read_bytes(), sandbox / "config.yaml"
    tree = yaml.safe_load(content)

    def attempt(rng: np.random.Generator) -> None:
        damaged = mutate_bytes(content, rng) if level == "bytes" else yaml.safe_dump(mutate_tree(tree, rng)).encode()
        file.write_bytes(damaged)
        read_config(file, ["algo_kwargs.batch_size=8"] if rng.random() < 0.3 else [])

    assert fuzz(attempt, 100, sandbox) > 0.1


def transitions(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "observations": rng.normal(size=(9, 3)).astype(np.float32),
        "next_observations": rng.normal(size=(9, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (9, 2)).astype(np.float32),
        "rewards": rng.normal(size=9).astype(np.float32),
        "terminated": np.arange(9) % 4 == 3,
        "truncated": np.arange(9) == 8,
    }


def mutate_arrays(arrays: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Change shapes, types and values of a few arrays, or their names."""
    arrays = dict(arrays)
    for _ in range(int(rng.integers(1, 4))):
        name = list(arrays)[int(rng.integers(len(arrays)))]
        values = arrays[name]
        changes: list[Callable[[], Any]] = [
            lambda values=values: values[:-1],
            lambda values=values: values[None],
            lambda values=values: values.reshape(-1),
            lambda values=values: values.astype(rng.choice(["f8", "f2", "i8", "u1", "?", "c8", "S4", "U4", "M8[s]"])),
            lambda values=values: np.where(rng.random(values.shape) < 0.1, rng.choice([np.nan, np.inf, 3e38]), values),
            lambda values=values: values[:0],
            lambda: np.float64(rng.normal()),
            lambda values=values: np.zeros((*values.shape, 0), values.dtype),
        ]
        with contextlib.suppress(ValueError, TypeError, OverflowError), np.errstate(all="ignore"):  # of a change itself
            arrays[name] = changes[int(rng.integers(len(changes)))]()
        if rng.random() < 0.3:
            other = rng.choice(["obs", "dones", "timeouts", "goals", "x", "a/b", "episode_ends"])
            arrays[str(other)] = arrays.pop(name)
        if not arrays:
            break
    return arrays


def write_arrays(kind: str, arrays: dict[str, Any], file: Path) -> None:
    """Write arrays as anybody might, without this package's checks."""
    if kind == "npz":
        np.savez(file, **arrays)
    elif kind == "pt":
        torch.save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}, file)
    elif kind == "hdf5":
        import h5py

        with h5py.File(file, "w") as target:
            for name, array in arrays.items():
                target[name] = array
    elif kind == "csv":
        table = {name: np.asarray(array)[:, None] if np.ndim(array) == 1 else array for name, array in arrays.items()}
        names = [f"{name}_{i}" for name, array in table.items() for i in range(array.shape[1])]
        lines = np.column_stack([array.astype("U20") for array in table.values()])
        file.write_text("\n".join([",".join(names), *(",".join(row) for row in lines)]))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: pa.array(np.asarray(a).tolist()) for name, a in arrays.items()}), file)


@pytest.mark.parametrize("kind", ["npz", "pt", "hdf5", "parquet", "csv"])
@pytest.mark.parametrize("level", ["bytes", "structure"])
def test_datasets(kind: str, level: str, sandbox: Path) -> None:
    if importlib.util.find_spec({"hdf5": "h5py", "parquet": "pyarrow"}.get(kind, "numpy")) is None:
        pytest.skip("the extra `offline` is not installed")
    arrays, file = transitions(np.random.default_rng(0)), sandbox / f"data.{kind}"
    write_transitions(TransitionDataset.from_dict(arrays), file)
    content = file.read_bytes()

    def attempt(rng: np.random.Generator) -> None:
        if level == "bytes":
            file.write_bytes(mutate_bytes(content, rng))
        else:
            file.unlink(missing_ok=True)
            try:
                write_arrays(kind, mutate_arrays(arrays, rng), file)
            except Exception:  # the format itself cannot hold it
                return
        assert 0 < len(load_transition_dataset(file)) <= 100

    fuzz(attempt, 60 if level == "bytes" else 100, sandbox)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run."""
    folder = tmp_path_factory.mktemp("fuzzed")
    settings = ["total_timesteps=200", "eval_episodes=1", "algo_kwargs.hidden_sizes=[4]", "algo_kwargs.batch_size=8"]
    settings += [
        "algo_kwargs.learning_starts=60",
        "algo_kwargs.checkpoint_interval=100",
        "algo_kwargs.buffer_capacity=300",
    ]
    config = read_config("her/point_goal", [*settings, f"output_dir={folder}", "env_kwargs={}"])
    return train(config).run_dir


def restore(run: Path) -> None:
    """Do all of a resume but its steps."""
    config = read_config(run / "config.yaml")
    trainer = assemble(config, (), run_dir=run)
    try:
        trainer.restore()
    finally:
        assert trainer.collector is not None
        assert trainer.evaluator is not None
        trainer.collector.close()
        trainer.evaluator.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("level", ["bytes", "structure"])
def test_checkpoints(level: str, run_dir: Path, sandbox: Path) -> None:
    """Bytes of any file of a run; structure of its manifest and tensors, with checksums that are right."""
    run = Path(shutil.copytree(run_dir, sandbox / "run"))
    original = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    victims = [path for path in original if path.suffix in (".json", ".safetensors", "") and path.name != ".lock"]
    latest = resolve_checkpoint(run / "checkpoints")
    manifest = json.loads(original[latest / "manifest.json"])
    manifest.pop("manifest_sha256")
    noticed: list[bool] = []  # loading the policy refuses, where resuming goes back to the checkpoint before

    def attempt(rng: np.random.Generator) -> None:
        if level == "bytes":
            victim = victims[int(rng.integers(len(victims)))]
            victim.write_bytes(mutate_bytes(original[victim], rng))
        else:
            damaged = manifest
            if rng.random() < 0.5:
                part = str(rng.choice(list(manifest["files"])))
                content = mutate_bytes(original[latest / f"{part}.safetensors"], rng)
                (latest / f"{part}.safetensors").write_bytes(content)
                damaged = copy.deepcopy(manifest)
                damaged["files"][part] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            else:
                damaged = mutate_tree(manifest, rng)
            (latest / "manifest.json").write_text(sealed(json.dumps(damaged)) if damaged else "{}")
        try:
            noticed.append(True)
            with contextlib.suppress(RLTrainingError):
                load_policy(latest)
                noticed[-1] = False
            if rng.random() < 0.3:
                restore(run)
            else:
                CheckpointStore(run).load_newest_intact()
        finally:
            for path, content in original.items():
                if not path.exists() or path.read_bytes() != content:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)

    fuzz(attempt, 80, sandbox)
    assert np.mean(noticed) > 0.1


def test_observations(run_dir: Path, sandbox: Path) -> None:
    learner, _, _ = load_policy(run_dir)
    good = {"observation": [0.1], "desired_goal": [0.5]}
    numbers = [0, 1.5, -3e38, 3.4e38, 1e39, 10**400, True, None, "1", math.nan, [], {}]

    def attempt(rng: np.random.Generator) -> None:
        kind = int(rng.integers(4))
        if kind == 0:
            text = mutate_bytes(json.dumps(good).encode(), rng).decode("utf-8", errors="replace")
        elif kind == 1:
            text = json.dumps(mutate_tree(good, rng))
        elif kind == 2:
            text = json.dumps([numbers[int(rng.integers(len(numbers)))] for _ in range(int(rng.integers(5)))])
        else:
            text = str(rng.choice(["[" * 5000, "{" * 5000, "", "nan", "[1,", '{"observation": [1]}', "1" * 5000]))
        observation = parse_observation(text, learner.spec, where="line 1")
        action = learner.predict(observation)
        assert learner.spec.action_dim == action.size

    assert fuzz(attempt, 500, sandbox) > 0.1


_MEASURED = """
import resource, sys
from rl_training.cli import main
try:
    main()
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def command_line(python: WarmPython, *arguments: str, stdin: bytes = b"") -> tuple[int, str, int]:
    """Run a command in a process of its own and return its exit code, its errors and its peak memory in bytes."""
    done = python.run("-c", _MEASURED, *arguments, stdin=stdin)
    errors, _, peak = done.stderr.rpartition("peak ")
    return done.returncode, errors, int(peak) * 1024


@pytest.mark.slow
def test_the_command_line_answers_damage_in_a_line_or_two(
    run_dir: Path, sandbox: Path, warm_python: WarmPython
) -> None:
    """A sample of all the above, each in a process: no traceback, exit code 0 or 2, and memory within bounds."""
    rng = np.random.default_rng(FIRST)
    usual = command_line(warm_python, "--version")[2]
    config = config_path("bc/pendulum").read_bytes()
    file = sandbox / "data.npz"
    write_arrays("npz", transitions(rng), file)
    content = file.read_bytes()
    checkpoint = sandbox / "checkpoint"
    shutil.copytree(resolve_checkpoint(run_dir / "checkpoints"), checkpoint)
    manifest = (checkpoint / "manifest.json").read_bytes()
    for _ in range(max(2, COUNT // 1000)):
        (sandbox / "config.yaml").write_bytes(b"total_timesteps: -1\n" + mutate_bytes(config, rng))
        file.write_bytes(mutate_bytes(content, rng))
        (checkpoint / "manifest.json").write_bytes(mutate_bytes(manifest, rng))
        for arguments, stdin in (
            (("train", str(sandbox / "config.yaml"), "--output-dir", str(sandbox / "runs")), b""),
            (("data", "inspect", str(file)), b""),
            (("evaluate", str(checkpoint), "--episodes", "1"), b""),
            (("predict", str(run_dir), "--obs", "-"), mutate_bytes(b"[0.1, 0.2, 0.3]\n", rng)),
        ):
            code, errors, peak = command_line(warm_python, *arguments, stdin=stdin)
            assert code in (0, 2), (arguments, errors)
            assert "Traceback" not in errors
            assert bool(errors.startswith("error: ")) == (code == 2), errors
            assert peak <= usual + 2 * len(content) + (256 << 20)
    assert not (sandbox / "runs").exists()


def test_mutations_do_change_something() -> None:
    """The generators above would test nothing if they gave back what they got."""
    tree = {"a": [1, 2, {"b": 3}], "c": "d"}
    changed = [mutate_tree(tree, np.random.default_rng(seed)) != tree for seed in range(200)]
    content = bytes(range(100))
    damaged = [mutate_bytes(content, np.random.default_rng(seed)) != content for seed in range(200)]
    assert np.mean(changed) > 0.9
    assert np.mean(damaged) > 0.9
