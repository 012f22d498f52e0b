"""This package's folders in the user's home, by the XDG Base Directory Specification."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

_DEFAULTS = {"CONFIG": ".config", "STATE": ".local/state", "CACHE": ".cache"}


def user_folder(kind: Literal["CONFIG", "STATE", "CACHE"]) -> Path:
    """Return the folder for files of a kind, below ``$XDG_<kind>_HOME`` or its default; it may not exist yet.

    Raises:
        RuntimeError: the home of this user is not known.
    """
    base = os.environ.get(f"XDG_{kind}_HOME")
    return (Path(base) if base else Path.home() / _DEFAULTS[kind]) / "rl_training"
