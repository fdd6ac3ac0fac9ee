"""Cells crossed by rays and paths, against hand-drawn grids and a dense sampler."""

from __future__ import annotations

import math

import numpy as np

from navi_core.evaluate.metrics.coverage import curve_metrics, mark_path, mark_rays


def cells(marked: np.ndarray) -> set[tuple[int, int]]:
    return {(int(x), int(z)) for x, z in np.argwhere(marked)}


def ray(start, direction, length, *, shape=(8, 8), wanted=None, cell=1.0, origin=(0.0, 0.0)):
    wanted = np.ones(shape, dtype=bool) if wanted is None else wanted
    marked = np.zeros_like(wanted)
    new = mark_rays(np.array([start]), np.array([direction]), np.array([[length]]), *origin, cell, wanted, marked)
    return cells(marked), int(new[0])


def test_rays_along_an_axis_cross_the_cells_they_enter():
    assert ray((0.5, 0.5), (1.0, 0.0), 2.4) == ({(0, 0), (1, 0), (2, 0)}, 3)
    assert ray((0.5, 0.5), (1.0, 0.0), 2.6) == ({(0, 0), (1, 0), (2, 0), (3, 0)}, 4)
    assert ray((3.5, 3.5), (0.0, -1.0), 1.0) == ({(3, 3), (3, 2)}, 2)
    assert ray((3.5, 3.5), (0.0, -1.0), 0.0) == ({(3, 3)}, 1)


def test_a_slanted_ray_by_hand():
    """From (0.5, 0.3) at slope ½ the ray passes z = 1 at x = 1.9, so cell (1, 1) lies between (1, 0) and (2, 1)."""
    norm = math.hypot(1.0, 0.5)
    found, _ = ray((0.5, 0.3), (1 / norm, 0.5 / norm), 2.6 * norm)
    assert found == {(0, 0), (1, 0), (1, 1), (2, 1), (3, 1)}


def test_origin_and_cell_scale_the_grid():
    found, _ = ray((-0.95, 2.05), (0.0, 1.0), 0.2, cell=0.1, origin=(-1.0, 2.0))
    assert found == {(0, 0), (0, 1), (0, 2)}


def test_unwanted_cells_and_cells_outside_the_grid_are_not_counted():
    wanted = np.ones((4, 4), dtype=bool)
    wanted[1, 0] = False
    assert ray((0.5, 0.5), (1.0, 0.0), 50.0, wanted=wanted) == ({(0, 0), (2, 0), (3, 0)}, 3)
    assert ray((-2.5, 0.5), (1.0, 0.0), 3.2, wanted=wanted) == ({(0, 0)}, 1)


def test_a_cell_counts_once_over_positions():
    wanted = np.ones((4, 4), dtype=bool)
    marked = np.zeros_like(wanted)
    starts = np.array([[0.5, 0.5], [0.5, 0.5], [1.5, 0.5]])
    new = mark_rays(starts, np.array([[1.0, 0.0]]), np.full((3, 1), 1.0), 0.0, 0.0, 1.0, wanted, marked)
    assert new.tolist() == [2, 0, 1]


def test_traversal_agrees_with_dense_sampling():
    generator = np.random.default_rng(1)
    for _ in range(200):
        start, angle = generator.uniform(2, 6, 2), generator.uniform(0, 2 * math.pi)
        direction, length = np.array([math.sin(angle), -math.cos(angle)]), generator.uniform(0, 5)
        found, count = ray(tuple(start), tuple(direction), length, shape=(8, 8))
        samples = start + np.linspace(0, length, 2000)[:, None] * direction
        dense = {(int(x), int(z)) for x, z in np.floor(samples) if 0 <= x < 8 and 0 <= z < 8}
        assert dense <= found
        # Corners cut by less than a sample's spacing may be missing from the samples alone.
        assert len(found - dense) <= 1 and count == len(found)


def test_a_path_marks_every_cell_between_decisions():
    wanted = np.ones((10, 10), dtype=bool)
    marked = np.zeros_like(wanted)
    path = np.array([[0.5, 0.5], [3.5, 0.5], [3.5, 0.5], [3.5, 2.5]])
    assert mark_path(path, 0.0, 0.0, 1.0, wanted, marked).tolist() == [1, 3, 0, 2]
    assert cells(marked) == {(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2)}


def test_curve_numbers_by_hand():
    share = np.array([10.0, 20.0, 50.0, 80.0, 80.0])
    numbers = curve_metrics("c", share, share / 10)
    assert numbers["c_auc"] == (20 + 50 + 80 + 80) / 4
    assert numbers["c_final"] == 80 and numbers["c_m2"] == 8
    assert (numbers["c_steps_to_50"], numbers["c_steps_to_75"], numbers["c_steps_to_90"]) == (2, 3, None)
    assert numbers["c_at_100"] is None
    long = np.linspace(0, 100, 1001)
    numbers = curve_metrics("c", long, long)
    assert numbers["c_at_100"] == 10 and numbers["c_at_200"] == 20 and numbers["c_at_1000"] == 100
    assert numbers["c_steps_to_90"] == 900
