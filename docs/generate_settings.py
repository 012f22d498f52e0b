"""Write the tables of settings into the docs from the classes and the table of algorithms.

In ``configuration.md`` a region between ``<!-- settings: NAME -->`` and ``<!-- end -->`` holds the table of that class:
``python docs/generate_settings.py`` writes it, ``--check`` fails where it is out of date. In ``settings.md`` such
regions are empty and MkDocs fills them when it builds the site, so a new algorithm changes no page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rl_training.algorithms.base import Learner
from rl_training.algorithms.table import ALGORITHMS, backend_names
from rl_training.config import TrainConfig, preset_names
from rl_training.data import HindsightSettings, ReplaySettings
from rl_training.data.dataset_loaders import DatasetSettings, RewardSettings
from rl_training.envs.factory import EnvSettings, WrapperSettings
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.experiment.preset_table import read_preset
from rl_training.experiment.setting_tables import BACKEND_MEANING, ONLINE_MEANING, Markup, describe_settings
from rl_training.runtime.controls import (
    CollectionSettings,
    EarlyStoppingConfig,
    InitSettings,
    LoopSettings,
    PriorSettings,
)
from rl_training.runtime.exploration import ExplorationSettings
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
        HindsightSettings,
    )
}

_REGION = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_HEADER = "| Key | Default | Accepts | Meaning |\n|---|---|---|---|"


def render(text: str) -> str:
    """Return the page with every marked region written anew."""
    return _REGION.sub(lambda match: f"{match[1]}{region(match[2])}\n{match[3]}", text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill the regions of a page; MkDocs calls this for every page (``hooks`` in ``mkdocs.yml``)."""
    return render(markdown)


def region(name: str) -> str:
    """Return the table for one mark."""
    special = {
        "exploration": exploration_table,
        "online": online_table,
        "backend": backend_table,
        "algorithms": algorithm_sections,
        "presets": preset_table,
    }
    return special[name]() if name in special else settings_table(CLASSES[name])


def settings_table(cls: type[BaseModel]) -> str:
    """Return one row for each field of a class, those of its base classes included."""
    rows = [_HEADER]
    for setting in describe_settings(cls, markup=_MARKUP):
        accepts = setting.accepts.replace(">=", "≥").replace("<=", "≤")
        rows.append(f"| `{setting.key}` | {setting.default} | {_cell(accepts)} | {_cell(setting.meaning)} |")
    return "\n".join(rows)


def algorithm_sections() -> str:
    """Return a section for each algorithm with all settings of its learner."""
    sections = []
    for row in ALGORITHMS.values():
        defaults = {**row.learner.run_defaults, **row.defaults}
        notes = [f"{row.description}." if not row.hindsight else f"{row.description}; here for `ddpg`, the default."]
        if defaults:
            notes.append("In a run: " + ", ".join(f"`{key}: {value:g}`" for key, value in defaults.items()) + ".")
        notes.append("It trains online." if row.online else "It trains offline, unless `online: true`.")
        sections.append(f"## {row.name}\n\n{' '.join(notes)}\n\n{settings_table(row.learner.Settings)}")
    return "\n\n".join(sections)


def preset_table() -> str:
    """Return every preset with its environment, its length, its purpose and its score."""
    rows = ["| Preset | Environment | Steps | What it is for | Expect |", "|---|---|---|---|---|"]
    for preset in map(read_preset, preset_names()):
        config = preset.config
        steps = f"{config.total_timesteps:,}"
        rows.append(f"| `{preset.name}` | `{config.env_id}` | {steps} | {preset.purpose} | {preset.expect} |")
    return "\n".join(rows)


def exploration_table() -> str:
    """Return how each learner explores where ``exploration_noise`` and ``random_action_prob`` are unset."""
    rows = ["| Learner | `exploration_noise` | `random_action_prob` |", "|---|---|---|"]
    learners = {name: ALGORITHMS[name].learner for name in backend_names()}
    rows += [
        f"| `{name}` | {_noise(cls)} | {cls.run_defaults.get('random_action_prob', 0.0):g} |"
        for name, cls in learners.items()
    ]
    return "\n".join(rows)


def online_table() -> str:
    """Return the row of the key whose default depends on the algorithm."""
    by_default = ", ".join(f"`{name}`" for name, row in ALGORITHMS.items() if row.online)
    return f"{_HEADER}\n| `online` | `true` for {by_default}; else `false` | `true`, `false` | {ONLINE_MEANING} |"


def backend_table() -> str:
    """Return the row of HER's own key."""
    names = ", ".join(f"`{name}`" for name in backend_names())
    return f"{_HEADER}\n| `backend` | `ddpg` | {names} | {BACKEND_MEANING} |"


def _noise(cls: type[Learner]) -> str:
    return (
        f"{cls.run_defaults.get('exploration_noise', 0.0):g}"
        if cls.actions != "discrete"
        else "none: actions are discrete"
    )


def _anchor(cls: type[BaseModel]) -> str:
    anchors = {
        Schedule: "schedules",
        EarlyStoppingConfig: "early-stopping",
        RewardTransformConfig: "reward-transform",
        WrapperSettings: "wrappers",
    }
    return anchors[cls]


_MARKUP = Markup(literal=lambda text: f"`{text}`", nested=lambda cls: f"[{cls.__name__}](#{_anchor(cls)})")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def main() -> int:
    """Rewrite the page, or with ``--check`` say whether that would change it."""
    text = PAGE.read_text(encoding="utf-8")
    current = render(text)
    if "--check" in sys.argv[1:]:
        if current != text:
            print(f"{PAGE.name} is out of date: run python docs/generate_settings.py", file=sys.stderr)
        return int(current != text)
    PAGE.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
