"""What each preset is for, and the score to expect.

The first line of a preset's comment says what it is for. The line ``# Expect:`` gives the score of the last checkpoint,
as it was measured over several seeds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rl_training.config import TrainConfig, config_path, load_config


@dataclass(frozen=True)
class Preset:
    """One preset.

    Attributes:
        purpose: what it is for, in one sentence.
        expect: the score of the last checkpoint, such as ``return -140 (3 seeds, worst -141)``.
    """

    name: str
    config: TrainConfig
    purpose: str
    expect: str


def read_preset(name: str) -> Preset:
    """Return a preset with what its comment says."""
    header = re.match(r"(?:#.*\n)*", config_path(name).read_text(encoding="utf-8"))
    lines = [line.lstrip("# ").rstrip() for line in header[0].splitlines()] if header else []
    expect = next((line.removeprefix("Expect: ") for line in lines if line.startswith("Expect: ")), "")
    return Preset(name, load_config(name), lines[0] if lines else "", expect)
