"""Procedural scene families without a floor plan: `atrium` and `maze`.

An atrium is a double-height hall with a gallery, pillars, plants, and rooms under the gallery. A maze is made by a
recursive backtracker, with a few loops, 12–20 m on a side.
"""

import numpy as np
import numpy.typing as npt

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.furnishing import FloorSpace, furnish_room
from navi_core.scenes.procedural.furniture import CATALOGUE
from navi_core.scenes.procedural.structure import Rect, add_shell, add_wall_line

SLAB = 0.2
"""Thickness of the gallery [m]."""


def build_atrium(rng: np.random.Generator) -> MeshBuilder:
    """Generate an atrium: hall, gallery on one to four sides with railings, pillars, screens, planters."""
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
    add_screens(rng, builder, space, void)
    for _ in range(int(rng.integers(4, 11))):
        add_planter(rng, builder, space, void, height)
    furnish_room(rng, builder, space, str(rng.choice(["hall", "lounge"])), density=rng.uniform(0.4, 1.0))
    upper = _upper_floor(inner, void)
    for _ in range(int(rng.integers(3, 9))):
        _add_upper_item(rng, builder, upper, gallery + SLAB)
    return builder


def _add_gallery(builder: MeshBuilder, inner: Rect, void: Rect, level: float) -> None:
    """Add the gallery's floor slabs; they reach 5 cm into the walls and overlap at corners, 3 mm offset in height."""
    outer = inner.shrunk(-0.05)
    front, back, left, right = void.z0 > inner.z0, void.z1 < inner.z1, void.x0 > inner.x0, void.x1 < inner.x1
    # The side slabs end where the front and back ones begin: they meet, they do not overlap.
    z0, z1 = void.z0 - 0.01 if front else outer.z0, void.z1 + 0.01 if back else outer.z1
    for present, x, z, hair in (
        (front, (outer.x0, outer.x1), (outer.z0, void.z0), 0.0),
        (back, (outer.x0, outer.x1), (void.z1, outer.z1), 0.0),
        (left, (outer.x0 + 0.005, void.x0), (z0, z1), 0.003),
        (right, (void.x1, outer.x1 - 0.005), (z0, z1), 0.003),
    ):
        if present:
            builder.beam("gallery", 0, x, z, (level + hair, level + SLAB - hair))


def _gallery_edges(inner: Rect, void: Rect) -> list[tuple[int, float, float, float, float]]:
    """Return (axis, coordinate, outward, start, end) of the gallery's edges z0, z1, x0, x1; `outward` is ±1."""
    edges = [
        (axis, edge, -inward, start, end)
        for (axis, edge, inward, start, end), (_, wall, *_) in zip(void.sides(), inner.sides(), strict=True)
        if (edge - wall) * inward > 0
    ]
    return sorted(edges, key=lambda edge: -edge[0])


def _add_railings(builder: MeshBuilder, inner: Rect, void: Rect, level: float) -> None:
    """Add railings along the gallery's edge: a parapet, a rail and posts."""
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
        places = [(line, place) if axis == 0 else (place, line) for place in spread(start, end, spacing)]
        spots += [(x, z, gallery + 0.02) for x, z in places]
    if rng.random() < 0.5:
        z = void.z0 + rng.uniform(0.3, 0.7) * void.depth
        spots += [(x, z, height + 0.02) for x in spread(void.x0 + 1, void.x1 - 1, spacing)]
    for x, z, top in spots:
        builder.prism("pillar", (x, z), (radius, radius), (-0.02, top), sides, turn=np.pi / 4)
        space.taken.append(Rect(x - radius, z - radius, x + radius, z + radius))


def spread(start: float, end: float, spacing: float) -> list[float]:
    """Return the middles of equal parts of a span, each about `spacing` long [m]."""
    count = max(1, int((end - start) / spacing))
    return [start + (k + 0.5) * (end - start) / count for k in range(count)]


def add_screens(rng: np.random.Generator, builder: MeshBuilder, space: FloorSpace, void: Rect) -> None:
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


def add_planter(rng: np.random.Generator, builder: MeshBuilder, space: FloorSpace, void: Rect, height: float) -> None:
    """Add a planter with a tree; the largest trees reach the gallery."""
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
    """Return the walkable strips of the gallery as rectangles."""
    strips = (
        Rect(inner.x0, inner.z0, inner.x1, void.z0),
        Rect(inner.x0, void.z1, inner.x1, inner.z1),
        Rect(inner.x0, void.z0, void.x0, void.z1),
        Rect(void.x1, void.z0, inner.x1, void.z1),
    )
    return [rect for rect in strips if rect.area > 0]


def _add_upper_item(rng: np.random.Generator, builder: MeshBuilder, strips: list[Rect], level: float) -> None:
    """Add a slim plant or lamp to the gallery, near the outer wall, so that the path stays free."""
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


MAZE_CEILING = 2.6
"""Height of the ceiling [m]."""


def build_maze(rng: np.random.Generator) -> MeshBuilder:
    """Generate a maze: corridors of at least 1.5 m between walls, loops, chambers and scattered crates."""
    thickness = round(rng.uniform(0.1, 0.2), 3)
    width, depth = rng.uniform(12, 20, 2).round(2)
    pitch = rng.uniform(1.75 + thickness, 2.6)
    nx, nz = max(4, int(width / pitch)), max(4, int(depth / pitch))
    dx, dz = width / nx, depth / nz
    # wall_x[i, j]: wall between cells (i, j) and (i + 1, j); wall_z[i, j]: between (i, j) and (i, j + 1).
    wall_x, wall_z = _carve(rng, nx, nz)
    loops = rng.uniform(0.05, 0.25)
    wall_x &= rng.random(wall_x.shape) >= loops
    wall_z &= rng.random(wall_z.shape) >= loops
    for _ in range(int(rng.integers(0, 3))):
        i, j = int(rng.integers(nx - 1)), int(rng.integers(nz - 1))
        wall_x[i, j : j + 2] = False
        wall_z[i : i + 2, j] = False

    builder = MeshBuilder()
    add_shell(builder, float(width), float(depth), MAZE_CEILING, thickness)
    for axis, walls, across, along in ((0, wall_x, dx, dz), (1, wall_z.T, dz, dx)):
        for number, line in enumerate(walls, start=1):
            for a, b in _runs(line):
                add_wall_line(builder, axis, number * across, a * along, b * along, MAZE_CEILING, thickness)
    _add_clutter(rng, builder, wall_x, wall_z, dx, dz, thickness)
    return builder


def _carve(rng: np.random.Generator, nx: int, nz: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Generate the maze's wall masks with a recursive backtracker (randomised depth-first search)."""
    wall_x = np.ones((nx - 1, nz), dtype=bool)
    wall_z = np.ones((nx, nz - 1), dtype=bool)
    seen = np.zeros((nx, nz), dtype=bool)
    stack = [(int(rng.integers(nx)), int(rng.integers(nz)))]
    seen[stack[0]] = True
    while stack:
        i, j = stack[-1]
        near = [
            (a, b)
            for a, b in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1))
            if 0 <= a < nx and 0 <= b < nz and not seen[a, b]
        ]
        if not near:
            stack.pop()
            continue
        a, b = near[int(rng.integers(len(near)))]
        if a != i:
            wall_x[min(a, i), j] = False
        else:
            wall_z[i, min(b, j)] = False
        seen[a, b] = True
        stack.append((a, b))
    return wall_x, wall_z


def _runs(line: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Run-length encode a mask: return (start, end) of each run of True values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _add_clutter(
    rng: np.random.Generator,
    builder: MeshBuilder,
    wall_x: npt.NDArray[np.bool_],
    wall_z: npt.NDArray[np.bool_],
    dx: float,
    dz: float,
    thickness: float,
) -> None:
    """Add a crate, plant or lamp to the back corner of some dead ends, where it blocks no path."""
    closed_x = np.pad(wall_x, ((1, 1), (0, 0)), constant_values=True)
    closed_z = np.pad(wall_z, ((0, 0), (1, 1)), constant_values=True)
    chance = rng.uniform(0.3, 0.9)
    closed = np.stack([closed_x[:-1], closed_x[1:], closed_z[:, :-1], closed_z[:, 1:]])
    for i, j in np.argwhere(closed.sum(axis=0) == 3).tolist():
        if rng.random() > chance:
            continue
        item = CATALOGUE[str(rng.choice(["crate", "plant", "lamp", "bench"]))](rng)
        cell = Rect(i * dx, j * dz, (i + 1) * dx, (j + 1) * dz).shrunk(thickness / 2 + 0.03)
        middle_x, middle_z = cell.center
        # The item stands with its back at the side opposite the cell's only opening: west, east, north or south.
        turn, x, z = (
            (1, cell.x1, middle_z),
            (3, cell.x0, middle_z),
            (0, middle_x, cell.z1),
            (2, middle_x, cell.z0),
        )[int(np.argmin(closed[:, i, j]))]
        item.build(builder, x, z, turn * np.pi / 2)
