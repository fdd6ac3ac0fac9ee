"""Rays inside one voxel: planes are hit where they lie, and no possible surface is missed."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.kernels import TriangleBVH
from tests.kernels.octree.octree_walk import CROSSING_SLACK, meet_voxel

CORNERS = np.array([[c & 1, c >> 1 & 1, c >> 2] for c in range(8)], float)


def through(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Return where a random ray enters the unit voxel, its direction, and its way through."""
    while True:
        inner, d = rng.uniform(0.01, 0.99, 3), rng.normal(size=3)
        d /= np.linalg.norm(d)
        a, b = -inner / d, (1 - inner) / d
        begin, finish = np.minimum(a, b).max(), np.maximum(a, b).min()
        if finish - begin > 0.05:
            return inner + begin * d, d, finish - begin


def stored(distance: np.ndarray, voxel: float) -> np.ndarray:
    """Return distances [voxel] as a file keeps them: metres in fp16."""
    return (distance * voxel).astype(np.float16).astype(float) / voxel


@pytest.mark.parametrize("voxel", [0.013, 0.0823, 0.25])
def test_planes_are_hit_only_where_they_cross_the_ray(voxel: float) -> None:
    rng = np.random.default_rng(0)
    off, stopped = [], []
    for _ in range(4000):
        normal = rng.normal(size=3) * rng.choice([0.0, 1e-3, 1.0], 3)
        if not normal.any():
            continue
        normal /= np.linalg.norm(normal)
        p, d, way = through(rng)
        k = normal @ (rng.uniform(0, 1, 3) if rng.random() < 0.8 else rng.uniform(-0.4, 1.4, 3))
        at = meet_voxel(stored(np.abs(CORNERS @ normal - k), voxel), *p, *d, way)
        begin, finish = normal @ p - k, normal @ (p + way * d) - k
        if begin * finish < 0:
            assert 0.0 <= at <= way
            off.append(abs(normal @ (p + at * d) - k))
        elif min(abs(begin), abs(finish)) > 4 * CROSSING_SLACK:
            stopped.append(at >= 0.0)
    assert len(off) > 1000
    assert len(stopped) > 300
    # A few planes have corner distances that another plane has too: those are met or passed as any other surface.
    assert np.mean(np.array(off) > CROSSING_SLACK) < 0.01
    assert max(off) < 0.5
    assert np.mean(stopped) < 0.02


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_plane_through_the_middle_stops_rays_of_ambiguous_axis(axis: int) -> None:
    rng = np.random.default_rng(axis)
    for offset in (0.0, 1e-4, -1e-3, 0.003):
        corners = stored(np.abs(CORNERS[:, axis] - 0.5 - offset), 0.0823)
        for _ in range(300):
            p, d, way = through(rng)
            begin, finish = p[axis] - 0.5 - offset, p[axis] + way * d[axis] - 0.5 - offset
            if begin * finish < 0:
                at = meet_voxel(corners, *p, *d, way)
                assert 0.0 <= at <= way
                assert abs(p[axis] + at * d[axis] - 0.5) < 0.51


@pytest.mark.parametrize("faces", [1, 2, 3, 12])
def test_rays_hit_any_surface_inside_the_voxel(faces: int) -> None:
    rng = np.random.default_rng(faces)
    met, off = 0, []
    for _ in range(300):
        size = rng.choice([0.05, 0.3, 2.0])
        surface = rng.uniform(0, 1, (faces, 1, 3)) + size * rng.normal(size=(faces, 3, 3))
        tree = TriangleBVH(surface)
        corners = stored(tree.closest(CORNERS)[0], 0.0823)
        for _ in range(20):
            p, d, way = through(rng)
            # Aimed at a point of the surface, as most random rays pass a small one.
            weight = rng.dirichlet(np.ones(3))
            target = weight @ surface[rng.integers(faces)]
            if ((target < 0.02) | (target > 0.98)).any():
                continue
            a, b = (0 - target) / d, (1 - target) / d
            begin = np.minimum(a, b).max()
            p, way = target + begin * d, np.maximum(a, b).min() - begin
            at = meet_voxel(corners, *p, *d, way)
            assert 0.0 <= at <= way
            off.append(tree.closest((p + at * d)[None])[0][0])
            met += 1
    assert met > 50
    assert np.quantile(off, 0.99) < 0.9
