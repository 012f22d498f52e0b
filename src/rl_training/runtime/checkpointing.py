"""Checkpoints: complete, without pickle, and never half-written.

A run's ``checkpoints/<step>-<updates>/`` holds ``manifest.json`` and a safetensors file for each part of the state
(``learner``, ``collector``, …); the files ``latest`` and ``best`` beside it name one each. Replay rows lie in
``replay/`` as immutable segments that checkpoints share, so that a checkpoint costs what is new since the last one.
Everything is written under a temporary name, flushed and renamed; the manifest carries sizes and checksums.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl_training.data.row_ring import RowRing
from rl_training.errors import CheckpointError

FORMAT_VERSION = 1

_MANIFEST: dict[str, type] = {
    "config": dict,
    "spec": dict,
    "global_step": int,
    "update_count": int,
    "files": dict,
    "segments": list,
    "state": dict,
}


class Replay(Protocol):
    """What a checkpoint needs of a replay buffer beyond its ``state_dict``."""

    ring: RowRing

    @property
    def oldest_row(self) -> int:
        """The number of the oldest row that is still needed."""
        ...


class CheckpointStore:
    """Writes and reads the checkpoints of one run."""

    def __init__(self, run_dir: Path, keep: int = 2) -> None:
        self.folder, self.segment_folder = run_dir / "checkpoints", run_dir / "replay"
        self.keep = keep
        self._segments: list[dict[str, Any]] = []

    def save(self, state: dict[str, Any], about: dict[str, Any], replay: Replay | None, *, best: bool = False) -> Path:
        """Write a checkpoint and point ``latest`` (and ``best``) at it.

        Args:
            state: nested dictionaries of tensors, arrays and plain values.
            about: plain values for the manifest, ``global_step`` and ``update_count`` among them.
            replay: the buffer whose new rows are written as a segment; None where there is none.
            best: whether this is the best policy so far.
        """
        path = self.folder / f"{about['global_step']:09d}-{about['update_count']:09d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.segment_folder.mkdir(exist_ok=True)
            if not path.exists():
                if replay is not None:
                    self._write_segment(replay)
                self._write_checkpoint(path, state, about)
            for name in ["latest", "best"] if best else ["latest"]:
                _write_atomically(self.folder / name, lambda file: file.write_text(path.name + "\n"))
            self._prune()
        except OSError as error:
            raise CheckpointError(f"{path}: checkpoint not written, earlier ones are intact: {error}") from error
        return path

    def take_up(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state and the manifest of ``latest``; checkpoints beyond it are of a future that was given up."""
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder.parent}: there is no checkpoint to resume from")
        taken = resolve_checkpoint(self.folder)
        manifest, state = read_checkpoint(taken)
        self._segments = manifest["segments"]
        for path in self.folder.iterdir():
            if path.is_dir() and path.name.lstrip(".") > taken.name:
                shutil.rmtree(path)
        return state, manifest

    def load_rows(self, ring: RowRing) -> None:
        """Put the rows of the checkpoint that was just loaded back into the buffer."""
        for segment in self._segments:
            rows = _read_tensors(self.segment_folder / segment["name"], segment)["rows"]
            # A long segment may reach back beyond what the ring holds.
            skip = max(0, ring.written - ring.capacity - segment["first"])
            ring.write(segment["first"] + skip, rows[skip:])

    def _write_segment(self, replay: Replay) -> None:
        """Write the rows that no segment holds yet, and forget the segments that are no longer needed."""
        oldest, written = replay.oldest_row, replay.ring.written
        self._segments = [segment for segment in self._segments if segment["last"] > oldest]
        first = max(oldest, self._segments[-1]["last"] if self._segments else 0)
        if first == written:
            return
        # A name of its own even for the same rows: a run resumed from an older checkpoint writes other rows 7 to 9.
        name = f"{first}-{written}-{secrets.token_hex(4)}.safetensors"
        rows = replay.ring.read(first, written)
        entry = _write_tensors(self.segment_folder / name, {"rows": rows})
        self._segments.append({"name": name, "first": first, "last": written, **entry})

    def _write_checkpoint(self, path: Path, state: dict[str, Any], about: dict[str, Any]) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        files, skeleton = {}, {}
        for part, tree in state.items():
            tensors: dict[str, Tensor] = {}
            skeleton[part] = _take_tensors(tree, tensors, "")
            files[part] = _write_tensors(temporary / f"{part}.safetensors", tensors)
        manifest = {
            "format_version": FORMAT_VERSION,
            **about,
            "files": files,
            "segments": self._segments,
            "state": skeleton,
        }
        text = json.dumps(manifest)
        _write_atomically(temporary / "manifest.json", lambda file: file.write_text(text))
        os.rename(temporary, path)
        _sync(path.parent)

    def _prune(self) -> None:
        """Remove what is beyond ``keep``, except what ``best`` and ``latest`` name, and segments nobody lists."""
        named = {_pointer(self.folder, name) for name in ("latest", "best")}
        complete = sorted(path for path in self.folder.iterdir() if (path / "manifest.json").is_file())
        kept = [path for path in complete if path in complete[-self.keep :] or path in named]
        for path in complete:
            if path not in kept:
                shutil.rmtree(path)
        listed = {segment["name"] for path in kept for segment in read_manifest(path)["segments"]}
        for segment_file in self.segment_folder.iterdir():
            if segment_file.name not in listed:
                segment_file.unlink()


def resolve_checkpoint(folder: Path, name: str = "latest") -> Path:
    """Return the checkpoint folder that ``latest``, ``best`` or a folder's own name stands for."""
    path = _pointer(folder, name) if name in ("latest", "best") else folder / name
    if path is None or not (path / "manifest.json").is_file():
        raise CheckpointError(f"{folder}: there is no checkpoint {name!r}")
    return path


def find_checkpoint(path: Path, prefer: str = "best") -> Path:
    """Return the checkpoint behind a run's folder (its ``prefer``, else its latest) or a checkpoint's own."""
    if (path / "manifest.json").is_file():
        return path
    if path.name in ("latest", "best") and path.parent.name == "checkpoints":
        return resolve_checkpoint(path.parent, path.name)
    folder = path / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"{path}: neither a run nor a checkpoint (a run has a folder named checkpoints)")
    return resolve_checkpoint(folder, prefer if _pointer(folder, prefer) else "latest")


def read_checkpoint(path: Path, part: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest and the state of one checkpoint, checksums verified; ``part`` reads only that part."""
    manifest = read_manifest(path)
    if part is not None and part not in manifest["state"]:
        raise CheckpointError(f"{path / 'manifest.json'}: there is no part {part!r}")
    parts = manifest["state"] if part is None else {part: manifest["state"][part]}
    return manifest, {
        name: _put_tensors(tree, _read_tensors(path / f"{name}.safetensors", manifest["files"][name]))
        for name, tree in parts.items()
    }


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of one checkpoint, or say why this version cannot read it."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / 'manifest.json'}: cannot be read: {error}") from None
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{path / 'manifest.json'}: expected an object, found {type(manifest).__name__}")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format {manifest.get('format_version')!r}, this version reads format {FORMAT_VERSION}"
            f" (written by rl-training {manifest.get('package_version', 'unknown')})"
        )
    for key, kind in _MANIFEST.items():
        if not isinstance(manifest.get(key), kind):
            raise CheckpointError(f"{path / 'manifest.json'}: {key!r} is missing or not of type {kind.__name__}")
    for entry in [*manifest["files"].values(), *manifest["segments"]]:
        if not isinstance(entry, dict) or not {"bytes", "sha256"} <= entry.keys():
            raise CheckpointError(f"{path / 'manifest.json'}: an entry of files or segments is not complete")
    if manifest["files"].keys() != manifest["state"].keys():
        raise CheckpointError(f"{path / 'manifest.json'}: files and state do not list the same parts")
    return manifest


def _pointer(folder: Path, name: str) -> Path | None:
    """Return the folder a pointer file names, if there is one."""
    try:
        target = folder / Path((folder / name).read_text().strip()).name
    except (OSError, UnicodeDecodeError):
        return None
    return target if target.is_dir() else None


def _take_tensors(tree: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Move the tensors and arrays of a tree into ``tensors``, leaving marks, so that the rest is JSON."""
    if isinstance(tree, dict):
        return {
            key: _take_tensors(value, tensors, f"{path}/{key}" if path else str(key)) for key, value in tree.items()
        }
    if isinstance(tree, np.ndarray):
        tensors[path] = torch.from_numpy(tree)
        return {"__array__": path}
    if isinstance(tree, Tensor):
        tensors[path] = tree
        return {"__tensor__": path}
    return tree


def _put_tensors(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    for mark in ("__tensor__", "__array__"):
        if mark in tree:
            tensor = tensors.get(tree[mark])
            if tensor is None:
                raise CheckpointError(f"tensor {tree[mark]!r} is in the manifest and not in its file")
            return tensor if mark == "__tensor__" else tensor.numpy()
    return {key: _put_tensors(value, tensors) for key, value in tree.items()}


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file and return its size and checksum."""
    contiguous = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    _write_atomically(path, lambda file: save_file(contiguous, file))
    return {"bytes": path.stat().st_size, "sha256": _checksum(path)}


def _read_tensors(path: Path, entry: dict[str, Any]) -> dict[str, Tensor]:
    try:
        if path.stat().st_size != entry["bytes"] or _checksum(path) != entry["sha256"]:
            raise CheckpointError(f"{path}: damaged, its size or checksum is not the manifest's")
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    write(temporary)
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
