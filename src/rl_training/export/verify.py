"""Check a bundle: the checksums of its files, and its graph against the golden vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.formats.npz import Array, read
from rl_training.errors import BundleError, DatasetError
from rl_training.export.contract import Contract, Port, read_contract
from rl_training.export.policy import GRAPH, BundlePolicy, read_file

WEIGHTS, GOLDEN, EXAMPLES = "policy.safetensors", "golden.npz", ("example.py", "ros2_node.py")
FILES = (GRAPH, WEIGHTS, GOLDEN, *EXAMPLES)
"""The files of a bundle whose checksums are in the contract. The model card may be edited."""


@dataclass(frozen=True)
class Verification:
    """What ``verify_bundle`` found."""

    path: Path
    vectors: int
    """The number of golden inputs that were replayed."""
    largest_differences: dict[str, float]
    """For each output, the largest difference from the golden values, in units of the tolerance's scale."""
    problems: tuple[str, ...]
    """What is wrong; empty for a good bundle."""

    @property
    def passed(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "bundle": str(self.path),
            "passed": self.passed,
            "vectors": self.vectors,
            "largest_differences": self.largest_differences,
            "problems": list(self.problems),
        }


def verify_bundle(path: str | Path) -> Verification:
    """Compare every file of a bundle with its checksum, and the graph's outputs with the golden ones.

    Raises:
        BundleError: the folder is no bundle, or its contract cannot be read.
    """
    path = Path(path)
    contract = read_contract(path)
    problems = []
    for name in sorted({*FILES, *contract.files}):
        try:
            read_file(path, Path(name).name, contract)
        except BundleError as error:
            problems.append(str(error))
    if problems:
        return Verification(path, 0, {}, tuple(problems))
    try:
        inputs, golden = _read_golden(path, contract)
        found = BundlePolicy(path).outputs(inputs)
    except BundleError as error:
        return Verification(path, 0, {}, (str(error),))
    differences = output_differences(found, golden, contract.outputs)
    problems = [
        f"{path}: {name} differs from {GOLDEN} by {difference:.1e}: expected at most {contract.tolerance:g}"
        for name, difference in differences.items()
        if not difference <= contract.tolerance  # also if it is NaN
    ]
    return Verification(path, len(inputs), differences, tuple(problems))


def output_differences(
    found: Mapping[str, Array], golden: Mapping[str, Array], ports: Sequence[Port]
) -> dict[str, float]:
    """Return the largest difference of each output from the golden one.

    Differences of actions are divided by half their range, those of other outputs by their size, where that is above 1.
    A discrete action counts as different only if the golden values of the two actions are not a near tie.
    """
    differences: dict[str, float] = {}
    for port in ports:
        expected, actual = golden[port.name], found[port.name]
        if port.dtype == "int64":
            values = golden[ports[1].name].astype(np.float64)  # [N, num_actions]
            rows = np.arange(len(values))
            gaps = np.abs(values[rows, expected] - values[rows, actual])
            scale = np.maximum(1.0, np.abs(values).max(axis=1))
        else:
            gaps = np.abs(expected.astype(np.float64) - actual)
            scale = np.maximum(1.0, np.abs(expected))
            if port.low is not None and port.high is not None:
                scale = np.maximum(1.0, 0.5 * (np.asarray(port.high) - np.asarray(port.low)))
        differences[port.name] = float((gaps / scale).max())
    return differences


def _read_golden(path: Path, contract: Contract) -> tuple[Array, dict[str, Array]]:
    """Return the golden inputs ``[N, policy_dim]`` and outputs, after checking their names and shapes."""
    file = path / GOLDEN
    try:
        arrays, _ = read(file, wanted=lambda name: True)
    except DatasetError as error:
        raise BundleError(error) from None
    rows = len(arrays["observation"]) if "observation" in arrays and arrays["observation"].ndim == 2 else 0
    for port in (*contract.inputs, *contract.outputs):
        expected = (rows, *port.shape[1:])
        array = arrays.get(port.name)
        if array is None or array.shape != expected or array.dtype != port.dtype or not rows:
            raise BundleError(f"{file}: {port.name} is missing or not {port.dtype} of shape {expected}")
    count = contract.policy.num_actions
    if count is not None and not ((arrays["action"] >= 0) & (arrays["action"] < count)).all():
        raise BundleError(f"{file}: action is not an index below {count}")
    inputs = np.concatenate([arrays[port.name] for port in contract.inputs], axis=1)
    return inputs, {port.name: arrays[port.name] for port in contract.outputs}
