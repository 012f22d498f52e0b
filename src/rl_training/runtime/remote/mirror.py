"""Mirror the local copy of a run to its URL while it trains.

A thread uploads what changed: at the start, after every checkpoint, and at the end. An upload that fails is tried
again and never stops the training. Files are uploaded in an order in which a reader always finds a complete checkpoint:
replay segments and checkpoints first, then logs, then the files that name the latest checkpoint, and the index last.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rl_training.config import TrainConfig
from rl_training.errors import CheckpointError, ConfigError, RemoteError
from rl_training.interrupts import stop_on_signals
from rl_training.runtime.checkpoint_files import final_name
from rl_training.runtime.remote.folder import INDEX, Index, RemoteFolder, is_fixed, new_version
from rl_training.runtime.remote.local_copy import (
    POINTERS,
    Record,
    bring,
    enter_copy_lock,
    forget,
    get_file,
    list_files,
    mark_uploaded,
    not_uploaded,
    read_record,
    url_of,
)
from rl_training.runtime.remote.lock import UrlLock
from rl_training.runtime.run_names import new_run_names
from rl_training.urls import Location, canonical, is_url, join, local_folder

_POLL_SECONDS = 1.0
_RETRY_SECONDS = (5.0, 60.0)
"""The first pause after an upload that failed, and the longest one."""
_LAST_TRIES = (0.0, 1.0, 3.0)
"""Pauses before each try of the last upload."""
_RESCANS = 20
_PATIENCE = 5.0
"""Seconds to wait for a process on this machine that only reads the run."""
_OUTCOME = ("result.json", "traceback.txt")
"""Files that are there when a run has ended. They are removed at first, and uploaded at last."""

_active: dict[str, Mirror] = {}
"""The mirrors of this process, by URL."""


class Mirror:
    """Uploads the changes of one local copy.

    ``whole`` mirrors a run with all its files; else it is a folder of runs, and only the files in it are mirrored.
    """

    def __init__(self, url: str, folder: Path, index: Index | None, lock: UrlLock, *, whole: bool = True) -> None:
        self.url, self.folder, self._whole = url, folder, whole
        self._remote, self._index, self._lock = RemoteFolder(url), index or Index(), lock
        self._uploaded: object = None
        self._failure = ""
        record = read_record(folder)
        self._known = record.files if record is not None else {}
        self._sent: dict[str, str] = {}  # fixed files since the last index, by checksum
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"mirror of {url}", daemon=True)

    def start(self) -> None:
        """Follow the folder from now on."""
        self._thread.start()

    def close(self) -> None:
        """Upload the last changes. If that fails, a warning says where the complete run is."""
        self._end.set()
        with stop_on_signals(lambda name: None):  # a second signal ends the program
            self._thread.join()
            if not self._is_begun():
                return
            for pause in _LAST_TRIES:
                time.sleep(pause)
                if self._try_upload():
                    mark_uploaded(self.folder, True)
                    return
                if self._lock.lost:
                    break
        mark_uploaded(self.folder, False)
        again = not_uploaded(self.url, self.folder) if self._whole else "the same command tries it again"
        warnings.warn(f"{self._failure}; {again}", stacklevel=2)

    def _follow(self) -> None:
        """Upload after each change that matters, and again after a failure, until the end."""
        pause, due = _RETRY_SECONDS[0], 0.0
        while True:
            state = self._state()
            if state != self._uploaded and time.monotonic() >= due and self._is_begun() and not self._lock.lost:
                known_failure = self._failure
                if self._try_upload():
                    self._uploaded, pause = state, _RETRY_SECONDS[0]
                else:
                    due, pause = time.monotonic() + pause, min(2 * pause, _RETRY_SECONDS[1])
                    if not known_failure:
                        again = "" if self._lock.lost else ", and the upload is tried again"
                        warnings.warn(f"{self._failure}; training goes on{again}", stacklevel=2)
            if self._end.wait(_POLL_SECONDS):
                return

    def _is_begun(self) -> bool:
        """Return whether there is something to mirror; the folder of a new run appears when all its parts are built."""
        return (self.folder / "config.yaml").is_file() if self._whole else self.folder.is_dir()

    def _state(self) -> object:
        """Return what changes with every checkpoint or, of a folder of runs, with its files."""
        with contextlib.suppress(OSError):
            if self._whole:
                names = ["config.yaml", *POINTERS, *_OUTCOME]
                return [(self.folder / name).stat().st_mtime_ns for name in names if (self.folder / name).exists()]
            return [(name, entry["mtime"]) for name, entry in self._listed().items()]
        return None

    def _try_upload(self) -> bool:
        """Upload, and return whether that worked; else ``_failure`` says why not."""
        try:
            if not self._lock.is_ours():
                raise RemoteError(f"{self.url}: another process has taken over this run")
            for attempt in range(_RESCANS):
                try:
                    self._upload()
                    break
                except FileNotFoundError:  # the run has removed an old checkpoint meanwhile
                    if attempt == _RESCANS - 1:
                        raise
        except (RemoteError, OSError) as error:
            self._failure = str(error)
            return False
        self._failure = ""
        return True

    def _upload(self) -> None:
        """Make the URL equal to the folder."""
        late = self._late_files()
        found = self._listed()
        if self._late_files() != late:
            raise FileNotFoundError("a checkpoint was written meanwhile")  # so the list may lack some of its files
        there, files = self._index.files, dict[str, dict[str, Any]]()
        for name in _OUTCOME:
            if name in there and name not in late:
                self._remote.remove(name)  # the run goes on
        for name in sorted(found, key=_rank):
            if is_fixed(name):
                files[name] = found[name]
                if self._sent.get(name, there.get(name, {}).get("sha256")) != found[name]["sha256"]:
                    self._remote.put(name, self.folder / name)
                    self._sent[name] = found[name]["sha256"]
            else:
                files[name] = self._send(name, late.get(name), found[name])
        if self._index.version and _contents(files) == _contents(there):
            version = self._index.version
        else:
            version = new_version()
            self._remote.write(INDEX, Index(version, files).to_bytes())
            for name in there.keys() - files.keys():
                self._remote.remove(name)
            self._index, self._sent = Index(version, files), {}
        local = {name: entry if "sha256" in entry else found[name] for name, entry in files.items()}
        Record(self.url, version, self._whole, files=local).save(self.folder)

    def _listed(self) -> dict[str, dict[str, Any]]:
        self._known = list_files(self.folder, self._known, below=self._whole)
        return self._known

    def _late_files(self) -> dict[str, bytes]:
        """Return the content of the files that name others, or tell of an end; the others are listed after them."""
        found = {name: _content(self.folder / name) for name in (*POINTERS, *_OUTCOME)}
        return {name: content for name, content in found.items() if content is not None}

    def _send(self, name: str, content: bytes | None, entry: dict[str, Any]) -> dict[str, Any]:
        """Upload a file that may change, if it has changed, and return its entry in the index."""
        there = self._index.files.get(name, {})
        if name in POINTERS and content is not None:
            text = content.decode()
            if there.get("text") != text:
                self._remote.write(name, content)
            return {"text": text}
        path = self.folder / name
        if content is None and there.get("sha256") == entry["sha256"]:
            return entry
        mtime = path.stat().st_mtime_ns
        content = path.read_bytes() if content is None else content
        sent = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "mtime": mtime}
        if there.get("sha256") != sent["sha256"]:
            self._remote.write(name, content)
        return sent


@contextlib.contextmanager
def mirrored(url: str, *, whole: bool = True) -> Iterator[Path]:
    """Return the local copy of a folder at a URL, brought up to date, and mirror its changes until the end.

    The URL is locked meanwhile. ``whole`` is for a run; else it is a folder of runs, and only the files in it count.
    Inside the same context again, nothing more happens.
    """
    url = canonical(url)
    if url in _active:
        yield _active[url].folder
        return
    folder, remote = local_folder(url), RemoteFolder(url)
    with contextlib.ExitStack() as entered:
        enter_copy_lock(entered, folder, url, _PATIENCE)
        lock = UrlLock(url)
        lock.acquire()
        entered.callback(lock.release)
        index = _without_leftovers(remote, bring(remote, folder)) if whole else _bring_files(remote, folder)
        if read_record(folder) is None:
            Record(url, complete=True).save(folder)
        entered.callback(forget, folder)
        mirror = _active[url] = Mirror(url, folder, index, lock, whole=whole)
        entered.callback(_active.pop, url)
        mirror.start()
        entered.callback(mirror.close)
        yield folder


@contextlib.contextmanager
def run_folder(run: Location) -> Iterator[Path]:
    """Return the folder of a run that exists. If it is at a URL, or a local copy of such a run, it is mirrored."""
    url = canonical(str(run)) if is_url(run) else url_of(Path(run))
    if url is None:
        yield Path(run)
        return
    with mirrored(url) as folder:
        if not (folder / "config.yaml").is_file():
            raise CheckpointError(f"{url}: not a run, there is no config.yaml in it")
        yield folder


@contextlib.contextmanager
def folder_of_runs(location: Location) -> Iterator[Path]:
    """Return a folder of runs. If it is at a URL, the files in it are mirrored, and the runs in it are not."""
    if isinstance(location, str) and is_url(location):
        with mirrored(location, whole=False) as folder:
            yield folder
    else:
        yield Path(location)


@contextlib.contextmanager
def new_run_folders(
    configs: Sequence[TrainConfig], run_name: str | None, new_dirs: Sequence[Path] | None
) -> Iterator[Sequence[Path] | None]:
    """Return the folders for new runs below a URL, which are mirrored; for a path, ``new_dirs`` as they are."""
    if new_dirs is not None or not is_url(configs[0].output_dir):
        yield new_dirs
        return
    with contextlib.ExitStack() as entered:
        yield [entered.enter_context(mirrored(_new_url(config, run_name))) for config in configs]


def _new_url(config: TrainConfig, run_name: str | None) -> str:
    for name in new_run_names(config, run_name):
        url = canonical(str(join(config.output_dir, name)))
        if url not in _active and not local_folder(url).exists() and not RemoteFolder(url).exists():
            return url
    raise ConfigError(f"output_dir = {str(config.output_dir)!r}: too many runs of this name")


def _bring_files(remote: RemoteFolder, folder: Path) -> Index | None:
    """Get the files of a folder of runs that are at its URL, unless they were last changed here."""
    index, record = remote.read_index(), read_record(folder)
    if index is None or (record is not None and record.version == index.version and folder.is_dir()):
        return index
    for name, entry in index.files.items():
        if "/" not in name:
            get_file(remote, folder, name, entry, {})
    return index


def _without_leftovers(remote: RemoteFolder, index: Index | None) -> Index | None:
    """Remove parts of checkpoints that an upload left when it was cut off, and return the files that fit the index."""
    if index is None or not index.version:
        return index
    sizes = remote.sizes()
    for name in sizes.keys() - index.files.keys():
        last = PurePosixPath(name).name
        if is_fixed(name) or final_name(last) != last:
            remote.remove(name)

    def fits(name: str, entry: dict[str, Any]) -> bool:
        if "text" in entry:
            return remote.read(name) == str(entry["text"]).encode()
        return sizes.get(name) == int(entry["bytes"])

    return Index(index.version, {name: entry for name, entry in index.files.items() if fits(name, entry)})


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _contents(files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: entry.get("sha256", entry.get("text")) for name, entry in files.items()}


_RANKS: list[Callable[[str], bool]] = [
    lambda name: name in ("config.yaml", "stack.json"),
    lambda name: name.startswith("replay/"),
    lambda name: is_fixed(name) and not name.endswith("/manifest.json"),
    is_fixed,
    lambda name: name not in POINTERS and name not in _OUTCOME,
    lambda name: name in POINTERS,
]


def _rank(name: str) -> tuple[int, str]:
    """Return the place of a file in the order of uploads."""
    return next((place for place, belongs in enumerate(_RANKS) if belongs(name)), len(_RANKS)), name
