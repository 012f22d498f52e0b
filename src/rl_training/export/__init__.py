"""Policies outside this package: a bundle holds an ONNX graph, its contract, test vectors and examples."""

from rl_training.export.bundle import export_policy
from rl_training.export.contract import Contract, Task, task_of
from rl_training.export.policy import BundlePolicy, is_bundle
from rl_training.export.verify import Verification, verify_bundle

__all__ = [
    "BundlePolicy",
    "Contract",
    "Task",
    "Verification",
    "export_policy",
    "is_bundle",
    "task_of",
    "verify_bundle",
]
