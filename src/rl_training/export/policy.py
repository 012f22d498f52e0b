"""A policy bundle as a policy: ``predict`` with onnxruntime instead of a learner."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.formats.hostile_files import size_text
from rl_training.envs.consent import judge_run
from rl_training.errors import BundleError, ConfigError, MissingExtraError
from rl_training.export.contract import CONTRACT, Contract, Port, read_contract
from rl_training.export.graph import OPERATORS
from rl_training.types import Observation, flatten_goal_observation

GRAPH = "policy.onnx"
_LARGEST_FILE = 256 << 20

Array = NDArray[Any]


def is_bundle(path: Path) -> bool:
    """Return whether a path is a folder with a contract in it."""
    return (path / CONTRACT).is_file()


class BundlePolicy:
    """The policy of a bundle, with the ``predict`` of a learner.

    Attributes:
        path: the bundle's folder.
        contract: what the policy takes and returns.
        spec: the sizes and bounds of its task.
    """

    def __init__(self, path: str | Path) -> None:
        """Read a bundle. Nothing in it is executed but a graph of known operators.

        Raises:
            BundleError: the bundle is damaged, or holds what no bundle of this package holds.
        """
        self.path = path = Path(path)
        self.contract = read_contract(path)
        self.spec = self.contract.spec
        judge_run(path, self.contract.task.env_id)
        self._session = _open_session(read_file(path, GRAPH, self.contract), self.contract, path / GRAPH)

    def predict(self, observation: Observation, deterministic: bool = True) -> Array:
        """Return what to pass to the environment's ``step``, for one observation or a batch of them.

        A bundle is deterministic: ``deterministic=False`` is refused.
        """
        if not deterministic:
            raise ConfigError("a bundle returns the deterministic action: expected deterministic=True")
        flat = flatten_goal_observation(observation) if isinstance(observation, dict) else observation
        flat = np.asarray(flat, np.float32)
        if flat.shape[-1:] != (self.spec.policy_dim,):
            raise ConfigError(f"the observation has {flat.shape[-1:]} numbers: expected {self.spec.policy_dim}")
        action = self.outputs(np.atleast_2d(flat))["action"]
        return np.asarray(action[0] if flat.ndim == 1 else action)

    def outputs(self, observations: Array) -> dict[str, Array]:
        """Return every output for ``[B, policy_dim]`` inputs: the observation followed by the desired goal."""
        parts = np.split(observations, [self.spec.observation_dim], axis=1)
        inputs = {
            port.name: np.ascontiguousarray(part) for port, part in zip(self.contract.inputs, parts, strict=False)
        }
        names = [port.name for port in self.contract.outputs]
        try:
            values = self._session.run(names, inputs)
        except Exception as error:  # onnxruntime has a class for each kind of failure
            raise BundleError(f"{self.path / GRAPH}: cannot be run: {_reason(error)}") from None
        return dict(zip(names, values, strict=True))


def read_file(folder: Path, name: str, contract: Contract) -> bytes:
    """Return the content of a bundle's file after comparing it with the contract."""
    file, entry = folder / name, contract.files.get(name)
    if entry is None:
        raise BundleError(f"{folder / CONTRACT}: {name} is not listed")
    try:
        if file.exists() and not file.is_file():
            raise BundleError(f"{file}: not a file")
        if file.stat().st_size > _LARGEST_FILE:
            raise BundleError(f"{file}: larger than {size_text(_LARGEST_FILE)}; refused")
        content = file.read_bytes()
    except OSError as error:
        raise BundleError(f"{file}: cannot be read: {error.strerror}") from None
    if len(content) != entry.bytes or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise BundleError(f"{file}: damaged, its size or checksum is not the contract's")
    return content


def _open_session(content: bytes, contract: Contract, file: Path) -> Any:
    """Check a graph and load it into onnxruntime."""
    try:
        onnx, ort = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    except ImportError:
        raise MissingExtraError("running a policy bundle", "export") from None
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's own class, which moves between versions
        raise BundleError(f"{file}: not an ONNX model: {_reason(error)}") from None
    _require_plain_graph(onnx, model, contract, file)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what is wrong becomes one message of ours
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each kind of failure
        raise BundleError(f"{file}: cannot be loaded: {_reason(error)}") from None


def _require_plain_graph(onnx: Any, model: Any, contract: Contract, file: Path) -> None:
    """Refuse operators, functions and outside data that no exported policy has, and ports that the contract lacks."""
    graph = model.graph
    domains = {opset.domain for opset in model.opset_import} | {node.domain for node in graph.node}
    unknown = sorted({node.op_type for node in graph.node} - OPERATORS)
    if unknown or domains - {""} or len(model.functions) or len(graph.sparse_initializer):
        raise BundleError(
            f"{file}: refused, it holds {', '.join(unknown) or 'functions'}, which no exported policy has"
        )
    if any(onnx.external_data_helper.uses_external_data(tensor) for tensor in graph.initializer):
        raise BundleError(f"{file}: refused, its weights are in another file")
    found = [_ports(onnx, ports) for ports in (graph.input, graph.output)]
    expected = [[_signature(port) for port in ports] for ports in (contract.inputs, contract.outputs)]
    if found != expected:
        raise BundleError(f"{file}: its inputs and outputs are not those of the contract")


def _ports(onnx: Any, values: Any) -> list[tuple[str, str, tuple[str | int, ...]]]:
    names = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT64: "int64"}
    found = []
    for value in values:
        tensor = value.type.tensor_type
        shape = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
        found.append((value.name, names.get(tensor.elem_type, "other"), shape))
    return found


def _signature(port: Port) -> tuple[str, str, tuple[str | int, ...]]:
    return port.name, port.dtype, tuple(port.shape)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
