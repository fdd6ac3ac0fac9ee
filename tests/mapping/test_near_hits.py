"""Points of surfaces nearby: kept through turns and moves, and forgotten where the drone has left."""

import numpy as np

from navi_core.mapping.near_hits import EDGE, SPAN, keep_points, points_nearby


def empty(rows: int = 2):
    return np.full((rows, SPAN, SPAN, 3), np.nan, np.float32)


def keep(kept, pose, points, row=0):
    points = np.asarray([points], np.float32)
    keep_points(kept, np.array([row]), np.asarray([pose], float), points, np.ones(points.shape[:2], bool))


def nearby(kept, pose, radius=1.0, row=0):
    points, there = points_nearby(kept, np.array([row]), np.asarray([pose], float), radius)
    return points[0][there[0]]


def test_point_comes_back_in_the_frame_of_the_present_pose():
    kept = empty()
    keep(kept, (3.0, 1.0, -2.0, 0.0), [(0.4, -0.1, -0.3)])
    np.testing.assert_allclose(nearby(kept, (3.0, 1.0, -2.0, 0.0)), [(0.4, -0.1, -0.3)], atol=1e-6)
    # A turn to the left by a right angle puts what was ahead to the right, and what was right behind.
    np.testing.assert_allclose(nearby(kept, (3.0, 1.0, -2.0, np.pi / 2)), [(0.3, -0.1, 0.4)], atol=1e-6)
    np.testing.assert_allclose(nearby(kept, (3.2, 1.1, -2.0, 0.0)), [(0.2, -0.2, -0.3)], atol=1e-6)


def test_points_round_trip_at_any_heading():
    # Apart by more than the diagonal of a column, so that none replaces another.
    across = np.linspace(-0.9, 0.9, 10)
    height = np.random.default_rng(0).uniform(-0.4, 0.4, (10, 10))
    points = np.stack([*np.meshgrid(across, across), height], axis=-1).reshape(-1, 3)[:, [0, 2, 1]]
    for yaw in (0.3, 2.5, -1.7):
        kept, pose = empty(), (-7.0, 1.4, 12.0, yaw)
        keep(kept, pose, points)
        found = nearby(kept, pose, radius=2.0)
        gaps = np.linalg.norm(found[:, None] - points[None], axis=2)
        assert len(found) == 100 and gaps.min(axis=1).max() < 1e-5 and gaps.min(axis=0).max() < 1e-5


def test_rows_are_apart_and_far_points_do_not_count():
    kept = empty()
    keep(kept, (0.0, 1.0, 0.0, 0.0), [(0.5, 0.0, 0.0)])
    assert len(nearby(kept, (0.0, 1.0, 0.0, 0.0), row=1)) == 0
    assert len(nearby(kept, (0.0, 1.0, 0.0, 0.0), radius=0.4)) == 0
    # The same column of the ring buffer a whole span farther on is another place.
    assert len(nearby(kept, (EDGE * SPAN, 1.0, 0.0, 0.0))) == 0


def test_column_keeps_the_point_nearest_to_the_height_of_flight():
    kept, pose = empty(), (0.01, 1.0, 0.01, 0.0)
    keep(kept, pose, [(0.5, 0.3, 0.0), (0.5, -0.1, 0.0), (0.5, 0.4, 0.0), (0.5, 3.0, 0.0)])
    np.testing.assert_allclose(nearby(kept, pose), [(0.5, -0.1, 0.0)], atol=1e-6)


def test_noisy_points_of_one_surface_are_averaged():
    kept, pose = empty(), (0.01, 1.0, 0.01, 0.0)
    heights = np.random.default_rng(0).normal(-0.22, 0.012, 200)
    for height in heights:
        keep(kept, pose, [(0.0, height, 0.0)])
    ((_, height, _),) = nearby(kept, pose)
    # A drone with a keep-out of 0.22 m stays free above a table 0.22 m below; the nearest of the points would stop it.
    assert abs(height + 0.22) < 0.015 and heights.max() > -0.2
