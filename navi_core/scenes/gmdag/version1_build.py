"""Building a version 1 octree from triangles: distances near surfaces only, equal subtrees shared.

Never a dense grid: the work is proportional to the surface. The finest leaves are the voxels that the
surface passes through and those that share such a voxel's corners, so that all eight corner distances
of every surface voxel are in the file.
"""

import numpy as np
import numpy.typing as npt

from navi_core.kernels import TriangleBVH, surface_voxels
from navi_core.scenes.gmdag.dedup import unique_rows
from navi_core.scenes.gmdag.octree import POPCOUNT, Words, inner_words, leaf_words, morton, positions

Int64 = npt.NDArray[np.int64]
_OCTANTS = np.array([[o & 1, o >> 1 & 1, o >> 2 & 1] for o in range(8)], dtype=np.int64)
_ABSENT = -1


def build_v1_nodes(
    triangles: npt.NDArray[np.float64],
    triangle_semantic: npt.NDArray[np.int32],
    lower: npt.NDArray[np.float64],
    voxel_size: float,
    resolution: int,
) -> Words:
    """Return the words (N,) of the version 1 octree of a triangle set.

    Args:
        triangles: Corners (F, 3, 3) [m].
        triangle_semantic: Ids (F,), 1–65535.
        lower: Minimum corner of the cube (3,) [m].
        voxel_size: Edge of a voxel [m].
        resolution: Voxels along an edge, a power of two.
    """
    bvh = TriangleBVH(triangles)
    keys = _finest_keys(surface_voxels(triangles, lower, voxel_size, resolution), resolution)
    distance, nearest = bvh.closest(lower + positions(keys) * voxel_size)
    words = leaf_words(distance.astype(np.float16), triangle_semantic[nearest])

    # Node ids: leaves and inner nodes share one numbering; each is stored once.
    leaves, ids = np.unique(words, return_inverse=True)
    leaf_list, ids = [leaves], ids.astype(np.int64)
    leaf_index = {int(word): k for k, word in enumerate(leaves)}
    inner_children: list[Int64] = []
    inner_count = 0
    edge = 1
    while edge < resolution:
        # Morton keys: the low three bits are the octant, the rest is the parent.
        parents, slot = np.unique(keys >> 3, return_inverse=True)
        children = np.full((len(parents), 8), _ABSENT, dtype=np.int64)
        children[slot, keys & 7] = ids
        if edge > 1:
            _add_empty_leaves(children, parents, edge, bvh, lower, voxel_size, leaf_list, leaf_index)
        unique, back = unique_rows(children)
        # Inner nodes are numbered from −2 downwards until the number of leaves is known.
        ids = -2 - (inner_count + back)
        inner_children.append(unique)
        inner_count += len(unique)
        keys = parents
        edge *= 2
    return _lay_out(inner_children, np.concatenate(leaf_list))


def _finest_keys(voxels: npt.NDArray[np.int32], resolution: int) -> Int64:
    """Return the sorted Morton keys of the surface voxels and of those that share their corners."""
    found = _sorted_unique(morton(voxels.astype(np.int64)))
    grown = [found]
    for offset in _OCTANTS[1:]:
        moved = voxels + offset.astype(np.int32)
        grown.append(morton(moved[(moved < resolution).all(axis=1)].astype(np.int64)))
    return _sorted_unique(np.concatenate(grown))


def _sorted_unique(keys: Int64) -> Int64:
    """Return the distinct keys in order; sorting beats the hash table `np.unique` uses for plain calls."""
    keys = np.sort(keys)
    distinct: Int64 = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    return distinct


def _add_empty_leaves(
    children: Int64,
    parents: Int64,
    edge: int,
    bvh: TriangleBVH,
    lower: npt.NDArray[np.float64],
    voxel_size: float,
    leaf_list: list[Words],
    leaf_index: dict[int, int],
) -> None:
    """Put leaves with a lower bound of the distance where a cell of `edge` voxels holds no finest leaf."""
    row, octant = np.nonzero(children == _ABSENT)
    if len(row) == 0:
        return
    # The distance changes by at most the distance walked: a bound from the centre loses half a diagonal,
    # one from the eight subcell centres half of that. Small cells are many, and skipping them gains little.
    split = 1 if edge < 8 else 2
    part = edge * voxel_size / split
    bound = np.full(len(row), np.inf)
    corner = lower + positions((parents[row] << 3) | octant) * (edge * voxel_size)
    for offset in _OCTANTS[: split**3]:
        distance, _ = bvh.closest(corner + (offset + 0.5) * part)
        bound = np.minimum(bound, distance)
    bound = np.maximum(bound - np.sqrt(3.0) / 2 * part, 0.0)
    words, back = np.unique(leaf_words(_round_down(bound), np.zeros(len(bound), dtype=np.int64)), return_inverse=True)
    new = [int(word) for word in words if int(word) not in leaf_index]
    for word in new:
        leaf_index[word] = len(leaf_index)
    leaf_list.append(np.array(new, dtype=np.uint64))
    children[row, octant] = np.array([leaf_index[int(word)] for word in words], dtype=np.int64)[back]


def _round_down(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float16]:
    """Return the largest fp16 not above each non-negative value: a lower bound must stay one."""
    half = np.minimum(values, 65504.0).astype(np.float16)
    return np.where(half.astype(np.float64) > values, np.nextafter(half, np.float16(0)), half)


def _lay_out(inner_children: list[Int64], leaves: Words) -> Words:
    """Number the nodes (root, inner nodes coarse to fine, leaves) and append the child tables."""
    # Bottom-up numbers become top-down ones, so that the root, built last, is word 0.
    children = np.concatenate(inner_children)[::-1]
    inner = len(children)
    present = children != _ABSENT
    target = np.where(children <= -2, inner - 1 - (-2 - children), children + inner)
    mask = (present << np.arange(8)).sum(axis=1)
    count = POPCOUNT[mask]
    table = inner + len(leaves) + np.cumsum(count) - count
    return np.concatenate([inner_words(mask, table), leaves, target[present].astype(np.uint64)])
