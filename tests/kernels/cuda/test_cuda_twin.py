"""The CUDA kernels, run on the CPU: exact, watertight, and safe with impossible rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.errors import ConfigError, SceneError
from navi_core.kernels.rays.brute import cast_brute
from navi_core.kernels.rays.cuda import CudaTracer, tile_of
from navi_core.scenes import Scene
from navi_core.world import Field, RayHits, spherical_directions
from tests.kernels.test_native import assert_same, hard_rays, without_poles

pytestmark = pytest.mark.usefixtures("compiler")


def rows_of(count: int, scene: int = 0) -> torch.Tensor:
    return torch.full((count,), scene, dtype=torch.int32)


def free_points(scene: Scene, count: int, seed: int = 0) -> torch.Tensor:
    """Return points at least 0.1 m from any surface and within its bounds."""
    rng = np.random.default_rng(seed)
    field = Field([scene], tracer="numba")
    points = torch.from_numpy(rng.uniform(*scene.mesh_bounds, (8 * count, 3))).float()
    return points[field.distance(points, rows_of(len(points))) > 0.1][:count]


def test_agrees_with_the_numba_twin_on_every_kind_of_scene(twin_scenes: dict[str, Scene]) -> None:
    for name, scene in twin_scenes.items():
        origins, directions = hard_rays(scene, 600)
        rows = rows_of(len(origins))
        twin = Field([scene], tracer="numba").cast_rays(origins, directions, rows, 60.0)
        hits = Field([scene], tracer="cuda").cast_rays(origins, directions, rows, 60.0)
        assert_same(hits, twin, scene.voxel_size, name)


def test_many_scenes_of_both_versions_in_one_field(twin_scenes: dict[str, Scene]) -> None:
    scenes = list(twin_scenes.values())
    start = torch.cat([hard_rays(scene, 40, i)[0][:30] for i, scene in enumerate(scenes)])
    rows = torch.arange(len(scenes), dtype=torch.int32).repeat_interleave(30)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(rows)))
    directions = spherical_directions(64, 16)
    twin = Field(scenes, tracer="numba").cast_rays(start[order], directions, rows[order], 40.0)
    hits = Field(scenes, tracer="cuda").cast_rays(start[order], directions, rows[order], 40.0, elevations=16)
    assert_same(without_poles(hits, 16), without_poles(twin, 16), scenes[0].voxel_size, "corpus")


@pytest.mark.parametrize("family", ["apartment", "maze", "atrium", "rooms"])
def test_depth_is_exact_against_every_triangle(twin_scenes: dict[str, Scene], family: str) -> None:
    scene = twin_scenes[family]
    origins = free_points(scene, 16)
    directions = spherical_directions(256, 48)[np.random.default_rng(1).permutation(256 * 48)[:256]]
    hits = Field([scene], tracer="cuda").cast_rays(origins, directions, rows_of(len(origins)), 100.0)
    assert scene.triangles is not None
    truth = cast_brute(
        scene.triangles.astype(np.float64),
        origins.double().repeat_interleave(len(directions), 0).numpy(),
        directions.double().repeat(len(origins), 1).numpy(),
    ).reshape(hits.depth.shape)
    hit = truth <= 100.0
    assert (hits.valid.numpy() != hit).sum() <= hit.size / 50_000
    error = np.abs(hits.depth.numpy() - truth)[hit & hits.valid.numpy()] / scene.voxel_size
    assert np.quantile(error, 0.99) <= 0.01
    assert (error > 1.0).sum() == 0


def test_no_ray_leaves_a_closed_box(box_scene: Scene) -> None:
    rng = np.random.default_rng(3)
    low, high = np.array([-2.0, 0.0, -2.0]), np.array([2.0, 2.5, 2.0])
    origins = torch.from_numpy(rng.uniform(low + 0.01, high - 0.01, (600, 3))).float()
    origins[:200] = (origins[:200] / (box_scene.voxel_size * 4)).round() * (box_scene.voxel_size * 4)  # cell corners
    origins = origins.clamp(torch.tensor(low + 0.01).float(), torch.tensor(high - 0.01).float())
    directions = torch.from_numpy(rng.normal(size=(600, 64, 3))).float()
    directions[:, :6] = torch.cat([torch.eye(3), -torch.eye(3)])
    directions[:, 6:14] = directions[:, 6:14].sign()
    directions[:, 14:18, 1] = 1e-7
    directions /= directions.norm(dim=2, keepdim=True)
    hits = Field([box_scene], tracer="cuda").cast_rays(origins, directions, rows_of(600), 100.0)
    d, start = directions.double().numpy(), origins.double().numpy()[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        truth = np.where(d == 0, np.inf, np.where(d > 0, (high - start) / d, (low - start) / d)).min(axis=2)
    assert hits.valid.all()
    assert np.abs(hits.depth.numpy() - truth).max() <= 0.01 * box_scene.voxel_size + 2e-5


def test_clearance_equals_the_native_tracer_bit_for_bit(twin_scenes: dict[str, Scene]) -> None:
    scenes = list(twin_scenes.values())
    rng = np.random.default_rng(5)
    rows = torch.from_numpy(rng.integers(0, len(scenes), 1000).astype(np.int32))
    at = torch.from_numpy(np.stack([rng.uniform(*np.add(scenes[i].mesh_bounds, [[-1], [1]])) for i in rows])).float()
    native, twin = Field(scenes, tracer="native"), Field(scenes, tracer="cuda")
    assert torch.equal(native.distance(at, rows), twin.distance(at, rows))
    assert torch.equal(native.within(at, rows, 0.3), twin.within(at, rows, 0.3))


def test_ray_order_among_threads_changes_no_bit(twin_scenes: dict[str, Scene]) -> None:
    field = Field([twin_scenes["apartment"]], tracer="cuda")
    origins = free_points(twin_scenes["apartment"], 8)
    for azimuths, elevations in ((64, 16), (8, 4), (6, 5), (10, 32), (1, 2)):
        directions = spherical_directions(azimuths, elevations)
        plain = field.cast_rays(origins, directions, rows_of(len(origins)))
        spare = RayHits(
            torch.full_like(plain.depth, -1), torch.full_like(plain.semantic, -1), torch.zeros_like(plain.valid)
        )
        tiled = field.cast_rays(origins, directions, rows_of(len(origins)), out=spare, elevations=elevations)
        assert all(
            torch.equal(getattr(plain, name), getattr(tiled, name)) for name in ("depth", "semantic", "valid")
        ), (azimuths, elevations)


def test_tiles_divide_the_panorama_or_are_unused() -> None:
    assert tile_of(256 * 48, 48) == (48, 8, 4)
    assert tile_of(4 * 24, 24) == (24, 4, 8)
    assert tile_of(6 * 24, 24) == (0, 1, 1)
    assert tile_of(100, 0) == tile_of(100, 7) == (0, 1, 1)


@pytest.mark.parametrize("kinds", [["box"], ["octree"], ["box", "octree"]])
def test_impossible_rows_miss(twin_scenes: dict[str, Scene], kinds: list[str]) -> None:
    scenes = [twin_scenes[kind] for kind in kinds]
    field, nan, inf = Field(scenes, tracer="cuda"), float("nan"), float("inf")
    directions = spherical_directions(8, 4)
    origins = torch.tensor([[0.11, 1.0, 0.07]]).repeat(7, 1)
    origins[1, 2], origins[2, 0] = nan, inf
    rows = torch.tensor([0, 0, 0, -1, len(scenes), 2**31 - 1, len(scenes) - 1], dtype=torch.int32)
    spare = RayHits(torch.full((7, 32), -1.0), torch.full((7, 32), -1, dtype=torch.int32), torch.ones(7, 32) > 0)
    hits = field.cast_rays(origins, directions, rows, 20.0, out=spare)
    assert hits.valid[[0, 6]].all() and (hits.semantic[[0, 6]] > 0).all()
    assert not hits.valid[1:6].any()
    assert (hits.depth[1:6] == 20.0).all() and (hits.semantic[1:6] == 0).all()
    broken = directions.expand(7, -1, -1).clone()
    broken[:, 3, 1] = nan
    assert not field.cast_rays(origins, broken, rows, 20.0).valid[:, 3].any()
    distance, within = field.distance(origins, rows), field.within(origins, rows, 1.5)
    assert torch.isfinite(distance[[0, 6]]).all() and within[[0, 6]].all()
    assert torch.isinf(distance[1:6]).all() and not within[1:6].any()


def test_invalid_shapes_types_and_devices_are_refused(box_scene: Scene) -> None:
    field, at = Field([box_scene], tracer="cuda"), torch.zeros(2, 3)
    spare = RayHits(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(SceneError, match=r"outputs .* do not fit"):
        field.cast_rays(at, torch.eye(3), rows_of(2), out=spare)
    with pytest.raises(SceneError, match=r"points on meta, the field on cpu; move it with .to\(field.device\)"):
        field.distance(at.to("meta"), rows_of(2))
    with pytest.raises(SceneError, match="scene_index has 1 entries for 2 rows"):
        field.within(at, rows_of(1), 0.1)
    assert field.cast_rays(at[:0], torch.eye(3), rows_of(0)).depth.shape == (0, 3)
    assert field.distance(at[:0], rows_of(0)).shape == (0,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is at hand")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_missing_gpu_error_names_the_alternative(box_scene: Scene, device: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{device}': no GPU that torch .* can use; .*, or take device 'cpu'"):
        Field([box_scene], device=device)


def test_field_reports_its_device_bytes(box_scene: Scene) -> None:
    field = Field([box_scene], tracer="cuda")
    assert isinstance(field._tracer, CudaTracer)
    assert field._tracer.nbytes > field.packed.surface[4].nbytes
