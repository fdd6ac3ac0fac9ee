"""Coverage against floors that can be computed by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from navi_core.evaluate.metrics.coverage import Coverage, FloorTruth, mean_curve, measure_coverage
from navi_core.world import Field, FloorMap


def truth_of(scene):
    field = Field([scene])
    return field, FloorTruth.of(FloorMap(field, 0, 0.1, 0.2), 0.5)


def seen_from(field, truth, *points, radius=3.2):
    return measure_coverage(field, truth, 0, np.array(points, dtype=np.float32), view_radius=radius)


def test_the_reachable_floor_of_a_box_keeps_its_clearance(box_room):
    _, truth = truth_of(box_room)
    assert truth.area == pytest.approx(4.6 * 3.6, rel=0.03)
    assert truth.visitable.sum() == 10 * 8


def test_a_fine_cell_lies_in_the_coarse_cell_of_its_centre():
    floor = SimpleNamespace(storeys=np.ones((1, 2, 5), dtype=bool), cell=0.15, levels=np.zeros(1), origin=(0.0, 0.0))
    # Centres at 0.225 m and 0.675 m at most, in cells of 0.25 m.
    assert FloorTruth.of(floor, 0.25).visitable.shape == (1, 1, 3)


def test_an_empty_room_within_the_radius_is_seen_at_once(box_room):
    field, truth = truth_of(box_room)
    coverage = seen_from(field, truth, (2.5, 1.2, 2.0), (2.5, 1.2, 2.0))
    assert coverage.seen_share.tolist() == [100.0, 100.0]
    assert coverage.seen[0] == pytest.approx(truth.area)
    assert coverage.metrics()["c_vis_auc"] == 100.0
    assert coverage.metrics()["c_vis_steps_to_90"] == 0


def test_view_is_limited_to_its_radius(corridor):
    """From the middle of a corridor half as wide as w, a disc of radius r covers 2(h√(r²−h²) + r² asin(h/r))."""
    field, truth = truth_of(corridor)
    half = 0.8
    for radius in (1.0, 2.0, 3.2):
        area = 2 * (half * math.sqrt(radius**2 - half**2) + radius**2 * math.asin(half / radius))
        coverage = seen_from(field, truth, (10.05, 1.2, 1.0), radius=radius)
        # A cell counts when a ray enters it: half a cell more than the disc, all round.
        grown = radius + 0.05
        outer = 2 * (half * math.sqrt(grown**2 - half**2) + grown**2 * math.asin(half / grown))
        assert area <= coverage.seen[0] <= outer * 1.03


def test_flying_along_a_corridor_sees_it_step_by_step(corridor):
    field, truth = truth_of(corridor)
    path = [(x, 1.2, 1.0) for x in np.linspace(1.0, 19.0, 37)]
    coverage = seen_from(field, truth, *path)
    assert coverage.seen_share[-1] == 100.0
    assert (np.diff(coverage.seen) >= 0).all()
    # Half a metre a step, over a floor 1.6 m wide.
    assert np.diff(coverage.seen)[5:25].mean() == pytest.approx(0.5 * 1.6, rel=0.05)
    metrics = coverage.metrics()
    assert metrics["c_vis_steps_to_50"] == pytest.approx((9.8 - 3.1 - 1.0) / 0.5, abs=1.5)


def test_wall_blocks_the_view_and_a_door_shows_a_wedge(door_room):
    field, truth = truth_of(door_room)
    eye = np.array([2.0, 2.0])
    seen = measure_coverage(
        field, truth, 0, np.array([[eye[0], 1.2, eye[1]]], np.float32), view_radius=50.0
    ).seen_cells[0]
    x = truth.origin[0] + (np.arange(seen.shape[0]) + 0.5) * truth.cell
    z = truth.origin[1] + (np.arange(seen.shape[1]) + 0.5) * truth.cell
    here = truth.reachable[0] & (x < 3.7)[:, None]
    assert seen[here].all()
    # Behind the wall the door's edges at x = 3.9 bound the view: |z − 2| ≤ 0.5·(x − 2)/1.9 and at x = 4.1 wider.
    slope = np.abs(z[None, :] - eye[1]) / (x[:, None] - eye[0] + (x[:, None] == eye[0]))
    there = truth.reachable[0] & (x > 4.4)[:, None]
    assert seen[there & (slope < 0.5 / 2.1 - 0.03)].all()
    assert not seen[there & (slope > 0.5 / 2.1 + 0.06)].any()
    wedge = sum(min(2 * 0.5 / 2.1 * (cell - eye[0]), 3.6) * 0.1 for cell in x if cell > 4.4)
    assert seen[there].sum() * 0.01 == pytest.approx(wedge, rel=0.08)


def test_flight_through_the_door_sees_both_rooms(door_room):
    field, truth = truth_of(door_room)
    path = [(x, 1.2, 2.05) for x in np.arange(0.75, 7.3, 0.25)]
    coverage = seen_from(field, truth, *path)
    assert coverage.seen_share[0] < 60 and coverage.seen_share[-1] > 99
    assert coverage.visited[-1] == pytest.approx(14 * 0.25)  # x from 0.75 to 7.25 crosses 14 cells of 0.5 m
    assert coverage.visited_share[-1] == pytest.approx(100 * 14 / truth.visitable.sum())


@pytest.mark.parametrize("rays", [512 * 7, 100])
def test_positions_in_chunks_give_the_same_curve(corridor, monkeypatch, rays):
    """Chunks of seven positions, and of one where a fan has more rays than a chunk."""
    field, truth = truth_of(corridor)
    path = [(x, 1.2, 1.0) for x in np.linspace(1.0, 19.0, 30)]
    whole = seen_from(field, truth, *path)
    monkeypatch.setattr("navi_core.evaluate.metrics.coverage.RAYS_PER_CAST", rays)
    parts = seen_from(field, truth, *path)
    assert np.array_equal(whole.seen, parts.seen) and np.array_equal(whole.seen_cells, parts.seen_cells)


def test_mean_curve_weighs_scenes_equally():
    def flown(*share):
        values = np.array(share, dtype=np.float64)
        return Coverage(values, values, values, values, np.zeros((1, 1), dtype=bool))

    flights = [flown(0, 10, 20), flown(0, 30, 40), flown(10, 50, 90)]
    curve = mean_curve(flights, ["a", "a", "b"], points=3)
    assert curve == {"step": [0, 1, 2], "c_vis_percent": [5.0, 35.0, 60.0]}
    assert mean_curve(flights, ["a", "a", "b"], points=2)["step"] == [0, 2]
