"""One update of a learner, recorded as a graph of tensor operations in which all gradients are written out.

An update never branches on the values of a tensor, so the operations of one update are those of all of its kind. Three
kinds of operations are kept apart from those that only compute: draws of random numbers, which must come in the same
order; steps of optimisers; and other changes of the learner's tensors, such as those of target networks.

This module imports parts of PyTorch that take seconds to load, so it is imported only when a run is compiled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.algorithms.base import CriticLearner, Learner
from rl_training.algorithms.optimizer import FusedAdam
from rl_training.types import Batch


@torch.library.custom_op(
    "rl_training::optimizer_step",
    mutates_args=("parameters",),
    schema="(Tensor(a!)[] parameters, Tensor[] gradients, str name) -> ()",
)
def _optimizer_step(parameters: list[Tensor], gradients: list[Tensor], name: str) -> None:
    """Stand for the step of an optimiser while an update is recorded."""


_STEP = torch.ops.rl_training.optimizer_step.default
_SPLIT = get_decompositions([torch.ops.aten.baddbmm])
"""Operations that are recorded as simpler ones: a product with a bias copies the bias first, a fused sum does not."""


class Draw(NamedTuple):
    """Random numbers that an update takes from the learner's generator."""

    node: fx.Node
    function: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Step(NamedTuple):
    """The step of an optimiser, by its name, with the nodes of its gradients."""

    name: str
    gradients: list[fx.Node]


class Part(NamedTuple):
    """Consecutive operations as a function of the values of ``inputs`` that returns those of ``outputs``."""

    module: fx.GraphModule
    inputs: list[fx.Node]
    outputs: list[fx.Node]
    operations: int


class Recording(NamedTuple):
    """An update: first all ``draws``, then all ``actions``, in this order."""

    inputs: list[fx.Node]
    """The nodes of the tensors that the recording was made with, in their order."""
    constants: dict[fx.Node, Tensor]
    draws: list[Draw]
    actions: list[Part | Step]
    metrics: dict[str, fx.Node]


def learner_tensors(learner: Learner) -> list[Tensor]:
    """Return all tensors of a learner in a fixed order."""
    return [*learner.parameters(), *learner.buffers()]


def batch_tensors(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch in a fixed order."""
    return [value for value in batch if isinstance(value, Tensor)]


def record(learner: Learner, batch: Batch, bounds: Sequence[Tensor]) -> Recording:
    """Record the update of a learner on a batch. The learner stays as it is.

    The recording's inputs are ``learner_tensors``, ``batch_tensors``, and ``bounds``: the learner's bounds of values as
    scalar tensors, so that other bounds need no other recording.

    Raises:
        RuntimeError: the update contains something that cannot be recorded.
    """
    double = copy.deepcopy(learner)  # the operations are executed while they are recorded
    if bounds and isinstance(double, CriticLearner):
        double.value_bounds = cast(Any, tuple(bounds))
    for name, optimizer in double._optimizers.items():
        cast(Any, optimizer).step = _recorded_step(name, optimizer)
    tensors = [*learner_tensors(double), *batch_tensors(batch), *bounds]
    before = _numbers(double)
    graph_module = make_fx(lambda *_: double.update(batch), cast(Any, _SPLIT))(*tensors)
    recording = _sorted(graph_module, double.generator)
    changed = {name for name, value in _numbers(double).items() if before.get(name) != value} - {"update_count"}
    if changed:
        raise RuntimeError(f"the update changes {', '.join(sorted(changed))}, which is no tensor")
    memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    if any(value.untyped_storage().data_ptr() in memory for value in recording.constants.values()):
        raise RuntimeError("the update uses a tensor of the learner in a way that was not recorded")
    return recording


def _numbers(learner: Learner) -> dict[str, Any]:
    return {name: value for name, value in vars(learner).items() if isinstance(value, (bool, int, float, str))}


def _recorded_step(name: str, optimizer: FusedAdam) -> Callable[[], None]:
    def step() -> None:
        parameters = optimizer.param_groups[0]["params"]
        with torch.no_grad():
            _optimizer_step(parameters, [parameter.grad for parameter in parameters], name)

    return step


def _sorted(graph_module: fx.GraphModule, generator: torch.Generator) -> Recording:
    """Sort the operations of a graph into draws and actions."""
    graph = graph_module.graph
    _drop_detached_copies(graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    held = {node: getattr(graph_module, cast(str, node.target)) for node in graph.nodes if node.op == "get_attr"}
    constants = {node: value for node, value in held.items() if isinstance(value, Tensor)}
    draws: list[Draw] = []
    actions: list[Part | Step] = []
    computing: list[fx.Node] = []  # operations since the last action

    def end_part() -> None:
        if computing:
            actions.append(_part(computing))
            computing.clear()

    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if "generator" in node.kwargs or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            draws.append(_draw(node, held, generator))
        elif node.target is _STEP:
            end_part()
            actions.append(Step(cast(str, node.args[2]), cast(list[fx.Node], node.args[1])))
        elif _changes(node, inputs):
            end_part()
            actions.append(_part([node]))
        else:
            computing.append(node)
    end_part()
    output = next(node for node in graph.nodes if node.op == "output")
    return Recording(inputs, constants, draws, actions, cast(dict[str, fx.Node], output.args[0]))


def _drop_detached_copies(graph: fx.Graph) -> None:
    """Use tensors directly where a graph without autograd detaches them."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(cast(fx.Node, node.args[0]))
            graph.erase_node(node)


def _draw(node: fx.Node, held: dict[fx.Node, Any], generator: torch.Generator) -> Draw:
    options = dict(node.kwargs)
    source = cast(fx.Node, options.pop("generator", None))
    # PyTorch may give a generator another Python object here, so the states are compared.
    own = node.all_input_nodes == [source] and torch.equal(held[source].get_state(), generator.get_state())
    if not own:
        raise RuntimeError(f"{node.name} draws from another generator, or its distribution is a result of the update")
    return Draw(node, cast(Callable[..., Tensor], node.target), node.args, options)


def _changes(node: fx.Node, inputs: list[fx.Node]) -> bool:
    """Return whether an operation changes a tensor that the update was given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and any(used in inputs for used in node.all_input_nodes)


def _part(nodes: list[fx.Node]) -> Part:
    """Make a function of consecutive operations."""
    inside = set(nodes)
    inputs = list(dict.fromkeys(used for node in nodes for used in node.all_input_nodes if used not in inside))
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    graph = fx.Graph()
    copies = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return Part(fx.GraphModule({}, graph), inputs, outputs, len(nodes))
