"""Whether two checkpoints hold the same state, bit for bit, and in which parts they differ."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import DamagedCheckpointError
from rl_training.runtime.checkpoint_files import read_tensors
from rl_training.runtime.checkpointing import read_whole

State = dict[str, Any]
"""Everything that decides a run's future, by path: tensors and plain values."""


def full_state(path: Path) -> State:
    """Return the state of a run's checkpoint, with the replay rows that are still needed."""
    manifest, state = read_whole(path)
    trainer = state.get("trainer", {})
    # Skip stateless callbacks, such as the progress bar, and ignore the order of callbacks.
    callbacks = {name.partition("-")[2]: kept for name, kept in trainer.get("callbacks", {}).items() if kept}
    flat: State = {}
    _flatten({**state, "trainer": {**trainer, "callbacks": callbacks}}, "", flat)
    segments = manifest["segments"]
    if segments:
        rows = [read_tensors(path.parents[1] / "replay" / Path(segment["name"]).name) for segment in segments]
        try:
            together = torch.cat([part["rows"] for part in rows])
        except (KeyError, RuntimeError, TypeError) as error:
            raise DamagedCheckpointError(f"{path}: its replay segments do not fit together: {error}") from None
        first = int(manifest.get("oldest_row", segments[0]["first"]))
        flat["replay/rows"] = together[first - segments[0]["first"] :]
    return flat


def state_hash(state: State) -> str:
    """Return the SHA-256 of a state: equal for two runs if nothing differs."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(f"{name}\0".encode())
        digest.update(_content(state[name]))
    return digest.hexdigest()


def state_differences(a: State, b: State) -> list[str]:
    """Name every part in which two states differ."""
    found = []
    for name in sorted({**a, **b}):
        if name not in a or name not in b:
            found.append(f"{name}: in one of them only")
        elif _content(a[name]) != _content(b[name]):
            found.append(f"{name}: {_explain(a[name], b[name])}")
    return found


def _flatten(tree: Any, path: str, flat: State) -> None:
    if isinstance(tree, dict):
        for key, value in tree.items():
            _flatten(value, f"{path}/{key}" if path else str(key), flat)
    else:
        flat[path] = torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree


def _content(value: Any) -> bytes:
    if isinstance(value, Tensor):
        header = f"{value.dtype} {tuple(value.shape)} ".encode()
        return header + value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return json.dumps(value, sort_keys=True).encode()


def _explain(a: Any, b: Any) -> str:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return f"{_short(a)}, the other {_short(b)}"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype} {tuple(a.shape)}, the other {b.dtype} {tuple(b.shape)}"
    gap = (a.double() - b.double()).abs()
    return f"{int((gap != 0).sum())} of {a.numel()} numbers, by up to {float(gap.max()):.3g}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
