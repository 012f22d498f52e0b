"""Write the tables of ``configuration.md`` from the settings classes: ``python docs/generate_settings.py``.

A region of the page between ``<!-- settings: NAME -->`` and ``<!-- end -->`` is replaced by the table of that class.
``--check`` changes nothing and fails where a table is out of date.
"""

from __future__ import annotations

import re
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_training.algorithms.actor_critic import ActorCriticSettings, DemonstrationSettings
from rl_training.algorithms.advantage_weighted import AdvantageWeightedSettings
from rl_training.algorithms.awac import AWACSettings
from rl_training.algorithms.base import CriticSettings, Learner, LearnerSettings
from rl_training.algorithms.bc import BCSettings
from rl_training.algorithms.cql import CQLSettings, DiscreteCQLSettings
from rl_training.algorithms.ddpg import DDPGSettings
from rl_training.algorithms.her import BackendSettings
from rl_training.algorithms.iql import IQLSettings
from rl_training.algorithms.rlpd import RLPDSettings
from rl_training.algorithms.sac import SACSettings
from rl_training.algorithms.td3 import TD3Settings
from rl_training.algorithms.td3_bc import TD3BCSettings
from rl_training.config import TrainConfig
from rl_training.data import HindsightSettings, ReplaySettings
from rl_training.data.dataset_loaders import DatasetSettings, RewardSettings
from rl_training.envs.factory import EnvSettings, WrapperSettings
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.experiment.registry import RECIPES
from rl_training.runtime.collector import ExplorationSettings
from rl_training.runtime.controls import (
    CollectionSettings,
    EarlyStoppingConfig,
    InitSettings,
    LoopSettings,
    PriorSettings,
)
from rl_training.runtime.recipe import OnlineSettings
from rl_training.runtime.schedules import Schedule

PAGE = Path(__file__).parent / "configuration.md"

CLASSES: dict[str, type[BaseModel]] = {
    cls.__name__: cls
    for cls in (
        TrainConfig,
        EnvSettings,
        WrapperSettings,
        RewardTransformConfig,
        LoopSettings,
        EarlyStoppingConfig,
        Schedule,
        CollectionSettings,
        ExplorationSettings,
        ReplaySettings,
        DatasetSettings,
        RewardSettings,
        PriorSettings,
        InitSettings,
        LearnerSettings,
        CriticSettings,
        ActorCriticSettings,
        DemonstrationSettings,
        DDPGSettings,
        TD3Settings,
        SACSettings,
        RLPDSettings,
        BackendSettings,
        HindsightSettings,
        BCSettings,
        TD3BCSettings,
        AdvantageWeightedSettings,
        IQLSettings,
        CQLSettings,
        DiscreteCQLSettings,
        AWACSettings,
    )
}

_REGION = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def render(text: str) -> str:
    """Return the page with every marked region written anew."""
    return _REGION.sub(lambda match: f"{match[1]}{region(match[2])}\n{match[3]}", text)


def region(name: str) -> str:
    """Return the table for one mark."""
    special = {"exploration": exploration_table, "online": online_table}
    return special[name]() if name in special else settings_table(CLASSES[name])


def settings_table(cls: type[BaseModel]) -> str:
    """Return one row for each field that the class itself declares, not those it inherits."""
    rows = ["| Key | Default | Accepts | Meaning |", "|---|---|---|---|"]
    for name in cls.__annotations__:
        field = cls.model_fields.get(name)
        if field is not None:
            rows.append(f"| `{name}` | {_default(field)} | {_accepts(field)} | {_cell(field.description or '')} |")
    return "\n".join(rows)


def exploration_table() -> str:
    """Return how each learner explores where ``exploration_noise`` and ``random_action_prob`` are unset."""
    rows = ["| Learner | `exploration_noise` | `random_action_prob` |", "|---|---|---|"]
    learners = {name: recipe.learner({}) for name, recipe in RECIPES.items() if not recipe.hindsight}
    rows += [f"| `{name}` | {_noise(cls)} | {cls.random_action_prob:g} |" for name, cls in learners.items()]
    return "\n".join(rows)


def online_table() -> str:
    """Return the row of the one key whose default depends on the algorithm."""
    field = OnlineSettings.model_fields["online"]
    by_default = ", ".join(f"`{name}`" for name, recipe in RECIPES.items() if recipe.online)
    default = f"`true` for {by_default}; else `false`"
    return (
        "| Key | Default | Accepts | Meaning |\n|---|---|---|---|\n"
        f"| `online` | {default} | {_accepts(field)} | {_cell(field.description or '')} |"
    )


def _noise(cls: type[Learner]) -> str:
    return f"{cls.exploration_noise:g}" if cls.actions != "discrete" else "none: actions are discrete"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    if isinstance(value, BaseModel) or value == {}:
        return "`{}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _accepts(field: FieldInfo) -> str:
    kinds = [_kind(part) for part in _parts(field.annotation) if part is not type(None)]
    bounds = [
        f"{sign} {getattr(limit, name):,}".removesuffix(".0")
        for limit in field.metadata
        for name, sign in _BOUNDS.items()
        if hasattr(limit, name)
    ]
    return _cell(", ".join([" or ".join(kinds), *bounds]))


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the annotation alone."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _kind(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is typing.Annotated:
        limits = (
            f"{s} {getattr(m, n):g}"
            for f in arguments[1:]
            for m in f.metadata
            for n, s in _BOUNDS.items()
            if hasattr(m, n)
        )
        return " ".join([_kind(arguments[0]), *limits])
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return "mapping"
    names = {int: "integer", float: "number", str: "text", bool: "`true`, `false`", Path: "path"}
    return names.get(annotation) or f"[{annotation.__name__}](#{_anchor(annotation)})"


def _anchor(cls: type[BaseModel]) -> str:
    anchors = {
        Schedule: "schedules",
        EarlyStoppingConfig: "early-stopping",
        RewardTransformConfig: "reward-transform",
        WrapperSettings: "wrappers",
    }
    return anchors[cls]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def main() -> int:
    """Rewrite the page, or with ``--check`` say whether that would change it."""
    text = PAGE.read_text(encoding="utf-8")
    fresh = render(text)
    if "--check" in sys.argv[1:]:
        if fresh != text:
            print(f"{PAGE.name} is out of date: run python docs/generate_settings.py", file=sys.stderr)
        return int(fresh != text)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
