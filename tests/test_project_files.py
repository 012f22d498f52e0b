"""What stands beside the code agrees with it: version, make targets, workflow, hooks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def declared_version() -> str:
    match = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def test_changelog_and_citation_have_the_packages_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == declared_version()
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert headings[1] == f"[{declared_version()}] - {citation['date-released']}"


def test_the_command_line_prints_a_version(warm_python):
    answer = warm_python.run("-m", "rl_training", "--version")
    assert answer.returncode == 0, answer.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", answer.stdout)


@pytest.mark.parametrize("file", ["CONTRIBUTING.md", ".ci/run", ".github/workflows/ci.yml"])
def test_make_targets_exist(file):
    text = (ROOT / file).read_text()
    commands = re.findall(r"(?:^|`|run: |  |cpu )make ([a-z-]+)", text, re.MULTILINE)
    assert commands
    assert set(commands) <= TARGETS


def test_the_pages_contributing_links_to_exist():
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / "CONTRIBUTING.md").read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
