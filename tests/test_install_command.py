"""An error about a missing extra says how to install it from where the package came from."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from rl_training.errors import MissingExtraError, install_command

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Installed:
    """What ``importlib.metadata`` knows of an installed package."""

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///a%20b/repo", "dir_info": {"editable": True}}, 'pip install -e "/a b/repo[video]"'),
        ({"url": "file:///a/repo", "dir_info": {}}, 'pip install "/a/repo[video]"'),
        (
            {"url": "file:///dist/rl_training-0.2.0-py3-none-any.whl", "archive_info": {}},
            'pip install "rl-training[video] @ file:///dist/rl_training-0.2.0-py3-none-any.whl"',
        ),
        (
            {"url": "https://git.example/rl.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f'pip install "rl-training[video] @ git+https://git.example/rl.git@{COMMIT}"',
        ),
        (None, 'pip install "rl-training[video]"'),
    ],
    ids=["editable checkout", "checkout", "wheel", "git", "index"],
)
def test_an_extra_is_installed_from_where_the_package_came_from(origin, command, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(origin))
    assert install_command("video") == command
    assert str(MissingExtraError("recording videos", "video")).endswith(f"optional package: {command}")


def test_a_package_that_pip_did_not_install_asks_for_a_checkout(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install_command("video") == 'pip install -e ".[video]" in a checkout of rl_training'
