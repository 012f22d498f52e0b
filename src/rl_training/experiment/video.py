"""Videos of evaluated episodes: the best one, the worst one and one at random, as mp4 or gif.

Episodes are chosen after all of them have been played, and then played again from their seeds with the renderer on. So
memory does not grow with the number of episodes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.goals import episode_success
from rl_training.envs.play import play
from rl_training.errors import ConfigError, EnvError, EnvFailedError, MissingExtraError, did_you_mean
from rl_training.json_output import to_json
from rl_training.runtime.checkpoint_files import write_durably
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.progress import Progress
from rl_training.seeding import Stream, episode_seeds

Array = NDArray[Any]

INDEX = "index.json"
"""The list of the videos in a folder: ``file``, ``kind``, ``return``, ``success``, ``seed`` and more of each."""

_PACKAGES = {"mp4": "imageio_ffmpeg", "gif": "PIL"}
_GIF_SIDE, _GIF_FRAMES = 320, 600
"""The longest side of a gif in pixels, and its number of frames; longer episodes leave out every other frame."""


class Chosen(NamedTuple):
    """An episode to record."""

    kind: str
    """``best``, ``worst`` or ``random``."""
    episode: int
    """Its number in the evaluation, from 0."""


class Writer(Protocol):
    """Takes the frames of one video."""

    def add(self, frame: Array) -> None:
        """Add a frame ``[H, W, 3]`` of bytes."""

    def close(self) -> None:
        """Complete the file."""


def video_format(asked: str | None) -> str:
    """Return the format to write: the one asked for, or mp4, or gif where nothing can write mp4."""
    if asked is not None and asked not in _PACKAGES:
        raise ConfigError(f"--video-format {asked!r}: expected mp4 or gif{did_you_mean(asked, _PACKAGES)}")
    for name in [asked] if asked is not None else _PACKAGES:
        if _is_installed(_PACKAGES[name]):
            return name
    raise MissingExtraError("recording videos" if asked is None else f"recording {asked} videos", "video")


def choose_episodes(episodes: Sequence[dict[str, Any]], seed: int) -> list[Chosen]:
    """Return the best, the worst and a random other episode, as far as there are so many.

    Success counts before the return. The seed decides which one is random.
    """
    order = sorted(range(len(episodes)), key=lambda i: (bool(episodes[i]["success"]), episodes[i]["return"]))
    chosen = [Chosen("best", order.pop())] if order else []
    if order:
        chosen.append(Chosen("worst", order.pop(0)))
    if order:
        chosen.append(Chosen("random", sorted(order)[int(np.random.default_rng(seed).integers(len(order)))]))
    return chosen


def check_renderer(evaluator: Evaluator) -> None:
    """Draw one frame, so that an environment without a renderer is refused before anything is played."""
    env = evaluator.env
    env.reset(seed=next(episode_seeds(evaluator.seed, Stream.EVALUATION)))
    try:
        _frame(evaluator)
    except EnvFailedError as error:
        raise EnvError(f"{error}; without --video the policy is evaluated all the same") from error


def record_episodes(
    evaluator: Evaluator,
    predict: Callable[[Any], Any],
    folder: Path,
    *,
    format_: str,
    checkpoint: Path,
    progress: Progress,
) -> list[Path]:
    """Write videos of the chosen episodes of the latest evaluation and their index, and return the files.

    Earlier videos in the folder are replaced, once all new ones are complete.
    """
    chosen = choose_episodes(evaluator.last_episodes, evaluator.seed)
    entries: list[dict[str, Any]] = []
    temporaries: dict[Path, Path] = {}
    progress.start("videos", len(chosen), "video")
    try:
        _make_folder(folder)
        for kind, episode in chosen:
            file = folder / f"{kind}.{format_}"
            temporaries[file] = file.with_name(f".{kind}.tmp.{format_}")
            temporaries[file].unlink(missing_ok=True)  # it may be a link, which ffmpeg would follow
            entries.append(
                {
                    "file": file.name,
                    "kind": kind,
                    **_record(evaluator, predict, episode, temporaries[file], file),
                    "checkpoint": checkpoint.name,
                }
            )
            progress.advance()
        for file, temporary in temporaries.items():
            temporary.replace(file)
        for other in folder.iterdir():
            if re.fullmatch(r"(best|worst|random)\.(mp4|gif)", other.name) and other not in temporaries:
                other.unlink()
        write_durably(folder / INDEX, to_json(entries) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder}: videos cannot be written: {error.strerror or error}") from None
    finally:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):
                temporary.unlink()
    return list(temporaries)


def _record(
    evaluator: Evaluator, predict: Callable[[Any], Any], episode: int, temporary: Path, file: Path
) -> dict[str, Any]:
    """Play an episode again, write its frames, and return its entry in the index."""
    seed = next(itertools.islice(episode_seeds(evaluator.seed, Stream.EVALUATION), episode, None))
    fps = max(1, int(evaluator.env.metadata.get("render_fps") or 30))
    total, length, success = 0.0, 0, None
    writer = _Gif(temporary, fps) if temporary.suffix == ".gif" else _Mp4(temporary, fps)
    with _explained(file):
        try:
            for step in play(evaluator.env, predict, [seed], on_reset=lambda _: writer.add(_frame(evaluator))):
                frame = _frame(evaluator)
                writer.add(frame)
                total, length = total + step.reward, length + 1
                success = episode_success(step.info) if step.done else None
            for _ in range(fps // 2):  # the end stays in view for half a second
                writer.add(frame)
        except BaseException:
            with contextlib.suppress(OSError, StopIteration):  # the first error is the one to report
                writer.close()
            raise
        writer.close()
    before = evaluator.last_episodes[episode]["return"]
    if not np.isclose(total, before, rtol=1e-6, atol=1e-6):
        warnings.warn(
            f"{file.name}: episode {episode} had a return of {before:.6g}, and of {total:.6g} when it was played again"
            " for the video: its seed does not decide what happens in the environment",
            stacklevel=2,
        )
    return {"return": total, "success": success, "seed": seed, "episode": episode, "length": length, "fps": fps}


def _frame(evaluator: Evaluator) -> Array:
    """Return the environment's picture, ``[H, W, 3]`` of bytes."""
    picture = evaluator.env.render()
    frame = np.asarray(picture if picture is not None else 0)
    if frame.ndim != 3 or frame.shape[2] not in (3, 4) or frame.dtype != np.uint8 or 0 in frame.shape:
        found = "None" if picture is None else f"an array of shape {frame.shape} and dtype {frame.dtype}"
        raise EnvError(
            f"{evaluator.env.get_wrapper_attr('name')}: it cannot be recorded: render returned {found}; expected"
            " an RGB picture of bytes, [height, width, 3], with render_mode rgb_array"
        )
    return frame[:, :, :3]


class _Mp4:
    """H.264 through ffmpeg, one frame at a time."""

    def __init__(self, path: Path, fps: int) -> None:
        self._path, self._fps = path, fps
        self._frames: Any = None

    def add(self, frame: Array) -> None:
        import imageio_ffmpeg

        height, width = frame.shape[:2]
        if height % 2 or width % 2:  # the format has only even sizes
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._frames is None:
            self._frames = imageio_ffmpeg.write_frames(
                str(self._path),
                (frame.shape[1], frame.shape[0]),
                fps=self._fps,
                macro_block_size=2,
                ffmpeg_log_level="error",
                output_params=["-movflags", "+faststart"],  # a browser starts before it has read all of it
            )
            self._frames.send(None)
        self._frames.send(np.ascontiguousarray(frame))

    def close(self) -> None:
        import imageio_ffmpeg

        if self._frames is None:
            return
        self._frames.close()
        reader = imageio_ffmpeg.read_frames(str(self._path))
        try:  # on a full disk ffmpeg leaves a partial file and reports no error
            next(reader)
            next(reader)
        finally:
            reader.close()


class _Gif:
    """Small frames of at most 256 colours, held in memory until the end."""

    def __init__(self, path: Path, fps: int) -> None:
        self._path, self._fps = path, fps
        self._frames: list[Any] = []
        self._stride, self._seen = 1, 0

    def add(self, frame: Array) -> None:
        from PIL import Image

        if self._seen % self._stride == 0:
            image = Image.fromarray(frame)
            image.thumbnail((_GIF_SIDE, _GIF_SIDE))
            self._frames.append(image.quantize(128, dither=Image.Dither.NONE))
        self._seen += 1
        if len(self._frames) > _GIF_FRAMES:
            self._frames, self._stride = self._frames[::2], 2 * self._stride

    def close(self) -> None:
        if not self._frames:
            return
        milliseconds = max(20, round(100 * self._stride / self._fps) * 10)  # a gif counts hundredths of a second
        first, *rest = self._frames
        first.save(self._path, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():
        raise ConfigError(f"{folder}: a symbolic link, which a run may not contain")


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Turn the errors of writing into one that names the file."""
    try:
        yield
    except (OSError, StopIteration) as error:
        reason = str(error).partition("\n")[0] or "not a complete video"
        raise ConfigError(f"{file}: the video cannot be written (is the disk full?): {reason}") from None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module without a specification
        return False
