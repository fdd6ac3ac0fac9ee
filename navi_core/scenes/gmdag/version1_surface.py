"""Triangles of a version 1 octree: the surface that its distances describe, so that one tracer casts all rays."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from navi_core.kernels.octree.voxel_surface import fit_planes, gap_faces, plane_areas, plane_triangles
from navi_core.scenes.gmdag.octree import (
    POPCOUNT,
    Words,
    child_mask,
    is_leaf,
    leaf_distance,
    leaf_semantic,
    low_index,
    morton,
    positions,
    ranks,
)

HIT_DISTANCE = 0.5005
"""A corner at most this far from the surface counts as surface [voxel]; the excess covers fp16 rounding."""
NEAR = 1.74
"""A voxel holds a surface only where all corners are at most its diagonal away [voxel]."""
MERGE_TOLERANCE = 0.01
"""Planes of neighbouring cubes that differ by less at their corners [voxel] become one."""

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_OCTANTS = np.array([[o & 1, o >> 1 & 1, o >> 2 & 1] for o in range(8)], dtype=np.int64)


def surface_triangles(nodes: Words, resolution: int, lower: Float64, voxel_size: float) -> tuple[Float32, Int32]:
    """Return the triangles of a checked octree's surface; leaves of semantic id 0 are empty space.

    Args:
        nodes: Words (N,), root first.
        resolution: Voxels along an edge.
        lower: Minimum corner of the cube (3,) [m].
        voxel_size: Edge of a voxel [m].

    Returns:
        Corners (F, 3, 3) float32 [m] and semantic ids (F,).
    """
    key, word = _finest_leaves(nodes, resolution)
    distance = leaf_distance(word).astype(np.float32) / np.float32(voxel_size)
    semantic = leaf_semantic(word)
    corners, nearest = _corner_distances(key, distance, resolution)
    known: npt.NDArray[np.bool_] = np.all(np.isfinite(corners), axis=1)
    near = np.flatnonzero(known & (corners.max(axis=1, initial=0.0) < NEAR))
    planes = np.empty((len(near), 4))
    fit_planes(corners[near], planes)
    flat = np.isfinite(planes[:, 0])
    pieces = [
        _planes(key[near[flat]], planes[flat], semantic[nearest[near[flat]]]),
        _gaps(key[near[~flat]], corners[near[~flat]], semantic[nearest[near[~flat]]]),
        _blocks(key, distance, semantic, known),
    ]
    ids = np.concatenate([ids for _, ids in pieces])
    inside = np.clip(np.concatenate([piece for piece, _ in pieces])[ids > 0], 0, resolution)
    return (inside * voxel_size + lower).astype(np.float32), ids[ids > 0]


def _finest_leaves(nodes: Words, resolution: int) -> tuple[Int64, Words]:
    """Return the Morton keys, ascending, and words of the leaves of single voxels."""
    index, key, edge = np.zeros(1, np.int64), np.zeros(1, np.int64), resolution
    while edge > 1:
        inner = ~is_leaf(nodes[index])
        mask, table = child_mask(nodes[index[inner]]), low_index(nodes[index[inner]])
        row, octant = np.nonzero(mask[:, None] >> np.arange(8) & 1)
        key = key[inner][row] << 3 | octant
        index = low_index(nodes[table[row] + ranks(POPCOUNT[mask])])
        edge //= 2
    leaf = is_leaf(nodes[index])
    return key[leaf], nodes[index[leaf]]


def _corner_distances(key: Int64, distance: Float32, resolution: int) -> tuple[Float32, Int64]:
    """Return the (N, 8) distances at the corners of voxels, NaN where unknown, and the leaf of the least."""
    place = positions(key)
    corners = np.full((len(key), 8), np.nan, np.float32)
    least, nearest = np.full(len(key), np.inf, np.float32), np.arange(len(key))
    for c in range(8):
        at = place + _OCTANTS[c]
        inside = np.flatnonzero((at < resolution).all(axis=1))
        leaf, there = _look_up(key, morton(at[inside]))
        row, leaf = inside[there], leaf[there]
        corners[row, c] = distance[leaf]
        nearer = row[distance[leaf] < least[row]]
        nearest[nearer] = leaf[distance[leaf] < least[row]]
        least[nearer] = distance[nearest[nearer]]
    return corners, nearest


def _look_up(key: Int64, wanted: Int64) -> tuple[Int64, Bool]:
    """Return where ascending keys hold those wanted, and which are there."""
    found = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return found, key[found] == wanted if len(key) else np.zeros(len(wanted), np.bool_)


def _planes(key: Int64, planes: Float64, semantic: Int32) -> tuple[Float64, Int32]:
    """Return triangles [voxel] and ids of voxels that a plane fits; a plane that eight cubes share is cut once."""
    done: list[tuple[Float64, Int32]] = [(np.empty((0, 3, 3)), np.empty(0, np.int32))]
    area = np.empty(len(key))
    plane_areas(planes, 1.0, area)
    there = area > 0.0
    key, planes, semantic, area = key[there], planes[there], semantic[there], area[there]
    edge = 1
    while len(key):
        parent, first, group = np.unique(key >> 3, return_index=True, return_inverse=True)
        shift = _OCTANTS[key & 7] * edge
        moved = planes.copy()
        moved[:, 3] += (planes[:, :3] * shift).sum(axis=1)
        moved *= np.where((moved[:, :3] * moved[first[group], :3]).sum(axis=1) < 0.0, -1.0, 1.0)[:, None]
        sums = [np.bincount(group, moved[:, a] * area) for a in range(4)]
        mean: Float64 = np.stack(sums, axis=1).astype(np.float64, copy=False)
        mean = mean / np.linalg.norm(mean[:, :3], axis=1, keepdims=True)
        off = moved - mean[group]
        apart = np.abs(((shift[:, None] + _OCTANTS * edge) * off[:, None, :3]).sum(axis=2) - off[:, 3:]).max(axis=1)
        alike = (apart <= MERGE_TOLERANCE) & (semantic == semantic[first[group]])
        whole = np.empty(len(parent))
        plane_areas(mean, 2.0 * edge, whole)
        # Equal areas: no part of the larger cube's piece is without a surface.
        merged = (np.bincount(group, alike) == np.bincount(group)) & (whole <= 1.002 * np.bincount(group, area))
        left = ~merged[group]
        done.append(_emitted(plane_triangles, key[left], semantic[left], planes[left], edge))
        key, planes, semantic, area = parent[merged], mean[merged], semantic[first[merged]], whole[merged]
        edge *= 2
    return np.concatenate([piece for piece, _ in done]), np.concatenate([ids for _, ids in done])


def _gaps(key: Int64, corners: Float32, semantic: Int32) -> tuple[Float64, Int32]:
    """Return triangles [voxel] and ids in the voxels that no plane fits."""
    return _emitted(gap_faces, key, semantic, np.ascontiguousarray(corners), 1)


def _blocks(key: Int64, distance: Float32, semantic: Int32, known: Bool) -> tuple[Float64, Int32]:
    """Return triangles [voxel] and ids of surface corners in files that do not keep all corners of surface voxels.

    A cube of one voxel stands around each such corner: no ray passes between two. A corner of a voxel that has all
    corners stands for nothing, for that voxel holds the surface.
    """
    row = np.flatnonzero(~known & (distance <= HIT_DISTANCE))
    place = positions(key[row])
    lone = np.ones(len(row), np.bool_)
    for offset in _OCTANTS[1:]:
        at = place - offset
        inside = np.flatnonzero((at >= 0).all(axis=1))
        leaf, there = _look_up(key, morton(at[inside]))
        lone[inside[there & known[leaf]]] = False
    row, place = row[lone], place[lone]
    faces = np.array([[0, 1, 3], [0, 3, 2], [4, 5, 7], [4, 7, 6], [0, 1, 5], [0, 5, 4],
                      [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 3, 7], [1, 7, 5]])  # fmt: skip
    cube = (_OCTANTS - 0.5)[faces]
    return (place[:, None, None, None] + cube).reshape(-1, 3, 3), np.repeat(semantic[row], len(faces))


def _emitted(
    emit: Callable[..., int], key: Int64, semantic: Int32, shapes: npt.NDArray[np.floating], edge: int
) -> tuple[Float64, Int32]:
    """Return the triangles [voxel] that a kernel makes of the shapes in cubes of `edge` voxels, and their ids."""
    triangles, owner = np.empty((0, 3, 3), np.float32), np.empty(0, np.int64)
    count = emit(shapes, edge, triangles, owner)
    triangles, owner = np.empty((count, 3, 3), np.float32), np.empty(count, np.int64)
    emit(shapes, edge, triangles, owner)
    corners: Float64 = triangles.astype(np.float64) + (positions(key[owner]) * edge)[:, None, :]
    return corners, semantic[owner]
