"""Ranges of settings: what ``random`` of a sweep draws from, and what ``tune`` searches."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.errors import ConfigError, did_you_mean

KINDS = ("uniform", "loguniform", "int", "choice")

_EXAMPLES = {
    "uniform": "uniform: [0.9, 0.99]",
    "loguniform": "loguniform: [1e-5, 1e-2]",
    "int": "int: [1, 8]",
    "choice": "choice: [relu, tanh]",
}


@dataclass(frozen=True)
class Range:
    """The values that one setting may take.

    ``values`` are the two bounds, both included, or all options of a ``choice``.
    """

    key: str
    kind: str
    values: tuple[Any, ...]

    def draw(self, seed: int, number: int) -> Any:
        """Return the ``number``-th random value; it depends on the key and the seed, and on nothing else."""
        rng = np.random.default_rng([seed, zlib.crc32(self.key.encode()), number])
        if self.kind == "choice":
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.kind == "int":
            return int(rng.integers(low, high + 1))
        if self.kind == "loguniform":
            return self.rounded(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.rounded(rng.uniform(low, high))

    def rounded(self, value: float) -> float:
        """Return a number with four digits, which are enough to try and short enough to read, inside the bounds."""
        low, high = self.values
        return float(min(max(float(f"{value:.4g}"), low), high))

    def probes(self) -> tuple[Any, ...]:
        """Return values that show whether a setting accepts all of this range: its ends and one between them."""
        if self.kind in ("choice", "int"):
            return self.values
        low, high = self.values
        return low, high, low + (high - low) / math.pi  # no whole number, which an integer setting would accept


def parse_ranges(values: Mapping[str, Any], where: str) -> list[Range]:
    """Read ranges such as ``algo_kwargs.gamma: {uniform: [0.9, 0.99]}``; ``where`` begins each message."""
    return [_parse(str(key), value, f"{where}.{key}") for key, value in values.items()]


def _parse(key: str, value: Any, where: str) -> Range:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ConfigError(
            f"{where} = {value!r}: expected one of {', '.join(KINDS)}, such as {{{_EXAMPLES['uniform']}}}"
        )
    ((kind, given),) = value.items()
    if kind not in KINDS:
        raise ConfigError(f"{where}: no range {kind!r}{did_you_mean(kind, KINDS)}; expected one of {', '.join(KINDS)}")
    wrong = ConfigError(f"{where}.{kind} = {given!r}: expected a list such as {_EXAMPLES[kind]}")
    if not isinstance(given, list) or not given:
        raise wrong
    if kind == "choice":
        return Range(key, kind, tuple(given))
    number = (int,) if kind == "int" else (int, float)
    if len(given) != 2 or not all(
        isinstance(v, number) and not isinstance(v, bool) and math.isfinite(v) for v in given
    ):
        raise wrong
    low, high = given if kind == "int" else map(float, given)
    if low >= high:
        raise ConfigError(f"{where}.{kind} = {given!r}: expected the smaller bound first")
    if kind == "loguniform" and low <= 0:
        raise ConfigError(f"{where}.{kind} = {given!r}: expected bounds above 0")
    return Range(key, kind, (low, high))
