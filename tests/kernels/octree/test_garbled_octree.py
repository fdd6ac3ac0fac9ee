"""Octrees that no compiler writes: children are missing, distances and names are any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from navi_core.config import CompileConfig
from navi_core.scenes import compile_mesh, generate_scene, load_gmdag
from navi_core.scenes.gmdag.octree import finest_leaves, surface_triangles
from tests.kernels.conftest import slab


def garbled(nodes: npt.NDArray[np.uint64], rng: np.random.Generator, missing: float) -> npt.NDArray[np.uint64]:
    """Take children from inner nodes, and give some leaves another distance and name.

    The words of a node's table stay: a child behind a missing one is the one before it in the table.
    """
    leaf, mask = nodes >> np.uint64(63) == 1, nodes >> np.uint64(55) & np.uint64(255)
    kept = np.packbits(rng.random((len(nodes), 8)) >= missing, axis=1).ravel().astype(np.uint64) << np.uint64(55)
    children = np.uint64(255) << np.uint64(55)
    # The words of tables look like nodes without children.
    thinned = np.where(~leaf & (mask > 0), nodes & (kept | ~children), nodes)
    distances = np.array([0.0, 1e-7, 4e-5, 0.02, 0.06, 0.12, 0.14, 0.3], np.float16).view(np.uint16).astype(np.uint64)
    other = rng.choice(distances, len(nodes)) | rng.integers(0, 9, len(nodes)).astype(np.uint64) << np.uint64(16)
    changed = nodes >> np.uint64(32) << np.uint64(32) | other
    return np.where(leaf & (rng.random(len(nodes)) < 0.3), changed, thinned)


@pytest.mark.parametrize("missing", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("name", ["rooms", "slab"])
def test_garbled_octree_becomes_finite_triangles_inside_its_cube(tmp_path: Path, name: str, missing: float) -> None:
    scene = slab(1.0, 64) if name == "slab" else compile_mesh(generate_scene(name, 0), CompileConfig(resolution=64))
    old = load_gmdag(scene.save(tmp_path / "v1.gmdag", version=1))
    assert old.nodes is not None
    nodes = np.concatenate([old.nodes[:1], garbled(old.nodes[1:], np.random.default_rng(0), missing)])
    triangles, semantic = surface_triangles(
        *finest_leaves(nodes, old.resolution), old.resolution, old.bounds[0], old.voxel_size
    )
    assert len(triangles) == len(semantic) > 1000
    assert np.isfinite(triangles).all()
    slack = 1e-3 * old.voxel_size
    assert (triangles >= old.bounds[0] - slack).all() and (triangles <= old.bounds[1] + slack).all()
