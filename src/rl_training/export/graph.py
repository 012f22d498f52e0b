"""A learner's policy as an ONNX graph, built node by node from its weights.

The graph takes the observation and, in goal tasks, the desired goal in the environment's own units. Normalising,
concatenating, the network, squashing and scaling to the action bounds are all inside.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import Learner
from rl_training.algorithms.dqn import DQN
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.models.actors import LOG_STD_MAX, LOG_STD_MIN, DeterministicActor, GaussianActor, SquashedGaussianActor
from rl_training.models.mlp import MLP

OPSET, IR_VERSION = 17, 8  # the first opset with LayerNormalization; every onnxruntime since 1.12 reads both

Array: TypeAlias = NDArray[Any]
Kind: TypeAlias = Literal["deterministic", "gaussian", "squashed_gaussian", "q_values", "logits"]

OPERATORS = {
    *("Add", "ArgMax", "Clip", "Concat", "Div", "Exp", "Expand", "Gemm", "Identity", "LayerNormalization"),
    *("Max", "Min", "Mul", "Relu", "Shape", "Split", "Sub", "Tanh"),
}
"""Every operator that a policy's graph may contain."""

_LAYER_NORM_EPSILON = 1e-5  # PyTorch's default


@dataclass(frozen=True)
class PolicyNetwork:
    """The part of a learner that chooses actions."""

    kind: Kind
    mlp: MLP
    std: Tensor | None = None
    """``[A]``, the std of a Gaussian that does not depend on the state, for actions in [-1, 1]."""

    @property
    def extra_outputs(self) -> tuple[str, ...]:
        """The outputs of the graph besides ``action``."""
        return {
            "deterministic": (),
            "gaussian": ("mean", "std"),
            "squashed_gaussian": ("mean", "std"),
            "q_values": ("q_values",),
            "logits": ("logits",),
        }[self.kind]


def policy_network(learner: Learner) -> PolicyNetwork:
    """Return the network with which a learner acts."""
    if isinstance(learner, DQN):
        return PolicyNetwork("q_values", learner.model.critic)
    actor = learner.get_submodule(learner.policy_prefix.rstrip(".")) if learner.policy_prefix is not None else None
    if isinstance(actor, MLP):
        return PolicyNetwork("logits", actor)
    if isinstance(actor, DeterministicActor):
        return PolicyNetwork("deterministic", actor.mlp)
    if isinstance(actor, GaussianActor):
        return PolicyNetwork("gaussian", actor.mlp, actor._log_std.detach().exp())
    if isinstance(actor, SquashedGaussianActor):
        return PolicyNetwork("squashed_gaussian", actor.mlp)
    raise ConfigError(f"{type(learner).__name__}: its policy cannot be exported; expected an actor of this package")


def policy_weights(learner: Learner) -> dict[str, Array]:
    """Return the weights of the policy by name, as float32: the layers, the normaliser and a constant std."""
    network = policy_network(learner)
    weights = dict(network.mlp.state_dict())
    if network.std is not None:
        weights["std"] = network.std
    if learner.normalizer is not None:
        weights["normalizer.mean"] = learner.normalizer.mean
        weights["normalizer.std"] = learner.normalizer.variance.sqrt().clamp_min(1e-3)
    return {name: value.detach().cpu().numpy().astype(np.float32) for name, value in weights.items()}


@torch.no_grad()
def learner_outputs(learner: Learner, observations: Array) -> dict[str, Array]:
    """Return what the learner computes for ``[B, policy_dim]`` inputs, under the names of the graph's outputs."""
    network, spec = policy_network(learner), learner.spec
    outputs = {"action": np.asarray(learner.predict(observations))}
    inputs = torch.from_numpy(observations).to(learner.device)
    raw = network.mlp(inputs if learner.normalizer is None else learner.normalizer(inputs))  # [B, outputs]
    if network.kind in ("q_values", "logits"):
        outputs[network.kind] = raw.cpu().numpy()
    elif network.kind == "gaussian":
        assert network.std is not None
        low, high = spec.action_bounds
        std = network.std.cpu().numpy() * (0.5 * (high - low))
        outputs |= {"mean": outputs["action"], "std": np.broadcast_to(std, outputs["action"].shape).copy()}
    elif network.kind == "squashed_gaussian":
        mean, log_std = raw.chunk(2, dim=-1)
        std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        outputs |= {"mean": mean.contiguous().cpu().numpy(), "std": std.cpu().numpy()}
    return outputs


class _Graph:
    """The nodes and constants of a graph while it is built."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def constant(self, name: str, value: Array | float) -> str:
        """Add a constant and return its name; a number becomes float32."""
        array = value if isinstance(value, np.ndarray) else np.asarray(value, np.float32)
        self.constants[name] = self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def add(self, operator: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        """Add a node and return its first output."""
        assert operator in OPERATORS
        node = self._onnx.helper.make_node(operator, inputs, list(outputs), name=outputs[0], **attributes)
        self.nodes.append(node)
        return outputs[0]


def build_graph(learner: Learner, version: str) -> bytes:
    """Return the policy of a learner as the bytes of an ONNX model.

    Inputs: ``observation [batch, D]`` and, in goal tasks, ``desired_goal [batch, G]``, float32.
    Outputs: ``action [batch, A]`` float32 (discrete: ``[batch]`` int64), and the network's ``extra_outputs``.
    """
    try:
        onnx = importlib.import_module("onnx")
        helper = onnx.helper
    except ImportError:
        raise MissingExtraError("exporting a policy", "export") from None
    network, spec, weights = policy_network(learner), learner.spec, policy_weights(learner)
    graph = _Graph(onnx)
    x, inputs = "observation", {"observation": spec.observation_dim}
    if spec.goal_dim:
        inputs["desired_goal"] = spec.goal_dim
        x = graph.add("Concat", list(inputs), "policy_input", axis=1)
    if learner.normalizer is not None:
        clip = learner.normalizer.clip
        x = graph.add("Sub", [x, graph.constant("normalizer.mean", weights["normalizer.mean"])], "centered")
        x = graph.add("Div", [x, graph.constant("normalizer.std", weights["normalizer.std"])], "scaled")
        x = graph.add("Clip", [x, graph.constant("clip_low", -clip), graph.constant("clip_high", clip)], "normalized")
    x = _add_network(graph, x, network.mlp, weights)
    if spec.is_discrete:
        graph.add("ArgMax", [graph.add("Identity", [x], network.kind)], "action", axis=1, keepdims=0)
    else:
        _add_action(graph, x, network, learner)
    float32, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    action = ("action", int64, ["batch"]) if spec.is_discrete else ("action", float32, ["batch", spec.action_dim])
    width = spec.num_actions or spec.action_dim
    outputs = [action, *((name, float32, ["batch", width]) for name in network.extra_outputs)]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [helper.make_tensor_value_info(name, float32, ["batch", size]) for name, size in inputs.items()],
            [helper.make_tensor_value_info(*output) for output in outputs],
            list(graph.constants.values()),
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="rl_training",
        producer_version=version,
    )
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _add_network(graph: _Graph, x: str, mlp: MLP, weights: dict[str, Array]) -> str:
    """Add the layers ``[batch, inputs] -> [batch, outputs]``."""

    def parameters(layer: str) -> list[str]:
        return [graph.constant(f"{layer}.{part}", weights[f"{layer}.{part}"]) for part in ("weight", "bias")]

    for index in range(len(mlp.hidden)):
        hidden, norm = f"hidden.{index}", f"norms.{index}"
        x = graph.add("Gemm", [x, *parameters(hidden)], f"{hidden}.linear")
        if len(mlp.norms):
            options = {"axis": -1, "epsilon": _LAYER_NORM_EPSILON}
            x = graph.add("LayerNormalization", [x, *parameters(norm)], f"{norm}.norm", **options)
        x = graph.add("Relu", [x], f"{hidden}.relu")
    return graph.add("Gemm", [x, *parameters("output")], "output.linear")


def _add_action(graph: _Graph, x: str, network: PolicyNetwork, learner: Learner) -> None:
    """Add the outputs of a continuous policy: ``action`` in the environment's units, and any mean and std."""
    spec = learner.spec
    low, high = spec.action_bounds
    half_range = (0.5 * (high - low)).astype(np.float32)
    if network.kind == "squashed_gaussian":
        sizes = graph.constant("split_sizes", np.full(2, spec.action_dim, np.int64))
        x = graph.add("Split", [x, sizes], "mean", "log_std", axis=1)
        limits = [graph.constant("log_std_low", LOG_STD_MIN), graph.constant("log_std_high", LOG_STD_MAX)]
        graph.add("Exp", [graph.add("Clip", ["log_std", *limits], "log_std_clipped")], "std")
    x = graph.add("Tanh", [x], "squashed")
    if spec.action_low is not None:
        # The operations of SpaceSpec.to_env, in the same order.
        x = graph.add("Add", [x, graph.constant("one", 1.0)], "from_zero")
        x = graph.add("Mul", [x, graph.constant("action_half_range", half_range)], "in_range")
        lowest = graph.constant("action_low", low)
        x = graph.add("Add", [x, lowest], "in_units")
        x = graph.add("Min", [x, graph.constant("action_high", high)], "below_high")
        x = graph.add("Max", [x, lowest], "in_bounds")
    graph.add("Identity", [x], "action")
    if network.kind == "gaussian":
        assert network.std is not None
        std = graph.constant("action_std", network.std.cpu().numpy().astype(np.float32) * half_range)
        graph.add("Identity", ["action"], "mean")
        graph.add("Expand", [std, graph.add("Shape", ["action"], "action_shape")], "std")
