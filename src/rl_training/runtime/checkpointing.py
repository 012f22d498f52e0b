"""Checkpoints of a run: complete, without pickle, and never half-written.

A run's ``checkpoints/<step>-<updates>/`` are the checkpoints; the files ``latest`` and ``best`` beside them name one
each. Replay rows lie in ``replay/`` as immutable segments that checkpoints share, so that a checkpoint costs what is
new since the last one. Everything is written under a temporary name, flushed and renamed.
"""

from __future__ import annotations

import secrets
import shutil
import warnings
from pathlib import Path
from typing import Any, Protocol

from rl_training.data.row_ring import RowRing
from rl_training.errors import CheckpointError, DamagedCheckpointError
from rl_training.runtime.checkpoint_files import (
    read_checkpoint,
    read_manifest,
    read_tensors,
    sync_folder,
    verify_file,
    write_checkpoint,
    write_pointer,
    write_tensors,
)


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
        self._best: str | None = None
        self._taken: Path | None = None

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
            if best:
                self._best = path.name
            if not path.exists():
                if replay is not None:
                    self._write_segment(replay)
                    about = {**about, "oldest_row": replay.oldest_row}
                write_checkpoint(path, state, {**about, "best": self._best, "segments": self._segments})
            for name in ["latest", "best"] if best else ["latest"]:
                write_pointer(self.folder / name, path.name)
            self._prune()
        except OSError as error:
            self._remove_unfinished()  # what little room there is belongs to the checkpoints that are complete
            raise CheckpointError(f"{path}: checkpoint not written, earlier ones are intact: {error}") from error
        return path

    def take_up(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return state and manifest of ``latest`` or, where that is damaged, of the newest intact one before it.

        Nothing on the disk is changed; ``settle`` does that once the state turned out to fit.
        """
        damage: list[str] = []
        for path in self.candidates(damage):
            try:
                manifest, state = read_whole(path)
            except DamagedCheckpointError as error:
                damage.append(str(error))
                continue
            if damage:
                warnings.warn(f"{'; '.join(damage)}; going on from {path.name}, the newest intact one", stacklevel=3)
            self._segments, self._taken, self._best = manifest["segments"], path, manifest.get("best")
            return state, manifest
        reasons = f": {'; '.join(damage)}" if damage else ""
        raise CheckpointError(f"{self.folder.parent}: there is no checkpoint to resume from{reasons}")

    def settle(self) -> None:
        """Make the folder that of the checkpoint taken up: what is beyond it is damaged, or a future given up."""
        if self._taken is None:
            return
        try:
            for path in self.folder.iterdir():
                if path.is_dir() and path.name.lstrip(".") > self._taken.name:
                    shutil.rmtree(path)
            write_pointer(self.folder / "latest", self._taken.name)
            best = self.folder / Path(str(self._best)).name if self._best else _pointer(self.folder, "best")
            if best is not None and (best / "manifest.json").is_file():
                self._best = best.name
                write_pointer(self.folder / "best", best.name)
            else:  # the run will reach it again
                (self.folder / "best").unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be written to: {error}") from error

    def load_rows(self, ring: RowRing) -> None:
        """Put the rows of the checkpoint that was just taken up back into the buffer."""
        for segment in self._segments:
            rows = read_tensors(self._segment_file(segment))["rows"]
            # A long segment may reach back beyond what the ring holds.
            skip = max(0, ring.written - ring.capacity - segment["first"])
            ring.write(segment["first"] + skip, rows[skip:])

    def candidates(self, damage: list[str]) -> list[Path]:
        """Return the checkpoints that may be resumed from, newest first; what is wrong is added to ``damage``."""
        if not self.folder.is_dir():
            return []
        folders = sorted(path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        latest = _pointer(self.folder, "latest")
        if latest is None and (self.folder / "latest").exists():  # after the very first one it may be missing
            damage.append(f"{self.folder / 'latest'}: names no checkpoint")
        return [path for path in reversed(folders) if latest is None or path <= latest]

    def _segment_file(self, segment: dict[str, Any]) -> Path:
        return self.segment_folder / Path(segment["name"]).name

    def _write_segment(self, replay: Replay) -> None:
        """Write the rows that no segment holds yet, and forget the segments that are no longer needed."""
        oldest, written = replay.oldest_row, replay.ring.written
        self._segments = [segment for segment in self._segments if segment["last"] > oldest]
        first = max(oldest, self._segments[-1]["last"] if self._segments else 0)
        if first == written:
            return
        # A name of its own even for the same rows: a run resumed from an older checkpoint writes other rows 7 to 9.
        # No other name is needed until it is complete: it counts once a manifest lists it.
        name = f"{first}-{written}-{secrets.token_hex(4)}.safetensors"
        entry = write_tensors(self.segment_folder / name, {"rows": replay.ring.read(first, written)})
        sync_folder(self.segment_folder)
        self._segments.append({"name": name, "first": first, "last": written, **entry})

    def _prune(self) -> None:
        """Remove what is beyond ``keep``, except what ``best`` and ``latest`` name, and segments nobody lists."""
        named = {_pointer(self.folder, name) for name in ("latest", "best")}
        complete = sorted(path for path in self.folder.iterdir() if (path / "manifest.json").is_file())
        kept = [path for path in complete if path in complete[-self.keep :] or path in named]
        for path in complete:
            if path not in kept:
                shutil.rmtree(path)
        listed = {segment["name"] for path in kept for segment in _listed_segments(path)}
        for segment_file in self.segment_folder.iterdir():
            if segment_file.name not in listed:
                segment_file.unlink()

    def _remove_unfinished(self) -> None:
        """Remove the folders and pointers that a write left under their temporary names."""
        for path in self.folder.glob(".*.tmp"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def read_whole(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest and the state of a run's checkpoint, after verifying its replay segments, too."""
    manifest, state = read_checkpoint(path)
    for segment in manifest["segments"]:
        verify_file(path.parents[1] / "replay" / Path(segment["name"]).name, segment)
    return manifest, state


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


def _listed_segments(path: Path) -> list[dict[str, Any]]:
    """Return the segments of a checkpoint; of one that is damaged nothing can be restored, so it needs none."""
    try:
        segments: list[dict[str, Any]] = read_manifest(path)["segments"]
    except CheckpointError:
        return []
    return segments


def _pointer(folder: Path, name: str) -> Path | None:
    """Return the folder a pointer file names, if there is one."""
    try:
        target = Path((folder / name).read_text(encoding="utf-8").strip()).name
        found = target not in ("", "..") and (folder / target).is_dir()
    except (OSError, ValueError):
        return None
    return folder / target if found else None
