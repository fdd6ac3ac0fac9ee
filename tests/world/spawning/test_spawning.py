"""Spawn pools and the scene verdict, on rooms whose panoramas can be computed by hand."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig, EnvConfig, SpawnConfig
from navi_core.errors import SceneError
from navi_core.scenes import compile_mesh
from navi_core.world import Field, NavigationEnv, scene_verdict, spawn_pool, spherical_directions
from navi_core.world.spawning import scattered_spawns
from tests.conftest import box_triangles, mesh_of


def sheet(half: float, height: float) -> np.ndarray:
    """Two triangles of a horizontal square around the origin."""
    a, b = (-half, height, -half), (half, height, half)
    c, d = (half, height, -half), (-half, height, half)
    return np.array([(a, c, b), (a, b, d)], float)


def open_air(half: float, top: float = 5.0):
    """A square floor under the sky; a speck of a roof gives the scene its height."""
    triangles = np.concatenate([sheet(half, 0.0), sheet(0.01, top)])
    return Field([compile_mesh(mesh_of(triangles, f"open_{half:g}"), CompileConfig(resolution=64))])


def box_depth(position: np.ndarray, directions: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Distance (R,) from inside a box to its wall."""
    with np.errstate(divide="ignore"):
        walls = np.where(directions > 0, (high - position) / directions, (low - position) / directions)
    return np.where(directions == 0, np.inf, walls).min(axis=1)


def test_the_grid_is_inset_by_a_fifth_and_scored_by_the_formula(box_scene) -> None:
    field = Field([box_scene])
    pool = spawn_pool(field, 0, SpawnConfig())
    low, high = field.bounds(0)
    assert len(pool.position) == 5 * 7 * 5
    assert np.allclose(pool.position.amin(0), low + 0.2 * (high - low), atol=1e-5)
    assert np.allclose(pool.position.amax(0), high - 0.2 * (high - low), atol=1e-5)
    assert (pool.score.diff() <= 0).all()

    band = max(2.5, min(0.6 * 40 ** (1 / 3), 50.0))
    directions = spherical_directions(48, 12).double().numpy()
    for i in (0, 40, 174):
        depth = box_depth(pool.position[i].double().numpy(), directions, low, high).reshape(48, 12)
        structure = (depth >= 1.5) & (depth <= band)
        # After the turn the azimuth that the drone faces is bin 0: roll the panorama by the yaw.
        turned = np.roll(structure, round(float(pool.yaw[i]) * 48 / (2 * math.pi)), axis=0)
        forward = turned[np.r_[0:8, 40:48]].mean()
        wanted = 3 * structure.mean() + 2 * forward - 0.0 - 1.5 * (depth <= 2.0).mean()
        assert float(pool.score[i]) == pytest.approx(wanted, abs=0.05)
        # No other heading has clearly more structure ahead.
        best = max(np.roll(structure, turn, axis=0)[np.r_[0:8, 40:48]].mean() for turn in range(48))
        assert forward >= best - 1.5 / 192  # a ray at the band's edge may count or not


def test_verdicts_follow_viability_and_the_best_candidate(box_scene) -> None:
    inside = scene_verdict(Field([box_scene]), 0)
    assert (inside.verdict, inside.viable, inside.best_starvation) == ("PASS", 175, 0.0)
    wide = scene_verdict(open_air(3.0), 0)
    assert wide.verdict == "MARGINAL"
    assert wide.viable > 0
    assert 0.5 <= wide.best_starvation < 0.7
    narrow = scene_verdict(open_air(0.5), 0)
    assert (narrow.verdict, narrow.viable) == ("FAIL", 0)
    assert narrow.best_starvation >= 0.7
    few = scene_verdict(Field([box_scene]), 0, SpawnConfig(grid=(1, 1, 3)))
    assert (few.verdict, few.viable) == ("MARGINAL", 3)  # PASS takes four


def test_a_failed_scene_never_reaches_training() -> None:
    with pytest.raises(SceneError, match=r"open_0\.5.*verdict FAIL"):
        NavigationEnv(open_air(0.5), 1, EnvConfig(azimuth_bins=32, elevation_bins=8))


def test_spawns_are_free_and_stay_clear_of_walls() -> None:
    room = np.concatenate([box_triangles((-2, 0, -2), (2, 2.5, 2)), box_triangles((-0.5, 0, -0.5), (0.5, 2.5, 0.5))])
    field = Field([compile_mesh(mesh_of(room, "pillar"), CompileConfig(resolution=64))])
    pool = spawn_pool(field, 0, SpawnConfig(), clearance=0.2)
    scene = torch.zeros(len(pool.position), dtype=torch.int64)
    assert 0 < len(pool.position) < 175
    assert (field.distance(pool.position, scene) >= 0.2).all()
    assert not ((pool.position[:, 0].abs() < 0.5) & (pool.position[:, 2].abs() < 0.5)).any()


def test_scattered_spawns_cover_reachable_space_and_headings(box_scene) -> None:
    field, config = Field([box_scene]), SpawnConfig(scattered=400)
    position, yaw = scattered_spawns(field, 0, config)
    again = scattered_spawns(field, 0, config)
    assert torch.equal(position, again[0])
    assert torch.equal(yaw, again[1])
    assert len(position) == len(yaw) == 400
    low, high = field.bounds(0)
    # The best-scored grid leaves a fifth out on each side; these come as near to the walls as a drone may.
    reach = torch.from_numpy(high - low) * 0.2
    outside = (position < torch.from_numpy(low) + reach) | (position > torch.from_numpy(high) - reach)
    assert 0.5 < outside.any(dim=1).float().mean() < 0.95  # 1 − 0.6³ = 0.78 of the volume
    clearance = field.distance(position, torch.zeros(400, dtype=torch.int64))
    assert clearance.min() >= 0.2
    assert clearance.min() < 0.35
    assert ((yaw >= 0) & (yaw < 2 * math.pi)).all()
    assert torch.histc(yaw, 4, 0, 2 * math.pi).min() > 70  # 100 each, 3.5 deviations
    few = scattered_spawns(field, 0, SpawnConfig(scattered=5))
    assert torch.equal(few[0], position[:5])


def test_scattered_spawns_without_visible_surfaces_are_dropped() -> None:
    field = open_air(3.0)
    position, _ = scattered_spawns(field, 0, SpawnConfig(scattered=64))
    assert 0 < len(position) < 64
    limit = SpawnConfig(scattered=64, max_starvation=1.0)
    assert len(scattered_spawns(field, 0, limit)[0]) == 64


def test_episodes_begin_at_scattered_spawns_too(box_scene) -> None:
    def begun(scattered: int) -> torch.Tensor:
        config = EnvConfig(azimuth_bins=32, elevation_bins=8, spawn=SpawnConfig(scattered=scattered))
        return NavigationEnv(Field([box_scene]), 256, config).poses()["position"]

    best, mixed = begun(0), begun(64)
    assert len(best.unique(dim=0)) <= 32 < len(mixed.unique(dim=0)) <= 96
    position = scattered_spawns(Field([box_scene]), 0, SpawnConfig(scattered=64), EnvConfig().floor_clearance)[0]
    among = (mixed[:, None] == position[None]).all(dim=2).any(dim=1).float().mean()
    assert 0.5 < among < 0.8  # 64 of 96


def test_scene_without_room_for_a_drone_fails_with_a_reason() -> None:
    """A mesh in centimetres, and a chest in which nothing fits: verdicts, so that a folder's others go on."""
    large, flat = (600.0, 250.0, 500.0), (3.0, 0.3, 3.0)
    for size, reported in [(large, r"600 × 250 × 500 m .*--unit-scale 0\.01"), (flat, "clearance")]:
        scene = compile_mesh(mesh_of(box_triangles((0, 0, 0), size), "odd"), CompileConfig(resolution=64))
        verdict = scene_verdict(Field([scene]), 0)
        assert verdict.verdict == "FAIL" and re.search(reported, verdict.reason), verdict.reason
    assert "places; where most is seen" in scene_verdict(open_air(0.5), 0).reason
