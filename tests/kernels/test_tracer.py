"""The tracer against every-triangle search and analytic rooms: no leak, no early stop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.bench.engine.raycast import free_poses
from navi_core.config import CompileConfig
from navi_core.errors import SceneError
from navi_core.kernels.rays.brute import cast_brute
from navi_core.scenes import compile_mesh, generate_scene
from navi_core.world import Field, spherical_directions
from tests.conftest import box_triangles, mesh_of


def unit(rng: np.random.Generator, n: int) -> np.ndarray:
    d = rng.normal(size=(n, 3))
    return d / np.linalg.norm(d, axis=1, keepdims=True)


def cast(field: Field, origins: np.ndarray, directions: np.ndarray, reach: float = 100.0):
    hits = field.cast_rays(
        torch.from_numpy(origins).float(),
        torch.from_numpy(directions).float()[:, None, :],
        torch.zeros(len(origins), dtype=torch.int32),
        reach,
    )
    return hits.depth[:, 0].numpy(), hits.valid[:, 0].numpy(), hits.semantic[:, 0].numpy()


def exact(scene, origins: np.ndarray, directions: np.ndarray) -> np.ndarray:
    return cast_brute(
        scene.triangles.astype(np.float64),
        origins.astype(np.float32).astype(np.float64),
        directions.astype(np.float32).astype(np.float64),
    )


@pytest.mark.parametrize("family", ["apartment", "maze", "atrium", "rooms"])
def test_agrees_with_every_triangle_search(family: str) -> None:
    scene = compile_mesh(generate_scene(family, 3), CompileConfig(resolution=512))
    rng = np.random.default_rng(1)
    low, high = scene.mesh_bounds
    origins = rng.uniform(low, high, (6000, 3))
    directions = unit(rng, 6000)
    depth, valid, _ = cast(Field([scene]), origins, directions)
    truth = exact(scene, origins, directions)
    hit = np.isfinite(truth)
    assert (valid != hit).mean() <= 1 / 1000  # rays that graze an edge within rounding
    error = (depth - truth)[valid & hit] / scene.voxel_size
    assert np.quantile(np.abs(error), 0.99) <= 0.01
    # The widened rim of a triangle may stop a ray that just passes it; no ray ever ends behind a surface.
    assert error.max() <= 0.01 and not (hit & ~valid).any()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["apartment", "maze", "atrium", "rooms"])
def test_no_ray_of_25_million_leaves_a_closed_scene(family: str) -> None:
    """Turned panoramas from free points, tile by tile as in flight; each miss is searched in all triangles (10 s)."""
    scene, look = compile_mesh(generate_scene(family, 3), CompileConfig(resolution=512)), spherical_directions(256, 48)
    field, rng = Field([scene]), np.random.default_rng(2)
    cast, lost, points = 0, 0, free_poses(field, 256, 2)
    while cast < 25_000_000:
        chosen = points[rng.integers(0, len(points), 64)] + torch.from_numpy(rng.uniform(-0.2, 0.2, (64, 3))).float()
        yaw = torch.from_numpy(rng.uniform(-np.pi, np.pi, 64)).float()
        valid = field.cast_rays(chosen, look, torch.zeros(64, dtype=torch.int32), elevations=48, yaw=yaw).valid
        row, ray = np.nonzero(~valid.numpy())
        if len(row):
            missed = exact(scene, chosen.numpy()[row], _turned(look, yaw)[row, ray])
            lost += int(np.isfinite(missed).sum())
        cast += valid.numel()
    assert lost == 0, f"{lost} of {cast} rays"


def _turned(directions: torch.Tensor, yaw: torch.Tensor) -> np.ndarray:
    """Turn directions (R, 3) by the yaw (B,) of each row, counter-clockwise seen from above."""
    x, y, z = directions.T
    cos, sin = torch.cos(yaw)[:, None], torch.sin(yaw)[:, None]
    return torch.stack([x * cos + z * sin, y.expand(len(yaw), -1), z * cos - x * sin], dim=-1).numpy()


@pytest.mark.parametrize("resolution", [16, 64, 512, 2048])
@pytest.mark.parametrize("flip", [False, True])
def test_closed_box_stops_rays_with_either_winding(resolution: int, flip: bool) -> None:
    low, high = np.array([-2.0, 0.0, -2.0]), np.array([2.0, 2.5, 2.0])
    scene = compile_mesh(mesh_of(box_triangles(low, high, flip)), CompileConfig(resolution=resolution))
    rng = np.random.default_rng(resolution)
    origins = rng.uniform(low + 0.01, high - 0.01, (20_000, 3))
    directions = unit(rng, 20_000)
    directions[:600] = np.repeat(np.concatenate([np.eye(3), -np.eye(3)]), 100, axis=0)  # axis-aligned
    directions[600:1200, 1] = 0.0  # grazing floor and ceiling
    directions[600:1200] /= np.linalg.norm(directions[600:1200], axis=1, keepdims=True)
    depth, valid, semantic = cast(Field([scene]), origins, directions)
    with np.errstate(divide="ignore"):
        walls = np.where(directions > 0, (high - origins) / directions, (low - origins) / directions)
    truth = np.where(directions == 0, np.inf, walls).min(axis=1)
    assert valid.all(), "a ray escaped a closed room"
    assert (semantic == 1).all()
    assert np.abs(depth - truth).max() <= 0.01 * scene.voxel_size + 2e-5


def test_rays_between_cells_and_on_cell_corners_do_not_leak() -> None:
    scene = compile_mesh(mesh_of(box_triangles((0, 0, 0), (8, 8, 8))), CompileConfig(resolution=128))
    field = Field([scene])
    edge = scene.voxel_size * scene.resolution / scene.tree.cells
    rng = np.random.default_rng(2)
    corner = scene.bounds[0] + edge * rng.integers(10, 50, (5000, 3))
    origins = np.clip(corner, 0.05, 7.95)
    directions = np.sign(rng.normal(size=(5000, 3)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    _, valid, _ = cast(field, origins, directions)
    assert valid.all()


def test_thin_sheet_stops_every_ray_from_both_sides() -> None:
    sheet = np.array([[[-5, -5, 0], [5, -5, 0], [5, 5, 0]], [[-5, -5, 0], [5, 5, 0], [-5, 5, 0]]], float)
    scene = compile_mesh(mesh_of(sheet), CompileConfig(resolution=64))
    rng = np.random.default_rng(3)
    target = np.concatenate([rng.uniform(-4.9, 4.9, (20_000, 2)), np.zeros((20_000, 1))], axis=1)
    side = np.where(rng.random(20_000) < 0.5, -1.0, 1.0)
    origins = np.concatenate([rng.uniform(-4.9, 4.9, (20_000, 2)), (side * rng.uniform(0.01, 5, 20_000))[:, None]], 1)
    directions = target - origins
    length = np.linalg.norm(directions, axis=1)
    depth, valid, _ = cast(Field([scene]), origins, directions / length[:, None])
    assert valid.all()
    assert np.abs(depth - length).max() < 0.01 * scene.voxel_size + 1e-4


def test_miss_has_range_depth_id_zero_and_is_invalid(box_scene) -> None:
    depth, valid, semantic = cast(Field([box_scene]), np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 0.0]]), 1.5)
    assert (depth[0], valid[0], semantic[0]) == (1.5, False, 0)


def test_rays_from_outside_the_cube_enter_it(box_scene) -> None:
    depth, valid, _ = cast(Field([box_scene]), np.array([[50.0, 1.0, 0.0]]), np.array([[-1.0, 0.0, 0.0]]))
    assert valid[0] and depth[0] == pytest.approx(48.0, abs=1e-3)


def test_coincident_faces_belong_to_the_lowest_triangle() -> None:
    sheet = np.array([[[-5, -5, 0], [5, -5, 0], [5, 5, 0]], [[-5, -5, 0], [5, 5, 0], [-5, 5, 0]]], float)
    from navi_core.scenes import mesh_from_arrays

    mesh = mesh_from_arrays(
        "double",
        np.concatenate([sheet, sheet]).reshape(-1, 3),
        np.arange(12).reshape(-1, 3),
        [2, 2, 3, 3],
        {1: "surface", 2: "door", 3: "poster"},
    )
    field = Field([compile_mesh(mesh, CompileConfig(resolution=64))])
    rng = np.random.default_rng(4)
    origins = np.concatenate([rng.uniform(-4, 4, (500, 2)), np.full((500, 1), 2.0)], axis=1)
    _, valid, semantic = cast(field, origins, np.tile([[0.0, 0.0, -1.0]], (500, 1)))
    assert valid.all()
    assert {field.semantic_names[int(i)] for i in semantic} == {"door"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_rays_are_refused(box_scene, bad: float) -> None:
    field, scene = Field([box_scene]), torch.zeros(1, dtype=torch.int32)
    ahead = torch.tensor([[0.0, 0.0, -1.0]])
    with pytest.raises(SceneError, match="NaN or infinite"):
        field.cast_rays(torch.tensor([[0.0, bad, 0.0]]), ahead, scene)
    with pytest.raises(SceneError, match="NaN or infinite"):
        field.cast_rays(torch.zeros(1, 3), torch.tensor([[0.0, bad, 0.0]]), scene)


def test_field_keeps_torch_thread_count(box_scene) -> None:
    before = torch.get_num_threads()
    Field([box_scene])
    assert torch.get_num_threads() == before
