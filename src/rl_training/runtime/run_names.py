"""The names of new runs' folders."""

from __future__ import annotations

import re
from datetime import datetime

from rl_training.config import TrainConfig


def new_run_names(config: TrainConfig, run_name: str | None) -> list[str]:
    """Return the names that a new run's folder may have, the first free one to be taken."""
    name = re.sub(r"[^\w.=+-]+", "-", run_name or f"{config.algo}-{config.env_id or 'offline'}")
    stem = f"{name}-s{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    return [f"{stem}-{attempt}" if attempt else stem for attempt in range(100)]
