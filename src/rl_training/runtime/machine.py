"""What decides, beside the configuration, whether the same steps give the same bits."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

_PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "gymnasium-robotics", "mujoco")


def machine_facts(device: torch.device) -> dict[str, str]:
    """Return versions, processor and device; a checkpoint keeps them to explain a resume that is not exact."""
    facts = {"python": platform.python_version(), "processor": platform.machine()}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    facts["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return facts | {package: found for package in _PACKAGES if (found := package_version(package)) != "unknown"}


def package_version(package: str = "rl-training") -> str:
    """Return the installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
