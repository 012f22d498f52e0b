"""Folders at fsspec URLs, such as ``s3://bucket/runs``: their names, their file systems, and their local copies."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, MissingExtraError, did_you_mean, shown
from rl_training.user_folders import user_folder

Location = Path | str
"""A path or, as text, a URL."""

CACHE_VARIABLE = "RL_TRAINING_CACHE"
"""Names the folder for the local copies of runs at URLs."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""A URL that lost a slash, as one in a ``Path`` does. Drives, such as ``C:/``, have one letter."""
_LOCAL = ("file", "local")


def is_url(location: object) -> bool:
    """Return whether a location is a URL rather than a path."""
    return isinstance(location, str) and _URL.match(location) is not None


def to_location(text: Location) -> Location:
    """Return a URL as it is, and anything else as a path; a URL that lost a slash is refused."""
    if is_url(text):
        return text
    if match := _ONE_SLASH.fullmatch(str(text)):
        raise ConfigError(f"{shown(text)}: expected a URL such as {match[1]}://{shown(match[2])}, or a path")
    return Path(text)


def parse_location(value: Any) -> Location:
    """Return the value of a setting as a path, or as a URL in its one spelling."""
    if not isinstance(value, (str, Path)):
        raise ValueError("expected a path or a URL")
    return canonical(str(value)) if is_url(value) else to_location(value)


def require_local(path: Path, what: str) -> None:
    """Refuse a URL where only a path will do; ``what`` names the option in the message."""
    if _ONE_SLASH.fullmatch(str(path)):
        raise ConfigError(f"{what} {path}: expected a path on this machine, not a URL")


def canonical(url: str) -> str:
    """Return the one spelling of a URL under which a run is known, or raise an error that says what is wrong."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(f"{shown(url)}: expected a URL such as s3://bucket/runs")
    protocol, rest = match[1].lower(), match[2]
    if "::" in url or "?" in url or "#" in url:
        raise ConfigError(f"{shown(url)}: expected a plain URL such as s3://bucket/runs, without '::', '?' and '#'")
    if protocol in _LOCAL:
        return f"file://{Path(rest).absolute().as_posix()}"
    parts = [part for part in rest.split("/") if part]
    if not parts or ".." in parts or "." in parts:
        raise ConfigError(f"{shown(url)}: expected a folder such as s3://bucket/runs, without '.' and '..'")
    return f"{protocol}://{'/'.join(parts)}"


def join(folder: Location, name: str) -> Location:
    """Return the location of a name in a folder."""
    return folder / name if isinstance(folder, Path) else f"{folder.rstrip('/')}/{name}"


def parent(location: Location) -> Location:
    """Return the folder that a location is in."""
    if isinstance(location, Path):
        return location.parent
    protocol, _, rest = canonical(location).partition("://")
    if protocol in _LOCAL:
        return f"file://{Path(rest).parent.as_posix()}"
    if "/" not in rest:
        raise ConfigError(f"{shown(location)}: expected a folder in it, such as {shown(location)}/run")
    return f"{protocol}://{rest.rpartition('/')[0]}"


def last_name(location: Location) -> str:
    """Return the last part of a location."""
    return location.name if isinstance(location, Path) else location.rstrip("/").rpartition("/")[2]


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    try:
        import fsspec
        from fsspec.registry import known_implementations, registry
    except ImportError:
        raise MissingExtraError(shown(url), "remote") from None
    protocol = url.partition("://")[0]
    known = sorted({*known_implementations, *registry})
    if protocol not in known:
        common = ", ".join(name for name in ("s3", "gs", "abfs", "sftp", "file", "memory") if name in known)
        raise ConfigError(
            f"{shown(url)}: unknown protocol {protocol!r}{did_you_mean(protocol, known)}; expected one that fsspec"
            f" knows, such as {common}"
        )
    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = known_implementations[protocol]["class"].partition(".")[0]
        if package == "fsspec":  # it is fsspec's own, and needs another package
            package = getattr(error.__cause__, "name", None) or "it"
        raise ConfigError(f"{shown(url)}: {shown(error)}: pip install {package}") from None
    except Exception as error:  # a file system may refuse its arguments with any error
        raise ConfigError(f"{shown(url)}: cannot be opened: {shown(error)}") from None
    return file_system, str(path)


def download_file(url: str) -> Path:
    """Copy one file at a URL to the cache, and return its path there."""
    url = canonical(url)
    file_system, path = open_filesystem(url)
    name = f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{last_name(url)}"
    target = cache_folder().with_name("files") / name
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.write_bytes(file_system.cat_file(path))
    except FileNotFoundError:
        raise ConfigError(f"no file {shown(url)}") from None
    except Exception as error:  # each file system has errors of its own
        raise ConfigError(f"{shown(url)}: cannot be read: {shown(error)}") from None
    return target


def cache_folder() -> Path:
    """Return the folder for the local copies of runs at URLs."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).absolute()
    return user_folder("CACHE") / "runs"


def local_folder(url: str) -> Path:
    """Return where the local copy of a folder at a URL is.

    It has the same parts as the URL. A part that is not a plain name is replaced by one with a hash.
    """
    protocol, _, rest = canonical(url).partition("://")
    return cache_folder().joinpath(protocol, *(_plain(part) for part in rest.split("/") if part))


def local_path(location: Location) -> Path:
    """Return a path as it is, and for a URL the folder of its local copy."""
    return local_folder(location) if isinstance(location, str) and is_url(location) else Path(location)


def _plain(part: str) -> str:
    if re.fullmatch(r"[\w=+-][\w.=+-]*", part, re.ASCII):
        return part
    name = re.sub(r"[^\w.=+-]+", "_", part.rpartition("@")[2], flags=re.ASCII)  # without a user's name and password
    return f"{name.lstrip('.')}-{hashlib.sha256(part.encode()).hexdigest()[:8]}"
