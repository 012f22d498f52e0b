"""The ids of the built-in environments. This module imports neither Gymnasium nor anything else of the package."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GOAL_ENVS = {
    "rl_training/PointGoal1D-v0": "PointGoal1DEnv",
    "rl_training/PointReach2D-v0": "PointReachGoalEnv",
    "rl_training/BitFlipping-v0": "BitFlippingEnv",
}


def register_goal_envs() -> None:
    """Register the built-in environments with Gymnasium, once."""
    import gymnasium as gym

    for env_id, class_name in GOAL_ENVS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=f"rl_training.envs.builtin:{class_name}")


def register_with_gymnasium() -> None:
    """Register the built-in environments now, or as soon as Gymnasium is imported.

    ``import rl_training`` calls this, so that ``gym.make("rl_training/PointGoal1D-v0")`` works in either order of the
    two imports, and importing this package alone does not import Gymnasium. (Gymnasium 1.x has no entry points for
    environments.)
    """
    if "gymnasium" in sys.modules:
        register_goal_envs()
    elif not any(isinstance(finder, _GymnasiumFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GymnasiumFinder())


class _GymnasiumFinder(MetaPathFinder):
    """Waits for the import of Gymnasium, and registers the environments when it is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return Gymnasium's own spec, with a loader that registers the environments afterwards."""
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)  # so that the other finders find it
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                register_goal_envs()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec
