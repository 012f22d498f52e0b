"""The documentation is true: its commands and snippets run, its tables and links are up to date.

Commands run in this process, through the same entry point as ``rl-training``, because importing torch once for each of
them would take most of the time. Steps, warm-up, networks, batch size and evaluation episodes are cut; the rest of a
command or snippet is run as it is written. The data that pages call ``logged.npz``, and the Adroit hand's, is made up
here; a configuration whose data is not there is read, not trained. ``text`` blocks, which show output, are not compared
with anything.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

from rl_training import cli
from rl_training.algorithms.table import ALGORITHMS
from rl_training.config import PRESET_DIR, TrainConfig, load_config
from rl_training.data.dataset_loaders import SUFFIXES, find_file
from rl_training.data.formats.columns import ALIASES, MARKS, MERGED
from rl_training.envs.builtin import BitFlippingEnv, PointMassEnv
from rl_training.errors import DatasetError
from rl_training.experiment.setting_tables import describe_settings
from rl_training.runtime.settings import group_types, read_config, read_stack
from rl_training.scale.sweep_file import read_sweep
from rl_training.scale.tune_file import read_search
from rl_training.tools import inspection

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]

TINY = ["total_timesteps=120", "eval_episodes=1", "algo_kwargs.batch_size=32", "algo_kwargs.dataset_size=400"]
TINY += ["algo_kwargs.hidden_sizes=[32, 32]"]
TINY_ONLINE = [*TINY, "algo_kwargs.learning_starts=100"]
RUNS = {"docs/offline.md": "logged.yaml", "docs/start.md": "her/point_goal", "docs/environments.md": "lift.yaml"}
"""What ``RUN`` is a run of, where it is not her/point_reach."""
SHORT = 1_020
"""Steps of a run in Python: a few more than the presets collect before they learn. Offline all of them are updates."""
SHORTER = {"docs/offline.md": 100, "docs/prior_data.md": 220, "docs/start.md": 520}
HAS_ROBOTICS = importlib.util.find_spec("gymnasium_robotics") is not None


class Block(NamedTuple):
    """A fenced block: the page it is on, its language and its text."""

    page: str
    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        """The file that the block's first line says it is, such as ``# reach.yaml``."""
        match = re.match(r"# ([\w.]+\.(?:yaml|py))\n", self.text)
        return match[1] if match else None


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(page, *match) for match in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A working folder that holds the files the page shows."""
    for block in blocks(request.getfixturevalue("page")):
        if block.file_name:
            (tmp_path / block.file_name).write_text(block.text)
    write_logged_data(tmp_path / "logged.npz")
    if HAS_ROBOTICS:
        write_logged_data(tmp_path / "adroit_door_human25.npz", observation_dim=39, action_dim=28)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_task", None)


def write_logged_data(file: Path, observation_dim: int = 3, action_dim: int = 1) -> None:
    """Write two short episodes that could be Pendulum's, under D4RL's names."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(2, 101, observation_dim)).astype(np.float32)
    np.savez(
        file,
        observations=states[:, :-1].reshape(-1, observation_dim),
        next_observations=states[:, 1:].reshape(-1, observation_dim),
        actions=rng.uniform(-2, 2, (200, action_dim)).astype(np.float32),
        rewards=rng.normal(size=200).astype(np.float32),
        terminals=np.zeros(200, bool),
        timeouts=np.arange(200) % 100 == 99,
    )


def rl_training(arguments: list[str], stdin: str = "") -> tuple[int, str]:
    """Run a command as ``rl-training`` does and return its exit code and stdout."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", ["rl-training", *arguments])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
    code = exit_info.value.code
    return (code if isinstance(code, int) else int(bool(code))), output.getvalue()


def tiny(config: TrainConfig) -> list[str]:
    """Return the arguments that make a run short."""
    settings = TINY_ONLINE if config.algo_kwargs.get("online", ALGORITHMS[config.algo].online) else TINY
    if "offline_pretrain_updates" in config.algo_kwargs:
        settings = [*settings, "algo_kwargs.offline_pretrain_updates=20"]
    return [part for setting in settings for part in ("--set", setting)]


def data_is_here(config: TrainConfig) -> bool:
    """Return whether a run has the data it needs, if it needs any; nothing is downloaded for a test."""
    path = config.algo_kwargs.get("dataset_path")
    try:
        return "dataset_id" not in config.algo_kwargs and (path is None or find_file(path).exists())
    except DatasetError:
        return False


def run_of(name: str, page: str, folder: Path) -> Path:
    """Return what ``RUN`` stands for on a page: the newest run of its example, made here where there is none yet.

    ``IQL_RUN`` is one of the preset iql/pendulum, and so on.
    """
    algo = name.removesuffix("RUN").rstrip("_").lower()
    source = f"{algo}/pendulum" if algo else RUNS.get(page, "her/point_reach")
    pattern = f"runs/{source.replace('/', '-').removesuffix('.yaml')}-*s[0-9]*"  # with the changes of --set before it
    if not list(folder.glob(pattern)):
        rl_training(["train", source, *tiny(load_config(source))])
    return max(folder.glob(pattern), key=lambda run: run.stat().st_mtime_ns)


def run_line(line: str, page: str, folder: Path) -> None:
    """Run or check one line of a bash block."""
    expected = int(match[1]) if (match := re.search(r"# exits with (\d)", line)) else 0
    piped = re.match(r"echo '(.*)' \| (.*)", line)
    stdin, line = (piped[1] + "\n", piped[2]) if piped else ("", line)
    words = shlex.split(line, comments=True)
    variables = [words.pop(0) for word in list(words) if re.match(r"[A-Z_]+=", word)]
    if words[:3] == ["python", "-m", "rl_training"]:
        words = ["rl-training", *words[3:]]
    if words[0] != "rl-training":
        check_other_command(words)
        return
    arguments = [re.sub(r"^([A-Z]+_)?RUN\b", lambda m: str(run_of(m[0], page, folder)), word) for word in words[1:]]
    if arguments[0] == "resume":
        arguments = [re.sub(r"^total_timesteps=\d+$", "total_timesteps=140", word) for word in arguments]
    if "--episodes" in arguments:
        arguments[arguments.index("--episodes") + 1] = "1"
    if arguments[:2] == ["data", "collect"] and "logged.npz" in arguments:
        (folder / "logged.npz").unlink()  # a page that records it does not start with it
    with pytest.MonkeyPatch.context() as patch:
        for variable in variables:
            patch.setenv(*variable.split("=", 1))
        if arguments[0] == "train":
            changes = [value for name, value in itertools.pairwise(arguments) if name == "--set"]
            if "--init-from" in arguments:
                changes.append("algo_kwargs.online=true")
            config = load_config(arguments[1], changes)
            if expected == 0 and not data_is_here(config):
                read_config(arguments[1], changes)
                return
            arguments += tiny(config)
        if arguments[0] in ("sweep", "tune") and not {"--slurm", "--dry-run"} & set(arguments):
            arguments.append("--dry-run")  # test_sweep.py and test_tune.py run them
        if "--serve" in arguments:
            arguments += ["--port", "0"]
            patch.setattr("rl_training.experiment.report.server.ReportServer.serve_forever", lambda server: None)
        code, output = rl_training(arguments, stdin)
    assert code == expected, f"{line}: exit code {code}, {output}"
    if "--json" in arguments:
        assert isinstance(json.loads(output), dict), line


def missing_extra(line: str) -> str | None:
    """Return the extra that a command of the package needs and that is not installed."""
    if line.startswith(("make ", "pip ")):
        return None
    needs = {
        "plots": (r"--png\b", "matplotlib"),
        "video": (r"--video\b", "imageio_ffmpeg"),
        "offline": (r"\.(hdf5|parquet)\b", "h5py"),
        "robotics": (r"(?i)fetch|adroit", "gymnasium_robotics"),
        "scale": (r"num_workers=", "ray"),
        "export": (r"rl-training (export|verify|share|predict policy|evaluate policy)\b|policy/", "onnxruntime"),
    }
    for extra, (pattern, module) in needs.items():
        if re.search(pattern, line) and importlib.util.find_spec(module) is None:
            return extra
    return None


def check_other_command(words: list[str]) -> None:
    """Check what a test cannot run: a make target must exist, an extra must be declared."""
    if words[0] == "python" and (ROOT / words[1]).is_file():
        compile((ROOT / words[1]).read_text(encoding="utf-8"), words[1], "exec")
    elif words[0] == "python":
        subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True, timeout=60)
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    elif words == ["source", ".venv/bin/activate"]:
        assert "VENV ?= .venv\n" in (ROOT / "Makefile").read_text()
    elif words[:2] == ["pip", "install"]:
        project = (ROOT / "pyproject.toml").read_text()
        extras = re.search(r"\[(.*)\]", " ".join(words[2:]))
        assert extras is not None or words[2] == "torch", words
        for extra in extras[1].split(",") if extras else ():
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"no extra {extra!r}"
        for wheel in re.findall(r"rl_training-(.+?)-py3", " ".join(words)):
            assert f'version = "{wheel}"' in project, words
    else:
        pytest.fail(f"a command that nothing checks: {shlex.join(words)}")


@pytest.mark.parametrize("page", sorted({block.page for block in ALL_BLOCKS if block.language == "bash"}))
@pytest.mark.slow
def test_commands_run(page: str, folder: Path) -> None:
    lines = [
        line
        for block in blocks(page)
        if block.language == "bash"
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert lines, f"{page}: a bash block without a command"
    skipped = [f"{line} (extra {extra!r})" for line in lines if (extra := missing_extra(line))]
    for line in lines:
        if missing_extra(line) is None:
            run_line(line, page, folder)
    if skipped:
        pytest.skip(f"not run, because an extra is not installed: {'; '.join(skipped)}")


PAGES_WITH_SNIPPETS = sorted({b.page for b in ALL_BLOCKS if b.language == "python" and b.file_name is None})


@pytest.mark.parametrize("page", PAGES_WITH_SNIPPETS)
@pytest.mark.slow
def test_python_snippets_run(page: str, folder: Path) -> None:
    """The snippets of a page run in order, in one namespace, as a reader would try them."""
    namespace: dict[str, object] = {"__name__": "snippet"}
    steps = SHORTER.get(page, SHORT)
    for block in blocks(page):
        if block.language == "python" and block.file_name is None:
            text = block.text.replace(".learn()", ".learn(progress_bar=False)")
            text = text.replace(".learn(", f".learn(total_timesteps={steps}, ")
            text = re.sub(r"(total_timesteps\W{1,3})[\d_]+", rf"\g<1>{steps}", text)
            text = re.sub(r"(episodes=)\d+", r"\g<1>1", text)
            text = re.sub(r"(offline_pretrain_updates\W+)\d+", r"\g<1>20", text)
            text = re.sub(r'(from_preset\("\w+")', r"\1, eval_episodes=1", text)
            exec(compile(text, f"{page}:\n{text}", "exec"), namespace)
    assert len(namespace) > 1, f"{page}: no snippet was run"


@pytest.mark.parametrize("block", [block for block in ALL_BLOCKS if block.language == "yaml"], ids=lambda b: b.page)
def test_yaml_is_a_valid_configuration(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(block.text)
    if "base:" in block.text:
        assert read_search(file).ranges if "space:" in block.text else read_sweep(file).trials
        return
    assert all(config.total_timesteps > 0 for config in read_stack(file, [], None))


def test_blocks_are_of_a_known_language() -> None:
    assert {block.language for block in ALL_BLOCKS} == {"bash", "python", "yaml", "text"}
    for page in PAGES:
        fences = re.findall(r"^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(blocks(page)), f"{page}: a fence without a language, or without an end"


def load_script(name: str) -> ModuleType:
    """Import a script of the docs."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_script("generate_settings")


def test_tables_of_settings_are_up_to_date(generator: ModuleType) -> None:
    text = generator.PAGE.read_text(encoding="utf-8")
    assert generator.render(text) == text, "run python docs/generate_settings.py"


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_every_setting_is_documented(algo: str, generator: ModuleType) -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", generator.PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    page = generator.render((ROOT / "docs" / "settings.md").read_text(encoding="utf-8"))
    section = page.partition(f"\n## {algo}\n")[2].partition("\n## ")[0]
    own = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert own == set(ALGORITHMS[algo].learner.Settings.model_fields)
    for name, group in group_types(ALGORITHMS[algo], online=True).items():
        assert name == "learner" or set(group.model_fields) <= documented


def test_presets_in_the_readme_are_as_it_says() -> None:
    """A row may stand for several presets with the same environment and number of steps."""
    table = re.findall(r"^\| (`\w+/.+?) \| `(.+?)` \| ([\d,]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    rows = [(name, env_id, steps) for names, env_id, steps in table for name in re.findall(r"`(\w+/\w+)`", names)]
    configs = {name: read_config(name) for name, _, _ in rows}
    assert len(rows) > 20
    assert rows == [(name, config.env_id, f"{config.total_timesteps:,}") for name, config in configs.items()]
    assert (ROOT / "configs").resolve() == PRESET_DIR.resolve()


def test_offline_page_lists_every_name_and_format() -> None:
    text = (ROOT / "docs" / "offline.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `?([\w ]+)`? \| ((?:`[\w.]+`(?:, )?)+) \|$", text, re.MULTILINE))
    for name in ("observations", "actions", "rewards", "next_observations", "terminated", "truncated"):
        plain = [alias for alias in ALIASES[name] if not alias.endswith(("/observation", ".observation"))]
        assert re.findall(r"`(.+?)`", table[name]) == plain
    assert re.findall(r"`(.+?)`", table["both of these in one"]) == list(MERGED)
    assert re.findall(r"`(.+?)`", table["ends of episodes"]) == list(MARKS)
    for suffix, kind in SUFFIXES.items():
        assert re.search(rf"^\| `{kind}` \| .*`{re.escape(suffix)}`", text, re.MULTILINE), suffix
    findings = re.findall(r'Finding\(\s*"([a-z-]+)"', Path(inspection.__file__).read_text(encoding="utf-8"))
    assert [name for name in findings if f"`{name}`" not in text] == []


def anchors(page: Path, generator: ModuleType) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    text = generator.render(page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_relative_links_resolve(page: str, generator: ModuleType) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = Path(os.path.normpath(path.parent / name)) if name else path
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(file, generator), f"{page}: {target}"


def hyperparameter_rows() -> dict[str, str]:
    """Return the defaults in the tables of hyperparameters.md by key; a row may name two keys."""
    text = (ROOT / "docs" / "hyperparameters.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.+?) \|", text, re.MULTILINE)
    return {key: default for keys, default in rows for key in re.findall(r"`(\w+)`", keys)}


def test_every_hyperparameter_of_her_and_ddpg_is_explained_with_its_default() -> None:
    groups, rows = group_types(ALGORITHMS["her"], online=True), hyperparameter_rows()
    for name in ("learner", "hindsight", "exploration", "collection", "replay"):
        for setting in describe_settings(groups[name]):
            default = "—" if setting.default == "unset" else f"`{setting.default}`"
            assert rows.get(setting.key) == default, setting.key


@pytest.mark.parametrize("cls", [PointMassEnv, BitFlippingEnv])
def test_every_argument_of_the_built_in_environments_is_explained(cls: type) -> None:
    assert set(inspect.signature(cls.__init__).parameters) - {"self"} <= set(hyperparameter_rows())


def test_the_notebook_becomes_a_page_of_the_site() -> None:
    page = load_script("notebook_page").on_page_markdown((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    assert "# DDPG with HER, built from its parts" in page
    assert page.count("```python\n") >= 7
    assert page.count("data:image/png;base64,") == 2
    assert "success rate over 50 new episodes" in page


def test_the_picture_of_relabelling_shows_what_the_buffer_samples() -> None:
    pictures = load_script("draw_pictures")
    episode = pictures.wandering_episode()
    path = episode["observations"]["achieved_goal"]
    assert (episode["rewards"] == -1).all()  # the text says that it misses its goal
    for strategy in pictures.STRATEGIES:
        batch = pictures.relabelled(episode, strategy, 14)
        ends, goals = batch.next_observations[:, :2].numpy(), batch.observations[:, -2:].numpy()
        at, of = ([int(np.abs(path - row).sum(1).argmin()) for row in rows] for rows in (ends, goals))
        assert all(np.allclose(path[k], goal) for k, goal in zip(of, goals, strict=True))
        assert strategy != "final" or set(of) == {50}
        assert strategy != "future" or all(k >= t for t, k in zip(at, of, strict=True))
        assert strategy != "episode" or any(k < t for t, k in zip(at, of, strict=True))


def test_the_site_lists_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name for name in PAGES[1:] if f": {Path(name).name}\n" not in navigation] == []
