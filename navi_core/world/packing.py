"""Packing of scenes into the arrays of a field: concatenation with offsets."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import SceneError
from navi_core.kernels.bvh.hierarchy import build_wide, slack_of
from navi_core.kernels.octree.dag import empty_cubes, triangle_planes
from navi_core.kernels.rays.packed import PackedField, aligned
from navi_core.kernels.rays.tile import TIE
from navi_core.scenes import Scene
from navi_core.scenes.gmdag.dag import levels_of

Arrays = tuple[npt.NDArray[Any], ...]


def pack_field(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> PackedField:
    """Pack all scenes into the concatenated arrays that the kernels read.

    Args:
        scenes: At least one scene.
        vocabulary: Corpus-wide semantic id by name.

    Raises:
        SceneError: A scene has no surface.
    """
    if empty := [scene.name for scene in scenes if not scene.has_surface]:
        raise SceneError(f"scene {empty[0]!r} holds no surface; compile it again from its mesh")
    return PackedField(
        frame=np.array([[*scene.bounds[0], scene.voxel_size] for scene in scenes], np.float64),
        cells=np.array([(1 << levels_of(scene.resolution)[0], scene.resolution) for scene in scenes], np.int32),
        surface=partial(_pack_surface, scenes, vocabulary),
        hierarchy=_pack_hierarchies(scenes, vocabulary),
    )


def _pack_surface(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> Arrays:
    """Concatenate the surface trees of all scenes."""
    parts = []
    for scene in scenes:
        tree = scene.tree
        assert scene.triangles is not None
        assert tree is not None
        planes = triangle_planes((scene.triangles.astype(np.float64) - scene.bounds[0]) / scene.voxel_size)
        cubes = empty_cubes(tree.grid, tree.cells).reshape(-1)
        parts.append((tree.grid, cubes, tree.records, tree.items, planes, _semantic(scene, vocabulary)))
    bases = _starts(
        [(len(grid), len(records), len(items), len(planes)) for grid, _, records, items, planes, _ in parts]
    )
    return *(np.concatenate(arrays) for arrays in zip(*parts, strict=True)), bases


def _pack_hierarchies(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> Arrays:
    """Build and concatenate the wide BVH of every scene."""
    parts, limits = [], []
    for scene in scenes:
        assert scene.triangles is not None
        triangles = np.ascontiguousarray(scene.triangles, np.float32)
        slack = slack_of(triangles)
        # Faces in one plane are as far apart as rounding their corners, and times along slanting rays, has put them.
        limits.append((max(TIE * scene.voxel_size, 16.0 * slack), 2.0 * slack))
        parts.append(build_wide(triangles))
    planes, child, corner, ids = (aligned(np.concatenate(arrays)) for arrays in zip(*parts, strict=True))
    semantics = [_semantic(scene, vocabulary) for scene in scenes]
    bases = _starts([(len(part[0]), len(part[2]), len(names)) for part, names in zip(parts, semantics, strict=True)])
    return planes, child, corner, ids, np.concatenate(semantics), bases, np.array(limits, np.float32)


def _starts(lengths: Sequence[tuple[int, ...]]) -> npt.NDArray[np.int64]:
    """Compute the start offsets (S, K) of the concatenated arrays: exclusive prefix sum of their lengths (S, K)."""
    return np.cumsum([[0] * len(lengths[0]), *lengths[:-1]], axis=0, dtype=np.int64)


def _semantic(scene: Scene, vocabulary: Mapping[str, int]) -> npt.NDArray[np.int32]:
    """Map each triangle's semantic id to the corpus vocabulary; a surface without a name gets the unknown id."""
    table = np.ones(max(scene.semantic_names, default=1) + 1, np.int32)
    for local, name in scene.semantic_names.items():
        table[local] = vocabulary.get(name, 1)
    assert scene.triangle_semantic is not None
    return table[np.clip(scene.triangle_semantic, 0, len(table) - 1)]
