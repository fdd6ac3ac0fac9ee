"""Floor plans of procedural buildings, and their fixed structure: walls, slabs, doors, windows.

A footprint is split into rectangular rooms that doors join. The fixed structure (fabric) is: closed shell, interior
walls with openings, dropped ceilings, door frames, windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from navi_core.scenes.procedural.builder import MeshBuilder

EDGE = 1e-6
"""Tolerance when comparing plan coordinates [m]."""


@dataclass(frozen=True)
class Rect:
    """Axis-aligned rectangle on the floor plane [m]."""

    x0: float
    z0: float
    x1: float
    z1: float

    @staticmethod
    def on_line(axis: int, across: Sequence[float], along: Sequence[float]) -> Rect:
        """Build a rectangle from its (min, max) on `axis` (0: x, 1: z) and its (min, max) on the other axis."""
        (x0, x1), (z0, z1) = (across, along) if axis == 0 else (along, across)
        return Rect(x0, z0, x1, z1)

    def span(self, axis: int) -> tuple[float, float]:
        """Return the rectangle's extent (min, max) along an axis (0: x, 1: z) [m]."""
        return (self.x0, self.x1) if axis == 0 else (self.z0, self.z1)

    def sides(self) -> list[tuple[int, float, float, float, float]]:
        """Return (axis, coordinate, inward, start, end) of the sides x0, x1, z0, z1; `inward` is ±1."""
        return [
            (axis, coordinate, inward, *self.span(1 - axis))
            for axis in (0, 1)
            for coordinate, inward in zip(self.span(axis), (1.0, -1.0), strict=True)
        ]

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
        """Return a copy with each side moved inwards by `margin` [m]."""
        return Rect(self.x0 + margin, self.z0 + margin, self.x1 - margin, self.z1 - margin)

    def overlaps(self, other: Rect, gap: float = 0.0) -> bool:
        """Return whether two rectangles come closer than `gap` [m] along both axes."""
        return (
            self.x0 < other.x1 + gap
            and other.x0 < self.x1 + gap
            and self.z0 < other.z1 + gap
            and other.z0 < self.z1 + gap
        )


@dataclass(frozen=True)
class Room:
    """Room of a floor plan, bounded by the centre lines of its walls."""

    rect: Rect
    kind: str
    ceiling: float
    """Height of its ceiling [m]."""


@dataclass(frozen=True)
class Door:
    """Door opening from the floor up, in the wall line at `coordinate` of `axis` (0: the line x = c, 1: z = c)."""

    axis: int
    coordinate: float
    start: float
    end: float
    height: float
    rooms: tuple[int, int]
    framed: bool = True


@dataclass
class Plan:
    """Floor plan: footprint from the origin, rooms, doors, and dimensions of the building shell."""

    width: float
    depth: float
    height: float
    """Inner height of the shell; rooms with a lower ceiling get a solid above it [m]."""
    thickness: float
    """Wall thickness [m]."""
    rooms: list[Room] = field(default_factory=list)
    doors: list[Door] = field(default_factory=list)


def split_row(rng: np.random.Generator, length: float, minimum: float, target: float) -> list[float]:
    """Split a length into random parts near `target`, none shorter than `minimum`; return the cut positions [m]."""
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
    axis = 0 if along_x else 1
    low, high = rect.span(axis)
    length = high - low
    cut = low + round(float(np.clip(rng.uniform(0.32, 0.68) * length, minimum, length - minimum)), 2)
    parts = [Rect.on_line(axis, part, rect.span(1 - axis)) for part in ((low, cut), (cut, high))]
    return [piece for part in parts for piece in split_rect(rng, part, target, minimum)]


def shared_edges(rooms: Sequence[Room], shortest: float) -> list[tuple[int, int, int, float, float, float]]:
    """Return (room, room, axis, coordinate, start, end) of every wall of two rooms, at least `shortest` m long."""
    edges = []
    for (i, a), (j, b) in itertools.combinations(enumerate(room.rect for room in rooms), 2):
        for axis in (0, 1):
            (a_low, a_high), (b_low, b_high) = a.span(axis), b.span(axis)
            starts, ends = zip(a.span(1 - axis), b.span(1 - axis), strict=True)
            start, end = max(starts), min(ends)
            for coordinate, other in ((a_high, b_low), (a_low, b_high)):
                if abs(coordinate - other) < EDGE and end - start >= shortest:
                    edges.append((i, j, axis, coordinate, start, end))
    return edges


def connect_rooms(
    rng: np.random.Generator,
    plan: Plan,
    *,
    loops: float,
    wide: float = 0.15,
    hub: str = "corridor",
    clear: float = 1.0,
) -> None:
    """Add doors to the plan: a random spanning tree of the rooms that prefers rooms of kind `hub`, plus extra loops.

    Args:
        rng: Source of the draws.
        plan: Changed in place; its rooms must form one connected partition.
        loops: Chance of a door in each wall that the tree leaves closed.
        wide: Chance that a door is a wide opening without a frame.
        hub: Kind of rooms joined first.
        clear: Least width of a framed door between its jambs, but for 2 cm; the widest has 0.25 m more [m].
    """
    corner = 0.2
    edges = shared_edges(plan.rooms, clear + 0.1 + 2 * corner)
    is_hub = [room.kind == hub for room in plan.rooms]
    weight = rng.random(len(edges)) - [is_hub[i] + is_hub[j] for i, j, *_ in edges]
    group = list(range(len(plan.rooms)))
    for k in np.argsort(weight, kind="stable"):
        i, j, axis, coordinate, start, end = edges[k]
        if group[i] == group[j] and rng.random() >= loops:
            continue
        group = [group[j] if number == group[i] else number for number in group]
        lowest = min(plan.rooms[i].ceiling, plan.rooms[j].ceiling)
        room = end - start - 2 * corner
        if room > 2.0 and rng.random() < wide:
            width = min(rng.uniform(1.6, 3.0), room)
            height, framed = min(lowest - 0.15, rng.uniform(2.2, 2.5)), False
        else:
            width, height, framed = min(rng.uniform(clear + 0.1, clear + 0.35), room), 2.15, True
        center = (start + end) / 2 + rng.uniform(-0.5, 0.5) * (room - width)
        plan.doors.append(Door(axis, coordinate, center - width / 2, center + width / 2, height, (i, j), framed))
    if len(set(group)) != 1:
        raise AssertionError("a plan's rooms must touch along walls long enough for a door")


SLAB = 0.15
"""Thickness of floor and roof slabs [m]."""
EMBED = 0.05
"""How far walls reach into floor and roof, so that no faces coincide [m]."""


def add_shell(builder: MeshBuilder, width: float, depth: float, height: float, thickness: float) -> None:
    """Add the building shell: floor slab, roof slab and four outer walls around the footprint (0, 0)–(width, depth).

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
    """Add one straight wall with door openings from the floor up.

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

    position = start - t + hair
    pieces = []
    for a, b, opening in sorted(openings):
        pieces += [(position, a, bottom), (a, b, opening)]
        position = b
    for a, b, low in (*pieces, (position, end + t - hair, bottom)):
        if b - a >= 1e-4:
            builder.beam("wall", axis, (coordinate - t, coordinate + t), (a, b), (low, top))


def _add_walls(builder: MeshBuilder, plan: Plan) -> None:
    """Add the interior walls of a plan: room edges merged into straight lines, door openings cut out."""
    spans: dict[tuple[int, float], list[tuple[float, float]]] = {}
    for room in plan.rooms:
        for axis, coordinate, _, start, end in room.rect.sides():
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


def _add_dropped_ceilings(builder: MeshBuilder, plan: Plan) -> None:
    """Add dropped ceilings: fill the space above every room that is lower than the shell."""
    grow = plan.thickness / 2 - 0.01
    for room in plan.rooms:
        if room.ceiling < plan.height - EDGE:
            # Ends inside the walls around it; the space above is solid, not an attic to get lost in.
            r = room.rect.shrunk(plan.thickness / 2 - grow + 0.005)
            builder.box("ceiling", (r.x0, room.ceiling, r.z0), (r.x1, plan.height + 0.03, r.z1))


def _add_door_frames(builder: MeshBuilder, doors: Iterable[Door], thickness: float) -> None:
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
            across = (door.coordinate - reach, door.coordinate + reach)
            builder.beam("door_frame", door.axis, across, (a, b), (low, high))


def _add_windows(rng: np.random.Generator, builder: MeshBuilder, plan: Plan, chance: float) -> None:
    """Add window panes to outer walls of rooms: thin boxes that stand 3 cm out of the wall."""
    for room in plan.rooms:
        for axis, coordinate, inward, start, end in room.rect.sides():
            limit = 0.0 if inward > 0 else (plan.width, plan.depth)[axis]
            length = end - start
            if abs(coordinate - limit) >= EDGE or length < 2.2 or rng.random() > chance:
                continue
            width = rng.uniform(0.9, min(2.4, length - 1.0))
            center = rng.uniform(start + 0.4 + width / 2, end - 0.4 - width / 2)
            sill = rng.uniform(0.7, 1.1)
            head = min(sill + rng.uniform(0.9, 1.4), room.ceiling - 0.2)
            face = coordinate + inward * plan.thickness / 2
            across = sorted((face - inward * 0.03, face + inward * 0.03))
            builder.beam("window", axis, across, (center - width / 2, center + width / 2), (sill, head))


def build_fabric(rng: np.random.Generator, plan: Plan, windows: float) -> MeshBuilder:
    """Build the fixed structure of a floor plan: shell, walls, dropped ceilings, door frames, windows.

    Args:
        rng: Source of the draws.
        plan: With its rooms and doors.
        windows: Chance of a window in each outer side of a room that is long enough.
    """
    builder = MeshBuilder()
    add_shell(builder, plan.width, plan.depth, plan.height, plan.thickness)
    _add_walls(builder, plan)
    _add_dropped_ceilings(builder, plan)
    _add_door_frames(builder, plan.doors, plan.thickness)
    _add_windows(rng, builder, plan, windows)
    return builder


def draw_footprint(rng: np.random.Generator, area: float, longest: float) -> tuple[float, float]:
    """Sample width and depth [m] of a floor of `area` m² with an aspect ratio of at most `longest`."""
    ratio = rng.uniform(1.0, longest)
    long, short = round(float(np.sqrt(area * ratio)), 2), round(float(np.sqrt(area / ratio)), 2)
    return (short, long) if rng.random() < 0.5 else (long, short)
