"""The fixed fabric of a building: closed shell, interior walls with openings, dropped ceilings, frames, windows."""

from collections.abc import Iterable

import numpy as np

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.floorplan import EDGE, Door, Plan, Rect

SLAB = 0.15
"""Thickness of floor and roof slabs [m]."""
EMBED = 0.05
"""How far walls reach into floor and roof, so that no faces coincide [m]."""


def add_shell(builder: MeshBuilder, width: float, depth: float, height: float, thickness: float) -> None:
    """Add floor slab, roof slab and four outer walls that close the footprint (0, 0)–(width, depth).

    The footprint runs to the walls' centre lines; the floor's surface is y = 0, the roof's y = height.
    """
    t = thickness / 2
    lip = t + 0.02
    builder.box("floor", (-lip, -SLAB, -lip), (width + lip, 0.0, depth + lip))
    builder.box("ceiling", (-lip, height, -lip), (width + lip, height + SLAB, depth + lip))
    for z in (0.0, depth):
        builder.box("wall", (-t, -EMBED, z - t), (width + t, height + EMBED, z + t))
    # These two end inside the other two and reach a little less high: shared planes would coincide.
    for x in (0.0, width):
        builder.box("wall", (x - t, 0.01 - EMBED, 0.01 - t), (x + t, height + EMBED - 0.01, depth + t - 0.01))


def add_wall_line(
    builder: MeshBuilder,
    axis: int,
    coordinate: float,
    start: float,
    end: float,
    height: float,
    thickness: float,
    openings: Iterable[tuple[float, float, float]] = (),
) -> None:
    """Add one straight wall with openings from the floor.

    Args:
        builder: Receives the boxes.
        axis: 0 for the line x = coordinate, 1 for z = coordinate.
        coordinate: Position of the centre line [m].
        start: First end along the line [m]; reaches half a thickness further, into the wall it meets.
        end: Second end [m].
        height: Top of the wall [m].
        thickness: Thickness [m].
        openings: (start, end, height) of each opening [m].
    """
    t = thickness / 2
    # Lines along x and along z differ by a hair in reach, so that crossing walls share no plane.
    hair = 0.004 * (1 + axis)
    bottom, top = hair - EMBED, height + EMBED - hair

    def piece(a: float, b: float, low: float, high: float) -> None:
        if b - a < 1e-4:
            return
        if axis == 0:
            builder.box("wall", (coordinate - t, low, a), (coordinate + t, high, b))
        else:
            builder.box("wall", (a, low, coordinate - t), (b, high, coordinate + t))

    position = start - t + hair
    for a, b, opening in sorted(openings):
        piece(position, a, bottom, top)
        piece(a, b, opening, top)
        position = b
    piece(position, end + t - hair, bottom, top)


def add_walls(builder: MeshBuilder, plan: Plan) -> None:
    """Add the interior walls of a plan: room edges merged into whole lines, doors cut out."""
    spans: dict[tuple[int, float], list[tuple[float, float]]] = {}
    for room in plan.rooms:
        r = room.rect
        for axis, coordinate, start, end in (
            (0, r.x0, r.z0, r.z1),
            (0, r.x1, r.z0, r.z1),
            (1, r.z0, r.x0, r.x1),
            (1, r.z1, r.x0, r.x1),
        ):
            limit = plan.width if axis == 0 else plan.depth
            if EDGE < coordinate < limit - EDGE:
                spans.setdefault((axis, round(coordinate, 4)), []).append((start, end))
    for (axis, coordinate), pieces in sorted(spans.items()):
        merged: list[list[float]] = []
        for start, end in sorted(pieces):
            if merged and start <= merged[-1][1] + EDGE:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        for start, end in merged:
            openings = [
                (d.start, d.end, d.height)
                for d in plan.doors
                if d.axis == axis and abs(d.coordinate - coordinate) < 1e-3 and start - EDGE <= d.start <= end
            ]
            add_wall_line(builder, axis, coordinate, start, end, plan.height, plan.thickness, openings)


def add_dropped_ceilings(builder: MeshBuilder, plan: Plan) -> None:
    """Fill the space above every room whose ceiling is lower than the shell."""
    grow = plan.thickness / 2 - 0.01
    for room in plan.rooms:
        if room.ceiling < plan.height - EDGE:
            # Ends inside the walls around it; the space above is solid, not an attic to get lost in.
            r = room.rect.shrunk(plan.thickness / 2 - grow + 0.005)
            builder.box("ceiling", (r.x0, room.ceiling, r.z0), (r.x1, plan.height + 0.03, r.z1))


def add_door_frames(builder: MeshBuilder, doors: Iterable[Door], thickness: float) -> None:
    """Add jambs and a head to every framed door; they take 4 cm off each side and 3 cm off the top."""
    reach, jamb, head = thickness / 2 + 0.025, 0.04, 0.03
    for door in doors:
        if not door.framed:
            continue
        for a, b, low, high in (
            (door.start - 0.03, door.start + jamb, -0.01, door.height + 0.02),
            (door.end - jamb, door.end + 0.03, -0.01, door.height + 0.02),
            (door.start - 0.02, door.end + 0.02, door.height - head, door.height + 0.03),
        ):
            c = door.coordinate
            lower, upper = ((c - reach, low, a), (c + reach, high, b))
            if door.axis == 1:
                lower, upper = ((a, low, c - reach), (b, high, c + reach))
            builder.box("door_frame", lower, upper)


def add_windows(rng: np.random.Generator, builder: MeshBuilder, plan: Plan, chance: float) -> None:
    """Add window panes to outer walls of rooms: thin boxes that stand 3 cm out of the wall."""
    for room in plan.rooms:
        for axis, coordinate, inward, start, end in _outer_sides(plan, room.rect):
            length = end - start
            if length < 2.2 or rng.random() > chance:
                continue
            width = rng.uniform(0.9, min(2.4, length - 1.0))
            center = rng.uniform(start + 0.4 + width / 2, end - 0.4 - width / 2)
            sill = rng.uniform(0.7, 1.1)
            head = min(sill + rng.uniform(0.9, 1.4), room.ceiling - 0.2)
            face = coordinate + inward * plan.thickness / 2
            near, far = sorted((face - inward * 0.03, face + inward * 0.03))
            a, b = center - width / 2, center + width / 2
            if axis == 0:
                builder.box("window", (near, sill, a), (far, head, b))
            else:
                builder.box("window", (a, sill, near), (b, head, far))


def _outer_sides(plan: Plan, r: Rect) -> list[tuple[int, float, float, float, float]]:
    sides = [
        (0, r.x0, 1.0, r.z0, r.z1, abs(r.x0) < EDGE),
        (0, r.x1, -1.0, r.z0, r.z1, abs(r.x1 - plan.width) < EDGE),
        (1, r.z0, 1.0, r.x0, r.x1, abs(r.z0) < EDGE),
        (1, r.z1, -1.0, r.x0, r.x1, abs(r.z1 - plan.depth) < EDGE),
    ]
    return [(axis, c, inward, a, b) for axis, c, inward, a, b, outer in sides if outer]
