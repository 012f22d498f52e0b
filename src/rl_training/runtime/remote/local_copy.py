"""The local copy of a run at a URL: what is in it, and bringing it up to date.

A run at a URL is trained, evaluated and reported in its local copy, which is an ordinary run folder. Beside the copy is
a record, ``.NAME.mirror.json``: the URL, the version of the index that the copy was last equal to, and the files then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, RunLockedError
from rl_training.runtime.checkpoint_files import checkpoint_order, final_name, temporary_path, write_durably
from rl_training.runtime.remote.folder import INDEX, Index, RemoteFolder, is_fixed, is_inside
from rl_training.runtime.run_lock import is_locked, lock_configuration
from rl_training.urls import Location, cache_folder, canonical, is_url, local_folder

POINTERS = ("checkpoints/latest", "checkpoints/best")
"""Files that name other files. Their content is in the index, so that it always fits the files of the index."""

_OWN_NAMES = {".lock", ".origin", INDEX}
_RECORD_END = ".mirror.json"

_MARKS = {"config.yaml", "manifest.json", "contract.json"}
"""Files that a run, a checkpoint and a bundle have."""

_in_use = set[Path]()
"""The local copies that this process is changing."""

_TRIES = 5

Part = Callable[[str], bool]
"""Says which files of a run are wanted, by name."""


def everything(name: str) -> bool:
    """Want all files of a run."""
    return True


def policy(name: str) -> bool:
    """Want what a policy needs: not the replay buffer, the logs of TensorBoard, or states of failures."""
    return not name.startswith(("replay/", "post_mortem/", "events.out.tfevents"))


def records(name: str) -> bool:
    """Want what tables and reports need: no tensors."""
    return policy(name) and not name.endswith(".safetensors")


def identity(name: str) -> bool:
    """Want what says which run it is, and how it ended."""
    return name in ("config.yaml", "result.json", "stack.json")


@dataclass(frozen=True)
class Record:
    """What is known about a local copy.

    Attributes:
        url: where the run is.
        version: the version of the index that the copy was last equal to; None if it was never uploaded.
        complete: whether the copy has all files of that version, rather than a part.
        uploaded: whether the end of the last process that changed the copy was uploaded.
        files: the files then, by name: ``bytes``, ``sha256`` and ``mtime``.
    """

    url: str
    version: str | None = None
    complete: bool = False
    uploaded: bool = True
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the record beside a copy."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_durably(_record_file(folder), json.dumps(asdict(self)))


def read_record(folder: Path) -> Record | None:
    """Return the record of a local copy; None if the folder is not one, or if its record names files outside it."""
    try:
        record = Record(**json.loads(_record_file(folder.absolute()).read_text(encoding="utf-8")))
        return record if all(map(is_inside, record.files)) else None
    except (AttributeError, OSError, TypeError, ValueError):
        return None


def url_of(folder: Path) -> str | None:
    """Return the URL that a folder is the local copy of; None if it is an ordinary folder."""
    record = read_record(folder)
    return record.url if record is not None and local_folder(record.url) == folder.absolute() else None


def fetch(location: Location, part: Part = everything, *, patience: float = 60.0) -> Path:
    """Return a path as it is, and for a URL the local copy, with the wanted files as they are there.

    A copy that a process on this machine is training is newer than what is at the URL, and is not touched. For another
    process that is changing the copy, ``fetch`` waits so many seconds.
    """
    if not is_url(location):
        return Path(location)
    url = canonical(str(location))
    run, _, name = url.rpartition("/checkpoints/")
    if run and (name in ("latest", "best") or checkpoint_order(name) is not None):
        return fetch(run, part, patience=patience) / "checkpoints" / name
    folder = local_folder(url)
    with contextlib.ExitStack() as entered:
        if not enter_copy_lock(entered, folder, url, patience, or_trained=True):
            return folder
        found = bring(RemoteFolder(url), folder, part)
    if found is None and not _is_run(folder):
        raise CheckpointError(f"{url}: there is no run, checkpoint or bundle")
    return folder


def fetch_runs(location: Location) -> list[Path]:
    """Return the folder of a run, or for a URL the local copies of the run that is there, or of the runs below it."""
    if not is_url(location):
        return [Path(location)]
    url = canonical(str(location))
    names = RemoteFolder(url).sizes()
    runs: list[str] = []
    for run in sorted(name.rpartition("/")[0] for name in names if name.rpartition("/")[2] == "config.yaml"):
        if not any(f"{run}/".startswith(f"{outer}/" if outer else "") for outer in runs):  # W&B has such files, too
            runs.append(run)
    if not runs:
        raise CheckpointError(f"{url}: there is no run, and none in the folders below it")
    return [fetch(f"{url}/{run}" if run else url, records) for run in runs]


def enter_copy_lock(
    entered: contextlib.ExitStack, folder: Path, url: str, patience: float, *, or_trained: bool = False
) -> bool:
    """Take the lock of a local copy, and wait for it so many seconds; ``or_trained``: return False if it is trained."""
    end = time.monotonic() + patience
    while True:
        if or_trained and (folder in _in_use or is_locked(folder)):
            return False
        try:
            entered.enter_context(_copy_lock(folder))
            return True
        except RunLockedError as error:
            if time.monotonic() >= end or is_locked(folder):
                raise RunLockedError(f"{url}: its local copy is in use: {error}") from None
            time.sleep(0.1)


@contextlib.contextmanager
def _copy_lock(folder: Path) -> Iterator[None]:
    """Keep other threads and processes of this machine from changing a local copy."""
    if folder in _in_use:  # the lock below is one of processes
        raise RunLockedError(f"{folder}: this process is using it already")
    with lock_configuration(folder.parent, {"mirror": folder.name}):
        _in_use.add(folder)
        try:
            yield
        finally:
            _in_use.discard(folder)


def bring(remote: RemoteFolder, folder: Path, part: Part = everything) -> Index | None:
    """Make a local copy equal to what is at its URL, and return the index of that; None if nothing is there.

    A copy that was changed here since it was last equal is kept if the URL was not changed since then. If both were
    changed, the URL counts, and the copy is moved aside.
    """
    index, record = remote.read_files(), read_record(folder)
    if record is not None and record.url != remote.url:
        record = None
    if index is not None and not _MARKS & index.files.keys():
        index = None  # a folder of runs, perhaps; the copies of those are not to be touched
    if index is None:
        if _is_run(folder) and (record is None or not record.complete or record.version is not None):
            _set_aside(folder, f"{remote.url} is gone")
        return None
    if record is not None and record.complete and folder.is_dir():
        if index.version and record.version == index.version:
            return index
        if _was_changed(folder, record):
            if part is not everything:
                return index  # only a process that trains decides between the two
            _set_aside(folder, f"{remote.url} was changed elsewhere since then")
            record = None
    return _download(remote, folder, index, part, record.files if record is not None else {})


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def list_files(folder: Path, known: dict[str, dict[str, Any]], *, below: bool = True) -> dict[str, dict[str, Any]]:
    """Return the files of a local copy, and those ``below`` its folders, with size, checksum and time.

    Files that are ``known`` by their size and time are not read again.
    """
    found = {}
    for path in _paths(folder, below):
        name = path.relative_to(folder).as_posix()
        entry = known.get(name)
        stat = path.stat()
        if entry is None or (entry["bytes"], entry["mtime"]) != (stat.st_size, stat.st_mtime_ns):
            entry = {"bytes": stat.st_size, "sha256": file_hash(path), "mtime": stat.st_mtime_ns}
        found[name] = entry
    return found


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _paths(folder: Path, below: bool) -> Iterator[Path]:
    """Return the files of a folder that are mirrored. Links and files with temporary names are not."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if final_name(name) == name and not (Path(root) / name).is_symlink()]
        for name in files:
            path = Path(root) / name
            own = _is_own(path.relative_to(folder).as_posix()) or path.is_symlink()
            if not own and (below or not (name.startswith(".") or ".lock" in name)):  # locks and records of the runs
                yield path
        if not below:
            return


def _is_own(name: str) -> bool:
    """Return whether a file belongs to this machine or to the mirror, or has a name that cannot be mirrored."""
    parts = name.split("/")
    return (
        not is_inside(name)
        or parts[-1] in _OWN_NAMES
        or (parts[-1].startswith(".") and parts[-1].endswith(_RECORD_END))  # it names files that may be removed
        or any(final_name(part) != part for part in parts)
    )


def _was_changed(folder: Path, record: Record) -> bool:
    now = list_files(folder, record.files)
    return {name: entry["sha256"] for name, entry in now.items()} != {
        name: entry["sha256"] for name, entry in record.files.items()
    }


def _download(remote: RemoteFolder, folder: Path, index: Index, part: Part, known: dict[str, dict[str, Any]]) -> Index:
    """Get the wanted files that a copy lacks, and remove those that are no longer at the URL."""
    Record(remote.url, None, complete=False, files=known).save(folder)  # if this is cut off, it is done again
    for _ in range(_TRIES):
        have = list_files(folder, known) if folder.is_dir() else {}
        odd = [
            name for name in index.files if part(name) and not get_file(remote, folder, name, index.files[name], have)
        ]
        newer = remote.read_files() if odd else index
        if newer is None or newer.version == index.version:
            break  # an upload was cut off: logs may be newer than the index, and checkpoints are checked when read
        index = newer
    for name in known.keys() - index.files.keys():
        (folder / name).unlink(missing_ok=True)
    _remove_empty_folders(folder)
    files = list_files(folder, known) if folder.is_dir() else {}
    Record(remote.url, index.version or None, part is everything, files=files).save(folder)
    return index


def get_file(remote: RemoteFolder, folder: Path, name: str, entry: dict[str, Any], have: dict[str, Any]) -> bool:
    """Get one file unless the copy has it, and return whether it is the one that the index means.

    Files that a machine keeps for itself, such as locks, are not taken from a URL.
    """
    path, there = folder / name, have.get(name)
    if _is_own(name):
        return True
    if "text" in entry:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, entry["text"])
        return True
    wanted = entry.get("sha256")
    if there is not None:
        same_listed = wanted is None and is_fixed(name) and there["bytes"] == entry["bytes"]
        if same_listed or (wanted is not None and there["sha256"] == wanted):
            return True
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    if not remote.get(name, temporary):
        return False
    same = wanted is None or file_hash(temporary) == wanted
    if "mtime" in entry:  # the report of a run counts as missing if it is older than the result
        os.utime(temporary, ns=(entry["mtime"], entry["mtime"]))
    os.replace(temporary, path)
    return same


def _set_aside(folder: Path, reason: str) -> None:
    """Move a local copy out of the way, with what was never uploaded."""
    target = cache_folder().with_name("replaced") / f"{folder.name}-{time.time_ns()}"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, target)
    _record_file(folder).unlink(missing_ok=True)
    warnings.warn(f"{reason}, so its earlier local copy was moved to {target}", stacklevel=4)


def _remove_empty_folders(folder: Path) -> None:
    for root, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(root)


def _record_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_RECORD_END}")


def forget(folder: Path) -> None:
    """Remove the record of a local copy that does not exist."""
    if not folder.exists():
        _record_file(folder).unlink(missing_ok=True)


def mark_uploaded(folder: Path, uploaded: bool) -> None:
    """Note whether the latest changes of a local copy are at its URL."""
    record = read_record(folder)
    if record is not None:
        replace(record, uploaded=uploaded).save(folder)


def is_uploaded(folder: Path) -> bool:
    """Return whether the latest changes of a local copy are at its URL; true for an ordinary folder."""
    record = read_record(folder)
    return record is None or record.uploaded


def not_uploaded(url: str, folder: Path) -> str:
    """Return where the complete run is, and how to upload it again."""
    return f"the latest state is not there, but only in {folder}. Upload it with: rl-training resume {url}"
