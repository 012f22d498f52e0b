"""Small pictures with smooth edges, drawn with NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Colour = tuple[int, int, int]
Point = tuple[float, float]
Window = tuple[slice, slice]

_EVERYWHERE: Window = (slice(None), slice(None))

PAPER: Colour = (250, 250, 252)
INK: Colour = (46, 52, 64)
GREY: Colour = (203, 208, 216)
GREEN: Colour = (46, 160, 67)
BLUE: Colour = (31, 111, 235)
ORANGE: Colour = (219, 109, 40)


class Picture:
    """An RGB picture; places are pixels from the left and from the top, and may be fractions."""

    def __init__(self, width: int, height: int, colour: Colour = PAPER) -> None:
        self._pixels = np.empty((height, width, 3), np.float64)
        self._pixels[:] = colour
        self._y, self._x = np.mgrid[0.5:height, 0.5:width]

    def disc(self, centre: Point, radius: float, colour: Colour, *, opacity: float = 1.0) -> None:
        """Fill a disc."""
        near = self._window(centre, centre, radius)
        distance = np.hypot(self._x[near] - centre[0], self._y[near] - centre[1])
        self._blend(distance - radius, colour, opacity, near)

    def ring(self, centre: Point, radius: float, width: float, colour: Colour) -> None:
        """Draw a circle."""
        near = self._window(centre, centre, radius + width)
        distance = np.hypot(self._x[near] - centre[0], self._y[near] - centre[1])
        self._blend(np.abs(distance - radius) - width / 2, colour, near=near)

    def path(self, points: Sequence[Point], width: float, colour: Colour, *, opacity: float = 1.0) -> None:
        """Draw lines from point to point with round ends; where they overlap, the colour is not darker."""
        distance = np.full(self._x.shape, np.inf)
        for (x, y), (x2, y2) in pairwise(points):
            near = self._window((min(x, x2), min(y, y2)), (max(x, x2), max(y, y2)), width)
            dx, dy, right, down = x2 - x, y2 - y, self._x[near] - x, self._y[near] - y
            along = np.clip((right * dx + down * dy) / max(dx * dx + dy * dy, 1e-9), 0.0, 1.0)
            distance[near] = np.minimum(distance[near], np.hypot(right - along * dx, down - along * dy))
        self._blend(distance - width / 2, colour, opacity)

    def box(self, corner: Point, size: Point, colour: Colour, *, rounding: float = 0.0) -> None:
        """Fill a rectangle from its upper left corner, with rounded corners."""
        near = self._window(corner, (corner[0] + size[0], corner[1] + size[1]), 1.0)
        right = np.abs(self._x[near] - corner[0] - size[0] / 2) - size[0] / 2 + rounding
        down = np.abs(self._y[near] - corner[1] - size[1] / 2) - size[1] / 2 + rounding
        outside = np.hypot(np.maximum(right, 0), np.maximum(down, 0)) + np.minimum(np.maximum(right, down), 0)
        self._blend(outside - rounding, colour, near=near)

    def to_array(self) -> Array:
        """Return the picture, ``[height, width, 3]`` of bytes."""
        return np.rint(self._pixels).astype(np.uint8)

    def _window(self, low: Point, high: Point, margin: float) -> Window:
        """Return the rows and columns of a rectangle, with a margin in pixels."""
        first = [max(0, int(place - margin - 1)) for place in low]
        last = [max(0, int(place + margin + 2)) for place in high]
        return slice(first[1], last[1]), slice(first[0], last[0])

    def _blend(self, distance: Array, colour: Colour, opacity: float = 1.0, near: Window = _EVERYWHERE) -> None:
        """Paint where the signed distance from a shape's edge is negative; pixels on the edge are mixed."""
        cover = (np.clip(0.5 - distance, 0.0, 1.0) * opacity)[..., None]
        self._pixels[near] += cover * (np.array(colour) - self._pixels[near])
