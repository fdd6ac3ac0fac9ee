"""Procedural scene families of other buildings: `hall`, `shop`, `stairs` and `angled`.

A hall is one tall room with racks, pillars and screens. A shop has rows of shelves and rooms at its back. `stairs` has
two storeys that a staircase joins. An angled floor has the shape of an L, rooms of that shape, and slanted walls.
"""

import itertools
import math
from dataclasses import replace

import numpy as np

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.furnishing import FloorSpace, furnish_plan, furnish_room
from navi_core.scenes.procedural.halls import add_planter, add_screens, spread
from navi_core.scenes.procedural.structure import (
    SLAB,
    Plan,
    Rect,
    Room,
    add_shell,
    build_fabric,
    connect_rooms,
    draw_footprint,
    shared_edges,
    split_rect,
    split_row,
)

_KINDS = ("living", "bedroom", "kitchen", "dining", "bathroom", "office", "storage", "meeting", "lounge")


def build_hall(rng: np.random.Generator) -> MeshBuilder:
    """Generate a hall of 180–420 m²: one tall room with racks on a part of it, pillars, screens and planters."""
    width, depth = draw_footprint(rng, rng.uniform(180, 420), 2.0)
    height = round(rng.uniform(4.0, 6.5), 2)
    thickness = round(rng.uniform(0.15, 0.25), 3)
    builder = MeshBuilder()
    add_shell(builder, width, depth, height, thickness)
    inner = Rect(0.0, 0.0, width, depth).shrunk(thickness / 2)
    space = FloorSpace(inner.shrunk(0.02), least_open=0.9)
    axis = int(rng.integers(2))
    low, high = inner.shrunk(1.4).span(axis)
    racks = Rect.on_line(axis, (low, low + rng.uniform(0.25, 0.65) * (high - low)), inner.shrunk(1.4).span(1 - axis))
    _add_rows(rng, builder, space, racks, rng.uniform(1.6, min(3.0, height - 1.0)), rng.uniform(1.8, 3.2))
    for x in spread(inner.x0, inner.x1, rng.uniform(5.0, 8.0)):
        spot = Rect(x - 0.2, inner.center[1] - 0.2, x + 0.2, inner.center[1] + 0.2)
        if not any(spot.overlaps(other, 0.9) for other in space.taken) and space.claim(spot):
            builder.prism("pillar", spot.center, (0.2, 0.2), (-0.02, height + 0.02), 8)
    add_screens(rng, builder, space, inner)
    for _ in range(int(rng.integers(2, 7))):
        add_planter(rng, builder, space, inner, height)
    furnish_room(rng, builder, space, "hall", density=rng.uniform(0.2, 0.6))
    return builder


def _add_rows(
    rng: np.random.Generator, builder: MeshBuilder, space: FloorSpace, area: Rect, height: float, aisle: float
) -> None:
    """Add parallel rows of shelves `aisle` m apart to an area; each is broken by a crossing of at least 1.2 m."""
    axis = int(rng.integers(2))
    (at, last), (start, end) = area.span(axis), area.span(1 - axis)
    thick = rng.uniform(0.5, 0.9)
    crossing = start + rng.uniform(0.3, 0.7) * (end - start)
    while at + thick <= last:
        gap = rng.uniform(1.2, 2.0) / 2
        for along in ((start, crossing - gap), (crossing + gap, end)):
            rect = Rect.on_line(axis, (at, at + thick), along)
            if along[1] - along[0] > 0.8 and space.claim(rect, gap=0.1):
                builder.beam("shelf", axis, rect.span(axis), along, (0.002, height * rng.uniform(0.8, 1.0)))
        at += thick + aisle


def build_shop(rng: np.random.Generator) -> MeshBuilder:
    """Generate a shop of 110–280 m²: a sales room with rows of shelves and tills, and rooms at its back."""
    area = rng.uniform(110, 280)
    width = round(math.sqrt(area * rng.uniform(0.6, 1.2)), 2)
    depth = round(area / width, 2)
    ceiling = round(rng.uniform(2.8, 3.6), 2)
    cut = round(depth - rng.uniform(2.8, 3.8), 2)
    plan = Plan(width, depth, ceiling, thickness=round(rng.uniform(0.12, 0.2), 3))
    plan.rooms = [Room(Rect(0.0, 0.0, width, cut), "hall", ceiling)]
    ends = [0.0, *split_row(rng, width, 2.6, rng.uniform(3.5, 6.0)), width]
    for x0, x1 in itertools.pairwise(ends):
        plan.rooms.append(Room(Rect(x0, cut, x1, depth), str(rng.choice(["storage", "office", "bathroom"])), ceiling))
    connect_rooms(rng, plan, loops=rng.uniform(0.0, 0.3), wide=0.1, hub="hall", clear=0.8)
    builder = build_fabric(rng, plan, windows=0.5)
    sales = plan.rooms[0].rect.shrunk(plan.thickness / 2)
    space = FloorSpace(sales, [door for door in plan.doors if 0 in door.rooms])
    rows = Rect(sales.x0 + 1.3, sales.z0 + 2.4, sales.x1 - 1.3, sales.z1 - 1.3)
    _add_rows(rng, builder, space, rows, rng.uniform(1.4, 2.2), rng.uniform(1.3, 2.0))
    for x in spread(sales.x0 + 1.0, sales.x1 - 1.0, rng.uniform(2.2, 3.5)):
        till = Rect(x - 0.3, sales.z0 + 0.9, x + 0.3, sales.z0 + 1.9)
        if space.claim(till, gap=0.3):
            builder.box("counter", (till.x0, 0.002, till.z0), (till.x1, rng.uniform(0.85, 1.05), till.z1))
    furnish_plan(rng, builder, plan, [0.0, *rng.uniform(0.4, 1.2, len(plan.rooms) - 1)])
    return builder


def build_stairs(rng: np.random.Generator) -> MeshBuilder:
    """Generate two furnished storeys of 70–110 m² each that an open stairwell joins."""
    width, depth = draw_footprint(rng, rng.uniform(70, 110), 1.5)
    ceiling, thickness = round(rng.uniform(2.5, 2.9), 2), round(rng.uniform(0.12, 0.18), 3)
    well = Rect(0.0, 0.0, round(rng.uniform(2.5, 3.0), 2), 5.5 if depth > 8.0 else depth)
    level = ceiling + SLAB
    steps = Rect(thickness / 2, 0.9, thickness / 2 + rng.uniform(0.8, 1.0), 4.2)
    hole = Rect(thickness / 2, steps.z0 - 0.3, well.x1 - thickness / 2, steps.z1 - 0.4)
    storeys = [_storey(rng, width, depth, ceiling, thickness, well) for _ in range(2)]
    whole = MeshBuilder()
    whole.parts = [part for part in storeys[0].parts if part[0] != "ceiling"]
    whole.parts += [part for part in storeys[1].raised(level).parts if part[0] != "floor"]
    lip = thickness / 2 + 0.02
    for x, z in (
        ((-lip, width + lip), (-lip, hole.z0)), ((-lip, width + lip), (hole.z1, depth + lip)),
        ((-lip, hole.x0), (hole.z0, hole.z1)), ((hole.x1, width + lip), (hole.z0, hole.z1)),
    ):  # fmt: skip
        whole.box("floor", (x[0], ceiling, z[0]), (x[1], level, z[1]))
    count = round(level / 0.18)
    for n in range(count):
        near, far = (steps.z0 + (n + end) * steps.depth / count for end in (0.0, 1.02))
        # Every other step is a hair narrower: faces that overlap share no plane.
        top = (steps.x1 - 0.004 * (n % 2), (n + 1) * level / count - 0.004, far)
        whole.box("stairs", (0.0, 0.002, near), top)
    return whole.turned(rng.uniform(0.0, 0.5 * np.pi))


def _storey(
    rng: np.random.Generator, width: float, depth: float, ceiling: float, thickness: float, well: Rect
) -> MeshBuilder:
    """Build one furnished storey around a stairwell in its corner."""
    plan = Plan(width, depth, ceiling, thickness=thickness)
    parts = [Rect(well.x1, 0.0, width, depth)]
    if well.z1 < depth:
        parts.append(Rect(0.0, well.z1, well.x1, depth))
    rects = [piece for part in parts for piece in split_rect(rng, part, rng.uniform(11, 18), 2.4)]
    plan.rooms = [Room(well, "stairs", ceiling)]
    plan.rooms += [Room(rect, str(rng.choice(_KINDS)), ceiling) for rect in rects]
    connect_rooms(rng, plan, loops=rng.uniform(0.1, 0.5), wide=rng.uniform(0.1, 0.4), hub="stairs", clear=0.8)
    builder = build_fabric(rng, plan, windows=0.5)
    furnish_plan(rng, builder, plan, rng.uniform(0.3, 1.1, len(plan.rooms)).tolist())
    return builder


def build_angled(rng: np.random.Generator) -> MeshBuilder:
    """Generate a floor in the shape of an L with L-shaped rooms, slanted walls, and walls at any angle."""
    width, depth = draw_footprint(rng, rng.uniform(110, 190), 1.5)
    across, along = (round(float(rng.uniform(0.35, 0.5)) * side, 2) for side in (width, depth))
    ceiling = round(rng.uniform(2.5, 3.0), 2)
    plan = Plan(width, depth, ceiling, thickness=round(rng.uniform(0.1, 0.18), 3))
    wings = Rect(0.0, 0.0, width, depth - along), Rect(0.0, depth - along, width - across, depth)
    rects = [piece for wing in wings for piece in split_rect(rng, wing, rng.uniform(12, 20), 2.4)]
    plan.rooms = [Room(rect, str(rng.choice(_KINDS)), ceiling) for rect in rects]
    connect_rooms(rng, plan, loops=rng.uniform(0.2, 0.5), wide=0.2, clear=0.8)
    edges = {(i, j): ends for i, j, *_, axis, start, end in shared_edges(plan.rooms, 1.0) for ends in [(start, end)]}
    merged = rng.random(len(plan.doors)) < 0.3
    merged[int(rng.integers(len(merged)))] = True
    for n in np.flatnonzero(merged):
        # Without the wall between them two rooms are one that has the shape of an L, as a rule.
        start, end = edges[plan.doors[n].rooms]
        half = plan.thickness / 2 + 0.03
        plan.doors[n] = replace(plan.doors[n], start=start + half, end=end - half, height=ceiling - 0.02, framed=False)
    builder = build_fabric(rng, plan, windows=0.5)
    builder.box("wall", (width - across + 0.003, 0.008 - SLAB / 2, depth - along + 0.003),
                (width + 0.003, ceiling + SLAB / 2, depth + 0.003))  # fmt: skip
    for index, room in enumerate(plan.rooms):
        inner = room.rect.shrunk(plan.thickness / 2)
        space = FloorSpace(inner, [door for door in plan.doors if index in door.rooms])
        _add_slants(rng, builder, space, inner, ceiling)
        furnish_room(rng, builder, space, room.kind, rng.uniform(0.3, 1.1))
    return builder.turned(rng.uniform(0.0, 0.5 * np.pi))


def _add_slants(rng: np.random.Generator, builder: MeshBuilder, space: FloorSpace, inner: Rect, ceiling: float) -> None:
    """Cut some corners of a room by slanted walls, and add a free-standing slanted wall to a large one."""
    for x, sign_x in ((inner.x0, 1.0), (inner.x1, -1.0)):
        for z, sign_z in ((inner.z0, 1.0), (inner.z1, -1.0)):
            a, b = rng.uniform(0.5, 1.6, 2)
            wanted = rng.random() < 0.4
            ends = sorted((x, x + sign_x * a)), sorted((z, z + sign_z * b))
            if wanted and space.claim(Rect(ends[0][0], ends[1][0], ends[0][1], ends[1][1])):
                corners = [(x - 0.03 * sign_x, z - 0.03 * sign_z), (x - 0.03 * sign_x, z + sign_z * b),
                           (x + sign_x * a, z - 0.03 * sign_z)]  # fmt: skip
                builder.wedge("wall", corners if sign_x * sign_z > 0 else corners[::-1], (-0.03, ceiling + 0.03))
    length, yaw = rng.uniform(1.2, 2.2), rng.uniform(0.0, np.pi)
    x, z = inner.center
    reach = length / 2 * np.array([abs(math.cos(yaw)), abs(math.sin(yaw))]) + 0.08
    rect = Rect(x - reach[0], z - reach[1], x + reach[0], z + reach[1])
    if inner.area > 14.0 and rng.random() < 0.5 and space.claim(rect):
        builder.box("wall", (x - length / 2, -0.03, z - 0.06), (x + length / 2, ceiling + 0.03, z + 0.06), yaw=yaw)
