"""Codec of version 1 octrees: word packing, construction from triangles, surface extraction.

Inner word: bit 63 = 0, child mask in bits 62–55, low 32 bits = index of the first of popcount(mask)
words whose low 32 bits are child indices. Leaf word: bit 63 = 1, semantic in bits 31–16, fp16 distance
[m] in bits 15–0. Octant = x | y<<1 | z<<2. Word 0 is the root.

`build_v1_nodes` stores distances near surfaces only and shares equal subtrees; its work is proportional to the surface.
The finest leaves are the voxels that the surface passes through and those that share such a voxel's corners, so that
all eight corner distances of every surface voxel are in the file. `surface_triangles` is the reverse: it extracts the
surface that the distances describe, so that one ray tracer serves both versions.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from navi_core.kernels import TriangleBVH, surface_voxels
from navi_core.kernels.octree.voxel_surface import Float32, fit_planes, gap_faces, plane_areas, plane_triangles
from navi_core.scenes.gmdag.dag import Float64, Int32, Int64, unique_rows

Words = npt.NDArray[np.uint64]

LEAF_BIT = np.uint64(1 << 63)
POPCOUNT = np.array([bin(mask).count("1") for mask in range(256)], dtype=np.int64)
"""Children of each mask."""


def is_leaf(words: Words) -> npt.NDArray[np.bool_]:
    """Return the mask of the words that are leaves."""
    leaf: npt.NDArray[np.bool_] = (words & LEAF_BIT) != 0
    return leaf


def child_mask(words: Words) -> npt.NDArray[np.int64]:
    """Return the child masks (8-bit, 0–255) of inner words."""
    return ((words >> np.uint64(55)) & np.uint64(0xFF)).astype(np.int64)


def low_index(words: Words) -> npt.NDArray[np.int64]:
    """Return the low 32 bits of words: the child table of an inner word, the child of a table word."""
    return (words & np.uint64(0xFFFFFFFF)).astype(np.int64)


def leaf_semantic(words: Words) -> npt.NDArray[np.int32]:
    """Return the semantic id of leaf words; 0 away from surfaces."""
    return ((words >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.int32)


def leaf_distance(words: Words) -> npt.NDArray[np.float16]:
    """Return the surface distance of leaf words [m], fp16 as stored."""
    return (words & np.uint64(0xFFFF)).astype(np.uint16).view(np.float16)


def leaf_words(distance: npt.NDArray[np.float16], semantic: npt.NDArray[np.integer]) -> Words:
    """Pack leaf words from fp16 surface distances [m] and semantic ids 0–65535."""
    bits = np.ascontiguousarray(distance, dtype=np.float16).view(np.uint16).astype(np.uint64)
    return LEAF_BIT | (np.asarray(semantic).astype(np.uint64) << np.uint64(16)) | bits


def inner_words(mask: npt.NDArray[np.integer], table: npt.NDArray[np.integer]) -> Words:
    """Pack inner words from child masks 1–255 and indices of their child tables."""
    return (np.asarray(mask).astype(np.uint64) << np.uint64(55)) | np.asarray(table).astype(np.uint64)


def child_slots(inner: Words) -> Int64:
    """Return the array indices of the child words of inner nodes, node by node."""
    count = POPCOUNT[child_mask(inner)]
    rank = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(low_index(inner), count) + rank  # type: ignore[no-any-return]


def morton(voxels: Int64) -> Int64:
    """Encode voxel indices (N, 3) below 2¹¹ as Morton keys: octant x | y<<1 | z<<2 in every group of three bits."""
    key = np.zeros(len(voxels), dtype=np.int64)
    for axis in range(3):
        key |= _spread(voxels[:, axis]) << axis
    return key


_MASKS = (0x1249249249249249, 0x10C30C30C30C30C3, 0x100F00F00F00F00F, 0x1F0000FF0000FF, 0x1F00000000FFFF, 0x1FFFFF)
"""Bits that a Morton key's coordinate occupies, from one in three to all together."""
_SHIFTS = (2, 4, 8, 16, 32)


def _spread(value: Int64) -> Int64:
    for shift, mask in zip(reversed(_SHIFTS), reversed(_MASKS[:-1])):
        value = (value | value << shift) & mask
    return value


def positions(keys: Int64) -> Int64:
    """Decode Morton keys into (N, 3) cell indices."""
    return np.stack([_gather(keys >> axis) for axis in range(3)], axis=1)


def _gather(value: Int64) -> Int64:
    value = value & _MASKS[0]
    for shift, mask in zip(_SHIFTS, _MASKS[1:]):
        value = (value | value >> shift) & mask
    return value


HIT_DISTANCE = 0.5005
"""A corner at most this far from the surface counts as surface [voxel]; the excess covers fp16 rounding."""
NEAR = 1.74
"""A voxel holds a surface only where all corners are at most its diagonal away [voxel]."""
MERGE_TOLERANCE = 0.01
"""Planes of neighbouring cubes that differ by less at their corners [voxel] become one."""


_OCTANTS = np.array([[o & 1, o >> 1 & 1, o >> 2 & 1] for o in range(8)], dtype=np.int64)


def surface_triangles(
    key: Int64, word: Words, resolution: int, lower: Float64, voxel_size: float
) -> tuple[Float32, Int32]:
    """Extract the surface mesh of a validated octree; leaves of semantic id 0 are empty space.

    Args:
        key: Morton keys of its finest leaves (N,), ascending; see `finest_leaves`.
        word: Their words (N,).
        resolution: Voxels along an edge.
        lower: Minimum corner of the cube (3,) [m].
        voxel_size: Edge of a voxel [m].

    Returns:
        Corners (F, 3, 3) float32 [m] and semantic ids (F,).
    """
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
        _emitted(gap_faces, key[near[~flat]], semantic[nearest[near[~flat]]], corners[near[~flat]], 1),
        _blocks(key, distance, semantic, known),
    ]
    ids = np.concatenate([ids for _, ids in pieces])
    inside = np.clip(np.concatenate([piece for piece, _ in pieces])[ids > 0], 0, resolution)
    return (inside * voxel_size + lower).astype(np.float32), ids[ids > 0]


def finest_leaves(nodes: Words, resolution: int) -> tuple[Int64, Words]:
    """Return the Morton keys, ascending, and words of the voxel-sized leaves.

    Args:
        nodes: Words of a checked octree (N,), root first.
        resolution: Voxels along an edge.
    """
    index, key, edge = np.zeros(1, np.int64), np.zeros(1, np.int64), resolution
    while edge > 1:
        inner = ~is_leaf(nodes[index])
        words = nodes[index[inner]]
        row, octant = np.nonzero(child_mask(words)[:, None] >> np.arange(8) & 1)
        key = key[inner][row] << 3 | octant
        index = low_index(nodes[child_slots(words)])
        edge //= 2
    leaf = is_leaf(nodes[index])
    return key[leaf], nodes[index[leaf]]


def _corner_distances(key: Int64, distance: Float32, resolution: int) -> tuple[Float32, Int64]:
    """Return the (N, 8) surface distances at voxel corners, NaN where unknown, and the leaf of the smallest."""
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


def _look_up(key: Int64, wanted: Int64) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Binary-search keys in a sorted key array: return the indices and the mask of keys that were found."""
    found = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return found, key[found] == wanted if len(key) else np.zeros(len(wanted), np.bool_)


def _planes(key: Int64, planes: Float64, semantic: Int32) -> tuple[Float64, Int32]:
    """Extract triangles [voxel] and ids of voxels with a fitted plane; a plane shared by eight cubes is cut once."""
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


def _blocks(key: Int64, distance: Float32, semantic: Int32, known: npt.NDArray[np.bool_]) -> tuple[Float64, Int32]:
    """Extract voxel-sized cubes (triangles [voxel], ids) for files that lack some corners of surface voxels.

    Each such corner becomes a cube of one voxel, so that no ray passes between two. Corners of voxels with all eight
    distances are skipped: there the voxel itself holds the surface.
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
    """Run a mesh-extraction kernel over cubes of `edge` voxels; return triangles [voxel] and their semantic ids."""
    triangles, owner = np.empty((0, 3, 3), np.float32), np.empty(0, np.int64)
    count = emit(shapes, edge, triangles, owner)
    triangles, owner = np.empty((count, 3, 3), np.float32), np.empty(count, np.int64)
    emit(shapes, edge, triangles, owner)
    corners: Float64 = triangles.astype(np.float64) + (positions(key[owner]) * edge)[:, None, :]
    return corners, semantic[owner]


_ABSENT = -1


def build_v1_nodes(
    triangles: npt.NDArray[np.float64],
    triangle_semantic: npt.NDArray[np.int32],
    lower: npt.NDArray[np.float64],
    voxel_size: float,
    resolution: int,
) -> Words:
    """Build the version 1 octree of a triangle set as its 64-bit words (N,).

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
    """Return the sorted Morton keys of the surface voxels and of their corner-sharing neighbours."""
    found = _sorted_unique(morton(voxels.astype(np.int64)))
    grown = [found]
    for offset in _OCTANTS[1:]:
        moved = voxels + offset.astype(np.int32)
        grown.append(morton(moved[(moved < resolution).all(axis=1)].astype(np.int64)))
    return _sorted_unique(np.concatenate(grown))


def _sorted_unique(keys: Int64) -> Int64:
    """Return the sorted unique keys; sorting is faster here than the hash table of plain `np.unique`."""
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
    """Add empty leaves with a lower bound of the distance for cells of `edge` voxels without a finest leaf."""
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
    """Round non-negative values down to fp16, so that a lower bound stays a lower bound."""
    half = np.minimum(values, 65504.0).astype(np.float16)
    return np.where(half.astype(np.float64) > values, np.nextafter(half, np.float16(0)), half)


def _lay_out(inner_children: list[Int64], leaves: Words) -> Words:
    """Serialise the octree into words: root, inner nodes coarse to fine, leaves, then the child tables."""
    # Bottom-up numbers become top-down ones, so that the root, built last, is word 0.
    children = np.concatenate(inner_children)[::-1]
    inner = len(children)
    present = children != _ABSENT
    target = np.where(children <= -2, inner - 1 - (-2 - children), children + inner)
    mask = (present << np.arange(8)).sum(axis=1)
    count = POPCOUNT[mask]
    table = inner + len(leaves) + np.cumsum(count) - count
    return np.concatenate([inner_words(mask, table), leaves, target[present].astype(np.uint64)])
