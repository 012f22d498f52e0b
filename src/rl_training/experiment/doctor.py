"""``rl-training doctor``: what is installed and what it runs on."""

from __future__ import annotations

import os
import platform

from rl_training.errors import install_command


def diagnose() -> dict[str, str]:
    """Return versions, devices and extras as readable text."""
    import torch

    from rl_training.runtime.machine import PACKAGES, package_version

    facts = {
        "rl-training": package_version(),
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cpu": f"{os.cpu_count()} cores",
        "cuda": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "none",
    }
    for package, extra in PACKAGES.items():
        found = package_version(package)
        if found == "unknown":
            found = "not installed" + (f" ({install_command(extra)})" if extra != "core" else "")
        facts[package] = found
    return facts
