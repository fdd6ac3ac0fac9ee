"""How scenes become the arrays of a field, one scene after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import SceneError
from navi_core.kernels.bvh.build import build_wide, slack_of
from navi_core.kernels.octree.surface_tree import empty_cubes, triangle_planes
from navi_core.kernels.rays.octree_walk import surface_corners
from navi_core.kernels.rays.packed import PackedField, aligned
from navi_core.kernels.rays.tile import TIE
from navi_core.scenes import Scene

__all__ = ["pack_field"]

Arrays = tuple[npt.NDArray[Any], ...]


def pack_field(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> PackedField:
    """Lay out all scenes for the kernels.

    Args:
        scenes: At least one scene.
        vocabulary: Corpus-wide semantic id by name.

    Raises:
        SceneError: A version 1 scene has no surface.
    """
    surface = np.array([scene.triangles is not None for scene in scenes])
    return PackedField(
        frame=_frame(scenes),
        cells=np.array([(scene.tree.cells if scene.tree else 1, scene.resolution) for scene in scenes], np.int32),
        surface=partial(_pack_surface, scenes, vocabulary),
        octree=_pack_octrees(scenes, vocabulary),
        hierarchy=_pack_hierarchies(scenes, vocabulary),
        surface_row=np.where(surface, np.arange(len(scenes)), -1).astype(np.int32),
        octree_row=np.where(surface, -1, np.cumsum(~surface) - 1).astype(np.int32),
    )


def _frame(scenes: Sequence[Scene]) -> npt.NDArray[np.float64]:
    return np.array([[*scene.bounds[0], scene.voxel_size] for scene in scenes], np.float64)


def _pack_surface(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> Arrays | None:
    """Lay the surface trees of all scenes one after the other; None where no scene has one."""
    grids, cubes, records, items, planes, semantics = [], [], [], [], [], []
    bases = np.zeros((len(scenes), 4), np.int64)
    position = np.zeros(4, np.int64)
    for i, scene in enumerate(scenes):
        tree = scene.tree
        if scene.triangles is None or tree is None:
            continue
        bases[i] = position
        grids.append(tree.grid)
        cubes.append(empty_cubes(tree.grid, tree.cells).reshape(-1))
        records.append(tree.records)
        items.append(tree.items)
        planes.append(triangle_planes((scene.triangles.astype(np.float64) - scene.bounds[0]) / scene.voxel_size))
        semantics.append(_semantic(scene, vocabulary))
        position += [len(tree.grid), len(tree.records), len(tree.items), len(scene.triangles)]
    if not grids:
        return None
    parts = (grids, cubes, records, items, planes, semantics)
    return *(np.concatenate(arrays) for arrays in parts), bases


def _pack_octrees(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> Arrays | None:
    """Lay the version 1 octrees one after the other; None where there is none."""
    octrees = [scene for scene in scenes if scene.triangles is None]
    if not octrees:
        return None
    nodes = [np.ascontiguousarray(scene.nodes, np.uint64) for scene in octrees]
    tables = [_semantic_table(scene, vocabulary) for scene in octrees]
    return (
        np.concatenate(nodes),
        _offsets(nodes)[:-1],
        _frame(octrees),
        np.array([scene.resolution for scene in octrees], np.int32),
        np.concatenate(tables),
        _offsets(tables),
    )


def _pack_hierarchies(scenes: Sequence[Scene], vocabulary: Mapping[str, int]) -> Arrays:
    """Build the wide hierarchy of every scene; a version 1 surface is its set of corners."""
    parts, semantics = [], []
    bases = np.zeros((len(scenes), 3), np.int64)
    limits = np.zeros((len(scenes), 2), np.float32)
    position = np.zeros(3, np.int64)
    for i, scene in enumerate(scenes):
        if scene.triangles is not None:
            triangles = np.ascontiguousarray(scene.triangles, np.float32)
            semantics.append(_semantic(scene, vocabulary))
        else:
            corners = surface_corners(np.asarray(scene.nodes), scene.resolution, scene.voxel_size)
            if not len(corners):
                raise SceneError(f"scene {scene.name!r} holds no surface leaf; compile it again from its mesh")
            points = corners * scene.voxel_size + np.asarray(scene.bounds[0])
            triangles = np.repeat(points[:, None, :], 3, axis=1).astype(np.float32)
            semantics.append(np.zeros(0, np.int32))  # its rays go through the octree
        bases[i] = position
        slack = slack_of(triangles)
        # Faces in one plane are as far apart as rounding their corners, and times along slanting rays, has put them.
        limits[i] = max(TIE * scene.voxel_size, 16.0 * slack), 2.0 * slack
        parts.append(build_wide(triangles))
        position += [len(parts[-1][0]), len(parts[-1][2]), len(semantics[-1])]
    planes, child, corner, ids = (aligned(np.concatenate(arrays)) for arrays in zip(*parts, strict=True))
    return planes, child, corner, ids, np.concatenate(semantics), bases, limits


def _semantic(scene: Scene, vocabulary: Mapping[str, int]) -> npt.NDArray[np.int32]:
    """Return the corpus-wide id of each triangle."""
    table = _semantic_table(scene, vocabulary)
    assert scene.triangle_semantic is not None
    return table[np.clip(scene.triangle_semantic, 0, len(table) - 1)]


def _semantic_table(scene: Scene, vocabulary: Mapping[str, int]) -> npt.NDArray[np.int32]:
    """Return the corpus-wide id by scene-local id; what has no name is the unknown surface."""
    table = np.ones(max(scene.semantic_names, default=1) + 1, np.int32)
    for local, name in scene.semantic_names.items():
        table[local] = vocabulary.get(name, 1)
    return table


def _offsets(arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([len(a) for a in arrays])]).astype(np.int64)
