"""Consent to import code: an ``env_id`` such as ``my_task:Lift-v0`` imports a module.

A module that the user names, in Python, on the command line or in the configuration of ``train``, is imported. A module
that the folder of a run names is imported if that run was made here by the user's own ``train``, if the module is
imported already, if it is listed in ``trusted.txt``, or if the user agrees with ``--trust``.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import sys
from pathlib import Path

from rl_training.errors import EnvError
from rl_training.user_folders import user_folder

MARK = ".origin"
"""A file in a run's folder that only this user can have written, for this folder and this module."""

_KNOWN = {"gymnasium", "gymnasium_robotics", "rl_training"}
_approved: set[str] = set()
_refused: dict[str, Path] = {}
_trusted_all = False


def env_module(env_id: str | None) -> str | None:
    """Return the module that an ``env_id`` such as ``my_task:Lift-v0`` imports, or None."""
    module, separator, _ = (env_id or "").partition(":")
    return module if separator else None


def approve(env_id: str | None) -> None:
    """Allow the module of an ``env_id`` to be imported, in this process."""
    module = env_module(env_id)
    if module is not None:
        _approved.add(module)


def trust_all_runs() -> None:
    """Allow every run to name modules that are imported, in this process."""
    global _trusted_all
    _trusted_all = True


def judge_run(path: Path, env_id: str | None) -> None:
    """Decide whether the module that a run names may be imported; ``path`` is its folder or one of its checkpoints."""
    module = env_module(env_id)
    if module is None or module in _approved:
        return
    if module.partition(".")[0] in _KNOWN or module in _listed() or _made_here(path, module):
        _approved.add(module)
    else:
        _refused.setdefault(module, path)


def require_consent(env_id: str) -> None:
    """Raise an error if only the folder of a foreign run names the module of an ``env_id``."""
    module = env_module(env_id)
    if module is None or _trusted_all or module in _approved or module in sys.modules or module not in _refused:
        return
    raise EnvError(
        f"{_refused[module]}: env_id {env_id!r} imports the module {module!r}, and this run was not made by your own"
        f" train in this place. If you trust its code, give --trust, or add the line {module} to"
        f" {user_folder('CONFIG') / 'trusted.txt'}; in Python, import the module first"
    )


def mark_own_run(run_dir: Path, env_id: str | None) -> None:
    """Note in a new run's folder that this user made it. Without a writable home, later commands ask for consent."""
    module = env_module(env_id)
    if module is not None:
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home
            (run_dir / MARK).write_text(_signature(run_dir, module, _secret()) + "\n", encoding="ascii")


def _made_here(path: Path, module: str) -> bool:
    for folder in (path, *path.parents):
        try:
            mark = (folder / MARK).read_text(encoding="ascii").strip()
            return hmac.compare_digest(mark, _signature(folder, module, _secret(create=False)))
        except (OSError, ValueError, RuntimeError):
            continue
    return False


def _signature(folder: Path, module: str, secret: bytes) -> str:
    text = f"{folder.resolve()}\n{module}".encode("utf-8", "surrogateescape")
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def _secret(*, create: bool = True) -> bytes:
    """Return this user's secret."""
    file = user_folder("STATE") / "secret"
    if create and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as stream:
                stream.write(secrets.token_bytes(32))
    secret = file.read_bytes()
    if len(secret) != 32:
        raise OSError(f"{file} does not hold a secret")
    return secret


def _listed() -> list[str]:
    try:
        lines = (user_folder("CONFIG") / "trusted.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, RuntimeError):
        return []
    return [line.strip() for line in lines]
