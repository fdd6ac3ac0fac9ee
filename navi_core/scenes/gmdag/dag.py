"""Octree DAG of a scene (sparse voxel DAG): empty leaves with skip distances, surface leaves with triangle lists.

The cube is halved until a coarse grid of at most 64³ cells is reached; below it a cell is halved while
its list is long. Equal lists and equal subtrees are stored once: found by hash, and proved equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from navi_core.kernels.octree.build import (
    CLEARANCE_STEPS,
    cell_corners,
    child_masks,
    clearances,
    coarse_lists,
    gather_children,
)
from navi_core.kernels.octree.dag import (
    COARSE_CELLS,
    EMPTY,
    INNER,
    KIND_SHIFT,
    LEVELS_BELOW,
    SURFACE,
    VALUE_MASK,
    path_counts,
)
from navi_core.kernels.octree.lists import list_hashes, lists_equal, take_lists

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt32 = npt.NDArray[np.uint32]
Float64 = npt.NDArray[np.float64]
Rows = TypeVar("Rows", Int64, UInt32)


def unique_rows(rows: Rows) -> tuple[Rows, Int64]:
    """Return the unique rows of an array in order of first occurrence, and the inverse index of each row.

    Args:
        rows: (N, K) integers.
    """
    mixed = np.zeros(len(rows), dtype=np.uint64)
    for column in range(rows.shape[1]):
        mixed = (mixed ^ rows[:, column].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    first, back = _grouped(mixed)
    if (rows[first[back]] == rows).all():
        return rows[first], back
    # Two different rows share a hash: fall back to comparing rows themselves.
    first, back = _first_seen([row.tobytes() for row in rows])
    return rows[first], back


def unique_lists(bounds: Int64, items: Int32) -> tuple[Int64, Int32, Int64]:
    """Return the unique lists of a CSR array in order of first occurrence, and the inverse index of each list.

    Args:
        bounds: (N + 1,) bounds of the lists.
        items: (M,) their items.

    Returns:
        Bounds (K + 1,) and items of the distinct lists, and (N,) which of them each list is.
    """
    first, back = _grouped(list_hashes(bounds, items))
    if not lists_equal(bounds, items, first[back]):
        pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist())
        first, back = _first_seen([items[start:end].tobytes() for start, end in pairs])
    return *take_lists(bounds, items, first), back


def _grouped(hashes: npt.NDArray[np.uint64]) -> tuple[Int64, Int64]:
    """Return the first index of each distinct value, ascending, and the inverse index (like `np.unique`)."""
    _, first, back = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[back]


def _first_seen(keys: list[bytes]) -> tuple[Int64, Int64]:
    seen: dict[bytes, int] = {}
    back = np.array([seen.setdefault(key, len(seen)) for key in keys], np.int64)
    _, first = np.unique(back, return_index=True)
    return first.astype(np.int64), back


Progress = Callable[[str, float], None]
"""Called with a stage name and the share of the work done, 0 to 1."""

_EMPTY_CHILD, _SURFACE_CHILD = -1, -2


class DagSize(NamedTuple):
    """Size of an octree: node, surface-leaf and triangle-reference counts."""

    nodes: int
    """Inner nodes, empty leaves and surface leaves."""
    surface: int
    """Surface leaves."""
    items: int
    """Triangle references in the surface leaves' lists."""


@dataclass(frozen=True, eq=False)
class Dag:
    """Sparse octree as a DAG: equal subtrees and equal triangle lists are stored once.

    Attributes:
        resolution: Voxels along an edge of the cube.
        children: (N, 8) uint32, the root first, every child behind its parents; octant x | y<<1 | z<<2.
            Bits 31–30 are the kind: 0 an empty leaf, bits 15–0 a lower bound of the distance from any of
            its points to any triangle [1/16 voxel]; 1 a surface leaf, the rest is its list's number;
            2 an inner node, the rest is its row.
        bounds: (L + 1,) int64 bounds of the lists in `items`.
        items: (M,) int32 triangles, ascending within a list.
    """

    resolution: int
    children: UInt32
    bounds: Int64
    items: Int32

    @property
    def stored(self) -> DagSize:
        """Return the size as stored, with sharing: distinct inner nodes, empty leaves and lists."""
        empty = np.unique(self.children[self.children >> KIND_SHIFT == EMPTY])
        return DagSize(len(self.children) + len(empty) + len(self.bounds) - 1, len(self.bounds) - 1, len(self.items))

    @property
    def unfolded(self) -> DagSize:
        """Return the size of the equivalent plain octree, without sharing."""
        kind, value = self.children >> KIND_SHIFT, self.children & VALUE_MASK
        paths = path_counts(self.children)
        times = np.broadcast_to(paths[:, None], kind.shape)
        surface = kind == SURFACE
        length = np.diff(self.bounds)[value[surface]]
        nodes = paths.sum() + times[kind == EMPTY].sum() + times[surface].sum()
        return DagSize(int(nodes), int(times[surface].sum()), int((times[surface] * length).sum()))


@dataclass(frozen=True)
class _Level:
    """Cells with triangles of one octree level, in Morton order, with the triangle lists of its leaves."""

    keys: Int64
    split: npt.NDArray[np.bool_]
    bounds: Int64  # of the lists of the leaves among them
    items: Int32


def levels_of(resolution: int) -> tuple[int, int]:
    """Return the octree depth of the coarse grid and the maximum depth.

    Args:
        resolution: Voxels along an edge, a power of two. The finest leaves measure half a voxel, or a
            1024th of the cube where that is more.
    """
    coarse = min(COARSE_CELLS, resolution).bit_length() - 1
    return coarse, min(coarse + LEVELS_BELOW, resolution.bit_length())


def build_dag(
    triangles: Float64,
    resolution: int,
    max_leaf: int = 16,
    progress: Progress | None = None,
    afford: Callable[[int], None] | None = None,
) -> Dag:
    """Build the octree DAG of a triangle set: build the octree, then merge equal subtrees and lists.

    A cell below the coarse grid is split while its list is longer than `max_leaf`, the finest level is not
    reached, and the split shortens lists: its children's lists together must be shorter than four times
    its own. (A ray that meets a cell meets a given child with probability a quarter; coincident sheets
    fill four children with all they have, and splitting them on would only multiply lists.)

    Args:
        triangles: (F, 3, 3) corners in voxels, inside [0, resolution]³.
        resolution: Voxels along an edge, a power of two.
        max_leaf: The longest list that is not split.
        progress: Called with the stages "tree" and "dag" and the fraction of each, 0 to 1.
        afford: Called with the entries of a level's lists before they are made; raises where they are too many.
    """
    report = progress or (lambda *_: None)
    coarse, _ = levels_of(resolution)
    levels = _distribute(triangles, resolution, max_leaf, report, afford or (lambda _: None))
    report("dag", 0.0)
    bounds, items, number = unique_lists(*_joined([(level.bounds, level.items) for level in levels]))
    report("dag", 0.3)
    finest = coarse + len(levels) - 1
    children, frames, counts = _tree(levels, coarse, finest)
    distance = np.zeros(children.shape, np.uint16)
    clearances(children, frames, CLEARANCE_STEPS * resolution >> finest, distance)
    report("dag", 0.8)
    dag = Dag(resolution, _share(children, counts, distance, number), bounds, items)
    report("dag", 1.0)
    return dag


def _distribute(
    triangles: Float64, resolution: int, max_leaf: int, report: Progress, afford: Callable[[int], None]
) -> list[_Level]:
    """Build the octree levels from the coarse grid down: cells with triangles, and the leaves' triangle lists."""
    coarse, deepest = levels_of(resolution)
    report("tree", 0.0)
    edge = resolution / 2**coarse
    keys, bounds, items = coarse_lists(triangles, 2**coarse, edge)
    levels = []
    for depth in range(coarse, deepest + 1):
        report("tree", 0.3 + 0.7 * (depth - coarse) / (deepest - coarse + 1))
        long = np.flatnonzero(np.diff(bounds) > max_leaf)
        split = np.zeros(len(keys), np.bool_)
        if depth < deepest and len(long):
            long_bounds, long_items = take_lists(bounds, items, long)
            masks = np.zeros(len(long_items), np.uint8)
            count = np.zeros((len(long), 8), np.int64)
            child_masks(triangles, cell_corners(keys[long]), edge, long_bounds, long_items, masks, count)
            gains = count.sum(axis=1) < 4 * np.diff(long_bounds)
            split[long[gains]] = True
        leaves = np.flatnonzero(~split)
        levels.append(_Level(keys, split, *take_lists(bounds, items, leaves)))
        if not split.any():
            break
        chosen = np.flatnonzero(gains)
        length = count[chosen].reshape(-1)
        end = np.cumsum(length)
        afford(int(end[-1]))
        children = np.zeros(end[-1], np.int32)
        gather_children(chosen, long_bounds, long_items, masks, (end - length).reshape(-1, 8), children)
        filled = length > 0
        keys = ((keys[long[chosen]] << 3)[:, None] | np.arange(8)).reshape(-1)[filled]
        bounds, items = np.append((end - length)[filled], end[-1]), children
        edge /= 2
    report("tree", 1.0)
    return levels


def _joined(lists: list[tuple[Int64, Int32]]) -> tuple[Int64, Int32]:
    """Concatenate several CSR lists into one."""
    shift = np.cumsum([0, *(len(items) for _, items in lists)])
    bounds = [start[1:] + offset for (start, _), offset in zip(lists, shift)]
    return np.concatenate([np.zeros(1, np.int64), *bounds]), np.concatenate([items for _, items in lists])


def _tree(levels: list[_Level], coarse: int, finest: int) -> tuple[Int32, Int32, list[int]]:
    """Link the octree levels into one plain octree of child indices, top-down.

    Returns:
        Children (N, 8): index of an inner node, −1 empty, −2 − k the k-th surface leaf; corner and edge
        (N, 4) of the inner nodes in cells of the finest level; how many inner nodes each level has.
    """
    keys, split = [levels[0].keys], [levels[0].split]
    for _ in range(coarse):
        above = keys[0] >> 3
        keys.insert(0, above[np.append(True, above[1:] != above[:-1])])
        split.insert(0, np.ones(len(keys[0]), np.bool_))
    keys += [level.keys for level in levels[1:]]
    split += [level.split for level in levels[1:]]
    counts = [int(s.sum()) for s in split]
    inner, leaf, start = 0, 0, np.cumsum([0, *counts])
    children = np.full((start[-1], 8), _EMPTY_CHILD, np.int32)
    frames = np.zeros((start[-1], 4), np.int32)
    for depth in range(len(keys)):
        mine = keys[depth][split[depth]]
        edge = 1 << finest - depth
        frames[inner : inner + len(mine), :3] = cell_corners(mine) * edge
        frames[inner : inner + len(mine), 3] = edge
        if depth + 1 < len(keys):
            below, parted = keys[depth + 1], split[depth + 1]
            parent = inner + np.searchsorted(mine, below >> 3)
            value = np.empty(len(below), np.int64)
            value[parted] = start[depth + 1] + np.arange(parted.sum())
            value[~parted] = _SURFACE_CHILD - leaf - np.arange((~parted).sum())
            leaf += int((~parted).sum())
            children[parent, below & 7] = value
        inner += len(mine)
    return children, frames, counts


def _share(children: Int32, counts: list[int], distance: npt.NDArray[np.uint16], number: Int64) -> UInt32:
    """Deduplicate equal subtrees bottom-up (octree to DAG); return the DAG's node rows (N, 8), the root first."""
    refs = np.where(children == _EMPTY_CHILD, distance, 0).astype(np.uint32)
    surface = children <= _SURFACE_CHILD
    refs[surface] = (SURFACE << KIND_SHIFT) | number[_SURFACE_CHILD - children[surface]]
    known = np.zeros((0, 8), np.uint32)
    end = len(children)
    ids = np.zeros(end, np.int64)
    for count in reversed(counts):
        begin = end - count
        inner = children[begin:end] >= 0
        refs[begin:end][inner] = (INNER << KIND_SHIFT) | ids[children[begin:end][inner]]
        known, back = unique_rows(np.concatenate([known, refs[begin:end]]))
        ids[begin:end] = back[len(back) - count :]
        end = begin
    # Rows were found bottom-up; turned round, the root is row 0 and every child stands behind its parents.
    rows = known[::-1].copy()
    inner = rows >> KIND_SHIFT == INNER
    rows[inner] = (INNER << KIND_SHIFT) | (len(rows) - 1 - (rows[inner] & VALUE_MASK))
    return rows
