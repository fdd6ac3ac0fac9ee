"""Family `atrium`: a double-height hall with a gallery, pillars, plants, and rooms under the gallery."""

import numpy as np

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.furnishing import FloorSpace, furnish_room
from navi_core.scenes.procedural.furniture import CATALOGUE
from navi_core.scenes.procedural.structure import Rect, add_shell, add_wall_line

SLAB = 0.2
"""Thickness of the gallery [m]."""


def build_atrium(rng: np.random.Generator) -> MeshBuilder:
    """Build an atrium: hall, gallery on one to four sides with railings, pillars, screens, planting."""
    width, depth = (float(v) for v in rng.uniform([12, 10], [22, 17]).round(2))
    gallery = round(rng.uniform(2.8, 3.3), 2)
    height = round(gallery + SLAB + rng.uniform(2.5, 3.4), 2)
    thickness = round(rng.uniform(0.12, 0.2), 3)
    reach = {
        side: round(float(rng.uniform(1.8, 2.9)), 2)
        for side in rng.permutation(["north", "south", "west", "east"])[: int(rng.integers(1, 5))]
    }

    builder = MeshBuilder()
    add_shell(builder, width, depth, height, thickness)
    inner = Rect(0.0, 0.0, width, depth).shrunk(thickness / 2)
    void = Rect(
        inner.x0 + reach.get("west", 0.0),
        inner.z0 + reach.get("north", 0.0),
        inner.x1 - reach.get("east", 0.0),
        inner.z1 - reach.get("south", 0.0),
    )
    _add_gallery(builder, inner, void, gallery)
    _add_railings(builder, inner, void, gallery + SLAB)
    space = FloorSpace(inner.shrunk(0.02), least_open=0.95)
    _add_pillars(rng, builder, space, inner, void, gallery, height)
    _add_screens(rng, builder, space, void)
    for _ in range(int(rng.integers(4, 11))):
        _add_planter(rng, builder, space, void, height)
    furnish_room(rng, builder, space, str(rng.choice(["hall", "lounge"])), density=rng.uniform(0.4, 1.0))
    upper = _upper_floor(inner, void)
    for _ in range(int(rng.integers(3, 9))):
        _add_upper_item(rng, builder, upper, gallery + SLAB)
    return builder


def _add_gallery(builder: MeshBuilder, inner: Rect, void: Rect, level: float) -> None:
    """Add the gallery's slabs; they reach 5 cm into the walls and overlap at corners with a hair's difference."""
    grow = 0.05
    outer = inner.shrunk(-grow)
    if void.z0 > inner.z0:
        builder.box("gallery", (outer.x0, level, outer.z0), (outer.x1, level + SLAB, void.z0))
    if void.z1 < inner.z1:
        builder.box("gallery", (outer.x0, level, void.z1), (outer.x1, level + SLAB, outer.z1))
    # The side slabs end where the front and back ones begin: they meet, they do not overlap.
    z0 = void.z0 - 0.01 if void.z0 > inner.z0 else outer.z0
    z1 = void.z1 + 0.01 if void.z1 < inner.z1 else outer.z1
    if void.x0 > inner.x0:
        builder.box("gallery", (outer.x0 + 0.005, level + 0.003, z0), (void.x0, level + SLAB - 0.003, z1))
    if void.x1 < inner.x1:
        builder.box("gallery", (void.x1, level + 0.003, z0), (outer.x1 - 0.005, level + SLAB - 0.003, z1))


def _gallery_edges(inner: Rect, void: Rect) -> list[tuple[int, float, float, float, float]]:
    """Return (axis, coordinate, outward, start, end) of the gallery's edges: z0, z1, x0, x1; `outward` is a sign."""
    outer = [coordinate for _, coordinate, *_ in inner.sides()]
    edges = [
        (axis, edge, -inward, start, end)
        for (axis, edge, inward, start, end), wall in zip(void.sides(), outer, strict=True)
        if (edge - wall) * inward > 0
    ]
    return sorted(edges, key=lambda edge: -edge[0])


def _add_railings(builder: MeshBuilder, inner: Rect, void: Rect, level: float) -> None:
    """Add a parapet, a rail and posts along the gallery's edge."""
    for axis, edge, outward, start, end in _gallery_edges(inner, void):
        across = sorted((edge + outward * 0.02, edge + outward * 0.07))
        builder.beam("railing", axis, across, (start, end), (level + 0.98, level + 1.04))
        builder.beam("railing", axis, across, (start + 0.01, end - 0.01), (level + 0.12, level + 0.55))
        count = max(2, int((end - start) / 1.6) + 1)
        for post in np.linspace(start + 0.03, end - 0.08, count).tolist():
            builder.beam("railing", axis, across, (post, post + 0.05), (level - 0.02, level + 1.0))


def _add_pillars(
    rng: np.random.Generator,
    builder: MeshBuilder,
    space: FloorSpace,
    inner: Rect,
    void: Rect,
    gallery: float,
    height: float,
) -> None:
    """Add round or square pillars under the gallery's edge, or through the hall where it has no gallery."""
    radius = rng.uniform(0.14, 0.3)
    sides = int(rng.choice([4, 8, 12]))
    spacing = rng.uniform(2.8, 4.5)
    spots: list[tuple[float, float, float]] = []
    for axis, edge, outward, start, end in _gallery_edges(inner, void):
        line = edge + outward * (radius + 0.12)
        places = [(line, place) if axis == 0 else (place, line) for place in _spread(start, end, spacing)]
        spots += [(x, z, gallery + 0.02) for x, z in places]
    if rng.random() < 0.5:
        z = void.z0 + rng.uniform(0.3, 0.7) * void.depth
        spots += [(x, z, height + 0.02) for x in _spread(void.x0 + 1, void.x1 - 1, spacing)]
    for x, z, top in spots:
        builder.prism("pillar", (x, z), (radius, radius), (-0.02, top), sides, turn=np.pi / 4)
        space.taken.append(Rect(x - radius, z - radius, x + radius, z + radius))


def _spread(start: float, end: float, spacing: float) -> list[float]:
    count = max(1, int((end - start) / spacing))
    return [start + (k + 0.5) * (end - start) / count for k in range(count)]


def _add_screens(rng: np.random.Generator, builder: MeshBuilder, space: FloorSpace, void: Rect) -> None:
    """Add free-standing walls and counters that break the hall's view."""
    for _ in range(int(rng.integers(1, 5))):
        length, high, thick = rng.uniform(1.5, 3.5), rng.uniform(1.8, 2.5), 0.12
        area = void.shrunk(min(void.width, void.depth) * 0.12)
        axis = int(rng.integers(2))
        place = rng.uniform(area.x0, area.x1), rng.uniform(area.z0, area.z1)
        line, start = place[axis], place[1 - axis]
        if start + length > area.span(1 - axis)[1]:
            continue
        rect = Rect.on_line(axis, (line - 0.1, line + 0.1), (start, start + length))
        if any(rect.overlaps(other, 1.2) for other in space.taken):
            continue
        # `add_wall_line` reaches into a ceiling; a screen ends in the open.
        add_wall_line(builder, axis, line, start, start + length, high, thick)
        space.taken.append(rect)


def _add_planter(rng: np.random.Generator, builder: MeshBuilder, space: FloorSpace, void: Rect, height: float) -> None:
    """Add a tub with a tree; the largest reach the gallery."""
    radius = rng.uniform(0.25, 0.5)
    tall = rng.uniform(1.2, min(4.5, height - 1.0))
    crown = rng.uniform(0.4, 0.8)
    area = void.shrunk(radius + 0.35)
    for _ in range(8):
        x, z = rng.uniform(area.x0, area.x1), rng.uniform(area.z0, area.z1)
        rect = Rect(x - radius, z - radius, x + radius, z + radius)
        if any(rect.overlaps(other, 0.75) for other in space.taken):
            continue
        tub = rng.uniform(0.35, 0.6)
        builder.prism("plant", (x, z), (radius * 0.85, radius), (0.002, tub), 8)
        builder.prism("plant", (x, z), (0.05, 0.04), (tub - 0.02, tall * 0.8), 5)
        middle = tall * 0.75
        builder.prism("plant", (x, z), (crown * 0.45, crown), (tall * 0.55, middle), 6)
        builder.prism("plant", (x, z), (crown, crown * 0.3), (middle - 0.003, tall), 6)
        space.taken.append(rect)
        return


def _upper_floor(inner: Rect, void: Rect) -> list[Rect]:
    """Return the walkable strips of the gallery."""
    strips = (
        Rect(inner.x0, inner.z0, inner.x1, void.z0),
        Rect(inner.x0, void.z1, inner.x1, inner.z1),
        Rect(inner.x0, void.z0, void.x0, void.z1),
        Rect(void.x1, void.z0, inner.x1, void.z1),
    )
    return [rect for rect in strips if rect.area > 0]


def _add_upper_item(rng: np.random.Generator, builder: MeshBuilder, strips: list[Rect], level: float) -> None:
    """Add a slim plant or lamp to the gallery, near the outer wall so that one can pass it."""
    rect = strips[int(rng.integers(len(strips)))]
    name = str(rng.choice(["plant", "lamp"]))
    item = CATALOGUE[name](rng)
    x = float(rng.uniform(rect.x0 + 0.45, rect.x1 - 0.45))
    z = float(rng.uniform(rect.z0 + 0.7, rect.z1 - 0.1))
    if rect.width < rect.depth:
        x = rect.x0 + 0.4 if rng.random() < 0.5 else rect.x1 - 0.4
    else:
        z = rect.z0 + 0.65 if rng.random() < 0.5 else rect.z1 - 0.1
    item.build(builder, x, z, 0.0, level)
