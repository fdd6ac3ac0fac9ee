"""Reader and writer of `.gmdag` version 1, exact to the byte: header, then 64-bit octree words (see `octree`).

A finest-level leaf holds the unsigned distance at its voxel's minimum corner; a coarser leaf a lower
bound for its whole cell, semantic 0; an absent child holds no surface, its distance is unknown.
"""

import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from navi_core.errors import GmdagError, SceneError
from navi_core.scenes.gmdag.dag import Float64, Int64
from navi_core.scenes.gmdag.octree import (
    POPCOUNT,
    Words,
    build_v1_nodes,
    child_mask,
    child_slots,
    finest_leaves,
    is_leaf,
    leaf_distance,
    leaf_semantic,
    low_index,
    positions,
    surface_triangles,
)
from navi_core.scenes.gmdag.scene import HEADER, MAGIC, Scene, write_atomically
from navi_core.scenes.memory import require_memory
from navi_core.scenes.naming import UNKNOWN, UNKNOWN_NAME

MAX_UNFOLDED = 1 << 28
"""Nodes that a file may describe, shared ones counted as often as they are met: a surface at 2048 has a tenth."""
_PER_NODE = 1600
"""Bytes of an unfolded node while its surface becomes triangles, measured on a scanned house."""


def encode_v1(nodes: Words, resolution: int, lower: npt.ArrayLike, voxel_size: float) -> bytes:
    """Encode octree words as the bytes of a version 1 file.

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
    header = HEADER.pack(MAGIC, 1, resolution, *np.asarray(lower).tolist(), voxel_size, len(nodes))
    return header + np.ascontiguousarray(nodes, dtype="<u8").tobytes()


def write_v1(scene: Scene, path: Path) -> None:
    """Write a scene as a version 1 file, atomically; triangles are sampled into a distance octree."""
    nodes = scene.nodes
    if nodes is None:
        if scene.triangles is None or scene.triangle_semantic is None:
            raise SceneError(f"{scene.name}: holds no triangles to sample distances from")
        nodes = build_v1_nodes(
            scene.triangles.astype(np.float64),
            scene.triangle_semantic,
            np.asarray(scene.bounds[0], dtype=np.float32).astype(np.float64),
            float(np.float32(scene.voxel_size)),
            scene.resolution,
        )
    write_atomically(path, encode_v1(nodes, scene.resolution, scene.bounds[0], scene.voxel_size))


def read_v1(data: bytes, path: Path | str, resolution: int, lower: Float64, voxel_size: float, count: int) -> Scene:
    """Decode a version 1 file into a scene and validate every reachable octree word.

    Non-finite distances of near-surface leaves (semantic ≠ 0), which some writers left where the true
    distance is 0, are read as 0 and counted in one `UserWarning`.

    Args:
        data: The whole file.
        path: Where it came from, for messages and the scene's name.
        resolution: Voxels along an edge.
        lower: Minimum corner of the cube (3,) [m].
        voxel_size: Edge of a voxel [m].
        count: Number of words.

    Raises:
        GmdagError: A size, a word or a distance is impossible.
    """
    if count == 0:
        raise GmdagError("0 words: a root is needed", offset=28)
    end = HEADER.size + 8 * count
    if len(data) < end:
        raise GmdagError(f"truncated: {count} words need {end} bytes, {len(data)} are there", offset=len(data))
    if len(data) > end:
        raise GmdagError(f"{len(data) - end} trailing bytes after {count} words", offset=end)
    nodes = np.frombuffer(data, dtype="<u8", offset=HEADER.size).astype(np.uint64)
    levels = _check_words(nodes, resolution)
    unfolded = _unfolded(nodes, levels)
    if unfolded > MAX_UNFOLDED:
        raise GmdagError(
            f"{count} words unfold into {unfolded:.2g} nodes, more than {MAX_UNFOLDED:.2g}", offset=HEADER.size
        )
    # Shared subtrees let a small file unfold to hundreds of GB.
    require_memory(f"{path}: its surface", _PER_NODE * unfolded, "compile the mesh itself")
    reached = np.unique(np.concatenate(levels))
    leaves = reached[is_leaf(nodes[reached])]
    mended = _mend_leaves(nodes, leaves)
    if mended:
        warnings.warn(
            f"{path}: {mended} near-surface leaves have a non-finite distance; read as 0", UserWarning, stacklevel=3
        )
    key, word = finest_leaves(nodes, resolution)
    triangles, triangle_semantic = surface_triangles(key, word, resolution, lower, voxel_size)
    bounds = np.stack([lower, lower + resolution * voxel_size])
    ids = np.unique(leaf_semantic(nodes[leaves])).tolist()
    return Scene(
        name=Path(path).stem,
        resolution=resolution,
        voxel_size=voxel_size,
        bounds=bounds,
        mesh_bounds=_surface_bounds(key, word, lower, voxel_size, bounds),
        semantic_names={i: UNKNOWN_NAME if i == UNKNOWN else f"semantic_{i}" for i in sorted({UNKNOWN, *ids} - {0})},
        source_hash="",
        compile_hash="",
        verdict=None,
        version=1,
        triangles=triangles,
        triangle_semantic=triangle_semantic,
        nodes=nodes,
    )


def _check_words(nodes: Words, resolution: int) -> list[Int64]:
    """Validate every reachable octree word; return the distinct node indices of each depth.

    Linear in the words per depth: a word reached many times at one depth is followed once.
    """

    def refuse(reason: str, word: int) -> GmdagError:
        return GmdagError(reason, offset=HEADER.size + 8 * int(word))

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
        slots = child_slots(nodes[inner])
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


def _unfolded(nodes: Words, levels: list[Int64]) -> int:
    """Return the node count of the plain octree, where shared nodes count once per path."""
    paths = np.ones(1, dtype=np.int64)
    total = 1
    for index, below in pairwise(levels):
        inner = ~is_leaf(nodes[index])
        words = nodes[index[inner]]
        children = low_index(nodes[child_slots(words)])
        # At most eight children a node and twelve levels: 2³³ fit a float64, and so an int64, exactly.
        weight = np.repeat(paths[inner], POPCOUNT[child_mask(words)]).astype(np.float64)
        paths = np.bincount(np.searchsorted(below, children), weight, minlength=len(below)).astype(np.int64)
        total += int(paths.sum())
    return total


def _find_cycle(nodes: Words) -> int | None:
    """Find a cycle in the octree: a word that is its own descendant (iterative depth-first search, linear time)."""
    path = {0: _children(nodes, 0)}
    done: set[int] = set()
    while path:
        index, rest = next(reversed(path.items()))
        child = next(rest, None)
        if child is None:
            done.add(index)
            path.popitem()  # `index`, the last key; `del` would leave a gap that `reversed` walks over again
        elif child in path:
            return child
        elif child not in done:
            path[child] = _children(nodes, child)
    return None


def _children(nodes: Words, index: int) -> Iterator[int]:
    """Yield the valid child indices of a word; words below the checked depth may refer to others."""
    word = int(nodes[index])
    if word >> 63:
        return iter(())
    table = word & 0xFFFFFFFF
    children = low_index(nodes[table : table + int(POPCOUNT[word >> 55 & 0xFF])])
    return iter(children[children < len(nodes)].tolist())


def _mend_leaves(nodes: Words, leaves: Int64) -> int:
    """Replace non-finite near-surface distances by 0 in place and return their count."""
    distance = leaf_distance(nodes[leaves]).astype(np.float32)
    semantic = leaf_semantic(nodes[leaves])
    broken = ~np.isfinite(distance)
    wrong = (broken & (semantic == 0)) | (distance < 0)
    if wrong.any():
        k = int(np.argmax(wrong))
        what = "negative" if distance[k] < 0 else "non-finite"
        raise GmdagError(
            f"{what} distance {distance[k]} in leaf word {leaves[k]} (semantic {semantic[k]})",
            offset=HEADER.size + 8 * int(leaves[k]),
        )
    nodes[leaves[broken]] &= ~np.uint64(0xFFFF)
    return int(broken.sum())


def _surface_bounds(key: Int64, word: Words, lower: Float64, voxel_size: float, bounds: Float64) -> Float64:
    """Return the bounding box [m] of the near-surface leaves of the finest level; the cube's if there is none.

    A point p at distance d from the surface proves it begins no later than p + d along each axis and
    ends no earlier than p − d; the corners that face it straight make that exact.
    """
    near = leaf_semantic(word) > 0
    if not near.any():
        return bounds.copy()
    distance = leaf_distance(word[near]).astype(np.float64)[:, None]
    corner = positions(key[near]) * voxel_size
    surface = lower + np.stack([(corner + distance).min(axis=0), (corner - distance).max(axis=0)])
    # Without a corner straight before it a face may come out inverted by a fraction of a voxel.
    return np.stack([surface.min(axis=0), surface.max(axis=0)])
