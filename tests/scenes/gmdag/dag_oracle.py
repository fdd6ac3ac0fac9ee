"""A slow, plain reading of an octree DAG, and an overlap test by clipping: what the fast ones are judged by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

EMPTY, SURFACE, INNER = 0, 1, 2


def leaves(dag) -> Iterator[tuple[int, np.ndarray, float, int, int]]:
    """Yield every leaf of the unfolded tree: (kind, corner [voxel], edge [voxel], value, level)."""
    stack = [(0, np.zeros(3), float(dag.resolution), 0)]
    while stack:
        row, corner, edge, level = stack.pop()
        for octant in range(8):
            ref = int(dag.children[row, octant])
            half = edge / 2
            at = corner + half * np.array([octant & 1, octant >> 1 & 1, octant >> 2])
            if ref >> 30 == INNER:
                stack.append((ref & (1 << 30) - 1, at, half, level + 1))
            else:
                yield ref >> 30, at, half, ref & (1 << 30) - 1, level + 1


def members(dag, number: int) -> list[int]:
    """Return the triangles of a list."""
    return dag.items[dag.bounds[number] : dag.bounds[number + 1]].tolist()


def leaf_at(dag, point: np.ndarray) -> tuple[int, int]:
    """Return (kind, value) of the leaf that holds a point [voxel]."""
    row, corner, edge = 0, np.zeros(3), float(dag.resolution)
    while True:
        edge /= 2
        high = point >= corner + edge
        ref = int(dag.children[row, int(high @ [1, 2, 4])])
        corner = corner + edge * high
        if ref >> 30 != INNER:
            return ref >> 30, ref & (1 << 30) - 1
        row = ref & (1 << 30) - 1


def clips(triangle: np.ndarray, low: np.ndarray, high: np.ndarray) -> bool:
    """Tell whether any of a triangle is left when it is cut by the six planes of a box (Sutherland and Hodgman)."""
    polygon = list(np.asarray(triangle, float))
    for axis in range(3):
        for sign, bound in ((1.0, high[axis]), (-1.0, -low[axis])):
            kept: list[np.ndarray] = []
            for p, q in zip(polygon, polygon[1:] + polygon[:1]):
                a, b = sign * p[axis] - bound, sign * q[axis] - bound
                if a <= 0:
                    kept.append(p)
                if (a < 0 < b) or (b < 0 < a):
                    kept.append(p + (q - p) * (a / (a - b)))
            polygon = kept
            if not polygon:
                return False
    return True
