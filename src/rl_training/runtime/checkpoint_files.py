"""The files of a checkpoint: tensors with their checksums, the manifest, and how both are written and read.

A checkpoint is a folder with ``manifest.json`` and a safetensors file for each part of the state. The manifest carries
the size and SHA-256 of every file, the replay segments included, and all that is no tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from rl_training.errors import CheckpointError, DamagedCheckpointError

FORMAT_VERSION = 1

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""How a manifest of format N becomes one of format N + 1. Whoever raises ``FORMAT_VERSION`` adds the step here."""

_MANIFEST: dict[str, type] = {
    "config": dict,
    "spec": dict,
    "global_step": int,
    "update_count": int,
    "files": dict,
    "segments": list,
    "state": dict,
}
_SEAL = ', "manifest_sha256": "'
_SEGMENT: dict[str, type] = {"name": str, "first": int, "last": int}
_FILE: dict[str, type] = {"bytes": int, "sha256": str}


def read_checkpoint(path: Path, part: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest and the state of one checkpoint, checksums verified; ``part`` reads only that part."""
    manifest = read_manifest(path)
    if part is not None and part not in manifest["state"]:
        raise DamagedCheckpointError(f"{path / 'manifest.json'}: there is no part {part!r}")
    parts = manifest["state"] if part is None else {part: manifest["state"][part]}
    state = {}
    for name, tree in parts.items():
        file = path / f"{Path(name).name}.safetensors"
        verify_file(file, manifest["files"][name])
        state[name] = _put_tensors(tree, read_tensors(file), file)
    return manifest, state


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of one checkpoint, brought up to this version's format, or say why it cannot be read."""
    file = path / "manifest.json"
    try:
        text = file.read_text(encoding="utf-8")
        manifest = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{file}: cannot be read: {error}") from None
    if not isinstance(manifest, dict):
        raise DamagedCheckpointError(f"{file}: expected an object, found {type(manifest).__name__}")
    manifest = _migrate(manifest, path)
    content, seal, _ = text.rpartition(_SEAL)
    if seal and text != sealed(content + "}"):  # the first versions wrote none
        raise DamagedCheckpointError(f"{file}: damaged, its checksum is not that of its content")
    _require(manifest, _MANIFEST, file)
    for entry in manifest["files"].values():
        _require(entry, _FILE, file)
    for segment in manifest["segments"]:
        _require(segment, {**_FILE, **_SEGMENT}, file)
    if manifest["files"].keys() != manifest["state"].keys():
        raise DamagedCheckpointError(f"{file}: files and state do not list the same parts")
    return manifest


def write_checkpoint(path: Path, state: dict[str, Any], about: dict[str, Any]) -> None:
    """Write a checkpoint's folder under a temporary name and rename it once all of it is on the disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    files, skeleton = {}, {}
    for part, tree in state.items():
        tensors: dict[str, Tensor] = {}
        skeleton[part] = _take_tensors(tree, tensors, "")
        files[part] = write_tensors(temporary / f"{part}.safetensors", tensors)
    manifest = {"format_version": FORMAT_VERSION, **about, "files": files, "state": skeleton}
    _write(temporary / "manifest.json", sealed(json.dumps(manifest)).encode())
    sync_folder(temporary)
    os.rename(temporary, path)
    sync_folder(path.parent)


def sealed(text: str) -> str:
    """Add to a JSON object, as its last key, the checksum of all the rest."""
    return f'{text[:-1]}{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}"}}'


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file and return its size and checksum."""
    # Each needs memory of its own; what is a view, or shared, or on another device is copied.
    own = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    seen: set[int] = set()
    for key, value in own.items():
        storage = value.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != value.nbytes:
            own[key] = value.clone()
        seen.add(storage.data_ptr())
    content = serialize(own)
    _write(path, content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file whose checksum has been verified."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpointError(f"{path}: cannot be read: {error}") from None


def verify_file(path: Path, entry: dict[str, Any]) -> None:
    """Compare a file with the size and checksum that a manifest gives it."""
    try:
        with path.open("rb") as file:
            size, digest = os.fstat(file.fileno()).st_size, hashlib.sha256()
            while size == entry["bytes"] and (chunk := file.read(1 << 20)):
                digest.update(chunk)
    except OSError as error:
        raise DamagedCheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if digest.hexdigest() != entry["sha256"]:
        raise DamagedCheckpointError(f"{path}: damaged, its size or checksum is not the manifest's")


def write_pointer(path: Path, name: str) -> None:
    """Make a pointer file name another checkpoint, in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    _write(temporary, f"{name}\n".encode())
    os.replace(temporary, path)
    sync_folder(path.parent)


def _write(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)  # half a file only takes up the room that was wanting
        raise


def write_durably(path: Path, text: str) -> None:
    """Write a file under a temporary name, wait until it is on the disk, and rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    _write(temporary, text.encode())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _migrate(manifest: dict[str, Any], path: Path) -> dict[str, Any]:
    """Bring a manifest up to this version's format, step by step."""
    found = manifest.get("format_version")
    version = found if type(found) is int else 0
    while version in MIGRATIONS and version < FORMAT_VERSION:
        version, manifest = version + 1, MIGRATIONS[version](manifest)
    if version != FORMAT_VERSION:
        writer = manifest.get("package_version", "unknown")
        raise CheckpointError(
            f"{path}: format {found!r}, this version reads format {FORMAT_VERSION}; written by rl-training {writer},"
            f" which can read it"
        )
    return manifest


def _require(values: Any, keys: dict[str, type], file: Path) -> None:
    """Check that a part of a manifest has what is read from it."""
    if not isinstance(values, dict):
        raise DamagedCheckpointError(f"{file}: an entry of files or segments is not complete")
    for key, kind in keys.items():
        if type(values.get(key)) is not kind:
            raise DamagedCheckpointError(f"{file}: {key!r} is missing or not of type {kind.__name__}")


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


def _put_tensors(tree: Any, tensors: dict[str, Tensor], file: Path) -> Any:
    if not isinstance(tree, dict):
        return tree
    for mark in ("__tensor__", "__array__"):
        if mark in tree:
            name = tree[mark]
            if not isinstance(name, str) or name not in tensors:
                raise DamagedCheckpointError(f"{file}: tensor {name!r} is in the manifest and not in its file")
            return tensors[name] if mark == "__tensor__" else tensors[name].numpy()
    return {key: _put_tensors(value, tensors, file) for key, value in tree.items()}
