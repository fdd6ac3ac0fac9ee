"""C_surf against rooms whose surface can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.config import EvalConfig
from navi_core.evaluate import build_course, evaluate
from navi_core.evaluate.metrics.surface import SurfaceTruth, measure_surface
from navi_core.world import Field, FloorMap
from tests.conftest import box_triangles
from tests.evaluate.conftest import boxes_scene
from tests.world.floor.test_floor import stage


def truth_of(scene):
    field = Field([scene])
    return field, SurfaceTruth.of(field, 0, FloorMap(field, 0, 0.1, 0.2))


def test_the_surface_of_a_box_is_its_six_walls(box_room):
    """50 × 24 × 40 voxels: the outer layer without what only edges touch is 50·40 + 50·24 + 40·24 voxels twice."""
    _, truth = truth_of(box_room)
    shell = np.zeros((50, 24, 40), dtype=bool)
    for axis in range(3):
        for side in (0, -1):
            shell[tuple(side if a == axis else slice(1, -1) for a in range(3))] = True
    # 2.4 m are a hair more as float32: the grid has a layer above the ceiling, which belongs to the one below it.
    voxels, above = truth.voxels[:, :24], truth.voxels[:, 24:]
    assert not above.any() and not voxels[1:-1, 1:-1, 1:-1].any()
    assert (voxels & shell).sum() >= 0.99 * shell.sum()


def test_hidden_surface_is_unseen_and_voxels_count_once(door_room):
    field, truth = truth_of(door_room)
    # Both stand beside the wall with the door, out of its line.
    eye, other = (1.0, 1.2, 0.6), (7.0, 1.2, 0.6)
    seen = measure_surface(field, truth, 0, np.array([eye, eye, other, other]), max_distance=100.0)
    assert seen[0] == seen[1] and seen[2] == seen[3]
    far = measure_surface(field, truth, 0, np.array([other]), max_distance=100.0)
    assert seen[3] <= seen[0] + far[0] and seen[3] > 1.5 * seen[0]
    assert seen[3] <= truth.voxels.sum()
    assert measure_surface(field, truth, 0, np.array([eye]), max_distance=1.0)[0] < seen[0]


def test_enclosed_surface_does_not_count():
    """The inside of a closed chest of a metre; its outside counts."""
    scene = boxes_scene("chest", ((0, 0, 0), (5, 2.4, 4)), ((2, 0.8, 1.5), (3, 1.8, 2.5)))
    _, truth = truth_of(scene)
    inside = truth.voxels[20:30, 8:18, 15:25]
    around = truth.voxels[19:31, 7:19, 14:26].sum() - inside.sum()
    assert not inside.any() and around >= 0.9 * 6 * 100


def test_chunks_of_rays_give_the_same_curve(corridor, monkeypatch):
    field, truth = truth_of(corridor)
    path = np.array([(x, 1.2, 1.0) for x in np.linspace(1.0, 19.0, 9)])
    whole = measure_surface(field, truth, 0, path, max_distance=5.0)
    monkeypatch.setattr("navi_core.evaluate.metrics.surface.RAYS_PER_CAST", 4096 * 2)
    assert np.array_equal(whole, measure_surface(field, truth, 0, path, max_distance=5.0))
    assert (np.diff(whole) > 0).all()


def test_evaluation_measures_surface_coverage_when_enabled(box_room, constant):
    config = EvalConfig(starts=2, max_steps=12, azimuth_bins=32, elevation_bins=8, block=4)
    plain = evaluate(constant(0.2, 0, 0, 0.2), [box_room], config)
    asked = evaluate(constant(0.2, 0, 0, 0.2), [box_room], config.model_copy(update={"surface": True}))
    assert "c_surf_auc" not in plain.episodes[0] and build_course([box_room], config).surfaces == ()
    row = asked.episodes[0]
    assert {name: row[name] for name in plain.episodes[0]} == plain.episodes[0]
    assert 20 < row["c_surf_auc"] <= row["c_surf_final"] <= 100
    assert asked.summary["c_surf_final"] == pytest.approx(np.mean([r["c_surf_final"] for r in asked.episodes]))
    assert asked.to_rows()["episodes"][0]["c_surf_auc_percent"] == row["c_surf_auc"]


def test_the_summary_holds_medians_of_the_decisions_to_each_share(box_room, constant):
    result = evaluate(constant(0, 0, 0, 0), [box_room], EvalConfig(starts=3, max_steps=4, block=4))
    summary, steps = result.summary, [row["c_vis_steps_to_50"] for row in result.episodes]
    assert steps.count(0) >= 2 and summary["c_vis_steps_to_50_median"] == 0
    assert summary["c_visit_steps_to_50_median"] is None
    assert "c_vis_at_100" not in summary


def test_outside_of_an_open_house_is_not_counted() -> None:
    """Nor a wall that faces its open side, two metres off."""
    field = Field([stage(box_triangles((5, 0, -3), (5.1, 2.4, 3)))])
    truth = SurfaceTruth.of(field, 0, FloorMap(field, 0, 0.1, 0.2))
    where = truth.low + (np.argwhere(truth.voxels) + 0.5) * truth.cell
    # The floor, three walls of 6 × 2.4 m, and the undersides and rims of nothing.
    assert (np.abs(where[:, [0, 2]]) < 3.2).all()
    assert truth.voxels.sum() * 0.01 == pytest.approx(36.0 + 3 * 14.4, rel=0.08)
