"""``contract.json``: what a policy takes and returns, how it was trained, and the checksums of the bundle's files."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rl_training.algorithms.base import Learner
from rl_training.config import Settings, TrainConfig, check_settings
from rl_training.data.formats.hostile_files import read_json
from rl_training.errors import BundleError, DatasetError
from rl_training.export.graph import Kind, policy_network
from rl_training.json_output import to_json
from rl_training.types import SpaceSpec

CONTRACT = "contract.json"

_OWN_UNITS = "the environment's own"
_LARGEST = 2**20
_BREAK = re.compile(r",\n\s+")

_DISTRIBUTIONS: dict[Kind, str | None] = {
    "deterministic": None,
    "gaussian": "action = clip(mean + std * noise, low, high)",
    "squashed_gaussian": "action = low + (tanh(mean + std * noise) + 1) / 2 * (high - low)",
    "q_values": None,
    "logits": "action ~ softmax(logits)",
}

Size = Annotated[int, Field(ge=1, le=_LARGEST)]


class Port(Settings):
    """One input or output of the graph."""

    name: Literal["observation", "desired_goal", "action", "mean", "std", "q_values", "logits"]
    shape: tuple[Literal["batch"]] | tuple[Literal["batch"], Size]
    dtype: Literal["float32", "int64"]
    units: str
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    optional: bool = False
    """Whether a caller may leave it out."""


class Normalizer(Settings):
    """The normalisation inside the graph, of the observation followed by the desired goal."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    clip: float


class PolicyFacts(Settings):
    """The network that chooses actions."""

    kind: Kind
    hidden_sizes: tuple[Size, ...]
    layer_norm: bool
    num_actions: Size | None
    """The number of discrete actions; None for continuous ones."""
    sampling: str | None
    """How to draw an action from the optional outputs; None for a policy that is deterministic."""


class Task(Settings):
    """The environment that the policy was trained for, as far as evaluating it needs."""

    env_id: str | None
    env_kwargs: dict[str, Any]
    reference_scores: tuple[float, float] | None


def task_of(config: TrainConfig) -> Task:
    """Return the task of a configuration."""
    scores = config.algo_kwargs.get("reference_scores")
    return Task(env_id=config.env_id, env_kwargs=config.env_kwargs, reference_scores=scores)


class FileFacts(Settings):
    """The size and checksum of one file."""

    bytes: int = Field(ge=0)
    sha256: str


class Contract(Settings):
    """The content of ``contract.json``."""

    format: Literal["rl_training policy bundle"] = "rl_training policy bundle"
    format_version: Literal[1] = 1
    inputs: tuple[Port, ...] = Field(min_length=1, max_length=2)
    outputs: tuple[Port, ...] = Field(min_length=1, max_length=3)
    policy: PolicyFacts
    normalizer: Normalizer | None
    """None if inputs are not normalised. The graph contains it: do not normalise again."""
    tolerance: float = Field(gt=0, le=1)
    """The largest difference from ``golden.npz``: see ``output_differences`` for its scale."""
    task: Task
    training: dict[str, Any]
    """Algorithm, seed, counters, the evaluation of this checkpoint, the machine and the configuration."""
    versions: dict[str, str]
    files: dict[str, FileFacts]

    @property
    def spec(self) -> SpaceSpec:
        """The sizes and bounds of the task."""
        sizes = {port.name: port.shape[1] for port in self.inputs if len(port.shape) == 2}
        action = self.outputs[0]
        return SpaceSpec(
            sizes["observation"],
            action.shape[1] if len(action.shape) == 2 else 1,
            sizes.get("desired_goal", 0),
            num_actions=self.policy.num_actions,
            action_low=action.low,
            action_high=action.high,
        )


def build_contract(
    learner: Learner,
    config: TrainConfig,
    *,
    tolerance: float,
    training: Mapping[str, Any],
    versions: Mapping[str, str],
    files: Mapping[str, FileFacts],
) -> Contract:
    """Describe the policy of a learner."""
    network, normalizer = policy_network(learner), learner.normalizer
    inputs, outputs = describe_ports(learner)
    return Contract(
        inputs=inputs,
        outputs=outputs,
        policy=PolicyFacts(
            kind=network.kind,
            hidden_sizes=tuple(learner.settings.hidden_sizes),
            layer_norm=len(network.mlp.norms) > 0,
            num_actions=learner.spec.num_actions,
            sampling=_DISTRIBUTIONS[network.kind],
        ),
        normalizer=None
        if normalizer is None
        else Normalizer(
            mean=tuple(normalizer.mean.float().tolist()),
            std=tuple(normalizer.variance.sqrt().clamp_min(1e-3).float().tolist()),
            clip=normalizer.clip,
        ),
        tolerance=tolerance,
        task=task_of(config),
        training=dict(training),
        versions=dict(versions),
        files=dict(files),
    )


def describe_ports(learner: Learner) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the inputs and outputs of a learner's policy."""
    spec, network = learner.spec, policy_network(learner)
    inputs = [Port(name="observation", shape=("batch", spec.observation_dim), dtype="float32", units=_OWN_UNITS)]
    if spec.goal_dim:
        inputs.append(Port(name="desired_goal", shape=("batch", spec.goal_dim), dtype="float32", units=_OWN_UNITS))
    if spec.is_discrete:
        action = Port(name="action", shape=("batch",), dtype="int64", units="index of the action")
    else:
        low, high = (tuple(bound.tolist()) for bound in spec.action_bounds)
        shape: Any = ("batch", spec.action_dim)
        action = Port(name="action", shape=shape, dtype="float32", units=_OWN_UNITS, low=low, high=high)
    units = {
        "gaussian": _OWN_UNITS,
        "squashed_gaussian": "before tanh",
        "q_values": "discounted return",
        "logits": "log-probability, up to a constant",
    }
    extra = [
        Port(
            name=name,
            shape=("batch", spec.num_actions or spec.action_dim),
            dtype="float32",
            units=units[network.kind],
            optional=True,
        )
        for name in network.extra_outputs
    ]
    return tuple(inputs), (action, *extra)


def contract_text(contract: Contract) -> str:
    """Return the contract as JSON, with the checksum of its content as the last key."""
    values = json.loads(to_json(contract.model_dump(mode="json")))
    text = to_json({**values, "sha256": _checksum(values)}, indent=1)
    # A list of numbers or names on one line. A line break in JSON is never inside a text, so texts stay as they are.
    return re.sub(r"\[\n\s+([^][{}]*?)\n\s+\]", lambda match: f"[{re.sub(_BREAK, ', ', match[1])}]", text) + "\n"


def read_contract(folder: Path) -> Contract:
    """Read and check the contract of a bundle; the error says what is wrong with it."""
    file = folder / CONTRACT
    if not file.is_file():
        raise BundleError(f"{folder}: not a policy bundle, there is no {CONTRACT} in it")
    try:
        values = read_json(file)
    except DatasetError as error:
        raise BundleError(error) from None
    if not isinstance(values, dict):
        raise BundleError(f"{file}: expected an object, found {type(values).__name__}")
    found = values.get("format_version")
    if values.get("format") != Contract.model_fields["format"].default:
        raise BundleError(f"{file}: not the contract of a policy bundle of rl_training")
    if found != 1:
        raise BundleError(f"{file}: format {found!r}; this version reads format 1")
    checksum = values.pop("sha256", None)
    try:
        matches = checksum == _checksum(values)
    except (ValueError, RecursionError):  # NaN, or a text that is not Unicode
        matches = False
    if not matches:
        raise BundleError(f"{file}: damaged, its checksum does not match its content")
    contract, problems = check_settings(Contract, values)
    if contract is None:
        raise BundleError(f"{file}: {problems[0]}")
    problem = _inconsistency(contract)
    if problem:
        raise BundleError(f"{file}: {problem}")
    return contract


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _inconsistency(contract: Contract) -> str | None:
    """Return what does not fit together in a contract whose fields are valid one by one."""
    if [port.name for port in contract.inputs] not in (["observation"], ["observation", "desired_goal"]):
        return "inputs: expected observation, and desired_goal in a goal task"
    if any(len(port.shape) != 2 or port.dtype != "float32" for port in contract.inputs):
        return "inputs: expected float32 of shape [batch, size]"
    action, discrete = contract.outputs[0], contract.policy.num_actions is not None
    if action.name != "action" or (len(action.shape) == 1) != discrete or (action.dtype == "int64") != discrete:
        return "outputs: expected action first, float32 [batch, size], or int64 [batch] with num_actions"
    for bound in (action.low, action.high):
        if (bound is None) != discrete or (bound is not None and len(bound) != action.shape[-1]):
            return "outputs: expected one low and one high for each action"
    bounds = zip(action.low or (), action.high or (), strict=True)
    if not all(low < high and math.isfinite(high - low) for low, high in bounds):
        return "outputs: expected each low below its high"
    return None
