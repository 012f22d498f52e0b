"""Checkpoints of a run: complete, without pickle, and never half-written.

The folders ``checkpoints/<step>-<updates>/`` are the checkpoints; the files ``latest`` and ``best`` next to them each
name one. Replay rows are in ``replay/``, in immutable segments that checkpoints share, so that a checkpoint only writes
the rows that are new since the last one. Everything is written under a temporary name, flushed and renamed. Files and
folders whose names this package does not write are left alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import warnings
from pathlib import Path
from typing import Any, Protocol

from rl_training.data.row_ring import RowRing
from rl_training.errors import CheckpointError, DamagedCheckpointError
from rl_training.runtime.checkpoint_files import (
    checkpoint_order,
    final_name,
    is_segment,
    read_checkpoint,
    read_manifest,
    read_tensors,
    remove_checkpoint,
    sync_folder,
    verify_file,
    write_checkpoint,
    write_pointer,
    write_tensors,
)
from rl_training.runtime.segments import merge_ranges

_POINTERS = ("latest", "best")

_FULL_SEGMENT = 16 * 2**20
"""A segment of this many bytes or more is not merged again: that would make a single checkpoint write too much."""


class Replay(Protocol):
    """The part of a replay buffer that a checkpoint needs, in addition to its ``state_dict``."""

    ring: RowRing

    @property
    def oldest_row(self) -> int:
        """The number of the oldest row that is still needed."""
        ...


class CheckpointStore:
    """Writes and reads the checkpoints of one run."""

    def __init__(self, run_dir: Path, keep: int = 2) -> None:
        run_dir = run_dir.absolute()  # an environment may change the working folder
        self.folder, self.segment_folder = run_dir / "checkpoints", run_dir / "replay"
        self.keep = keep
        self._segments: list[dict[str, Any]] = []
        self._best: str | None = None
        self._loaded: Path | None = None

    def save(
        self,
        state: dict[str, Any],
        metadata: dict[str, Any],
        replay: Replay | None,
        *,
        best: bool = False,
        replace: bool = False,
    ) -> Path:
        """Write a checkpoint and point ``latest`` (and ``best``) at it.

        Args:
            state: nested dictionaries of tensors, arrays and plain values.
            metadata: plain values for the manifest, ``global_step`` and ``update_count`` among them.
            replay: the buffer whose new rows are written as a segment; None if there is none.
            best: whether this is the best policy so far.
            replace: whether to write a checkpoint of this step again, if there is one.
        """
        path = self.folder / f"{metadata['global_step']:09d}-{metadata['update_count']:09d}"
        try:
            for folder in (self.folder, self.segment_folder):
                folder.mkdir(parents=True, exist_ok=True)
                if folder.is_symlink():
                    raise CheckpointError(f"{folder}: a symbolic link, which a run may not contain")
            if best:
                self._best = path.name
            if replace or not path.exists():
                self._write(path, state, metadata, replay)
            for name in _POINTERS if best else ["latest"]:
                write_pointer(self.folder / name, path.name)
            self._prune()
        except OSError as error:
            self._remove_temporaries()  # the disk may be full: free space for complete checkpoints
            raise CheckpointError(f"{path}: checkpoint not written, earlier ones are intact: {error}") from error
        return path

    def load_newest_intact(self, last: tuple[int, int] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return state and manifest of ``latest`` or, if that is damaged, of the newest intact checkpoint before it.

        ``last`` names the newest checkpoint that counts, by its steps and updates; unset: ``latest``. Nothing on the
        disk is changed; call ``discard_newer`` for that once the state is known to fit.
        """
        damage: list[str] = []
        for path in self.candidates(damage):
            if last is not None and _order(path) > last:
                continue
            try:
                manifest, state = read_whole(path)
            except DamagedCheckpointError as error:
                damage.append(str(error))
                continue
            if damage:
                warnings.warn(f"{'; '.join(damage)}; resuming from {path.name}, the newest intact one", stacklevel=3)
            self._segments, self._loaded, self._best = manifest["segments"], path, manifest.get("best")
            return state, manifest
        reasons = f": {'; '.join(damage)}" if damage else ""
        raise CheckpointError(f"{self.folder.parent}: there is no checkpoint to resume from{reasons}")

    def discard_newer(self) -> None:
        """Remove checkpoints newer than the loaded one, and point ``latest`` and ``best`` at the remaining ones.

        Newer checkpoints are damaged, or were written after the point from which the run now continues.
        """
        if self._loaded is None:
            return
        try:
            self._remove_temporaries()
            for path in self._checkpoints():
                if _order(path) > _order(self._loaded):
                    remove_checkpoint(path)
            write_pointer(self.folder / "latest", self._loaded.name)
            self._restore_best(self._loaded)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be written to: {error}") from error

    def load_rows(self, ring: RowRing) -> None:
        """Put the replay rows of the loaded checkpoint back into the buffer."""
        for segment in self._segments:
            rows = read_tensors(self._segment_file(segment))["rows"]
            # A long segment may start before the oldest row that the ring can hold.
            skip = max(0, ring.written - ring.capacity - segment["first"])
            ring.write(segment["first"] + skip, rows[skip:])

    def candidates(self, damage: list[str]) -> list[Path]:
        """Return the checkpoints that may be resumed from, newest first; problems are added to ``damage``."""
        if not self.folder.is_dir():
            return []
        latest = _pointer(self.folder, "latest")
        if latest is None and (self.folder / "latest").exists():  # a kill can prevent the very first one
            damage.append(f"{self.folder / 'latest'}: names no checkpoint")
        return [path for path in reversed(self._checkpoints()) if latest is None or _order(path) <= _order(latest)]

    def orders(self) -> set[tuple[int, int]]:
        """Return the steps and updates of the checkpoints that may be resumed from."""
        return {_order(path) for path in self.candidates([])}

    def _write(self, path: Path, state: dict[str, Any], metadata: dict[str, Any], replay: Replay | None) -> None:
        """Write the new rows and the checkpoint that lists them; if that fails, remove what was written of it."""
        before = self._segments
        try:
            if replay is not None:
                self._write_segments(replay)
                metadata = {**metadata, "oldest_row": replay.oldest_row}
            write_checkpoint(path, state, {**metadata, "best": self._best, "segments": self._segments})
        except OSError:
            if not path.exists():
                for segment in self._segments:
                    if segment not in before:
                        with contextlib.suppress(OSError):
                            self._segment_file(segment).unlink()
                self._segments = before
            raise

    def _checkpoints(self) -> list[Path]:
        """Return the folders that have a checkpoint's name, oldest first."""
        own = [path for path in self.folder.iterdir() if checkpoint_order(path.name) is not None and path.is_dir()]
        return sorted(own, key=_order)

    def _restore_best(self, loaded: Path) -> None:
        """Point ``best`` at the checkpoint that the loaded manifest names, and warn if that is damaged or gone."""
        best = self.folder / Path(str(self._best)).name if self._best else _pointer(self.folder, "best")
        order = checkpoint_order(best.name) if best is not None else None
        if best is None or order is None or order > _order(loaded):  # the run will reach a newer one again
            self._best = None
            (self.folder / "best").unlink(missing_ok=True)
            return
        self._best = best.name
        try:
            if best != loaded and (best.is_dir() or (self.folder / "best").exists()):
                read_checkpoint(best)
        except CheckpointError as error:
            warnings.warn(f"the best checkpoint is damaged: {error}", stacklevel=5)
        if best.is_dir():
            write_pointer(self.folder / "best", best.name)
        else:
            (self.folder / "best").unlink(missing_ok=True)

    def _segment_file(self, segment: dict[str, Any]) -> Path:
        return self.segment_folder / Path(segment["name"]).name

    def _write_segments(self, replay: Replay) -> None:
        """Write the rows that no segment holds yet, merge small segments, and drop those that are no longer needed."""
        oldest, written = replay.oldest_row, replay.ring.written
        kept = {(s["first"], s["last"]): s for s in self._segments if s["last"] > oldest}
        first = max([oldest, *(last for _, last in kept)])
        if first == written:
            self._segments = list(kept.values())
            return
        full = max(1, _FULL_SEGMENT // replay.ring.rows[0].nbytes)
        self._segments = []
        for start, last in merge_ranges([*kept, (first, written)], full):
            self._segments.append(kept.get((start, last)) or self._write_segment(replay, max(start, oldest), last))
        sync_folder(self.segment_folder)

    def _write_segment(self, replay: Replay, first: int, last: int) -> dict[str, Any]:
        """Write one segment and return its entry in the manifest.

        It needs no temporary name, because it counts only once a manifest lists it. The random part of the name sets it
        apart from other rows of the same numbers: a run that is resumed from an older checkpoint writes those again.
        """
        name = f"{first}-{last}-{secrets.token_hex(4)}.safetensors"
        entry = write_tensors(self.segment_folder / name, {"rows": replay.ring.read(first, last)})
        return {"name": name, "first": first, "last": last, **entry}

    def _prune(self) -> None:
        """Remove checkpoints beyond ``keep``, except ``best`` and ``latest``, and the segments that nothing lists."""
        named = {_pointer(self.folder, name) for name in _POINTERS}
        checkpoints = self._checkpoints()
        complete = [path for path in checkpoints if (path / "manifest.json").is_file()]
        kept = [path for path in complete if path in complete[-self.keep :] or path in named]
        for path in checkpoints:
            if path not in kept:
                remove_checkpoint(path)
        listed = {segment["name"] for path in kept for segment in _listed_segments(path)}
        with os.scandir(self.segment_folder) as entries:
            unlisted = [entry for entry in entries if is_segment(entry.name) and entry.name not in listed]
        for entry in unlisted:
            if entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)

    def _remove_temporaries(self) -> None:
        """Remove the folders and pointers that a write or a removal left under their temporary names."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            name = final_name(path.name)
            if name == path.name:
                continue
            if checkpoint_order(name) is not None:
                shutil.rmtree(path, ignore_errors=True)
            elif name in _POINTERS:
                with contextlib.suppress(OSError):
                    path.unlink()


def read_whole(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest and the state of a run's checkpoint, after verifying its replay segments, too."""
    manifest, state = read_checkpoint(path)
    for segment in manifest["segments"]:
        verify_file(path.parents[1] / "replay" / Path(segment["name"]).name, segment)
    return manifest, state


def resolve_checkpoint(folder: Path, name: str = "latest") -> Path:
    """Return the checkpoint folder for ``latest``, ``best`` or a folder's own name."""
    path = _pointer(folder, name) if name in _POINTERS else folder / name
    if path is None or not (path / "manifest.json").is_file():
        raise CheckpointError(f"{folder}: there is no checkpoint {name!r}")
    return path


def find_checkpoint(path: Path, prefer: str = "best") -> Path:
    """Return the checkpoint behind a run's folder or a checkpoint's own.

    For a run it is the one that ``prefer`` names. If its policy is damaged, a warning says so, and the newest one with
    an intact policy is returned.
    """
    if (path / "manifest.json").is_file():
        return path
    if path.name in _POINTERS and path.parent.name == "checkpoints":
        return resolve_checkpoint(path.parent, path.name)
    folder = path / "checkpoints"
    if not folder.is_dir():
        raise CheckpointError(f"{path}: neither a run nor a checkpoint (a run has a folder named checkpoints)")
    damage: list[str] = []
    preferred = _pointer(folder, prefer)
    if preferred is None and (folder / prefer).exists():
        damage.append(f"{folder / prefer}: names no checkpoint")
    for found in [preferred, *CheckpointStore(path).candidates(damage)]:
        if found is None:
            continue
        try:
            read_checkpoint(found, part="learner")
        except DamagedCheckpointError as error:
            damage.append(str(error))
            continue
        if damage:
            warnings.warn(f"{'; '.join(dict.fromkeys(damage))}; using {found.name} instead", stacklevel=3)
        return folder / found.name
    if damage:
        raise CheckpointError(f"{folder}: there is no intact checkpoint: {'; '.join(dict.fromkeys(damage))}")
    raise CheckpointError(f"{folder}: there is no checkpoint 'latest'")


def _listed_segments(path: Path) -> list[dict[str, Any]]:
    """Return the segments that a checkpoint lists; a damaged one cannot be restored, so it needs none."""
    try:
        segments: list[dict[str, Any]] = read_manifest(path)["segments"]
    except CheckpointError:
        return []
    return segments


def _order(path: Path) -> tuple[int, int]:
    return checkpoint_order(path.name) or (-1, -1)


def _pointer(folder: Path, name: str) -> Path | None:
    """Return the checkpoint that a pointer file names, if there is one."""
    try:
        target = (folder / name).read_text(encoding="utf-8").strip()
        found = checkpoint_order(target) is not None and (folder / target).is_dir()
    except (OSError, ValueError):
        return None
    return folder / target if found else None
