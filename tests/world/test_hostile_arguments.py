"""Invalid arguments of the world and the compiler are refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig, EnvConfig
from navi_core.errors import NaviError
from navi_core.scenes import compile_mesh, load_gmdag, mesh_from_arrays
from navi_core.world import Field, NavigationEnv, spherical_directions
from tests.conftest import box_triangles

CORNERS, FACES = box_triangles((-2, 0, -2), (2, 2.5, 2)).reshape(-1, 3), np.arange(36).reshape(-1, 3)
POINTS = torch.tensor([[0.5, 1.0, 0.5], [0.0, 1.0, 0.0]])
ROWS = torch.zeros(2, dtype=torch.int32)
RAYS = spherical_directions(8, 4)
NAN = float("nan")


@pytest.fixture(scope="module")
def scene():
    return compile_mesh(mesh_from_arrays("box", CORNERS, FACES), CompileConfig(resolution=16))


@pytest.mark.parametrize(
    "arrays",
    [
        (CORNERS[:, :2], FACES),
        (np.zeros(7), FACES),
        (CORNERS + 1j, FACES),
        ("abc", FACES),
        (None, FACES),
        ([[0, 0, 0], [1]], FACES),
        (CORNERS, FACES.reshape(-1, 4)),
        (CORNERS, FACES + 0.5),
        (CORNERS, FACES + 2**32),
        (CORNERS, FACES, np.full(12, 1.5)),
        (CORNERS, FACES, np.full(12, 2**32 + 1)),
        (CORNERS, FACES, np.ones((12, 2), int)),
        (CORNERS, FACES, np.ones(12, int), {1: 5}),
        (CORNERS, FACES, np.ones(12, int), {"1": "surface"}),
        ([], []),
    ],
)
def test_invalid_mesh_arrays_are_refused(arrays) -> None:
    with pytest.raises(NaviError):
        compile_mesh(mesh_from_arrays("box", *arrays), CompileConfig(resolution=16))


@pytest.mark.parametrize("source", [None, 5, "a\0b.glb", "x" * 5000])
def test_invalid_path_is_refused_by_readers_and_writers(source, scene) -> None:
    for use in (compile_mesh, load_gmdag, scene.save):
        with pytest.raises(NaviError):
            use(source)


@pytest.mark.parametrize("scenes", [[], None, "house.gmdag", [None], ["house.gmdag"], 3])
def test_field_refuses_anything_but_scenes(scenes, scene) -> None:
    for wrong in (scenes, scene):
        with pytest.raises(NaviError):
            Field(wrong)


@pytest.mark.parametrize(
    "settings",
    [
        *({"threads": n} for n in (-1, 10**9, 1.5, True, None)),
        *({"device": d} for d in ("xyz", "meta", 1.5)),
        *({"vocabulary": {"surface": n}} for n in (0, -1, 2**40, "a", 1.5)),
        {"tracer": "embree"},
    ],
)
def test_settings_of_a_field_are_bounded(settings, scene) -> None:
    with pytest.raises(NaviError):
        Field([scene], **settings)


def test_field_refuses_invalid_tensors(scene) -> None:
    field = Field([scene])
    for points in (None, [[0, 0, 0]], POINTS.numpy(), POINTS[0], POINTS + 1j, POINTS.to_sparse(), POINTS * NAN):
        for ask in (
            lambda p: field.cast_rays(p, RAYS, ROWS),
            lambda p: field.distance(p, ROWS),
            lambda p: field.within(p, ROWS, 0.5),
        ):
            with pytest.raises(NaviError):
                ask(points)
    for rays in (None, RAYS.numpy(), RAYS[0], RAYS.to(torch.complex64), RAYS[:, :2], torch.zeros(3, 4, 3), RAYS * NAN):
        with pytest.raises(NaviError):
            field.cast_rays(POINTS, rays, ROWS)
    for rows in (None, ROWS.numpy(), ROWS + 0.5, ROWS.bool(), ROWS - 1, ROWS + 1, ROWS.long() + 2**32, ROWS[:1]):
        with pytest.raises(NaviError):
            field.cast_rays(POINTS, RAYS, rows)
        with pytest.raises(NaviError):
            field.distance(POINTS, rows)
    for length in (None, -1.0, NAN, "far", torch.ones(2)):
        with pytest.raises(NaviError):
            field.cast_rays(POINTS, RAYS, ROWS, length)
        with pytest.raises(NaviError):
            field.within(POINTS, ROWS, length)
    for yaw in (1.0, np.zeros(2), torch.zeros(5), torch.zeros(2, 1), ROWS, torch.full((2,), NAN)):
        with pytest.raises(NaviError):
            field.cast_rays(POINTS, RAYS, ROWS, yaw=yaw)
    for index in (1, -1, "x", None):
        with pytest.raises(NaviError):
            field.bounds(index)
    with pytest.raises(NaviError):
        field.cast_rays(POINTS, RAYS, ROWS, out=(1, 2, 3))


@pytest.mark.parametrize("bins", [(0, 4), (-1, 4), (1.5, 4), (10**9, 10**9), ("a", 3), (8, None)])
def test_bins_of_a_panorama_are_bounded(bins) -> None:
    with pytest.raises(NaviError):
        spherical_directions(*bins)


def test_environment_refuses_invalid_arguments_unchanged(scene) -> None:
    field, config = Field([scene]), EnvConfig(azimuth_bins=16, elevation_bins=8)
    for rows in (0, -1, 1.5, None, "3", 10**12):
        with pytest.raises(NaviError):
            NavigationEnv(field, rows, config)
    for arguments in ((None, 2), (scene, 2), (field, 2, {"azimuth_bins": 16})):
        with pytest.raises(NaviError):
            NavigationEnv(*arguments)
    for seed in (2**70, 1.5, "a", True):
        with pytest.raises(NaviError):
            NavigationEnv(field, 2, config, seed)
    env = NavigationEnv(field, 2, config, seed=4)
    for seed in (2**70, 1.5, "a"):
        with pytest.raises(NaviError):
            env.reset(seed)
    for episode in (-1, 2**70, 1.5, None):
        with pytest.raises(NaviError):
            env.reset(episode=episode)
    zero = torch.zeros(2, 4)
    for actions in (None, [[0.0] * 4] * 2, zero.numpy(), zero[0], zero[:, :3], zero * NAN, zero.to(torch.complex64)):
        with pytest.raises(NaviError):
            env.step(actions)
    same = NavigationEnv(field, 2, config, seed=4)
    assert torch.equal(env.step(zero).obs, same.step(zero).obs)
