"""Write a policy bundle: a folder from which a policy runs without this package and without PyTorch."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from rl_training.algorithms.base import Learner
from rl_training.config import TrainConfig
from rl_training.errors import BundleError
from rl_training.export.card import model_card
from rl_training.export.contract import CONTRACT, Contract, FileFacts, build_contract, contract_text, describe_ports
from rl_training.export.graph import Array, build_graph, learner_outputs, policy_weights
from rl_training.export.policy import GRAPH, is_bundle
from rl_training.export.verify import EXAMPLES, FILES, GOLDEN, WEIGHTS, output_differences
from rl_training.runtime.checkpoint_files import read_manifest, sync_folder, temporary_path
from rl_training.runtime.checkpointing import find_checkpoint
from rl_training.runtime.machine import package_version
from rl_training.runtime.run import load_learner

CARD, CONFIG = "README.md", "config.yaml"  # the second one only in a folder for the hub
GOLDEN_ROWS = 256
TOLERANCE = 1e-5
_SINGLE_ROWS = 64

_EXAMPLE_FOLDER = Path(__file__).parents[1] / "assets" / "bundle"
_LOCAL_PATHS = ("dataset_path", "init_from")


def export_policy(path: str | Path, output: str | Path, *, overwrite: bool = False) -> Contract:
    """Write the policy of a run (its best checkpoint) or of a checkpoint as a bundle, and return its contract.

    The same checkpoint gives the same bytes. ``output`` appears when all of it is written.

    Args:
        path: a run or a checkpoint.
        output: the folder to write.
        overwrite: whether to replace a bundle that is there.
    """
    output = Path(output)
    require_free(output, overwrite)
    contract, files = bundle_files(Path(path))
    write_folder(output, files)
    return contract


def bundle_files(path: Path) -> tuple[Contract, dict[str, bytes]]:
    """Return the contract and the content of every file of a bundle."""
    checkpoint = find_checkpoint(path)
    learner, config = load_learner(checkpoint)
    config = shareable_config(config)
    return learner_files(learner, config, _training_facts(checkpoint, learner, config))


def learner_files(
    learner: Learner, config: TrainConfig, training: Mapping[str, Any]
) -> tuple[Contract, dict[str, bytes]]:
    """Return the contract and the files of a learner's policy, with facts about its training."""
    files = {GRAPH: build_graph(learner, package_version())}
    files[WEIGHTS] = save(policy_weights(learner))
    files[GOLDEN], rounding = _golden(learner)
    for name in EXAMPLES:
        files[name] = (_EXAMPLE_FOLDER / name).read_bytes()
    facts = {name: FileFacts(bytes=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    versions = {name: package_version(name) for name in ("rl-training", "torch", "numpy", "onnx")}
    contract = build_contract(
        learner,
        config,
        tolerance=max(TOLERANCE, 10 * rounding),
        training=training,
        versions=versions,
        files=facts,
    )
    files[CONTRACT] = contract_text(contract).encode()
    files[CARD] = model_card(contract).encode()
    return contract, files


def shareable_config(config: TrainConfig) -> TrainConfig:
    """Return a configuration without the places of files on this machine; the names of the files stay."""
    settings = {
        key: Path(value).name if key in _LOCAL_PATHS and value else value for key, value in config.algo_kwargs.items()
    }
    return config.model_copy(update={"algo_kwargs": settings, "output_dir": Path("runs")})


def require_free(output: Path, overwrite: bool) -> None:
    """Refuse a folder that exists, unless it is empty, or a bundle without other files that may be replaced."""
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise BundleError(f"{output}: not a folder; expected a new folder's name")
    names = {file.name for file in output.iterdir()} if output.exists() else set()
    if not names:
        return
    others = sorted(names - {*FILES, CONTRACT, CARD, CONFIG, "__pycache__"})
    if others or not is_bundle(output):
        raise BundleError(f"{output}: holds {others[0] if others else 'no bundle'}; expected a new folder's name")
    if not overwrite:
        raise BundleError(f"{output}: exists already; expected another name, or --overwrite to replace it")


def write_folder(output: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder under a temporary name and rename it once all of it is on the disk."""
    output = output.absolute()
    temporary, old = temporary_path(output), output.with_name(f".{output.name}.old.tmp")
    try:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            for name, content in files.items():
                with (temporary / name).open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            sync_folder(temporary)
            if output.exists():
                shutil.rmtree(old, ignore_errors=True)
                os.rename(output, old)
            os.rename(temporary, output)
            sync_folder(output.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if old.exists() and not output.exists():
                os.rename(old, output)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise BundleError(f"{output}: cannot be written: {error.strerror or error}") from None


def _golden(learner: Learner) -> tuple[bytes, float]:
    """Return random inputs and the learner's outputs for them, as an npz archive, and the outputs' rounding error.

    The rounding error is the difference between the learner's outputs for a batch and one by one. A steep policy
    has a larger one, and no other runtime can come closer than that.
    """
    inputs, spec = golden_inputs(learner, GOLDEN_ROWS), learner.spec
    outputs = learner_outputs(learner, inputs)
    if not all(np.isfinite(values).all() for values in outputs.values()):
        raise BundleError("the policy's outputs for random inputs are not finite, so it is not exported")
    singles = [learner_outputs(learner, inputs[row : row + 1]) for row in range(_SINGLE_ROWS)]
    alone = {name: np.concatenate([single[name] for single in singles]) for name in outputs}
    together = {name: values[:_SINGLE_ROWS] for name, values in outputs.items()}
    rounding = max(output_differences(alone, together, describe_ports(learner)[1]).values())
    arrays = {"observation": inputs[:, : spec.observation_dim]}
    if spec.goal_dim:
        arrays["desired_goal"] = inputs[:, spec.observation_dim :]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, **outputs)  # type: ignore[arg-type]
    return buffer.getvalue(), rounding


def golden_inputs(learner: Learner, rows: int, seed: int = 0) -> Array:
    """Return random inputs ``[rows, policy_dim]``, near the normaliser's statistics if there is one.

    Their scale varies from a tenth to three times the usual one, so that saturated actions are among the outputs.
    """
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, learner.spec.policy_dim)) * 10.0 ** rng.uniform(-1, 0.5, (rows, 1))
    if learner.normalizer is not None:
        statistics = policy_weights(learner)
        inputs = statistics["normalizer.mean"] + inputs * statistics["normalizer.std"]
    return inputs.astype(np.float32)


def _training_facts(checkpoint: Path, learner: Learner, config: TrainConfig) -> dict[str, Any]:
    """Return how the policy came about, from the checkpoint's manifest."""
    manifest = read_manifest(checkpoint)
    trainer = manifest["state"].get("trainer")
    state = trainer.get("state") if isinstance(trainer, dict) else None
    evaluation = state.get("last_evaluation") if isinstance(state, dict) else None
    return {
        "algorithm": config.algo,
        "learner": type(learner).__name__,
        "seed": config.seed,
        "global_step": manifest["global_step"],
        "update_count": manifest["update_count"],
        "evaluation": evaluation or {},
        "package_version": manifest.get("package_version", "unknown"),
        "machine": manifest.get("machine", {}),
        "config": {**config.model_dump(mode="json"), "device": manifest["config"].get("device", "cpu")},
    }
