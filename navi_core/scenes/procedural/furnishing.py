"""Furniture placement by room type; a drone can still reach every door and nearly all of the floor."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.furniture import CATALOGUE, Item
from navi_core.scenes.procedural.structure import Door, Plan, Rect

CELL = 0.1
"""Edge of a cell of the free-space grid [m]."""
_TRIES = 8
"""Poses that are drawn for an item; it is left out where none fits."""
INFLATION = 0.28
"""Obstacles are grown by this: drone radius 0.15, margin 0.05, half a cell's diagonal [m]."""


class FloorSpace:
    """Occupancy grid of one room's floor; rejects items that would block a path."""

    def __init__(self, inner: Rect, doors: Sequence[Door] = (), *, least_open: float = 0.9) -> None:
        """Initialise the free floor of an empty room.

        Args:
            inner: The room between its wall faces.
            doors: Its openings.
            least_open: Share of the free floor that must stay in one piece.
        """
        self.inner = inner
        self.least_open = least_open
        self.taken: list[Rect] = []
        self.keep_out: list[Rect] = []
        self._ways: list[tuple[float, float]] = []
        for door in doors:
            sign = 1 if inner.center[door.axis] > door.coordinate else -1
            edge = inner.span(door.axis)[0 if sign > 0 else 1]
            along = (door.start - 0.1, door.end + 0.1)
            self.keep_out.append(Rect.on_line(door.axis, sorted((edge, edge + sign * 1.0)), along))
            way = (edge + sign * 0.4, (door.start + door.end) / 2)
            self._ways.append(way if door.axis == 0 else way[::-1])
        xs = np.arange(inner.x0 + CELL / 2, inner.x1, CELL)
        zs = np.arange(inner.z0 + CELL / 2, inner.z1, CELL)
        self._x, self._z = np.meshgrid(xs, zs, indexing="ij")

    def wall_poses(self, rng: np.random.Generator, item: Item) -> Iterator[tuple[float, float, float]]:
        """Sample candidate poses (x, z, angle) [m, rad] with the item's back against a random wall."""
        r = self.inner
        for _ in range(_TRIES):
            side = int(rng.integers(4))
            gap = rng.uniform(0.015, 0.04)
            t = rng.random()
            span = (r.depth if side % 2 else r.width) - item.width
            if span < 0.05:
                continue
            a = 0.02 + t * (span - 0.04) + item.width / 2
            # Quarter turn k faces the item's front to −z, −x, +z, +x: away from the wall it stands at.
            x, z = ((r.x0 + a, r.z1 - gap), (r.x1 - gap, r.z0 + a), (r.x0 + a, r.z0 + gap), (r.x0 + gap, r.z0 + a))[
                side
            ]
            yield x, z, side * math.pi / 2

    def floor_poses(self, rng: np.random.Generator, turned: bool) -> Iterator[tuple[float, float, float]]:
        """Sample candidate poses (x, z, angle) [m, rad] anywhere on the floor, axis-aligned or at any angle."""
        r = self.inner.shrunk(0.05)
        for _ in range(_TRIES):
            angle = float(rng.uniform(0, 2 * math.pi)) if turned else int(rng.integers(4)) * math.pi / 2
            yield rng.uniform(r.x0, r.x1), rng.uniform(r.z0, r.z1), angle

    def place(self, builder: MeshBuilder, item: Item, pose: tuple[float, float, float], gap: float) -> bool:
        """Try to place an item at a pose (x, z, angle); return False if it blocks a path or violates `gap` [m]."""
        if not self.claim(item.footprint(*pose), gap):
            return False
        item.build(builder, *pose)
        return True

    def claim(self, rect: Rect, gap: float = 0.0) -> bool:
        """Try to take a rectangle of the floor; return False if that blocks a path or violates `gap` [m]."""
        r = self.inner
        if rect.x0 < r.x0 or rect.z0 < r.z0 or rect.x1 > r.x1 or rect.z1 > r.z1:
            return False
        if any(rect.overlaps(other, gap) for other in self.taken) or any(rect.overlaps(k) for k in self.keep_out):
            return False
        self.taken.append(rect)
        if not self._passable():
            self.taken.pop()
            return False
        return True

    def _passable(self) -> bool:
        r, grow = self.inner.shrunk(INFLATION), INFLATION
        free = (self._x >= r.x0) & (self._x <= r.x1) & (self._z >= r.z0) & (self._z <= r.z1)
        # Items rarely matter to a drone above them, but a way round at every height is what all rooms promise.
        for o in self.taken:
            free &= (
                (self._x < o.x0 - grow) | (self._x > o.x1 + grow) | (self._z < o.z0 - grow) | (self._z > o.z1 + grow)
            )
        cells = int(free.sum())
        if cells == 0:
            return False
        starts = [self._cell(*way) for way in self._ways] or [_most_central(free)]
        if not all(free[c] for c in starts):
            return False
        reached = _flood(free, starts[0])
        return bool(all(reached[c] for c in starts) and reached.sum() >= self.least_open * cells)

    def _cell(self, x: float, z: float) -> tuple[int, int]:
        i = int(np.clip((x - self.inner.x0) / CELL, 0, self._x.shape[0] - 1))
        j = int(np.clip((z - self.inner.z0) / CELL, 0, self._x.shape[1] - 1))
        return i, j


def _most_central(free: npt.NDArray[np.bool_]) -> tuple[int, int]:
    cells = np.argwhere(free)
    distance = ((cells - np.array(free.shape) / 2) ** 2).sum(axis=1)
    i, j = cells[int(np.argmin(distance))]
    return int(i), int(j)


def _flood(free: npt.NDArray[np.bool_], start: tuple[int, int]) -> npt.NDArray[np.bool_]:
    reached = np.zeros_like(free)
    reached[start] = True
    count = 0
    while (now := int(reached.sum())) != count:
        count = now
        # Several sweeps per count: a sweep costs less than the sum that decides whether to stop.
        for _ in range(8):
            reached[1:] |= reached[:-1]
            reached[:-1] |= reached[1:]
            reached &= free
            reached[:, 1:] |= reached[:, :-1]
            reached[:, :-1] |= reached[:, 1:]
            reached &= free
    return reached


ROOM_ITEMS: dict[str, tuple[tuple[str, bool, float], ...]] = {
    # item, against a wall?, expected number per 12 m² of floor
    "living": (
        ("sofa", True, 1.2), ("television", True, 0.8), ("low_table", False, 0.8), ("shelf", True, 1.0),
        ("plant", True, 0.8), ("lamp", True, 0.7), ("chair", False, 0.6),
    ),
    "bedroom": (("bed", True, 1.3), ("cabinet", True, 1.1), ("desk", True, 0.5), ("lamp", True, 0.5)),
    "kitchen": (("counter", True, 1.4), ("table", False, 0.9), ("cabinet", True, 0.7), ("plant", True, 0.3)),
    "dining": (("table", False, 1.2), ("cabinet", True, 0.8), ("plant", True, 0.7), ("lamp", True, 0.4)),
    "bathroom": (("bath", True, 1.6), ("toilet", True, 2.0), ("basin", True, 2.0), ("cabinet", True, 0.6)),
    "office": (("desk", True, 1.8), ("shelf", True, 1.0), ("cabinet", True, 0.6), ("plant", True, 0.5)),
    "storage": (("shelf", True, 2.2), ("crate", False, 1.6), ("crate", True, 1.2)),
    "meeting": (("table", False, 0.9), ("television", True, 0.5), ("plant", True, 0.5), ("chair", False, 0.5)),
    "lounge": (("sofa", True, 1.0), ("low_table", False, 0.7), ("plant", False, 0.7), ("bench", False, 0.5)),
    "hall": (("bench", False, 0.5), ("plant", False, 0.5), ("crate", False, 0.35), ("table", False, 0.3)),
    "stairs": (),
    "corridor": (("plant", True, 0.35), ("bench", True, 0.2), ("cabinet", True, 0.2)),
}  # fmt: skip
"""Kinds of rooms and their items."""


def furnish_room(
    rng: np.random.Generator, builder: MeshBuilder, space: FloorSpace, kind: str, density: float = 1.0
) -> None:
    """Furnish one room with items of its room type, as far as free places are found."""
    wanted: list[tuple[str, bool]] = []
    for name, wall, rate in ROOM_ITEMS[kind]:
        expected = rate * density * space.inner.area / 12.0
        # Never much more than expected: variety comes from measures and places, not from piles.
        count = int(expected) + int(rng.random() < expected % 1.0)
        wanted += [(name, wall)] * min(count, 8)
    wanted = [wanted[k] for k in rng.permutation(len(wanted))]
    for name, wall in wanted:
        item = CATALOGUE[name](rng)
        poses = space.wall_poses(rng, item) if wall else space.floor_poses(rng, turned=name == "crate")
        for pose in poses:
            if space.place(builder, item, pose, gap=0.03 if wall else 0.1):
                break


def furnish_plan(rng: np.random.Generator, builder: MeshBuilder, plan: Plan, density: Sequence[float]) -> None:
    """Furnish every room of a floor plan; `density` holds one factor per room."""
    for index, room in enumerate(plan.rooms):
        inner = room.rect.shrunk(plan.thickness / 2)
        doors = [door for door in plan.doors if index in door.rooms]
        furnish_room(rng, builder, FloorSpace(inner, doors), room.kind, density[index])
