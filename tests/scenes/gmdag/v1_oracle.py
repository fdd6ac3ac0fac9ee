"""A slow, obvious look-up in a version 1 octree, one word at a time: what the files say is read with it."""

from __future__ import annotations

import numpy as np

from navi_core.scenes.gmdag.octree import leaf_distance, leaf_semantic


def v1_leaf_at(nodes: np.ndarray, resolution: int, voxel: tuple[int, int, int]) -> tuple[int, int]:
    """Descend to the leaf that holds a voxel, one word at a time: the twin every fast path is tested against.

    Args:
        nodes: Words (N,) uint64.
        resolution: Voxels along an edge.
        voxel: (x, y, z) indices.

    Returns:
        (leaf word, edge of its cell [voxel]); the word is 0 where the child is absent.
    """
    index, size = 0, resolution
    while True:
        word = int(nodes[index])
        if word >> 63:
            return word, size
        size //= 2
        bit = sum(1 << axis for axis in range(3) if voxel[axis] // size % 2)
        mask = (word >> 55) & 0xFF
        if not (mask >> bit) & 1:
            return 0, size
        rank = bin(mask & ((1 << bit) - 1)).count("1")
        index = int(nodes[(word & 0xFFFFFFFF) + rank]) & 0xFFFFFFFF


def v1_distance_at(
    nodes: np.ndarray, resolution: int, lower: np.ndarray, voxel_size: float, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Look up the stored distance at points, slowly and obviously.

    Args:
        nodes: Words (N,) uint64.
        resolution: Voxels along an edge.
        lower: Minimum corner of the cube (3,) [m].
        voxel_size: Edge of a voxel [m].
        points: Positions (P, 3) [m].

    Returns:
        Stored distance (P,) [m], NaN where a child is absent or the point lies outside; edge of the
        leaf's cell (P,) [voxel]; semantic (P,).
    """
    cells = np.floor((np.asarray(points, dtype=np.float64) - np.asarray(lower)) / voxel_size).astype(np.int64)
    distance = np.full(len(cells), np.nan)
    size = np.zeros(len(cells), dtype=np.int64)
    semantic = np.zeros(len(cells), dtype=np.int32)
    for i, cell in enumerate(cells):
        if (cell < 0).any() or (cell >= resolution).any():
            continue
        word, size[i] = v1_leaf_at(nodes, resolution, (int(cell[0]), int(cell[1]), int(cell[2])))
        if word:
            leaf = np.array([word], dtype=np.uint64)
            distance[i], semantic[i] = leaf_distance(leaf)[0], leaf_semantic(leaf)[0]
    return distance, size, semantic
