"""``rl-training doctor``: what a bug report needs, and the clashes that are known.

Versions, processor, memory, devices, extras and environment variables are facts. A problem is a combination that does
not work, with what to do about it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from rl_training.errors import install_command, shown

_VARIABLES = (
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "MUJOCO_GL",
    "RL_TRAINING_CACHE",
    "RL_TRAINING_DATA",
    "MINARI_DATASETS_PATH",
    "PYTHONPATH",
)
"""Environment variables that change what a run does."""


def diagnose() -> dict[str, str]:
    """Return versions, devices, extras and environment variables as readable text."""
    import torch

    from rl_training.runtime.machine import PACKAGES, package_version

    capability = torch.backends.cpu.get_cpu_capability()
    build = f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"
    facts = {
        "rl-training": f"{package_version()}, {_origin()}",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "cpu": f"{_processor()}, {os.cpu_count()} cores, {capability}",
        "memory": _memory(),
        "cuda": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "none",
    }
    for package, extra in PACKAGES.items():
        if package == "rl-training":
            continue
        found = package_version(package)
        if found == "unknown":
            found = "not installed" + (f" ({install_command(extra)})" if extra != "core" else "")
        facts[package] = f"{found}, {build}" if package == "torch" else found
    return facts | {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def find_problems() -> list[str]:
    """Return what is known not to work here, each with what to do about it."""
    import torch

    from rl_training.runtime.machine import package_version

    try:
        declared = requires("rl-training") or []
    except PackageNotFoundError:
        declared = []
    names = {Requirement(line).name for line in declared}
    versions = {name: found for name in names if (found := package_version(name)) != "unknown"}
    problems = version_clashes(versions, declared)
    if "minari" in versions and find_spec("PIL") is None:
        problems.append("minari needs pillow, which is not installed: pip install pillow")
    if shutil.which("nvidia-smi") and not torch.cuda.is_available():
        build = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is a CPU build"
        problems.append(f"there is an NVIDIA GPU that torch cannot use: torch {build}; install a build for your driver")
    return problems + variable_clashes(os.environ)


def version_clashes(versions: Mapping[str, str], declared: Sequence[str]) -> list[str]:
    """Return combinations of installed versions that do not work.

    Args:
        versions: the installed packages.
        declared: this package's requirements, as its metadata lists them.
    """
    found = {name: Version(text) for name, text in versions.items()}
    problems = dict[str, str]()
    if {"mujoco", "gymnasium-robotics"} <= set(found):
        mujoco, robotics = found["mujoco"], found["gymnasium-robotics"]
        if mujoco.major >= 4 and robotics <= Version("1.4.2"):
            problems["mujoco"] = (
                f"mujoco {mujoco} and gymnasium-robotics {robotics}: the Fetch and Hand tasks do not start;"
                ' pip install "mujoco<3.4"'
            )
    for line in declared:
        requirement = Requirement(line)
        name = requirement.name
        if name in found and not requirement.specifier.contains(found[name], prereleases=True):
            problems.setdefault(
                name,
                f'{name} {found[name]} is outside {requirement.specifier}: pip install "{name}{requirement.specifier}"',
            )
    return list(problems.values())


def variable_clashes(variables: Mapping[str, str]) -> list[str]:
    """Return environment variables that make something fail."""
    problems = []
    folder = variables.get("RL_TRAINING_DATA")
    if folder and not Path(folder).is_dir():
        problems.append(f"RL_TRAINING_DATA = {shown(folder)}: there is no such folder")
    if variables.get("MUJOCO_GL") == "disabled":
        problems.append(
            "MUJOCO_GL = disabled: MuJoCo tasks cannot be recorded with --video; unset it, or set it to egl"
        )
    return problems


def _origin() -> str:
    """Return how this package was installed, without the path it was installed from."""
    try:
        recorded = json.loads(distribution("rl-training").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return "not installed"
    if "dir_info" in recorded:
        return "editable checkout" if recorded["dir_info"].get("editable") else "installed from a folder"
    if "vcs_info" in recorded:
        return f"installed from {recorded['vcs_info']['vcs']} at {recorded['vcs_info']['commit_id'][:12]}"
    return "installed from a wheel" if recorded else "installed from an index"


def _processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return shown(line.partition(":")[2].strip())
    return platform.processor() or platform.machine()


def _memory() -> str:
    """Return the size of the memory, if the system tells it."""
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (AttributeError, OSError, ValueError):
        return "unknown"
