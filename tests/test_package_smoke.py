"""The package as installed: quick to import, complete, and the same from every door."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import rl_training
from rl_training.config import PRESET_DIR, preset_names

ROOT = Path(__file__).parents[1]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_alone_loads_nothing_heavy():
    heavy = "torch gymnasium pydantic matplotlib tensorboard mujoco typer"
    out = run(f"import rl_training, sys; print([m for m in '{heavy}'.split() if m in sys.modules])")
    assert out.strip() == "[]"


def test_a_managed_class_is_imported_without_environments_and_without_the_loop():
    late = "gymnasium rl_training.runtime rl_training.experiment rl_training.data"
    out = run(f"from rl_training import HER; import sys; print([m for m in '{late}'.split() if m in sys.modules])")
    assert out.strip() == "[]"


def test_an_import_leaves_the_garbage_collector_as_it_was():
    watched = "import gc; gc.callbacks.append(lambda phase, info: print(phase, info['generation']))"
    out = run(f"import rl_training; {watched}; rl_training.train; gc.callbacks.clear(); print(gc.isenabled())")
    assert "start 2" not in out  # no search of all objects while they are imported
    assert out.strip().endswith("True")
    assert run("import gc; gc.disable(); from rl_training import train; print(gc.isenabled())").strip() == "False"


def test_importing_the_learners_leaves_optional_packages_alone():
    optional = "gymnasium_robotics mujoco matplotlib tensorboard imageio typer"
    out = run(f"import rl_training.runtime, sys; print([m for m in '{optional}'.split() if m in sys.modules])")
    assert out.strip() == "[]"


def test_both_doors_to_the_command_line_are_open():
    assert any(entry.name == "rl-training" for entry in entry_points(group="console_scripts"))
    out = subprocess.run([sys.executable, "-m", "rl_training", "presets"], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in out.stdout.splitlines() if re.match(r"\w+/", line)] == preset_names()


def test_presets_ship_with_the_package_and_configs_is_the_same_folder():
    assert PRESET_DIR.is_relative_to(Path(rl_training.__file__).parent)
    assert (ROOT / "configs").resolve() == PRESET_DIR.resolve()


def test_the_version_is_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{version('rl-training')}]" in changelog or f"## {version('rl-training')}" in changelog
