"""`.gmdag` version 1, read and written exactly: header `<4sIIffffI`, then 64-bit octree words.

Header, little-endian: bytes 0–3 "GDAG", 4–7 version 1, 8–11 resolution, 12–23 minimum corner x y z
(float32) [m], 24–27 voxel size (float32) [m], 28–31 number of words; the words follow (see `octree`).

A finest-level leaf holds the unsigned distance at its voxel's minimum corner; a coarser leaf a lower
bound for its whole cell, semantic 0; an absent child holds no surface, its distance is unknown.
"""

import math
import struct
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from navi_core.errors import GmdagError, SceneError, SceneTooLargeError
from navi_core.scenes.gmdag.octree import (
    POPCOUNT,
    Words,
    child_mask,
    is_leaf,
    leaf_distance,
    leaf_semantic,
    low_index,
    ranks,
    surface_triangles,
)
from navi_core.scenes.gmdag.scene import MAGIC, Scene, frame_fault, register_writer, write_atomically
from navi_core.scenes.memory import available_memory
from navi_core.scenes.naming import UNKNOWN, UNKNOWN_NAME

MAX_UNFOLDED = 1 << 28
_PER_NODE = 1600
"""Bytes of an unfolded node while its surface becomes triangles, measured on a scanned house."""
"""Nodes that a file may describe, shared ones counted as often as they are met: a surface at 2048 has a tenth."""
HEADER = struct.Struct("<4sIIffffI")
"""Magic, version, resolution, minimum corner x y z, voxel size, number of words."""


def encode_v1(nodes: Words, resolution: int, lower: npt.ArrayLike, voxel_size: float) -> bytes:
    """Return the bytes of a version 1 file.

    Args:
        nodes: Words (N,), root first.
        resolution: Voxels along an edge.
        lower: Minimum corner of the cube (3,) [m].
        voxel_size: Edge of a voxel [m].

    Raises:
        SceneError: There are more words than 32 bits can number.
    """
    if len(nodes) >= 2**32:
        raise SceneError(f"{len(nodes)} words do not fit a version 1 file; compile at a lower resolution")
    x, y, z = (float(v) for v in np.asarray(lower))
    header = HEADER.pack(MAGIC, 1, resolution, x, y, z, voxel_size, len(nodes))
    return header + np.ascontiguousarray(nodes, dtype="<u8").tobytes()


def write_v1(scene: Scene, path: Path) -> None:
    """Write a scene as version 1, completely or not at all; triangles are sampled into an octree."""
    nodes = scene.nodes if scene.nodes is not None else sample_nodes(scene)
    write_atomically(path, encode_v1(nodes, scene.resolution, scene.bounds[0], scene.voxel_size))


def sample_nodes(scene: Scene) -> Words:
    """Build the version 1 octree of a version 2 scene; see `v1_build`."""
    from navi_core.scenes.gmdag.octree import build_v1_nodes

    if scene.triangles is None or scene.triangle_semantic is None:
        raise SceneError(f"{scene.name}: holds no triangles to sample distances from")
    return build_v1_nodes(
        scene.triangles.astype(np.float64),
        scene.triangle_semantic,
        np.asarray(scene.bounds[0], dtype=np.float32).astype(np.float64),
        float(np.float32(scene.voxel_size)),
        scene.resolution,
    )


def read_v1(data: bytes, path: Path | str | None = None) -> Scene:
    """Read a version 1 file, checking every word that can be reached.

    Non-finite distances of near-surface leaves (semantic ≠ 0), which some writers left where the true
    distance is 0, are read as 0 and counted in one `UserWarning`.

    Args:
        data: The whole file.
        path: Where it came from, for messages and the scene's name.

    Raises:
        GmdagError: The file breaks its format; byte offset and reason are named.
    """

    def refuse(reason: str, offset: int) -> GmdagError:
        return GmdagError(reason, path=path, offset=offset)

    if len(data) < HEADER.size:
        raise refuse(f"truncated: {len(data)} bytes, the header has {HEADER.size}", len(data))
    magic, version, resolution, x, y, z, voxel_size, count = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise refuse(f"wrong magic {magic!r}, expected {MAGIC!r}", 0)
    if version != 1:
        raise refuse(f"version {version} where 1 was expected", 4)
    if not 16 <= resolution <= 2048 or resolution & (resolution - 1):
        raise refuse(f"resolution {resolution} is not a power of two from 16 to 2048", 8)
    for k, value in enumerate((x, y, z)):
        if not math.isfinite(value):
            raise refuse(f"minimum corner {'xyz'[k]} is {value}: bounds must be finite", 12 + 4 * k)
    if not (math.isfinite(voxel_size) and voxel_size > 0):
        raise refuse(f"voxel size {voxel_size} must be a positive number of metres", 24)
    fault = frame_fault((x, y, z), voxel_size, resolution)
    if fault is not None:
        raise refuse(fault, 24)
    if count == 0:
        raise refuse("0 words: a root is needed", 28)
    end = HEADER.size + 8 * count
    if len(data) < end:
        raise refuse(f"truncated: {count} words need {end} bytes, {len(data)} are there", len(data))
    if len(data) > end:
        raise refuse(f"{len(data) - end} trailing bytes after {count} words", end)

    nodes = np.frombuffer(data, dtype="<u8", offset=HEADER.size).astype(np.uint64)
    levels = _check_words(nodes, resolution, path)
    unfolded = _unfolded(nodes, levels)
    if unfolded > MAX_UNFOLDED:
        raise refuse(f"{len(nodes)} words unfold into {unfolded:.2g} nodes, more than {MAX_UNFOLDED:.2g}", HEADER.size)
    _require_memory(unfolded, path)
    replaced = _mend_leaves(nodes, levels, path)
    if replaced:
        where = f"{path}: " if path is not None else ""
        warnings.warn(
            f"{where}{replaced} near-surface leaves have a non-finite distance; read as 0", UserWarning, stacklevel=2
        )
    lower = np.array([x, y, z], dtype=np.float64)
    triangles, triangle_semantic = surface_triangles(nodes, resolution, lower, voxel_size)
    bounds = np.stack([lower, lower + resolution * voxel_size])
    ids = np.unique(np.concatenate([leaf_semantic(nodes[i[is_leaf(nodes[i])]]) for i in levels]))
    names = {int(i): UNKNOWN_NAME if i == UNKNOWN else f"semantic_{i}" for i in ids if i > 0}
    return Scene(
        name=Path(path).stem if path is not None else "scene",
        resolution=resolution,
        voxel_size=voxel_size,
        bounds=bounds,
        mesh_bounds=_surface_bounds(nodes, levels, resolution, lower, voxel_size, bounds),
        semantic_names={UNKNOWN: UNKNOWN_NAME} | names,
        source_hash="",
        compile_hash="",
        verdict=None,
        version=1,
        triangles=triangles,
        triangle_semantic=triangle_semantic,
        nodes=nodes,
    )


def _require_memory(unfolded: int, path: Path | str | None) -> None:
    """Refuse an octree whose triangles would not fit; shared subtrees let a small file unfold to hundreds of GB."""
    need, have = _PER_NODE * unfolded, available_memory()
    if have is not None and need > have:
        raise SceneTooLargeError(
            f"{path or 'the octree'}: its surface needs about {need / 2**30:.1f} GiB, {have / 2**30:.1f} GiB are "
            "available; compile the mesh itself, or close other programs"
        )


def _check_words(nodes: Words, resolution: int, path: Path | str | None) -> list[npt.NDArray[np.int64]]:
    """Check every reachable word; return the distinct indices reached at each depth.

    Linear in the words per depth: a word reached many times at one depth is followed once.
    """

    def refuse(reason: str, word: int) -> GmdagError:
        return GmdagError(reason, path=path, offset=HEADER.size + 8 * int(word))

    depth_limit = resolution.bit_length() - 1
    frontier = np.zeros(1, dtype=np.int64)
    levels = []
    for depth in range(depth_limit + 1):
        levels.append(frontier)
        inner = frontier[~is_leaf(nodes[frontier])]
        if len(inner) == 0:
            break
        mask, table = child_mask(nodes[inner]), low_index(nodes[inner])
        if not mask.all():
            word = inner[np.argmin(mask != 0)]
            raise refuse(f"empty mask: word {word} is an inner node without children", word)
        beyond = table + POPCOUNT[mask] > len(nodes)
        if beyond.any():
            k = int(np.argmax(beyond))
            raise refuse(
                f"pointer out of range: word {inner[k]} has its {POPCOUNT[mask[k]]} children listed from word "
                f"{table[k]}, there are {len(nodes)}",
                inner[k],
            )
        slots = np.repeat(table, POPCOUNT[mask]) + ranks(POPCOUNT[mask])
        children = low_index(nodes[slots])
        outside = children >= len(nodes)
        if outside.any():
            k = int(np.argmax(outside))
            raise refuse(
                f"pointer out of range: word {slots[k]} names word {children[k]}, there are {len(nodes)}", slots[k]
            )
        if depth == depth_limit:
            cycle = _find_cycle(nodes)
            if cycle is not None:
                raise refuse(f"cycle: word {cycle} is among its own descendants", cycle)
            raise refuse(
                f"too deep: word {inner[0]} is an inner node below the finest level of resolution {resolution}",
                inner[0],
            )
        reached = np.zeros(len(nodes), dtype=bool)
        reached[children] = True
        frontier = np.flatnonzero(reached)
    return levels


def _unfolded(nodes: Words, levels: list[npt.NDArray[np.int64]]) -> int:
    """Return how many nodes the octree has when shared ones count as often as they are met."""
    paths = np.ones(1, dtype=np.int64)
    total = 1
    for index, below in pairwise(levels):
        inner = ~is_leaf(nodes[index])
        mask, table = child_mask(nodes[index[inner]]), low_index(nodes[index[inner]])
        count = POPCOUNT[mask]
        children = low_index(nodes[np.repeat(table, count) + ranks(count)])
        # At most eight children a node and twelve levels: 2³³ fit a float64, and so an int64, exactly.
        weight = np.repeat(paths[inner], count).astype(np.float64)
        paths = np.bincount(np.searchsorted(below, children), weight, minlength=len(below)).astype(np.int64)
        total += int(paths.sum())
    return total


def _find_cycle(nodes: Words) -> int | None:
    """Return a word that is its own descendant: depth-first search with three colours, O(N), no recursion."""
    open_word, done = 1, 2
    colour = np.zeros(len(nodes), dtype=np.int8)
    stack: list[tuple[int, int, int]] = []

    def enter(index: int) -> None:
        word = int(nodes[index])
        if word >> 63:
            colour[index] = done
            return
        table = word & 0xFFFFFFFF
        colour[index] = open_word
        stack.append((index, table, table + int(POPCOUNT[(word >> 55) & 0xFF])))

    enter(0)
    while stack:
        index, slot, end = stack.pop()
        # An invalid pointer cannot be met: every reachable word was checked before the depth ran out.
        if slot >= min(end, len(nodes)):
            colour[index] = done
            continue
        stack.append((index, slot + 1, end))
        child = int(nodes[slot]) & 0xFFFFFFFF
        if child >= len(nodes):
            continue
        if colour[child] == open_word:
            return child
        if colour[child] == 0:
            enter(child)
    return None


def _mend_leaves(nodes: Words, levels: list[npt.NDArray[np.int64]], path: Path | str | None) -> int:
    """Set non-finite near-surface distances to 0 in place; return how many there were."""
    reached = np.zeros(len(nodes), dtype=bool)
    for level in levels:
        reached[level] = True
    leaves = np.flatnonzero(reached & is_leaf(nodes))
    distance = leaf_distance(nodes[leaves]).astype(np.float32)
    semantic = leaf_semantic(nodes[leaves])
    broken = ~np.isfinite(distance)
    wrong = (broken & (semantic == 0)) | (distance < 0)
    if wrong.any():
        k = int(np.argmax(wrong))
        what = "negative" if distance[k] < 0 else "non-finite"
        raise GmdagError(
            f"{what} distance {distance[k]} in leaf word {leaves[k]} (semantic {semantic[k]})",
            path=path,
            offset=HEADER.size + 8 * int(leaves[k]),
        )
    mended = leaves[broken]
    nodes[mended] &= ~np.uint64(0xFFFF)
    return len(mended)


def _surface_bounds(
    nodes: Words,
    levels: list[npt.NDArray[np.int64]],
    resolution: int,
    lower: npt.NDArray[np.float64],
    voxel_size: float,
    bounds: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return the surface's bounds [m] from the near-surface leaves of the finest level.

    A point p at distance d from the surface proves it begins no later than p + d along each axis and
    ends no earlier than p − d; the corners that face it straight make that exact.
    """
    # Per depth, finest first: bounds of each reached word relative to its cell's minimum corner.
    low: npt.NDArray[np.float64] | None = None
    high: npt.NDArray[np.float64] | None = None
    below = np.zeros(0, dtype=np.int64)
    finest = resolution.bit_length() - 1
    for depth in range(len(levels) - 1, -1, -1):
        index = levels[depth]
        here_low = np.full((len(index), 3), np.inf)
        here_high = np.full((len(index), 3), -np.inf)
        words = nodes[index]
        leaf = is_leaf(words)
        if depth == finest:
            near = leaf & (leaf_semantic(words) > 0)
            distance = leaf_distance(words[near]).astype(np.float64)[:, None]
            here_low[near], here_high[near] = distance, -distance
        inner = np.flatnonzero(~leaf)
        if len(inner) and low is not None and high is not None:
            mask, table = child_mask(words[inner]), low_index(words[inner])
            edge = voxel_size * (resolution >> (depth + 1))
            rank = np.zeros(len(inner), dtype=np.int64)
            for octant in range(8):
                has = np.flatnonzero((mask >> octant) & 1)
                child = np.searchsorted(below, low_index(nodes[table[has] + rank[has]]))
                shift = edge * np.array([octant & 1, octant >> 1 & 1, octant >> 2 & 1])
                at = inner[has]
                here_low[at] = np.minimum(here_low[at], low[child] + shift)
                here_high[at] = np.maximum(here_high[at], high[child] + shift)
                rank[has] += 1
        low, high, below = here_low, here_high, index
    if low is None or high is None or not np.isfinite(low[0]).all():
        return bounds.copy()
    surface = np.stack([lower + low[0], lower + high[0]])
    # Without a corner straight before it a face may come out inverted by a fraction of a voxel.
    return np.stack([surface.min(axis=0), surface.max(axis=0)])


register_writer(1, write_v1)
