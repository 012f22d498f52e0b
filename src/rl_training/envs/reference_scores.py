"""Reference returns of tasks, which put the scores of different tasks on one scale.

They are D4RL's (https://github.com/Farama-Foundation/D4RL): the mean return of random play and that of an expert. The
tasks here are later versions of those, so a normalised score compares with published ones only roughly.
"""

from __future__ import annotations

_SCORES: dict[str, tuple[float, float]] = {
    "HalfCheetah": (-280.18, 12135.0),
    "Hopper": (-20.27, 3234.3),
    "Walker2d": (1.63, 4592.3),
    "Ant": (-325.6, 3879.7),
    "AdroitHandPen": (96.26, 3076.83),
    "AdroitHandHammer": (-274.86, 12794.13),
    "AdroitHandDoor": (-56.51, 2880.57),
    "AdroitHandRelocate": (-6.43, 4233.88),
}


def reference_scores(env_id: str) -> tuple[float, float] | None:
    """Return a task's random and expert return, for any version of the task; None if they are not known."""
    return _SCORES.get(env_id.rpartition("-v")[0])


def normalized_score(score: float, reference: tuple[float, float]) -> float:
    """Return a return on the scale from 0, random play, to 100, an expert."""
    low, high = reference
    return 100.0 * (score - low) / (high - low)
