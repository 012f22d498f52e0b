"""The files of a run: their names, writing and reading without following links, and the content of a checkpoint.

A checkpoint is a folder with ``manifest.json`` and one safetensors file for each part of the state. The manifest holds
the size and the SHA-256 of every file, the replay segments included, and every value that is not a tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
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

_CHECKPOINT = re.compile(r"(\d{9,})-(\d{9,})")
_SEGMENT_NAME = re.compile(r"\d+-\d+-[0-9a-f]{8}\.safetensors")
_OWN_NAME = re.compile(
    rf"{_CHECKPOINT.pattern}|{_SEGMENT_NAME.pattern}|events\.out\.tfevents\..*|\w+\.safetensors|manifest\.json|latest|best"
    r"|config\.yaml|metrics\.csv|metrics\.tmp|result\.json|trackers\.json|stack\.json|report\.html|\.lock|checkpoints"
    r"|replay|post_mortem|videos|episodes\.csv|evaluation\.json|data\.json|warnings\.jsonl"
)
"""Every name that this package gives to a file or folder of a run; the temporary names are ``.NAME.tmp``."""
_OTHER_NAMES = {".origin", "traceback.txt"}
"""Files of a run that it never overwrites through a link."""

_MAX_DEPTH = 100
"""Levels of nesting in a manifest. A run's own has about ten."""

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


def checkpoint_order(name: str) -> tuple[int, int] | None:
    """Return step and update count from the name of a checkpoint's folder; None for any other name.

    Compare these numbers, not the names: from a billion steps on a name has more than nine digits.
    """
    match = _CHECKPOINT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match is not None else None


def is_segment(name: str) -> bool:
    """Return whether a file name is that of a replay segment."""
    return _SEGMENT_NAME.fullmatch(name) is not None


def temporary_path(path: Path) -> Path:
    """Return the hidden name under which a file or folder is written, and under which it is removed."""
    return path.with_name(f".{path.name}.tmp")


def final_name(name: str) -> str:
    """Return the name that a file or folder with a temporary name has once it is complete; others are unchanged."""
    return name[1:-4] if name.startswith(".") and name.endswith(".tmp") else name


def refuse_links(run_dir: Path) -> None:
    """Raise an error if a file or folder that this package writes in a run is a symbolic link.

    A link can point outside the run, and files there would be overwritten or removed.
    """
    for path in run_dir.iterdir():
        if _OWN_NAME.fullmatch(path.name) or _OWN_NAME.fullmatch(final_name(path.name)):
            if path.is_symlink():
                raise CheckpointError(
                    f"{path}: a symbolic link, which a run may not contain; put its target there instead"
                )
            if path.is_dir():
                refuse_links(path)


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
    """Return the manifest of one checkpoint, or raise an error that says why it cannot be read."""
    file = path / "manifest.json"
    try:
        text = file.read_text(encoding="utf-8")
        manifest = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{file}: cannot be read: {error}") from None
    if not isinstance(manifest, dict):
        raise DamagedCheckpointError(f"{file}: expected an object, found {type(manifest).__name__}")
    found = manifest.get("format_version")
    if type(found) is not int or found != FORMAT_VERSION:
        writer = manifest.get("package_version", "unknown")
        raise CheckpointError(
            f"{path}: format {found!r}, this version reads format {FORMAT_VERSION}; it was written by rl-training"
            f" {writer}, which can read it"
        )
    content, seal, _ = text.rpartition(_SEAL)
    if seal and text != sealed(content + "}"):  # manifests of the first versions have no checksum
        raise DamagedCheckpointError(f"{file}: damaged: its checksum does not match its content")
    _require(manifest, _MANIFEST, file)
    if _depth(manifest) > _MAX_DEPTH:
        raise DamagedCheckpointError(f"{file}: nested in more than {_MAX_DEPTH} levels")
    for entry in manifest["files"].values():
        _require(entry, _FILE, file)
    for segment in manifest["segments"]:
        _require(segment, {**_FILE, **_SEGMENT}, file)
    if manifest["files"].keys() != manifest["state"].keys():
        raise DamagedCheckpointError(f"{file}: files and state do not list the same parts")
    return manifest


def write_checkpoint(path: Path, state: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Write a checkpoint's folder under a temporary name and rename it once all of it is on the disk."""
    temporary = temporary_path(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    files, skeleton = {}, {}
    for part, tree in state.items():
        tensors: dict[str, Tensor] = {}
        skeleton[part] = _take_tensors(tree, tensors, "")
        files[part] = write_tensors(temporary / f"{part}.safetensors", tensors)
    manifest = {"format_version": FORMAT_VERSION, **metadata, "files": files, "state": skeleton}
    _write(temporary / "manifest.json", sealed(json.dumps(manifest)).encode())
    sync_folder(temporary)
    old = path.with_name(f".{path.name}.old.tmp")
    if path.exists():
        os.rename(path, old)
    os.rename(temporary, path)
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_checkpoint(path: Path) -> None:
    """Rename a checkpoint's folder to its temporary name, then remove it.

    A removal that is cut short then leaves no folder that looks like a checkpoint.
    """
    temporary = temporary_path(path)
    shutil.rmtree(temporary, ignore_errors=True)
    os.rename(path, temporary)
    shutil.rmtree(temporary)


def remove_unstarted_run(run_dir: Path) -> None:
    """Remove a run that ended before its first checkpoint. A folder that holds anything else is refused."""
    names = [path.name for path in run_dir.iterdir()]
    foreign = [name for name in names if not _OWN_NAME.fullmatch(final_name(name)) and name not in _OTHER_NAMES]
    if foreign or run_dir.is_symlink():
        reason = f"{foreign[0]} is not a file of a run" if foreign else "it is a symbolic link"
        raise CheckpointError(f"{run_dir}: {reason}; expected a run, or the path of a new folder")
    remove_checkpoint(run_dir)


def sealed(text: str) -> str:
    """Add the checksum of a JSON object to it, as its last key."""
    return f'{text[:-1]}{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}"}}'


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file and return its size and checksum."""
    # Safetensors needs separate memory for each tensor: copy views, shared tensors and those on another device.
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
    write_durably(path, f"{name}\n")


def write_durably(path: Path, text: str) -> None:
    """Write a text file under a temporary name, wait until it is on the disk, and rename it.

    Even after a crash, ``path`` has either its earlier content or all of ``text``.
    """
    temporary = temporary_path(path)
    temporary.unlink(missing_ok=True)
    _write(temporary, text.encode())
    try:
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def open_without_following(path: str | Path, flags: int) -> int:
    """Open a file and return its descriptor; fails if the file is a symbolic link. Serves as ``open(opener=…)``."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _write(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    try:
        with open(path, "wb", opener=open_without_following) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)  # Remove the partial file; the disk is probably full.
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _depth(tree: Any) -> int:
    """Return how deep dictionaries and lists are nested, without recursion."""
    depth, level = 0, [tree]
    while level := [part for part in level if isinstance(part, (dict, list))]:
        depth += 1
        if depth > _MAX_DEPTH:
            break
        level = [child for part in level for child in (part.values() if isinstance(part, dict) else part)]
    return depth


def _require(values: Any, keys: dict[str, type], file: Path) -> None:
    """Check that a part of a manifest has these keys, with values of these types."""
    if not isinstance(values, dict):
        raise DamagedCheckpointError(f"{file}: an entry of files or segments is not an object")
    for key, kind in keys.items():
        if type(values.get(key)) is not kind:
            raise DamagedCheckpointError(f"{file}: {key!r} is missing or not of type {kind.__name__}")


def _take_tensors(tree: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Move the tensors and arrays of a tree into ``tensors`` and put their names in their place; the rest is JSON."""
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
