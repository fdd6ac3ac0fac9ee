"""Decimation: fewer triangles, an error that is measured and kept, nothing opened, borders where they were."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from navi_core.bench.engine.compile import tessellate
from navi_core.config import CompileConfig
from navi_core.errors import GmdagError
from navi_core.scenes import compile_mesh, generate_scene, load_gmdag, mesh_from_arrays
from navi_core.scenes.decimation import decimate, surface_distance
from navi_core.world import Field
from tests.conftest import box_triangles, mesh_of


def sphere(rings: int = 40, radius: float = 2.0):
    """A closed sphere of quads cut in two, with its vertices shared."""
    lat, lon = np.linspace(0, np.pi, rings), np.linspace(0, 2 * np.pi, 2 * rings, endpoint=False)
    grid = np.stack(
        [
            np.sin(lat)[:, None] * np.cos(lon),
            np.cos(lat)[:, None] * np.ones_like(lon),
            np.sin(lat)[:, None] * np.sin(lon),
        ],
        axis=2,
    )
    grid[0], grid[-1] = [0, 1, 0], [0, -1, 0]
    count = 2 * rings
    faces = []
    for i in range(rings - 1):
        for j in range(count):
            a, b = i * count + j, i * count + (j + 1) % count
            c, d = a + count, b + count
            if i > 0:
                faces.append([a, b, c])
            if i < rings - 2:
                faces.append([b, d, c])
    return mesh_from_arrays("sphere", radius * grid.reshape(-1, 3), faces)


@pytest.mark.parametrize("tolerance", [0.1, 0.25, 1.0])
def test_a_closed_sphere_stays_closed_with_the_reported_error(tolerance):
    mesh = sphere()
    scene = compile_mesh(mesh, CompileConfig(resolution=128, decimate=tolerance))
    report = scene.decimation
    assert report.before == len(mesh.faces)
    assert report.after == len(scene.triangles) < report.before
    assert max(report.to_original, report.from_original) <= tolerance * scene.voxel_size
    rng = np.random.default_rng(0)
    rays = rng.normal(size=(20_000, 3))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    start = torch.from_numpy(rng.uniform(-0.8, 0.8, (4, 3)).astype(np.float32))
    hits = Field([scene]).cast_rays(start, torch.from_numpy(rays).float(), torch.zeros(4, dtype=torch.int32), 50.0)
    assert bool(hits.valid.all()), "a ray escaped a closed sphere"
    end = start.numpy()[:, None] + hits.depth.numpy()[:, :, None] * rays
    # The facets of the sphere itself lie up to 0.0031 of its radius inside it.
    off = np.abs(np.linalg.norm(end, axis=2) - 2.0).max()
    assert off <= tolerance * scene.voxel_size + 0.0031 * 2 + 1e-3


def test_flat_walls_cut_into_many_triangles_become_few_and_stay_exact():
    mesh = tessellate(mesh_of(box_triangles((-2, 0, -2), (2, 2.5, 2)), "box"), 3000)
    scene = compile_mesh(mesh, CompileConfig(resolution=256, decimate=0.1))
    assert len(scene.triangles) < 300
    assert scene.decimation.to_original < 1e-6
    assert scene.decimation.from_original < 1e-6
    np.testing.assert_allclose(scene.mesh_bounds, [[-2, 0, -2], [2, 2.5, 2]], atol=1e-6)


def test_borders_between_semantics_stay_where_they_were():
    n = 40
    x, z = np.meshgrid(np.linspace(0, 4, n), np.linspace(0, 4, n), indexing="ij")
    points = np.stack([x, np.zeros_like(x), z], axis=2).reshape(-1, 3)
    a = (np.arange(n - 1)[:, None] * n + np.arange(n - 1)).reshape(-1)
    faces = np.concatenate([np.stack([a, a + 1, a + n], 1), np.stack([a + 1, a + n + 1, a + n], 1)])
    semantic = np.where(points[faces].mean(axis=1)[:, 0] + points[faces].mean(axis=1)[:, 2] > 4, 2, 3)
    mesh = mesh_from_arrays("floor", points, faces, semantic, {1: "surface", 2: "rug", 3: "wood"})
    voxel = 6 / 256
    merged, report = decimate(mesh, 0.25, voxel)
    assert report.after < report.before / 4
    for label in (2, 3):

        def part(of, label=label):
            chosen = of.face_semantic == label
            return mesh_from_arrays("part", of.vertices, of.faces[chosen], of.face_semantic[chosen], of.semantic_names)

        for one, other in ((part(mesh), part(merged)), (part(merged), part(mesh))):
            assert surface_distance(one, other, 4000)[0] <= 0.6 * voxel


def test_rods_thinner_than_the_tolerance_do_not_vanish():
    rods = [box_triangles((x, 0, 0), (x + 0.002, 2, 0.002)) for x in np.linspace(0, 3, 7)]
    mesh = tessellate(mesh_of(np.concatenate([*rods, box_triangles((-1, -0.2, -1), (4, 0, 1))])), 4000)
    voxel = 7 / 128
    _, report = decimate(mesh, 0.25, voxel)
    assert report.after < report.before / 2
    assert report.from_original <= 0.25 * voxel


def test_decimation_keeps_semantics_and_the_error_bound():
    mesh = generate_scene("apartment", 5)
    scene = compile_mesh(mesh, CompileConfig(resolution=256, decimate=0.25))
    assert set(np.unique(scene.triangle_semantic)) == set(np.unique(mesh.face_semantic))
    report = scene.decimation
    assert max(report.to_original, report.from_original) <= 0.25 * scene.voxel_size
    assert 0 <= report.mean <= report.from_original


def test_decimation_report_is_stored_in_the_file(tmp_path):
    scene = compile_mesh(sphere(16), CompileConfig(resolution=64, decimate=0.5))
    path = scene.save(tmp_path / "sphere.gmdag")
    read = load_gmdag(path)
    assert read.decimation == scene.decimation
    assert read.save(tmp_path / "again.gmdag").read_bytes() == path.read_bytes()
    assert asdict(read.decimation)["before"] == len(sphere(16).faces)
    assert load_gmdag(compile_mesh(sphere(16), CompileConfig(resolution=64)).save(path)).decimation is None


@pytest.mark.parametrize(
    "broken", [{"tolerance": -1.0}, {"before": 1.5}, {"mean": "x"}, {"more": 1}, {"to_original": float("inf")}]
)
def test_invalid_decimation_report_is_refused(tmp_path, broken):
    from tests.scenes.readers.test_hostile_files import meta_with, seal

    scene = compile_mesh(sphere(16), CompileConfig(resolution=64, decimate=0.5))
    path = scene.save(tmp_path / "sphere.gmdag")
    values = asdict(scene.decimation) | broken
    data = path.read_bytes()
    path.write_bytes(seal(data, meta_with(data, decimation=values)))
    with pytest.raises(GmdagError, match="decimation"):
        load_gmdag(path)
