"""Rectangular floor plans: splitting a footprint into rooms and joining them by doors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

EDGE = 1e-6
"""Tolerance when comparing plan coordinates [m]."""


@dataclass(frozen=True)
class Rect:
    """An axis-aligned rectangle on the floor [m]."""

    x0: float
    z0: float
    x1: float
    z1: float

    @property
    def width(self) -> float:
        """Extent along x [m]."""
        return self.x1 - self.x0

    @property
    def depth(self) -> float:
        """Extent along z [m]."""
        return self.z1 - self.z0

    @property
    def area(self) -> float:
        """Area [m²]."""
        return self.width * self.depth

    @property
    def center(self) -> tuple[float, float]:
        """(x, z) of the centre [m]."""
        return (self.x0 + self.x1) / 2, (self.z0 + self.z1) / 2

    def shrunk(self, margin: float) -> Rect:
        """Return the rectangle with each side moved inwards by `margin` [m]."""
        return Rect(self.x0 + margin, self.z0 + margin, self.x1 - margin, self.z1 - margin)

    def overlaps(self, other: Rect, gap: float = 0.0) -> bool:
        """Return whether the two come closer than `gap` [m] along both axes."""
        return (
            self.x0 < other.x1 + gap
            and other.x0 < self.x1 + gap
            and self.z0 < other.z1 + gap
            and other.z0 < self.z1 + gap
        )


@dataclass(frozen=True)
class Room:
    """A room up to the centre lines of its walls."""

    rect: Rect
    kind: str
    ceiling: float
    """Height of its ceiling [m]."""


@dataclass(frozen=True)
class Door:
    """An opening from the floor in the wall line at `coordinate` of `axis` (0: the line x = c, 1: z = c)."""

    axis: int
    coordinate: float
    start: float
    end: float
    height: float
    rooms: tuple[int, int]
    framed: bool = True


@dataclass
class Plan:
    """A footprint from the origin, its rooms, its doors and the measures of its shell."""

    width: float
    depth: float
    height: float
    """Inner height of the shell; rooms with a lower ceiling get a solid above it [m]."""
    thickness: float
    """Wall thickness [m]."""
    rooms: list[Room] = field(default_factory=list)
    doors: list[Door] = field(default_factory=list)


def split_row(rng: np.random.Generator, length: float, minimum: float, target: float) -> list[float]:
    """Cut a length into random parts near `target`, none shorter than `minimum`; returns the cuts [m]."""
    count = max(1, min(round(length / target), int(length / minimum)))
    shares = minimum / length + rng.dirichlet(np.full(count, 3.0)) * (1 - count * minimum / length)
    return [float(v) for v in np.round(np.cumsum(shares[:-1]) * length, 2)]


def split_rect(rng: np.random.Generator, rect: Rect, target: float, minimum: float) -> list[Rect]:
    """Split a rectangle recursively until the parts have about `target` m² and no side under `minimum` m."""
    longest = max(rect.width, rect.depth)
    if longest < 2 * minimum or rect.area < target * rng.uniform(1.0, 1.9):
        return [rect]
    # The longer side is cut, unless both would do: square-ish rooms, but not always.
    along_x = rect.width > rect.depth
    if min(rect.width, rect.depth) >= 2 * minimum and rng.random() < 0.25:
        along_x = not along_x
    length = rect.width if along_x else rect.depth
    cut = round(float(np.clip(rng.uniform(0.32, 0.68) * length, minimum, length - minimum)), 2)
    if along_x:
        parts = Rect(rect.x0, rect.z0, rect.x0 + cut, rect.z1), Rect(rect.x0 + cut, rect.z0, rect.x1, rect.z1)
    else:
        parts = Rect(rect.x0, rect.z0, rect.x1, rect.z0 + cut), Rect(rect.x0, rect.z0 + cut, rect.x1, rect.z1)
    return [piece for part in parts for piece in split_rect(rng, part, target, minimum)]


def shared_edges(rooms: Sequence[Room], shortest: float) -> list[tuple[int, int, int, float, float, float]]:
    """Return (room, room, axis, coordinate, start, end) of every wall between two rooms of at least `shortest` m."""
    edges = []
    for i, first in enumerate(rooms):
        for j in range(i + 1, len(rooms)):
            a, b = first.rect, rooms[j].rect
            for axis, coordinate, touching in (
                (0, a.x1, abs(a.x1 - b.x0) < EDGE),
                (0, a.x0, abs(a.x0 - b.x1) < EDGE),
                (1, a.z1, abs(a.z1 - b.z0) < EDGE),
                (1, a.z0, abs(a.z0 - b.z1) < EDGE),
            ):
                if not touching:
                    continue
                start = max(a.z0, b.z0) if axis == 0 else max(a.x0, b.x0)
                end = min(a.z1, b.z1) if axis == 0 else min(a.x1, b.x1)
                if end - start >= shortest:
                    edges.append((i, j, axis, coordinate, start, end))
    return edges


def connect_rooms(
    rng: np.random.Generator,
    plan: Plan,
    *,
    loops: float,
    wide: float = 0.15,
    hub: str = "corridor",
) -> None:
    """Give the plan doors: a random spanning tree that prefers rooms of kind `hub`, and extra doors.

    Args:
        rng: Source of the draws.
        plan: Changed in place; its rooms must form one connected partition.
        loops: Chance of a door in each wall that the tree leaves closed.
        wide: Chance that a door is a wide opening without a frame.
        hub: Kind of rooms joined first.
    """
    clear, corner = 1.0, 0.2
    edges = shared_edges(plan.rooms, clear + 0.1 + 2 * corner)
    weight = rng.random(len(edges))
    for k, (i, j, *_) in enumerate(edges):
        hubs = (plan.rooms[i].kind == hub) + (plan.rooms[j].kind == hub)
        weight[k] -= hubs
    parent = list(range(len(plan.rooms)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for k in np.argsort(weight, kind="stable"):
        i, j, axis, coordinate, start, end = edges[k]
        joined = root(i) == root(j)
        if joined and rng.random() >= loops:
            continue
        if not joined:
            parent[root(i)] = root(j)
        lowest = min(plan.rooms[i].ceiling, plan.rooms[j].ceiling)
        room = end - start - 2 * corner
        if room > 2.0 and rng.random() < wide:
            width = min(rng.uniform(1.6, 3.0), room)
            height, framed = min(lowest - 0.15, rng.uniform(2.2, 2.5)), False
        else:
            width, height, framed = min(rng.uniform(clear + 0.1, clear + 0.35), room), 2.15, True
        center = (start + end) / 2 + rng.uniform(-0.5, 0.5) * (room - width)
        plan.doors.append(Door(axis, coordinate, center - width / 2, center + width / 2, height, (i, j), framed))
    if len({root(i) for i in range(len(plan.rooms))}) != 1:
        raise AssertionError("a plan's rooms must touch along walls long enough for a door")
