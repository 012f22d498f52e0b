"""Videos of an evaluation: which episodes, what the files show, and what happens where nothing can be drawn."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.errors import ConfigError, EnvError, MissingExtraError
from rl_training.experiment import video
from rl_training.experiment.manager import evaluate_experiment, load_policy
from rl_training.experiment.video import Chosen, check_renderer, choose_episodes, record_episodes, video_format
from rl_training.runtime import run as runs
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.progress import Progress
from rl_training.runtime.settings import read_config
from rl_training.seeding import Stream, episode_seeds
from scripted_env import ENV_ID, ScriptedEnv

QUIET = Progress("evaluate", quiet=True)


def outcome(total: float, success: bool | None = None) -> dict[str, Any]:
    return {"return": total, "length": 1, "success": success}


def test_the_best_the_worst_and_another_are_chosen() -> None:
    episodes = [outcome(3), outcome(-1), outcome(7), outcome(5), outcome(0)]
    best, worst, other = choose_episodes(episodes, seed=0)
    assert (best, worst) == (Chosen("best", 2), Chosen("worst", 1))
    assert other.kind == "random"
    assert other.episode in (0, 3, 4)
    assert choose_episodes(episodes, seed=0)[2] == other
    assert {choose_episodes(episodes, seed=seed)[2].episode for seed in range(40)} == {0, 3, 4}


def test_success_counts_before_the_return() -> None:
    episodes = [outcome(-9, True), outcome(5, False), outcome(-20, True), outcome(-3, False)]
    assert [choice.episode for choice in choose_episodes(episodes, 0)[:2]] == [0, 3]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_no_episode_is_chosen_twice(count: int) -> None:
    chosen = choose_episodes([outcome(0)] * count, 0)
    assert [choice.kind for choice in chosen] == ["best", "worst", "random"][:count]
    assert len({choice.episode for choice in chosen}) == count


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filmed")
    small = ["hidden_sizes=[4]", "batch_size=8", "learning_starts=60", "buffer_capacity=300"]
    changes = ["total_timesteps=120", "eval_episodes=1", f"output_dir={folder}", "env_kwargs={max_steps: 12}"]
    return runs.train(read_config("her/point_reach", [*changes, *(f"algo_kwargs.{key}" for key in small)])).run_dir


def frames_of(file: Path) -> list[np.ndarray]:
    if file.suffix == ".gif":
        image_module = pytest.importorskip("PIL.Image")
        with image_module.open(file) as image:
            frames = []
            for index in range(image.n_frames):
                image.seek(index)
                frames += [np.asarray(image.convert("RGB"))] * max(1, round(image.info["duration"] / 50))
            return frames
    reader = pytest.importorskip("imageio_ffmpeg").read_frames(str(file))
    width, height = next(reader)["size"]
    return [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_files_show_the_episodes_that_the_index_names(kind: str, run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip({"mp4": "imageio_ffmpeg", "gif": "PIL"}[kind])
    answer = evaluate_experiment(run_dir, episodes=6, video=tmp_path / "videos", video_kind=kind)
    index = json.loads((tmp_path / "videos" / "index.json").read_text())
    assert [entry["kind"] for entry in index] == ["best", "worst", "random"]
    assert [Path(file).name for file in answer["videos"]] == [entry["file"] for entry in index]
    assert [entry["file"] for entry in index] == [f"{name}.{kind}" for name in ("best", "worst", "random")]
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == sorted(
        ["index.json", *(entry["file"] for entry in index)]
    )
    learner, config, checkpoint = load_policy(run_dir)
    assert config.env_id is not None
    evaluator = Evaluator(config.env_id, config.env_kwargs, episodes=6, seed=10_000, render_mode="rgb_array")
    evaluator.run(learner)
    returns = [episode["return"] for episode in evaluator.last_episodes]
    assert [index[0]["return"], index[1]["return"]] == [max(returns), min(returns)]
    seeds = list(itertools.islice(episode_seeds(10_000, Stream.EVALUATION), 6))
    for entry in index:
        assert entry["return"] == returns[entry["episode"]]
        assert entry["seed"] == seeds[entry["episode"]]
        assert isinstance(entry["success"], bool)
        assert entry["checkpoint"] == checkpoint.name
        observation, _ = evaluator.env.reset(seed=entry["seed"])
        shown = [evaluator.env.render()]
        for _ in range(12):
            observation, *_ = evaluator.env.step(learner.predict(observation))
            shown.append(evaluator.env.render())
        frames = frames_of(tmp_path / "videos" / entry["file"])
        assert len(frames) == 13 + 10  # the first picture, one for each step, and half a second of the last one
        for index_of, frame in enumerate(shown):
            assert np.abs(frames[index_of].astype(float) - frame).mean() < 4


def test_videos_take_the_place_of_earlier_ones(run_dir: Path, tmp_path: Path) -> None:
    for module in ("imageio_ffmpeg", "PIL"):
        pytest.importorskip(module)
    (tmp_path / "own.mp4").write_bytes(b"")
    evaluate_experiment(run_dir, episodes=3, video=tmp_path, video_kind="mp4")
    evaluate_experiment(run_dir, episodes=1, video=tmp_path, video_kind="gif")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.gif", "index.json", "own.mp4"]
    assert [entry["file"] for entry in json.loads((tmp_path / "index.json").read_text())] == ["best.gif"]


def test_the_format_is_what_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"imageio_ffmpeg", "PIL"}
    monkeypatch.setattr(video, "_is_installed", lambda package: package in installed)
    assert video_format(None) == "mp4"
    assert video_format("gif") == "gif"
    with pytest.raises(ConfigError, match="--video-format 'gfi': expected mp4 or gif"):
        video_format("gfi")
    installed.discard("imageio_ffmpeg")
    assert video_format(None) == "gif"
    with pytest.raises(MissingExtraError, match=r"recording mp4 videos needs an optional package: .*\[video\]"):
        video_format("mp4")
    installed.clear()
    with pytest.raises(MissingExtraError, match=r"recording videos needs an optional package: .*\[video\]"):
        video_format(None)


def test_without_the_extra_nothing_is_played(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "_is_installed", lambda package: False)
    with pytest.raises(MissingExtraError):
        evaluate_experiment(run_dir, episodes=10**6, video=tmp_path / "videos")
    assert not (tmp_path / "videos").exists()


class PictureEnv(ScriptedEnv):
    """Draws what ``picture`` says; with ``drifts``, its rewards depend on how often it was reset."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium's own form)

    def __init__(self, picture: str = "odd", drifts: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.picture, self.drifts = picture, drifts

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + self.drifts * len(self.seeds), *rest

    def render(self) -> Any:
        return {
            "none": None,
            "grey": np.zeros((8, 8), np.uint8),
            "floats": np.zeros((8, 8, 3)),
            "odd": np.full((33, 47, 3), 20 * self.t, np.uint8),
        }[self.picture]


if "tests/Picture-v0" not in gym.registry:
    gym.register("tests/Picture-v0", entry_point=PictureEnv)


class Still:
    """A policy that does nothing."""

    def predict(self, observation: Any, deterministic: bool = True) -> Any:
        return np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("picture", "found"),
    [
        ("none", "render returned None"),
        ("grey", r"render returned an array of shape \(8, 8\) and dtype uint8"),
        ("floats", r"render returned an array of shape \(8, 8, 3\) and dtype float64"),
    ],
)
def test_an_environment_without_pictures_is_refused(picture: str, found: str) -> None:
    evaluator = Evaluator("tests/Picture-v0", {"picture": picture}, render_mode="rgb_array")
    with pytest.raises(EnvError, match=f"env_id 'tests/Picture-v0': it cannot be recorded: {found}; expected"):
        check_renderer(evaluator)


@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes")
def test_a_missing_renderer_is_an_error_of_the_input() -> None:
    evaluator = Evaluator(ENV_ID, render_mode="rgb_array")  # it has no render at all
    with pytest.raises(EnvError, match=r"render raised NotImplementedError.*; without --video the policy is evaluated"):
        check_renderer(evaluator)


def test_odd_sizes_and_replays_that_differ(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    evaluator = Evaluator("tests/Picture-v0", {"drifts": True}, episodes=1, render_mode="rgb_array")
    evaluator.run(Still())  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=r"best\.mp4: episode 0 had a return of 14, and of 18 when"):
        record_episodes(evaluator, Still().predict, tmp_path, format_="mp4", checkpoint=Path("x/best"), progress=QUIET)
    assert json.loads((tmp_path / "index.json").read_text())[0]["return"] == 18
    frames = frames_of(tmp_path / "best.mp4")
    assert frames[0].shape == (34, 48, 3)
    np.testing.assert_allclose([frame.mean() for frame in frames[:5]], [0, 20, 40, 60, 80], atol=3)


def test_long_gifs_leave_out_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    monkeypatch.setattr(video, "_GIF_FRAMES", 8)
    evaluator = Evaluator("tests/Picture-v0", {"length": 12}, episodes=1, render_mode="rgb_array")
    evaluator.run(Still())  # type: ignore[arg-type]
    record_episodes(evaluator, Still().predict, tmp_path, format_="gif", checkpoint=Path("x"), progress=QUIET)
    from PIL import Image

    with Image.open(tmp_path / "best.gif") as image:
        assert image.n_frames <= 8
        assert image.info["duration"] % 400 == 0  # every fourth frame of ten a second


def test_a_failure_leaves_the_earlier_videos(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    evaluator = Evaluator("tests/Picture-v0", episodes=2, render_mode="rgb_array")
    evaluator.run(Still())  # type: ignore[arg-type]
    arguments: dict[str, Any] = {"format_": "mp4", "checkpoint": Path("x"), "progress": QUIET}
    record_episodes(evaluator, Still().predict, tmp_path, **arguments)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls = itertools.count()

    def fail_later(observation: Any) -> Any:
        if next(calls) > 5:
            raise EnvError("gone")
        return np.zeros(2, np.float32)

    with pytest.raises(EnvError, match="gone"):
        record_episodes(evaluator, fail_later, tmp_path, **arguments)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_is_a_link_is_not_followed(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "videos").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="videos: a symbolic link, which a run may not contain"):
        evaluate_experiment(run_dir, episodes=1, video=tmp_path / "videos")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("kind", ["mp4", "gif"])
def test_a_file_that_is_a_link_is_replaced(kind: str, run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip({"mp4": "imageio_ffmpeg", "gif": "PIL"}[kind])
    (tmp_path / "precious").write_text("mine")
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in (f"best.{kind}", f".best.tmp.{kind}", "index.json"):
        (folder / name).symlink_to(tmp_path / "precious")
    evaluate_experiment(run_dir, episodes=1, video=folder, video_kind=kind)
    assert (tmp_path / "precious").read_text() == "mine"
    assert [path.is_symlink() for path in folder.iterdir()] == [False, False]


def test_the_command_writes_into_the_run(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_training.cli import main

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rl-training", "evaluate", str(run_dir), *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capsys.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    code, out, err = command("--episodes", 2, "--video", "--video-format", "gif", "--json")
    assert (code, err) == (0, "")
    assert [Path(file).name for file in json.loads(out)["videos"]] == ["best.gif", "worst.gif"]
    assert (run_dir / "videos" / "best.gif").is_file()
    assert command("--video", "--video-format", "avi")[::2] == (
        2,
        "error: --video-format 'avi': expected mp4 or gif\n",
    )
    assert command("--video-format", "gif")[::2] == (2, "error: --video-format gif: expected --video as well\n")
