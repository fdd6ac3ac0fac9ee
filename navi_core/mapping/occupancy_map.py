"""Occupancy grids of flights, updated from observations: a policy's (`draw`) and a pilot's (`chart`).

A map is a square of bytes around the position where the flight began. A level ray makes the cells it crosses FREE, and
those within the view radius SEEN. A dropped ray marks nothing.

In a policy's map the cell in which a ray meets a surface is a WALL. Most walls are thinner than a cell, and then rays
cross it from both sides: without the mark a way would lead through them. A cell is VOID, open ground around a building,
where all level rays that crossed it meet nothing for 30 m. `mapping.frontier_features` reads both.

In a pilot's map a surface near the height of flight makes a HIT; the straight line between two neighbouring hits is a
WALL that is guessed. Where rays that fly down meet nothing there is no floor, VOID: the endless outside of a scan.
`near` holds the squared distance to the nearest hit, in cells, as far as it matters for flying.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.mapping.level_rays import nothing_there

FREE, SEEN, WALL, HIT, VOID = 1, 2, 4, 8, 16
GAP = 0.6
"""Largest distance between neighbouring hits that counts as wall [m]; a door is wider."""
FAR = 255
"""`near` of a cell without a hit within `NEAR_RADIUS`."""
NEAR_RADIUS = 7
"""Radius in cells around a hit in which distances are kept."""
OPEN = 30.0
"""Range from which a level ray that meets nothing leads out of a building [m]."""
LONGEST = 12.0
"""Largest range drawn into the map [m]; farther ones are drawn too coarsely by neighbouring bins."""

_INTO = 0.05
"""Offset of a wall mark behind its surface [m]; both faces of a thin wall then lie in the same cell more often."""
_SURE = 8.0
"""Largest range of wall marks in a policy's map [m]: level rays are not quite level, and meet floor or
ceiling."""
_FAN, _PILOT_FAN = 2, 4
"""Rays drawn per azimuth bin; between two bins the shorter of both ranges is believed."""
_DEEP = 2.0
"""Depth beneath the height of flight at which a ray without a hit shows that there is no floor [m]."""

_UNKNOWN = 0.25
"""Distance along each axis by which an unknown cell counts as nearer than its centre [cells]. At 0 a drone with a
camera touches walls beside it that it has not seen; at 0.5 it sees 5 points less and collides more often."""

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]


@numba.njit(cache=True, nogil=True)
def walk(
    marks: Bytes,
    px: float,
    pz: float,
    dx: float,
    dz: float,
    end: float,
    seen_end: float,
    added: int,
    cleared: int,
) -> None:
    """Trace a ray through the occupancy grid and mark its cells (Amanatides & Woo 1987); lengths in cells.

    Args:
        marks: (G, G) marks, x first; updated.
        px: x of the origin.
        pz: z of the origin.
        dx: x of the unit direction.
        dz: z of the unit direction.
        end: Length of the ray.
        seen_end: Length within which a crossed cell is also SEEN.
        added: Marks that a crossed cell gets besides FREE; 0 for none.
        cleared: Marks that it loses; 0 for none.
    """
    size = marks.shape[0]
    i, k = math.floor(px), math.floor(pz)
    si, sk = (1 if dx >= 0.0 else -1), (1 if dz >= 0.0 else -1)
    ti = ((i + (1 if si > 0 else 0)) - px) / dx if dx != 0.0 else 1e30
    tk = ((k + (1 if sk > 0 else 0)) - pz) / dz if dz != 0.0 else 1e30
    step_i = abs(1.0 / dx) if dx != 0.0 else 1e30
    step_k = abs(1.0 / dz) if dz != 0.0 else 1e30
    entered = 0.0
    while entered <= end:
        if not (0 <= i < size and 0 <= k < size):
            return
        mark = (marks[i, k] | FREE | added) & ~cleared
        if entered <= seen_end:
            mark |= SEEN
        marks[i, k] = mark
        if ti < tk:
            entered = ti
            i += si
            ti += step_i
        else:
            entered = tk
            k += sk
            tk += step_k


@numba.njit(cache=True, nogil=True)
def join(
    marks: Bytes,
    x0: float,
    z0: float,
    x1: float,
    z1: float,
    mark: int,
    unless: int,
) -> None:
    """Rasterise a line segment into the grid, sampled at most half a cell apart, both ends included; lengths in cells.

    Args:
        marks: (G, G) marks, x first; updated.
        x0: x of the line's start.
        z0: z of the line's start.
        x1: x of the line's end.
        z1: z of the line's end.
        mark: Mark of a cell on the line.
        unless: Marks that keep a cell from being marked; 0 for none.
    """
    size = marks.shape[0]
    steps = int(2.0 * math.hypot(x1 - x0, z1 - z0)) + 1
    for n in range(steps + 1):
        i, k = math.floor(x0 + (x1 - x0) * n / steps), math.floor(z0 + (z1 - z0) * n / steps)
        if 0 <= i < size and 0 <= k < size and not marks[i, k] & unless:
            marks[i, k] |= mark


@numba.njit(cache=True, nogil=True)
def _draw_rays(
    marks: Bytes,
    box: Rows,
    px: float,
    pz: float,
    yaw: float,
    reach: Floats,
    met: npt.NDArray[np.bool_],
    fan: int,
    view_radius: float,
    cell: float,
    outside: int,
    cleared: int,
    margin: int,
) -> None:
    """Trace the level rays (Az,) [m] of one scan into the grid, `fan` a bin, and widen the marked bounding box.

    Rays that meet nothing within `OPEN` give their cells the mark `outside`. Those that meet a surface take it again;
    dropped ones and those of a short sensor let it be. All take `cleared`.
    """
    bins, last = len(reach), marks.shape[0] - 1
    # Rays into the open first: a cell on the way to a surface, too, is none of theirs.
    for outwards in (True, False):
        added = outside if outwards else 0
        for a in range(bins):
            beside = (a + 1) % bins
            for part in range(fan):
                free, ends = reach[a], met[a]
                if part > 0:
                    free, ends = min(free, reach[beside]), ends or met[beside]
                if outwards != (free > OPEN and not ends):
                    continue
                angle = 2.0 * math.pi * (a + part / fan) / bins - yaw
                end = min(free, LONGEST) / cell
                dx, dz = math.sin(angle), -math.cos(angle)
                i, k = math.floor(px + dx * end), math.floor(pz + dz * end)
                box[0], box[1] = max(min(box[0], i - margin), 0), min(max(box[1], i + margin), last)
                box[2], box[3] = max(min(box[2], k - margin), 0), min(max(box[3], k + margin), last)
                gone = cleared | outside if ends else cleared
                walk(marks, px, pz, dx, dz, end, min(end, view_radius / cell), added, gone)


@numba.njit(cache=True, nogil=True)
def draw(
    marks: Bytes,
    rows: Rows,
    pose: Floats,
    reach: Floats,
    met: npt.NDArray[np.bool_],
    box: Rows,
    cell: float,
    view_radius: float,
) -> None:
    """Update the policy's occupancy grids of some rows with a level scan.

    Args:
        marks: (R, G, G) marks, x first; updated.
        rows: (B,) the rows.
        pose: (R, 4) x, y, z [m] from the middle of the map, and yaw [rad].
        reach: (R, Az) horizontal ranges [m].
        met: (R, Az) whether they end at a surface.
        box: (R, 4) first and last index of the drawn area, along x and along z; widened.
        cell: Edge of a cell [m].
        view_radius: Range within which floor counts as seen [m].
    """
    bins, half = reach.shape[1], marks.shape[1] / 2.0
    for b in rows:
        px, pz, yaw = pose[b, 0] / cell + half, pose[b, 2] / cell + half, pose[b, 3]
        _draw_rays(marks[b], box[b], px, pz, yaw, reach[b], met[b], _FAN, view_radius, cell, VOID, 0, 1)
        x1, z1, wall = 0.0, 0.0, False
        for a in range(-1, bins):
            x0, z0, before = x1, z1, wall
            angle, away = 2.0 * math.pi * a / bins - yaw, (reach[b, a] + _INTO) / cell
            x1, z1 = px + math.sin(angle) * away, pz - math.cos(angle) * away
            wall = met[b, a] and reach[b, a] <= _SURE
            if a < 0 or not wall:
                continue
            if not before or math.hypot(x1 - x0, z1 - z0) * cell > GAP:
                x0, z0 = x1, z1
            join(marks[b], x0, z0, x1, z1, WALL, 0)


@numba.njit(cache=True)
def blocked_cells(
    marks: Bytes, pose: Floats, reach: Floats, cell: float, radius: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Collect the cells near each row that are walls, hits or not known to be free, as points.

    Of a hit it is the point nearest to the row, as a surface may lie anywhere in its cell; also of a wall where the
    scan does not measure its azimuth, and of an unknown cell there a point `_UNKNOWN` nearer than its centre. Where it
    does, a wall counts by its centre, and an unknown cell not at all.

    Args:
        marks: (B, G, G) marks, x first.
        pose: (B, 4) x, y, z [m] from the middle of the map, and yaw [rad].
        reach: (B, Az) horizontal range of the level rays [m]; 0 for unknown ones.
        cell: Edge of a cell [m].
        radius: Distance from the row up to which cells count [m].

    Returns:
        (B, N, 3) points in the drone's frame at its height [m], and a (B, N) mask of those that are there.
    """
    size, around, bins = marks.shape[1], math.ceil(radius / cell), reach.shape[1]
    edge = 2 * around + 1
    points = np.zeros((marks.shape[0], edge * edge, 3), np.float32)
    there = np.zeros((marks.shape[0], edge * edge), np.bool_)
    for b in range(marks.shape[0]):
        px, pz = pose[b, 0] / cell + size / 2.0, pose[b, 2] / cell + size / 2.0
        sin, cos, count = math.sin(pose[b, 3]), math.cos(pose[b, 3]), 0
        for i in range(math.floor(px) - around, math.floor(px) + around + 1):
            for k in range(math.floor(pz) - around, math.floor(pz) + around + 1):
                inside = 0 <= i < size and 0 <= k < size
                if inside and marks[b, i, k] & (FREE | WALL | HIT) == FREE:
                    continue
                mark = marks[b, i, k] if inside else 0
                x, z = i + 0.5 - px, k + 0.5 - pz
                bin = math.floor(math.atan2(x * cos - z * sin, -x * sin - z * cos) / (2.0 * math.pi) * bins)
                measured = reach[b, bin % bins] > 0.0 and reach[b, (bin + 1) % bins] > 0.0
                if measured and mark & (WALL | HIT) == 0:
                    continue
                if not measured and mark & (WALL | HIT) == 0:
                    x = math.copysign(max(abs(x) - _UNKNOWN, 0.0), x)
                    z = math.copysign(max(abs(z) - _UNKNOWN, 0.0), z)
                elif mark & HIT or not measured:
                    x, z = math.copysign(max(abs(x) - 0.5, 0.0), x), math.copysign(max(abs(z) - 0.5, 0.0), z)
                    if x == 0.0 and z == 0.0:
                        continue
                x, z = x * cell, z * cell
                if x * x + z * z <= radius * radius:
                    points[b, count, 0], points[b, count, 2] = x * cos - z * sin, x * sin + z * cos
                    there[b, count] = True
                    count += 1
    return points, there


@numba.njit(cache=True)
def _hit(marks: Bytes, near: Bytes, i: int, k: int) -> None:
    """Mark a cell as hit and update the squared-distance map around it."""
    size = marks.shape[0]
    if not (0 <= i < size and 0 <= k < size) or marks[i, k] & HIT:
        return
    marks[i, k] |= HIT
    for di in range(-NEAR_RADIUS, NEAR_RADIUS + 1):
        for dk in range(-NEAR_RADIUS, NEAR_RADIUS + 1):
            ni, nk = i + di, k + dk
            squared = di * di + dk * dk
            if squared <= NEAR_RADIUS * NEAR_RADIUS and 0 <= ni < size and 0 <= nk < size and squared < near[ni, nk]:
                near[ni, nk] = squared


@numba.njit(cache=True)
def _no_floor(marks: Bytes, px: float, pz: float, x: float, y: float, z: float, start: float, end: float) -> None:
    """Mark cells without floor (VOID) under a missed ray to (x, y, z), from `start` below its origin to `end` away."""
    away = math.hypot(x, z)
    if y >= 0.0 or away == 0.0:
        return
    size, at = marks.shape[0], start * away / -y
    while at < min(end, away):
        i, k = math.floor(px + at * x / away), math.floor(pz + at * z / away)
        if 0 <= i < size and 0 <= k < size:
            marks[i, k] |= VOID
        at += 1.0


@numba.njit(cache=True)
def chart(  # noqa: C901 (numba kernel: one compiled loop)
    marks: Bytes,
    near: Bytes,
    pose: Floats,
    plane: Floats,
    reach: Floats,
    met: npt.NDArray[np.bool_],
    points: npt.NDArray[np.float32],
    valid: npt.NDArray[np.bool_],
    rows: npt.NDArray[np.bool_],
    box: npt.NDArray[np.int64],
    cell: float,
    band: float,
    view_radius: float,
) -> None:
    """Update the pilot's occupancy grid of each row with one observation.

    Args:
        marks: (B, G, G) uint8 marks, x first; updated.
        near: (B, G, G) uint8 squared distances to hits [cells²]; updated.
        pose: (B, 4) x, y, z [m] in the map's frame, whose middle is the middle of the grid, and yaw [rad].
        plane: (B,) height of flight that the map is made for [m].
        reach: (B, Az) horizontal range of the level rays [m].
        met: (B, Az) whether the level ray met a surface.
        points: (B, R, 3) hit points of all rays, in the drone's frame before yaw [m].
        valid: (B, R) whether the rays hit.
        rows: (B,) rows to be drawn.
        box: (B, 4) first and last index of the drawn area, along x and along z; widened.
        cell: Edge of a cell [m].
        band: Surfaces closer than this to the height of flight are in the way [m].
        view_radius: Range within which floor counts as seen [m].
    """
    rays, bins, half = points.shape[1], reach.shape[1], marks.shape[1] / 2.0
    for b in range(marks.shape[0]):
        if not rows[b]:
            continue
        yaw = pose[b, 3]
        sin, cos = math.sin(yaw), math.cos(yaw)
        px, pz = pose[b, 0] / cell + half, pose[b, 2] / cell + half
        _draw_rays(marks[b], box[b], px, pz, yaw, reach[b], met[b], _PILOT_FAN, view_radius, cell, 0, WALL, 2)
        seen, levels = valid[b].reshape(bins, -1), rays // bins
        for r in range(rays):
            x, y, z = points[b, r, 0], points[b, r, 1], points[b, r, 2]
            if not valid[b, r] and nothing_there(seen, r // levels, r % levels):
                end_x, end_z = (x * cos + z * sin) / cell, (z * cos - x * sin) / cell
                _no_floor(marks[b], px, pz, end_x, y / cell, end_z, _DEEP / cell, view_radius / cell + 3.0)
        for r in range(rays):
            if not valid[b, r]:
                continue
            x, y, z = points[b, r, 0], points[b, r, 1], points[b, r, 2]
            i = math.floor((x * cos + z * sin) / cell + px)
            k = math.floor((z * cos - x * sin) / cell + pz)
            if y < -band and 0 <= i < marks.shape[1] and 0 <= k < marks.shape[2]:
                # Where several neighbours dropped out at once there is a floor all the same.
                marks[b, i, k] &= ~VOID
            if abs(pose[b, 1] + y - plane[b]) > band or x * x + z * z > LONGEST * LONGEST:
                continue
            _hit(marks[b], near[b], i, k)
        for a in range(bins):
            after = (a + 1) % bins
            if not (met[b, a] and met[b, after]) or max(reach[b, a], reach[b, after]) > LONGEST:
                continue
            one, two = 2.0 * math.pi * a / bins - yaw, 2.0 * math.pi * after / bins - yaw
            away, away_after = reach[b, a] / cell, reach[b, after] / cell
            x0, z0 = px + away * math.sin(one), pz - away * math.cos(one)
            x1, z1 = px + away_after * math.sin(two), pz - away_after * math.cos(two)
            if math.hypot(x1 - x0, z1 - z0) * cell <= GAP:
                join(marks[b], x0, z0, x1, z1, WALL, FREE)
