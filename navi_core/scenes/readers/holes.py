"""Polygons with holes as one ring each, which `triangulate` can cut: a seam joins every hole to the outline."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError

_MAX_CORNERS = 1024
"""Corners of outline and holes together: the work may grow with their cube."""

Ring = npt.NDArray[np.int64]
Plane = npt.NDArray[np.float64]


def join_holes(points: npt.NDArray[np.float64], outline: Ring, holes: Sequence[Ring]) -> Ring:
    """Return one ring of vertices that goes around the outline and, over seams, around every hole the other way.

    Args:
        points: Positions (V, 3); every vertex of the rings is one.
        outline: Vertices of the outline, at least three.
        holes: Vertices of the holes; those of fewer than three are left out.

    Raises:
        MeshError: There are too many corners.
    """
    holes = [hole for hole in holes if len(hole) >= 3]
    count = len(outline) + sum(map(len, holes))
    if count > _MAX_CORNERS:
        raise MeshError(f"a polygon with holes of {count} corners, more than {_MAX_CORNERS}; export triangles")
    # Of a file's points only its own: a façade has a thousand such polygons.
    own = np.concatenate([outline, *holes])
    points = points[own]
    outline, *holes = np.split(np.arange(count), np.cumsum([len(outline), *map(len, holes)])[:-1])
    # The plane in which the outline is largest, as the triangulation takes it.
    corners = points[outline] - points[outline[0]]
    normal = np.cross(corners[1:-1], corners[2:]).sum(axis=0)
    flat = np.delete(points, int(np.argmax(np.abs(normal))), axis=1)
    turn = _area(flat[outline])
    ring = outline
    rest = [hole if _area(flat[hole]) * turn < 0 else hole[::-1] for hole in holes]
    # From one side to the other, so that no seam has to cross a hole that is not joined yet.
    rest.sort(key=lambda hole: -float(flat[hole, 0].max()))
    while rest:
        hole = rest.pop(0)
        start = int(np.argmax(flat[hole, 0]))
        hole = np.roll(hole, -start)
        at = _seam(flat, ring, hole, rest, turn)
        ring = np.concatenate([ring[: at + 1], hole, hole[:1], ring[at:]])
    return own[ring]


def _area(ring: Plane) -> float:
    after = np.roll(ring, -1, axis=0)
    return float((ring[:, 0] * after[:, 1] - ring[:, 1] * after[:, 0]).sum())


def _seam(flat: Plane, ring: Ring, hole: Ring, others: Sequence[Ring], turn: float) -> int:
    """Return the place in the ring nearest to a hole's first corner that can be seen from there."""
    sides = [(flat[line], np.roll(flat[line], -1, axis=0)) for line in (ring, hole, *others)]
    begin, end = (np.concatenate(ends) for ends in zip(*sides, strict=True))
    eye = flat[hole[0]]
    order = np.argsort(((flat[ring] - eye) ** 2).sum(axis=1), kind="stable").tolist()
    for at in order:
        target = flat[ring[at]]
        before, after = flat[ring[at - 1]], flat[ring[(at + 1) % len(ring)]]
        # A corner of a seam is there twice; only one of the two looks to where the hole is.
        if not _looks(before, target, after, eye, turn):
            continue
        side = _side(eye, target, begin)
        crossed = (side * _side(eye, target, end) < 0) & (_side(begin, end, eye) * _side(begin, end, target) < 0)
        touched = (side == 0) & (((begin - eye) * (begin - target)).sum(axis=1) < 0)
        if not (crossed | touched).any():
            return at
    return order[0]


def _looks(before: Plane, corner: Plane, after: Plane, target: Plane, turn: float) -> bool:
    """Return whether the way from a corner to a target begins inside the surface."""
    left, right = _side(corner, target, before) * turn >= 0, _side(corner, target, after) * turn <= 0
    return bool(left and right if _side(before, corner, after) * turn >= 0 else left or right)


def _side(a: Plane, b: Plane, c: Plane) -> Plane:
    """Return on which side of the line from a to b a point c lies."""
    return (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
