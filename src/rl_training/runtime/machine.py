"""Versions and hardware, which can change the results of a run that has the same configuration."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

PACKAGES = {
    "rl-training": "core",
    "torch": "core",
    "numpy": "core",
    "gymnasium": "core",
    "gymnasium-robotics": "robotics",
    "mujoco": "robotics",
    "imageio-ffmpeg": "video",
    "onnx": "export",
    "onnxruntime": "export",
    "wandb": "wandb",
    "mlflow-skinny": "mlflow",
    "huggingface_hub": "hub",
    "matplotlib": "plots",
    "minari": "offline",
    "fsspec": "remote",
    "ray": "scale",
    "optuna": "scale",
    "h5py": "offline",
    "pyarrow": "offline",
}
"""Packages whose versions are reported, and the extra that installs each."""


def machine_facts(device: torch.device) -> dict[str, str]:
    """Return versions, processor and device; a checkpoint keeps them to explain a resume that is not exact."""
    facts = {"python": platform.python_version(), "processor": platform.machine()}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    facts["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    # The versions of these packages can change the numbers of a run.
    recorded = (package for package, extra in PACKAGES.items() if extra in ("core", "robotics"))
    return facts | {package: found for package in recorded if (found := package_version(package)) != "unknown"}


def package_version(package: str = "rl-training") -> str:
    """Return the installed version of a package, or ``unknown``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
