"""Versions and hardware: what decides, beside the configuration, whether the same steps give the same bits."""

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
    "minari": "offline",
    "h5py": "offline",
    "pyarrow": "offline",
}
"""Packages whose versions matter, and the extra that installs each. The core and the simulators decide the bits."""


def machine_facts(device: torch.device) -> dict[str, str]:
    """Return versions, processor and device; a checkpoint keeps them to explain a resume that is not exact."""
    facts = {"python": platform.python_version(), "processor": platform.machine()}
    facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    facts["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    deciding = (package for package, extra in PACKAGES.items() if extra in ("core", "robotics"))
    return facts | {package: found for package in deciding if (found := package_version(package)) != "unknown"}


def package_version(package: str = "rl-training") -> str:
    """Return the installed version of a package, or ``unknown``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
