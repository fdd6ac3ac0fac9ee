"""Helpers of the scene tests: small version 1 trees and boxes with plain distances."""

from __future__ import annotations

import struct

import numpy as np

from navi_core.scenes.gmdag.octree import inner_words, leaf_words


def v1_bytes(
    nodes: np.ndarray,
    *,
    magic: bytes = b"GDAG",
    version: int = 1,
    resolution: int = 16,
    lower: tuple[float, float, float] = (0.0, 0.0, 0.0),
    voxel: float = 0.1,
    count: int | None = None,
) -> bytes:
    """Return a version 1 file of the given words, with any header."""
    header = struct.pack(
        "<4sIIffffI", magic, version, resolution, *lower, voxel, len(nodes) if count is None else count
    )
    return header + np.asarray(nodes, "<u8").tobytes()


def chain(depth: int = 4, distance: float = 0.05, semantic: int = 1) -> np.ndarray:
    """Return words of a tree with one finest leaf: `depth` inner nodes with a single child each.

    Layout: words 0…depth−1 inner, word depth the leaf, words depth+1…2·depth the child tables.
    """
    inner = [inner_words(np.array([1]), np.array([depth + 1 + k]))[0] for k in range(depth)]
    leaf = leaf_words(np.array([distance], np.float16), np.array([semantic]))[0]
    tables = [np.uint64(k + 1) for k in range(depth)]
    return np.array([*inner, leaf, *tables], dtype=np.uint64)


def box_distance(points: np.ndarray, low: tuple[float, ...], high: tuple[float, ...]) -> np.ndarray:
    """Return the unsigned distance (P,) [m] of points to the surface of a box."""
    a, b = np.array(low), np.array(high)
    outside = np.linalg.norm(np.maximum(np.maximum(a - points, points - b), 0), axis=1)
    inside = np.minimum(points - a, b - points).min(axis=1)
    return np.where(outside > 0, outside, np.abs(inside))
