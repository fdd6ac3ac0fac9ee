"""The C++ tracer and its numba twin agree, whatever the CPU's path, the threads and the scene."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.kernels import TriangleBVH
from navi_core.kernels.rays.tracer import NativeTracer
from navi_core.scenes import Scene
from navi_core.world import Field, RayHits, spherical_directions

pytestmark = pytest.mark.usefixtures("compiler")
LANES = [16, 8, 4]


def with_lanes(scenes: list[Scene], lanes: int, threads: int = 1) -> Field:
    field = Field(scenes, tracer="native", threads=threads)
    field._tracer = NativeTracer(field.packed, threads, lanes)
    return field


def hard_rays(scene: Scene, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows × 32 rays: random ones, from cell corners, along axes and diagonals, in planes, from outside.

    No ray starts on a surface: whether it meets that surface is then up to the last bit.
    """
    rng = np.random.default_rng(seed)
    low, high = np.add(scene.mesh_bounds, [[-0.3], [0.3]])
    edge = scene.voxel_size * (8 if scene.resolution >= 512 else 1)
    origins = rng.uniform(low, high, (count, 3))
    cut = count // 4
    origins[:cut] = scene.bounds[0] + edge * np.round((origins[:cut] - scene.bounds[0]) / edge)
    origins[cut : cut + 8] += 3 * (high - low)
    if scene.triangles is not None:
        origins = origins[TriangleBVH(scene.triangles).closest(origins)[0] > 0.01 * scene.voxel_size]
    directions = rng.normal(size=(len(origins), 32, 3))
    directions[:, :6] = np.concatenate([np.eye(3), -np.eye(3)])
    directions[:, 6:14] = np.sign(directions[:, 6:14])
    directions[:, 14:18, 1] = 0.0
    directions[:, 18:20] *= [1.0, 1e-7, 1.0]
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    return torch.from_numpy(origins).float(), torch.from_numpy(directions).float()


def assert_same(a: RayHits, b: RayHits, voxel: float, what: str) -> None:
    """Assert equal answers, but for the rare ray through the widened rim of a triangle: one may meet it, one pass."""
    allowed = 5 + 1e-4 * a.depth.numel()
    differ = a.valid != b.valid
    assert differ.sum() <= allowed, f"{what}: {int(differ.sum())} rays hit in one and miss in the other"
    both = a.valid & b.valid
    away = ((a.depth - b.depth).abs() / voxel > 1e-3) & both
    assert away.sum() <= allowed, f"{what}: {int(away.sum())} depths differ"
    assert ((a.semantic != b.semantic) & both).sum() <= allowed, f"{what}: other semantics"


def without_poles(hits: RayHits, elevations: int) -> RayHits:
    """Leave out the rays straight up and down: they are the same for every azimuth, so one would count for many."""
    one, two, three = (x.unflatten(1, (-1, elevations))[..., 1:-1] for x in (hits.depth, hits.semantic, hits.valid))
    return RayHits(one, two, three)


@pytest.mark.parametrize("lanes", LANES)
def test_agrees_with_the_numba_twin_on_every_kind_of_scene(twin_scenes: dict[str, Scene], lanes: int) -> None:
    for name, scene in twin_scenes.items():
        origins, directions = hard_rays(scene, 600)
        rows = torch.zeros(len(origins), dtype=torch.int32)
        twin = Field([scene], tracer="numba").cast_rays(origins, directions, rows, 60.0)
        hits = with_lanes([scene], lanes).cast_rays(origins, directions, rows, 60.0)
        assert_same(hits, twin, scene.voxel_size, f"{name}, {lanes} lanes")


def test_four_lanes_and_the_numba_twin_give_the_same_bits(twin_scenes: dict[str, Scene]) -> None:
    for name in ("apartment", "rooms", "sheet"):
        scene = twin_scenes[name]
        origins, directions = hard_rays(scene, 200)
        rows = torch.zeros(len(origins), dtype=torch.int32)
        for rays in (directions, spherical_directions(30, 7), spherical_directions(33, 1)):  # odd tiles at the edges
            twin = Field([scene], tracer="numba").cast_rays(origins, rays, rows, 60.0)
            hits = with_lanes([scene], 4).cast_rays(origins, rays, rows, 60.0)
            for one, two in zip((hits.depth, hits.semantic, hits.valid), (twin.depth, twin.semantic, twin.valid)):
                assert torch.equal(one, two), name


@pytest.mark.parametrize("lanes", LANES)
def test_many_scenes_of_both_versions_in_one_field(twin_scenes: dict[str, Scene], lanes: int) -> None:
    scenes = list(twin_scenes.values())
    origins, which = [], []
    for i, scene in enumerate(scenes):
        origins.append(hard_rays(scene, 40, i)[0])
        which += [i] * len(origins[-1])
    directions = spherical_directions(64, 16)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(which)))
    rows = torch.tensor(which, dtype=torch.int32)[order]
    start = torch.cat(origins)[order]
    twin = Field(scenes, tracer="numba").cast_rays(start, directions, rows, 40.0)
    hits = with_lanes(scenes, lanes).cast_rays(start, directions, rows, 40.0)
    assert_same(without_poles(hits, 16), without_poles(twin, 16), scenes[0].voxel_size, "corpus")


@pytest.mark.parametrize("lanes", LANES)
def test_threads_neighbours_and_reused_outputs_change_no_bit(twin_scenes: dict[str, Scene], lanes: int) -> None:
    scene = twin_scenes["apartment"]
    origins, _ = hard_rays(scene, 64)
    directions, rows = spherical_directions(128, 24), torch.zeros(len(origins), dtype=torch.int32)
    one = with_lanes([scene], lanes).cast_rays(origins, directions, rows)
    spare = RayHits(torch.full_like(one.depth, -1), torch.full_like(one.semantic, -1), torch.ones_like(one.valid))
    two = with_lanes([scene], lanes, threads=2).cast_rays(origins, directions, rows, out=spare)
    assert two is spare
    alone = with_lanes([scene], lanes).cast_rays(origins[:1], directions.flip(0), rows[:1])
    order = torch.from_numpy(np.random.default_rng(2).permutation(len(directions)))
    scattered = with_lanes([scene], lanes).cast_rays(origins, directions[order], rows)
    singles = with_lanes([scene], lanes).cast_rays(
        origins[1:2].repeat(len(directions), 1), directions[:, None].contiguous(), rows[:1].repeat(len(directions))
    )
    for name in ("depth", "semantic", "valid"):
        assert torch.equal(getattr(one, name)[:, order], getattr(scattered, name))
        assert torch.equal(getattr(one, name)[1], getattr(singles, name)[:, 0])
        assert torch.equal(getattr(one, name), getattr(two, name))
        assert torch.equal(getattr(one, name)[:1], getattr(alone, name).flip(1))


@pytest.mark.parametrize("shape", [(64, 6), (64, 10), (32, 18), (48, 9)])
@pytest.mark.parametrize("lanes", LANES)
def test_a_panorama_that_tiles_do_not_fill_equals_its_rays_in_another_order(
    twin_scenes: dict[str, Scene], lanes: int, shape: tuple[int, int]
) -> None:
    scene = twin_scenes["apartment"]
    origins, _ = hard_rays(scene, 16)
    directions, rows = spherical_directions(*shape), torch.zeros(len(origins), dtype=torch.int32)
    order = torch.from_numpy(np.random.default_rng(3).permutation(len(directions)))
    field = with_lanes([scene], lanes)
    whole, scattered = (field.cast_rays(origins, rays, rows) for rays in (directions, directions[order]))
    for name in ("depth", "semantic", "valid"):
        assert torch.equal(getattr(whole, name)[:, order], getattr(scattered, name))


def test_clearance_equals_the_numba_twin_bit_for_bit(twin_scenes: dict[str, Scene]) -> None:
    scenes = list(twin_scenes.values())
    rng = np.random.default_rng(5)
    rows = torch.from_numpy(rng.integers(0, len(scenes), 4000).astype(np.int32))
    points = np.stack([rng.uniform(*np.add(scenes[i].mesh_bounds, [[-1], [1]])) for i in rows])
    at = torch.from_numpy(points).float()
    native, numba = Field(scenes, tracer="native", threads=2), Field(scenes, tracer="numba")
    assert torch.equal(native.distance(at, rows), numba.distance(at, rows))
    assert torch.equal(native.within(at, rows, 0.3), numba.within(at, rows, 0.3))


@pytest.mark.parametrize("lanes", LANES)
def test_impossible_rays_end_and_miss(box_scene: Scene, lanes: int) -> None:
    field = with_lanes([box_scene], lanes)
    nan, inf = float("nan"), float("inf")
    bad = torch.tensor([[nan, nan, nan], [0, 0, 0], [inf, 0, 0], [nan, 1, 0], [1e-38, 0, 0], [1, nan, inf]] * 4)
    starts = torch.tensor([[0.0, 1.0, 0.0], [nan, 1.0, 0.0], [inf, 0.0, 0.0], [1e30, -1e30, 1e30], [2.0, 2.5, 2.0]])
    # The field refuses such rays; the kernel must end all the same.
    shape = (len(starts), len(bad))
    depth, label, valid = (torch.zeros(shape, dtype=kind) for kind in (torch.float32, torch.int32, torch.bool))
    scene = torch.zeros(len(starts), dtype=torch.int32)
    field._tracer.cast(starts, bad[None], scene, 50.0, 0, depth, label, valid)
    assert depth.isfinite().all() and depth.min() >= 0 and depth.max() <= 50.0
    assert not valid[:, 1::6].any()  # a direction of no length leads nowhere
    short = field.cast_rays(starts[:1], spherical_directions(16, 4), torch.zeros(1, dtype=torch.int32), 0.0)
    assert not short.valid.any()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("resolution", [64, 1024])
def test_no_ray_leaves_a_closed_box_or_passes_a_slab_of_a_voxel(lanes: int, resolution: int) -> None:
    from navi_core.config import CompileConfig
    from navi_core.scenes import compile_mesh
    from tests.conftest import box_triangles, mesh_of
    from tests.kernels.conftest import slab

    low, high = np.array([-20.0, 0.0, -20.0]), np.array([20.0, 3.0, 20.0])
    room = compile_mesh(mesh_of(box_triangles(low, high)), CompileConfig(resolution=resolution))
    rng = np.random.default_rng(resolution)
    origins = rng.uniform(low + 0.01, high - 0.01, (200, 3))
    directions = spherical_directions(96, 16)
    hits = with_lanes([room], lanes).cast_rays(
        torch.from_numpy(origins).float(), directions, torch.zeros(200, dtype=torch.int32), 100.0
    )
    d = directions.double().numpy()[None]
    start = origins.astype(np.float32).astype(float)[:, None]
    with np.errstate(divide="ignore"):
        truth = np.where(d == 0, np.inf, np.where(d > 0, (high - start) / d, (low - start) / d)).min(axis=2)
    assert hits.valid.all()
    assert np.abs(hits.depth.numpy() - truth).max() <= 0.01 * room.voxel_size + 2e-5
    thin = slab(1.0, resolution)
    middle = thin.mesh_bounds.mean(axis=0)
    normal = np.array([-np.sin(0.3), np.cos(0.3), 0.0])  # near enough to the slab's normal to lie on either side
    side = np.where(rng.random(4000) < 0.5, -1.0, 1.0)[:, None]
    start = middle + side * normal * rng.uniform(2.5, 4.0, (4000, 1)) + rng.normal(0, 0.2, (4000, 3))
    goal = middle + rng.uniform(-2, 2, (4000, 3)) * [1, 0, 1] * 0.5 - side * normal * 2.5
    ray = goal - start
    ray /= np.linalg.norm(ray, axis=1, keepdims=True)
    through = with_lanes([thin], lanes).cast_rays(
        torch.from_numpy(start).float(),
        torch.from_numpy(np.repeat(ray[:, None], 8, axis=1)).float(),
        torch.zeros(4000, dtype=torch.int32),
        50.0,
    )
    assert through.valid.all(), "a ray passed through the slab"
