"""What a run records besides its metrics: every collected episode, the latest evaluation, the returns of its data."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import CheckpointError
from rl_training.json_output import to_json
from rl_training.runtime.checkpoint_files import open_without_following, write_durably
from rl_training.runtime.logging import STEP, UPDATES
from rl_training.types import Observation

EPISODES, EVALUATION, DATA = "episodes.csv", "evaluation.json", "data.json"
EPISODE_COLUMNS = (STEP, "return", "length", "success", "final_distance", "environment", "goal")

_MOST_EPISODES = 1_000
"""Episodes of an evaluation that are recorded."""
_DRAWN_PATHS, _PATH_POINTS = 12, 60
"""Episodes of an evaluation whose path is recorded, and the points of each."""
_RETURNS_OF_DATA = 2_000
_MOST_GOAL_NUMBERS = 3
"""Goals with more numbers than this are not recorded: they cannot be drawn."""


class EpisodeRecord(NamedTuple):
    """A finished episode. Its return is raw; ``success``, ``distance`` and ``goal`` are None if there is none."""

    reward: float
    length: int
    success: bool | None
    distance: float | None = None
    """The distance between achieved and desired goal at the end."""
    environment: int = 0
    """The index of the environment that played it."""
    goal: tuple[float, ...] | None = None
    """The desired goal, if it has at most three numbers."""


def goal_outcome(achieved: Any, desired: Any) -> tuple[float, tuple[float, ...] | None]:
    """Return the distance of two goals ``[D]``, and the desired one if it is small enough to be recorded."""
    distance = float(np.linalg.norm(np.asarray(achieved, np.float64) - np.asarray(desired, np.float64)))
    goal = np.asarray(desired, np.float64).reshape(-1)
    return distance, tuple(map(float, goal)) if goal.size <= _MOST_GOAL_NUMBERS else None


class EvaluationTrace:
    """Collects the episodes of an evaluation, with the path of the achieved goal in the first ones."""

    def __init__(self) -> None:
        self.episodes: list[dict[str, Any]] = []
        self._path: list[tuple[float, ...]] = []
        self._last: Observation | None = None

    def add(self, observation: Observation, following: Observation) -> None:
        """Add one step. The environment may reuse its arrays, so their numbers are copied."""
        self._last = following
        if isinstance(following, dict) and np.size(following["achieved_goal"]) <= _MOST_GOAL_NUMBERS:
            if not self._path:
                self._path.append(_numbers(cast(Any, observation)["achieved_goal"]))
            self._path.append(_numbers(following["achieved_goal"]))

    def finish(self, reward: float, length: int, success: bool | None) -> None:
        """End the episode."""
        record: dict[str, Any] = {"return": reward, "length": length, "success": success}
        if isinstance(self._last, dict) and len(self.episodes) < _MOST_EPISODES:
            desired = self._last["desired_goal"]
            record["final_distance"], goal = goal_outcome(self._last["achieved_goal"], desired)
            if goal is not None:
                record |= {"goal": goal, "start": self._path[0], "end": self._path[-1]}
                if len(self.episodes) < _DRAWN_PATHS:
                    picked = np.linspace(0, len(self._path) - 1, min(len(self._path), _PATH_POINTS)).round()
                    record["path"] = [self._path[int(index)] for index in picked]
        self.episodes.append(record)
        self._path = []


class RunRecords:
    """Writes ``episodes.csv``, ``evaluation.json`` and ``data.json`` in a run's folder."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir.absolute()  # an environment may change the working folder
        self._episodes: TextIO | None = None

    def open(
        self, resume_at: tuple[int, int] | None = None, *, collects: bool = True, data: dict[str, Any] | None = None
    ) -> None:
        """Start the files, or continue them after removing what is beyond that step and update.

        Args:
            resume_at: the step and the update of the checkpoint that a resumed run continues from.
            collects: whether the run plays episodes; if not, there is no ``episodes.csv``.
            data: a summary of the offline data.
        """
        path = self.folder / EPISODES
        with self._explained(path):
            if collects:
                kept = [] if resume_at is None else [r for r in read_episodes(path) if int(r[STEP]) <= resume_at[0]]
                lines = [",".join(EPISODE_COLUMNS), *(_line(row[name] for name in EPISODE_COLUMNS) for row in kept)]
                write_durably(path, "\n".join([*lines, ""]))
                self._episodes = open(path, "a", encoding="utf-8", opener=open_without_following)  # noqa: SIM115
            evaluation = read_json(self.folder / EVALUATION)
            position = evaluation.get(STEP), evaluation.get(UPDATES)
            if resume_at is None or not all(isinstance(n, int) for n in position) or cast(Any, position) > resume_at:
                (self.folder / EVALUATION).unlink(missing_ok=True)
            if data is not None:
                write_durably(self.folder / DATA, to_json(data) + "\n")

    def add_episodes(self, global_step: int, records: Sequence[EpisodeRecord]) -> None:
        """Add the episodes that ended at a step."""
        if not records or self._episodes is None:
            return
        with self._explained(self.folder / EPISODES):
            for record in records:
                goal = " ".join(map(repr, record.goal)) if record.goal is not None else None
                success = None if record.success is None else int(record.success)
                cells = (record.reward, record.length, success, record.distance, record.environment, goal)
                self._episodes.write(_line([global_step, *cells]) + "\n")
            self._episodes.flush()  # a checkpoint at this step relies on these rows

    def write_evaluation(self, global_step: int, update_count: int, episodes: Sequence[dict[str, Any]]) -> None:
        """Replace the recorded evaluation by this one."""
        path = self.folder / EVALUATION
        content = {STEP: global_step, UPDATES: update_count, "episodes": list(episodes[:_MOST_EPISODES])}
        with self._explained(path):
            write_durably(path, to_json(content) + "\n")

    def close(self) -> None:
        """Close the file of episodes."""
        if self._episodes is not None:
            with contextlib.suppress(OSError):  # every row was flushed when it was written
                self._episodes.close()

    @contextlib.contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        """Turn the error of a full or missing disk into one that names the file."""
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error}") from error


def read_episodes(path: Path) -> list[dict[str, str]]:
    """Return the rows of an ``episodes.csv`` as text, without a row that a crash cut off; none if there is no file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    whole = text[: text.rfind("\n") + 1]  # the last row may be cut off
    rows: list[dict[str, str]] = []
    with contextlib.suppress(csv.Error):  # the rest is not a file of this package
        rows.extend(
            {name: row[name] for name in EPISODE_COLUMNS}
            for row in csv.DictReader(io.StringIO(whole, newline=""))
            if all(row.get(name) is not None for name in EPISODE_COLUMNS) and re.fullmatch(r"[0-9]{1,18}", row[STEP])
        )
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file, or an empty one if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def summarize_data(dataset: TransitionDataset) -> dict[str, Any]:
    """Return the size of offline data and the raw returns of its complete episodes, at most 2,000 of them."""
    returns = np.sort(dataset.episode_returns[dataset.complete_episodes])
    picked = np.linspace(0, len(returns) - 1, min(len(returns), _RETURNS_OF_DATA)).round().astype(int)
    return {"transitions": len(dataset), "episodes": len(dataset.episode_ends), "returns": returns[picked].tolist()}


def _numbers(goal: Any) -> tuple[float, ...]:
    return tuple(float(number) for number in np.asarray(goal, np.float64).reshape(-1))


def _line(cells: Iterable[Any]) -> str:
    return ",".join("" if cell is None else str(cell) for cell in cells)
