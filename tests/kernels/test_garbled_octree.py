"""Octrees that no compiler writes: children are missing, distances and names are any. The twins agree to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from navi_core.config import CompileConfig
from navi_core.kernels.rays.tracer import NativeTracer, NumbaTracer
from navi_core.scenes import compile_mesh, generate_scene, load_gmdag
from navi_core.world import Field
from tests.kernels.conftest import slab

ROWS, RAYS = 120, 40

pytestmark = pytest.mark.usefixtures("compiler")


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
    told = nodes >> np.uint64(32) << np.uint64(32) | other
    return np.where(leaf & (rng.random(len(nodes)) < 0.3), told, thinned)


@pytest.mark.parametrize("missing", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("name", ["rooms", "slab"])
def test_whatever_an_octree_holds_the_kernels_and_their_numba_twin_meet_it_alike(
    tmp_path: Path, name: str, missing: float
) -> None:
    scene = slab(1.0, 64) if name == "slab" else compile_mesh(generate_scene(name, 0), CompileConfig(resolution=64))
    scene.save(tmp_path / "v1.gmdag", version=1)
    field = Field([load_gmdag(tmp_path / "v1.gmdag")] * 2)
    rng = np.random.default_rng(0)
    octree, bases = field.packed.octree, field.packed.octree[1]
    octree[0][bases[1] + 1 :] = garbled(octree[0][bases[1] + 1 :], rng, missing)  # all but the second root
    *lower, voxel = octree[2][0]
    low, high = ((np.asarray(edge) - lower) / voxel for edge in Field([scene]).bounds(0))
    place = rng.uniform(low - 2, high + 2, (ROWS, 3))
    place[::3] = place[::3].round()  # where voxels meet
    place[::9] = rng.choice([0, int(octree[3][0])], place[::9].shape)  # the corners of the cube
    origins = (np.array(lower) + place * voxel).astype(np.float32)
    directions = rng.normal(size=(ROWS, RAYS, 3))
    directions[:, :12] = directions[:, :12].round()  # along axes and planes
    directions += [0.0, 0.0, 1.0] * ~directions.any(axis=2, keepdims=True)
    directions = (directions / np.linalg.norm(directions, axis=2, keepdims=True)).astype(np.float32)
    row = np.arange(ROWS, dtype=np.int32) % 2
    hits = 0
    for reach in (0.3, 3.0, 50.0):
        answers = []
        for tracer in (NativeTracer(field.packed, 1), NumbaTracer(field.packed)):
            depth, label = np.zeros((ROWS, RAYS), np.float32), np.zeros((ROWS, RAYS), np.int32)
            into = (depth, label, np.zeros((ROWS, RAYS), np.bool_))
            tracer.cast_octree(origins, directions, row, reach, *into)
            answers.append(into)
        for mine, twin in zip(*answers, strict=True):
            assert np.array_equal(mine, twin)
        hits += int(answers[0][2].sum())
    assert hits > 1000
