"""Clearance: exact against a search over every triangle, also for slivers and segments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.kernels import TriangleBVH, surface_voxels
from navi_core.kernels.bvh.triangles import closest_distance_squared, triangle_overlaps_box
from navi_core.world import Field


def search_all(triangles: np.ndarray, points: np.ndarray) -> np.ndarray:
    return np.array([np.sqrt(min(closest_distance_squared(*p, t) for t in triangles)) for p in points])


def test_box_clearance_is_analytic(box_scene) -> None:
    field = Field([box_scene])
    points = torch.tensor([[0, 1.25, 0], [1.5, 1.25, 0], [0, 0.1, 0], [3.0, 1.0, 0], [3, 3.5, 3]], dtype=torch.float32)
    truth = [1.25, 0.5, 0.1, 1.0, np.sqrt(3.0)]
    scene = torch.zeros(5, dtype=torch.int32)
    assert field.distance(points, scene).numpy() == pytest.approx(truth, abs=1e-5)
    assert field.within(points, scene, 0.5001).tolist() == [False, True, True, False, False]


def test_hierarchy_equals_search_over_every_triangle() -> None:
    rng = np.random.default_rng(0)
    triangles = rng.uniform(0, 10, (300, 1, 3)) + rng.normal(0, 0.4, (300, 3, 3))
    triangles[:50, 2] = triangles[:50, 0] * 0.5 + triangles[:50, 1] * 0.5 + 1e-9  # slivers
    triangles[50:60] = triangles[50:60, :1]  # points
    triangles = triangles.astype(np.float32).astype(float)
    points = rng.uniform(-1, 11, (200, 3))
    distance, index = TriangleBVH(triangles).closest(points)
    assert distance == pytest.approx(search_all(triangles, points), abs=1e-12)
    own = [np.sqrt(closest_distance_squared(*p, triangles[i])) for p, i in zip(points, index)]
    assert distance == pytest.approx(own, abs=1e-12)


def test_search_finds_nothing_beyond_max_distance() -> None:
    distance, index = TriangleBVH(np.zeros((1, 3, 3))).closest([[3.0, 0.0, 0.0]], max_distance=1.0)
    assert (distance[0], index[0]) == (1.0, -1)


def test_sliver_distance_by_hand() -> None:
    sliver = np.array([[0, 0, 0], [10, 0, 0], [5, 1e-12, 0]], float)
    assert closest_distance_squared(5.0, 3.0, 4.0, sliver) == pytest.approx(25.0)
    assert closest_distance_squared(-3.0, 4.0, 0.0, sliver) == pytest.approx(25.0)


def test_surface_voxels_of_a_plane_are_one_layer() -> None:
    square = np.array([[[0, 0.5, 0], [4, 0.5, 0], [4, 0.5, 4]], [[0, 0.5, 0], [4, 0.5, 4], [0, 0.5, 4]]], float)
    voxels = surface_voxels(square, (0, 0, 0), 1.0, 4)
    assert len(voxels) == 16 and (voxels[:, 1] == 0).all()


@pytest.mark.parametrize("kind", ["any", "on the grid", "along an axis", "slivers"])
def test_surface_voxels_are_those_of_a_search_over_every_voxel(kind) -> None:
    rng = np.random.default_rng(0)
    triangles = rng.uniform(-1, 9, (24, 3, 3))
    if kind == "on the grid":
        triangles = np.round(triangles)
    elif kind == "along an axis":
        triangles[:8, :, 0], triangles[8:16, :, 1], triangles[16:, :, 2] = 3.0, 4.5, 7.999
    elif kind == "slivers":
        slight = rng.normal(size=(24, 3)) * 10.0 ** rng.uniform(-13, -3, (24, 1))
        triangles[:, 2] = triangles[:, 0] + 0.7 * (triangles[:, 1] - triangles[:, 0]) + slight
    scratch = np.zeros((3, 3))
    middle = np.stack(np.meshgrid(*[np.arange(8) + 0.5] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    # What lies on the border of two voxels is the upper one's.
    own = [(middle >= np.floor(t.min(axis=0))) & (middle <= np.floor(t.max(axis=0)) + 1) for t in triangles]
    met = [
        any(
            inside[n].all() and triangle_overlaps_box(t, *m, 0.5, 0.5, 0.5, scratch)
            for t, inside in zip(triangles, own)
        )
        for n, m in enumerate(middle)
    ]
    found = surface_voxels(triangles, (0, 0, 0), 1.0, 8)
    assert found.tolist() == (middle[np.array(met)] - 0.5).astype(int).tolist()
