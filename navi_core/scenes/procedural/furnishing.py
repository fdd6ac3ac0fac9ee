"""Furniture of each kind of room."""

from collections.abc import Sequence

import numpy as np

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.floorplan import Door, Plan, Rect
from navi_core.scenes.procedural.furniture import CATALOGUE
from navi_core.scenes.procedural.placement import FloorSpace

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
    "corridor": (("plant", True, 0.35), ("bench", True, 0.2), ("cabinet", True, 0.2)),
}  # fmt: skip
"""Kinds of rooms and their items."""


def furnish_room(
    rng: np.random.Generator, builder: MeshBuilder, space: FloorSpace, kind: str, density: float = 1.0
) -> int:
    """Fill one room's free floor with the items of its kind; returns how many found a place."""
    area = space.inner.area
    wanted: list[tuple[str, bool]] = []
    for name, wall, rate in ROOM_ITEMS[kind]:
        expected = rate * density * area / 12.0
        # Never much more than expected: variety comes from measures and places, not from piles.
        count = int(expected) + int(rng.random() < expected % 1.0)
        wanted += [(name, wall)] * min(count, 8)
    wanted = [wanted[k] for k in rng.permutation(len(wanted))]
    placed = 0
    for name, wall in wanted:
        item = CATALOGUE[name](rng)
        if wall:
            placed += space.against_wall(rng, builder, item)
        else:
            placed += space.free_standing(rng, builder, item, turned=name == "crate")
    return placed


def furnish_plan(rng: np.random.Generator, builder: MeshBuilder, plan: Plan, density: Sequence[float]) -> None:
    """Furnish every room of a plan; `density` holds one factor per room."""
    for index, room in enumerate(plan.rooms):
        inner = room.rect.shrunk(plan.thickness / 2)
        doors = [(_side(room.rect, door), door) for door in plan.doors if index in door.rooms]
        furnish_room(rng, builder, FloorSpace(inner, doors), room.kind, density[index])


def _side(rect: Rect, door: Door) -> int:
    middle = rect.center[door.axis]
    return 1 if middle > door.coordinate else -1
