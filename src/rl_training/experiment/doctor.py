"""``rl-training doctor``: what is installed and what it runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from rl_training.errors import install_command

_PACKAGES = {
    "torch": "core",
    "gymnasium": "core",
    "numpy": "core",
    "gymnasium-robotics": "robotics",
    "mujoco": "robotics",
    "imageio-ffmpeg": "video",
    "minari": "offline",
    "h5py": "offline",
    "pyarrow": "offline",
}


def diagnose() -> dict[str, str]:
    """Return versions, devices and extras as readable text."""
    import torch

    facts = {
        "rl-training": _version("rl-training"),
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cpu": f"{os.cpu_count()} cores",
        "cuda": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "none",
    }
    for package, extra in _PACKAGES.items():
        found = _version(package)
        hint = f" ({install_command(extra)})" if found == "not installed" and extra != "core" else ""
        facts[package] = found + hint
    return facts


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
