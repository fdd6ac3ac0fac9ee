"""Scenes on which both tracers must agree, and the C++ library where a compiler is at hand."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.config import CompileConfig
from navi_core.kernels.native.library import find_compiler
from navi_core.scenes import Scene, compile_mesh, generate_scene, load_gmdag
from tests.conftest import box_triangles, mesh_of


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skip where there is no C++ compiler."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler here")


def slab(voxels: float, resolution: int) -> Scene:
    """Return a closed slab of 10 × 10 m, so many voxels thick, tilted against the axes."""
    voxel = 12.0 / resolution
    corners = box_triangles((-5, -voxels * voxel / 2, -5), (5, voxels * voxel / 2, 5))
    a, b = 0.3, 0.2
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    turn = turn @ np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    return compile_mesh(mesh_of(corners @ turn.T, "slab"), CompileConfig(resolution=resolution))


@pytest.fixture(scope="session")
def twin_scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    """Every family, analytic shapes, and a version 1 octree."""
    scenes = {
        family: compile_mesh(generate_scene(family, 1), CompileConfig(resolution=512))
        for family in ("apartment", "maze", "atrium", "rooms")
    }
    box = compile_mesh(mesh_of(box_triangles((-2, 0, -2), (2, 2.5, 2)), "box"), CompileConfig(resolution=128))
    sheet = np.array([[[-5, -5, 0], [5, -5, 0], [5, 5, 0]], [[-5, -5, 0], [5, 5, 0], [-5, 5, 0]]], float)
    scenes["box"] = box
    scenes["slab"] = slab(1.0, 256)
    scenes["sheet"] = compile_mesh(mesh_of(sheet, "sheet"), CompileConfig(resolution=64))
    file = tmp_path_factory.mktemp("v1") / "box.gmdag"
    box.save(file, version=1)
    scenes["octree"] = load_gmdag(file)
    return scenes
