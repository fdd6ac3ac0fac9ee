"""Procedural scene families of one storey: `apartment`, `home`, `rooms` and `scan`.

An apartment has 80–125 m² and 4–8 furnished rooms, usually with a corridor. A home is one with ordinary inner doors,
turned by any angle. `rooms` (rooms-v1) are floors of 100–600 m²
with corridors, rooms, doors, clutter and sometimes a tall hall. A scan is one of both as a scanner leaves it: often
without a ceiling, and with holes in the walls.
"""

import itertools

import numpy as np
import numpy.typing as npt

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.furnishing import furnish_plan
from navi_core.scenes.procedural.structure import (
    Plan,
    Rect,
    Room,
    build_fabric,
    connect_rooms,
    draw_footprint,
    split_rect,
    split_row,
)

CEILING = 2.6
"""Height of the ceiling [m]."""


def build_home(rng: np.random.Generator) -> MeshBuilder:
    """Generate a home: an apartment with inner doors of 0.65–0.90 m clear, whose walls run at any angle."""
    return build_apartment(rng, clear=0.63).turned(rng.uniform(0.0, 0.5 * np.pi))


def build_apartment(rng: np.random.Generator, clear: float = 1.0) -> MeshBuilder:
    """Generate an apartment: rooms from a partitioned footprint, doors, windows and furniture.

    Args:
        rng: Source of the draws.
        clear: See `connect_rooms`.
    """
    width, depth = draw_footprint(rng, rng.uniform(80, 125), 1.9)
    plan = Plan(width, depth, CEILING, thickness=round(rng.uniform(0.1, 0.18), 3))
    rects, corridor = _partition(rng, width, depth)
    kinds = _kinds(rng, rects, corridor)
    plan.rooms = [Room(rect, kind, CEILING) for rect, kind in zip(rects, kinds, strict=True)]
    connect_rooms(rng, plan, loops=rng.uniform(0.1, 0.5), wide=rng.uniform(0.05, 0.4), clear=clear)

    builder = build_fabric(rng, plan, windows=0.6)
    clutter = rng.uniform(0.5, 1.3)
    furnish_plan(rng, builder, plan, (clutter * rng.uniform(0.6, 1.4, len(plan.rooms))).tolist())
    return builder


def _partition(rng: np.random.Generator, width: float, depth: float) -> tuple[list[Rect], bool]:
    """Partition the footprint into 4–8 rooms; also return whether the first is a corridor."""
    for _ in range(100):
        style = rng.choice(["central", "side", "open"], p=[0.5, 0.25, 0.25])
        corridor = style != "open"
        if corridor:
            rects = _with_corridor(rng, width, depth, style == "side")
        else:
            rects = split_rect(rng, Rect(0.0, 0.0, width, depth), rng.uniform(11, 18), 2.4)
        if 4 <= len(rects) - corridor <= 8 and all(min(r.width, r.depth) >= 1.5 for r in rects):
            return rects, corridor
    raise AssertionError("no partition of 4 to 8 rooms in 100 draws")


def _with_corridor(rng: np.random.Generator, width: float, depth: float, side: bool) -> list[Rect]:
    # The corridor runs along the longer direction.
    axis = 0 if depth > width else 1
    short, long = sorted((width, depth))
    hall = rng.uniform(1.55, 1.9)
    if not side and short - hall < 2 * 2.6:
        return []  # too narrow for rooms on both sides of a corridor: another draw
    low = 0.0 if side else round(float(rng.uniform(2.6, short - hall - 2.6)), 2)
    high = round(low + hall, 2)
    rects = [Rect.on_line(axis, (low, high), (0.0, long))]
    for across in ((0.0, low), (high, short)):
        if across[1] - across[0] < 0.1:
            continue
        cuts = [0.0, *split_row(rng, long, 2.4, rng.uniform(3.0, 4.6)), long]
        rects += [Rect.on_line(axis, across, along) for along in itertools.pairwise(cuts)]
    if rng.random() < 0.35:
        # The corridor ends early and the last room of its row takes the rest: an L-shaped way round.
        cut = round(float(rng.uniform(0.62, 0.8) * long), 2)
        if long - cut > 1.8:
            rects[0] = Rect.on_line(axis, (low, high), (0.0, cut))
            rects.append(Rect.on_line(axis, (low, high), (cut, long)))
    return rects


def _kinds(rng: np.random.Generator, rects: list[Rect], corridor: bool) -> list[str]:
    kinds = ["corridor"] if corridor else []
    rooms = rects[len(kinds) :]
    order = np.argsort([-r.area for r in rooms])
    # The largest is the living room, small ones wash rooms, the rest are drawn.
    pool = ["bedroom", "kitchen", *rng.permutation(["bedroom", "office", "dining", "bedroom", "storage"])]
    named = [""] * len(rooms)
    named[order[0]] = "living"
    named[order[-1]] = "bathroom"
    for index, kind in zip(order[1:-1], pool, strict=False):
        named[index] = str(kind)
    return kinds + named


def build_rooms(rng: np.random.Generator) -> MeshBuilder:
    """Generate one floor of an office, school or flat: blocks along corridors, each split into rooms."""
    area = float(np.exp(rng.uniform(np.log(100), np.log(600))))
    width, depth = draw_footprint(rng, area, 2.2)
    ceiling = round(rng.uniform(2.5, 3.0), 2)
    corridors, blocks = _corridors(rng, Rect(0.0, 0.0, width, depth))
    target = rng.uniform(11, 20) * (1 + area / 900)
    pieces = [piece for block in blocks for piece in split_rect(rng, block, target, 2.4)]

    tall = {int(np.argmax([p.area for p in pieces]))} if rng.random() < 0.35 else set()
    height = round(ceiling + rng.uniform(2.0, 3.0), 2) if tall else ceiling
    plan = Plan(width, depth, height, thickness=round(rng.uniform(0.1, 0.2), 3))
    plan.rooms = [Room(rect, "corridor", ceiling) for rect in corridors]
    for index, rect in enumerate(pieces):
        # Without a tall hall some rooms get a lower, dropped ceiling; it never comes under 2.4 m.
        plan.rooms.append(Room(rect, _room_kind(rng, rect, index in tall), height if index in tall else ceiling))
    connect_rooms(rng, plan, loops=rng.uniform(0.08, 0.4), wide=rng.uniform(0.05, 0.3))

    builder = build_fabric(rng, plan, windows=rng.uniform(0.2, 0.7))
    # Large floors are furnished more sparsely, so that meshes stay within a few thousand triangles.
    density = rng.uniform(0.4, 1.2) * min(1.0, (220 / area) ** 0.75)
    furnish_plan(rng, builder, plan, (density * rng.uniform(0.4, 1.6, len(plan.rooms))).tolist())
    return builder


def _corridors(rng: np.random.Generator, floor: Rect) -> tuple[list[Rect], list[Rect]]:
    """Lay out corridors and the blocks between them: a spine, crossed by a second corridor on large floors."""
    if floor.area < 160 and rng.random() < 0.3:
        return [], [floor]
    hall = round(float(rng.uniform(1.6, 2.4)), 2)
    along_x = (floor.width > floor.depth) != (rng.random() < 0.15)
    axis = 1 if along_x else 0
    along, length = floor.span(1 - axis), floor.span(axis)[1]
    low = round(float(rng.uniform(0.3, 0.7) * (length - hall)), 2)
    if min(low, length - hall - low) < 2.6:
        # Too narrow for rooms on both sides: the corridor runs along the outer wall.
        low = 0.0
    corridors = [Rect.on_line(axis, (low, low + hall), along)]
    blocks = [Rect.on_line(axis, across, along) for across in ((0.0, low), (low + hall, length))]
    blocks = [block for block in blocks if min(block.width, block.depth) > 0]
    if floor.area > 240:
        # A side corridor through the larger block keeps far rooms from hanging on chains of doors.
        across = blocks.pop(int(np.argmax([b.area for b in blocks]))).span(axis)
        side = round(float(rng.uniform(1.6, 2.2)), 2)
        start = round(float(rng.uniform(0.3, 0.7) * (along[1] - side)), 2)
        corridors.append(Rect.on_line(1 - axis, (start, start + side), across))
        blocks += [Rect.on_line(1 - axis, part, across) for part in ((0.0, start), (start + side, along[1]))]
    return corridors, blocks


def _room_kind(rng: np.random.Generator, rect: Rect, tall: bool) -> str:
    if tall or rect.area > 45:
        return str(rng.choice(["hall", "lounge"]))
    if rect.area < 9:
        return str(rng.choice(["bathroom", "storage", "office"]))
    return str(
        rng.choice(["office", "office", "meeting", "storage", "lounge", "living", "kitchen", "dining", "bedroom"])
    )


_OPEN = 0.7
"""Share of the scans without a ceiling."""

_HOLES = 0.06
"""Holes per m² of the floor's bounding rectangle."""

_RADII = (0.15, 0.7)
"""Least and greatest radius of a hole [m]."""

_FINE = 0.25
"""Longest edge of a triangle at a hole [m]: how ragged its rim is."""


def build_scan(rng: np.random.Generator) -> MeshBuilder:
    """Generate a scan-like scene: an apartment or a floor of rooms with typical scanner holes.

    Holes go through everything but the floor, like those of open windows, mirrors and occluded surfaces.
    """
    whole = build_apartment(rng) if rng.random() < 0.6 else build_rooms(rng)
    parts = [part for part in whole.parts if part[0] != "ceiling"] if rng.random() < _OPEN else whole.parts
    names = sorted({name for name, _, _ in parts})
    triangles = np.concatenate([vertices[faces] for _, vertices, faces in parts])
    named = np.repeat([names.index(name) for name, _, _ in parts], [len(faces) for _, _, faces in parts])
    walls = triangles[named == names.index("wall")]
    size = np.ptp(walls.reshape(-1, 3), axis=0)
    floor = named == names.index("floor")
    builder = MeshBuilder()
    builder.add("floor", triangles[floor].reshape(-1, 3), np.arange(3 * floor.sum()).reshape(-1, 3))
    triangles, named = triangles[~floor], named[~floor]
    for centre in _points_on(rng, walls, int(rng.poisson(_HOLES * size[0] * size[2]))):
        triangles, named = _without_ball(triangles, named, centre, rng.uniform(*_RADII))
    for number in np.unique(named):
        own = triangles[named == number]
        builder.add(names[number], own.reshape(-1, 3), np.arange(3 * len(own)).reshape(-1, 3))
    return builder


def _points_on(rng: np.random.Generator, triangles: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Sample points (count, 3) uniformly by area on triangles (T, 3, 3)."""
    a, b, c = triangles.transpose(1, 0, 2)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    pick = rng.choice(len(triangles), count, p=area / area.sum())
    u, v = rng.random((2, count, 1))
    beyond = u + v > 1.0
    u, v = np.where(beyond, 1.0 - u, u), np.where(beyond, 1.0 - v, v)
    return np.asarray(a[pick] + u * (b - a)[pick] + v * (c - a)[pick])


def _without_ball(
    triangles: npt.NDArray[np.float64], named: npt.NDArray[np.int64], centre: npt.NDArray[np.float64], radius: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Cut a spherical hole into triangles (T, 3, 3) with name indices (T,), by longest-edge bisection.

    Triangles near the ball are bisected until they are small; then those with their centre inside it are removed.
    """
    kept = []
    while len(triangles):
        low, high = triangles.min(axis=1) - centre, triangles.max(axis=1) - centre
        at_ball = ((low < radius) & (high > -radius)).all(axis=1)
        edges = np.linalg.norm(triangles - np.roll(triangles, 1, axis=1), axis=2)
        fine = edges.max(axis=1) <= _FINE
        inside = np.linalg.norm(triangles.mean(axis=1) - centre, axis=1) < radius
        stay, cut = ~at_ball | (fine & ~inside), at_ball & ~fine
        kept.append((triangles[stay], named[stay]))
        triangles, named = _halved(triangles[cut], edges[cut].argmax(axis=1)), np.tile(named[cut], 2)
    return np.concatenate([t for t, _ in kept]), np.concatenate([n for _, n in kept])


def _halved(triangles: npt.NDArray[np.float64], longest: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Bisect triangles at the middle of the edge from corner `longest` − 1 to `longest`; first halves come first."""
    rows = np.arange(len(triangles))
    start, end, apex = (triangles[rows, (longest + k) % 3] for k in (-1, 0, 1))
    middle = (start + end) / 2
    return np.concatenate([np.stack([start, middle, apex], axis=1), np.stack([middle, end, apex], axis=1)])
