"""Which runs are the same: what identifies a run, and the runs of a configuration below a path or a URL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, load_config
from rl_training.errors import CheckpointError, ConfigError
from rl_training.json_output import to_json
from rl_training.runtime.outcome import read_result
from rl_training.runtime.remote.folder import RemoteFolder
from rl_training.runtime.remote.local_copy import fetch, identity, url_of
from rl_training.runtime.settings import complete_config


def run_identity(config: TrainConfig) -> dict[str, Any]:
    """Return all settings, defaults included, that make two runs the same; their folder is not among them."""
    # Complete both configurations before comparing: a newer version may have settings that an older file lacks.
    return complete_config(config).model_dump(mode="json", exclude={"output_dir"})


def runs_of(config: TrainConfig, folders: Sequence[Path] | None = None) -> list[Path]:
    """Return the runs below ``output_dir``, or among ``folders``, that have this configuration, newest first."""
    wanted, found = run_identity(config), []
    if folders is None:
        folders = [file.parent for file in Path(config.output_dir).absolute().glob("*/config.yaml")]
    for folder in folders:
        try:
            if run_identity(load_config(folder / "config.yaml")) == wanted:
                found.append(folder)
        except ConfigError:
            continue
    return sorted(found, key=lambda run_dir: run_dir.stat().st_mtime_ns, reverse=True)


def url_of_run(config: TrainConfig, name: str | None) -> str:
    """Return the URL of the run of this configuration below a URL or, if there is none, where it is to be.

    The name of a new one depends on the configuration alone, so that two machines agree on it.
    """
    output_dir, found = str(config.output_dir), []
    for folder in RemoteFolder(output_dir).folders():
        try:
            found.append(fetch(f"{output_dir}/{folder}", identity))
        except CheckpointError:
            continue
    same = runs_of(config, found)
    ended = [run for run in same if (result := read_result(run)) and result.status in ("completed", "stopped")]
    for run in [*ended, *same]:
        if url := url_of(run):
            return url
    return _own_url(config, name, run_identity(config))


def urls_of_stack(configs: Sequence[TrainConfig], name: str | None) -> list[str]:
    """Return the URLs of the runs of a stack. Their names depend on the configurations alone."""
    identities = [run_identity(config) for config in configs]
    return [_own_url(config, name, [own, identities]) for config, own in zip(configs, identities, strict=True)]


def _own_url(config: TrainConfig, name: str | None, content: object) -> str:
    stem = re.sub(r"[^\w.=+-]+", "-", name or f"{config.algo}-{config.env_id or 'offline'}")
    digest = hashlib.sha256(to_json(content).encode()).hexdigest()[:12]
    return f"{config.output_dir}/{stem}-s{config.seed}-{digest}"
