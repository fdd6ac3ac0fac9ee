"""Evaluation with limited sensors: C_seen, pilots that look before they fly, names in rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from navi_core.cli.evaluate import print_results
from navi_core.config import CompileConfig, EvalConfig, SensorConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.evaluate import FloorTruth, build_course, evaluate, measure_coverage
from navi_core.evaluate.comparison import compare
from navi_core.scenes.compiler import compile_mesh
from navi_core.scenes.procedural import generate_scene
from navi_core.world import Field, FloorMap
from navi_core.world.sensor.profiles import PROFILES

CAMERA = SensorConfig(profiles=("camera",))


def test_c_seen_counts_the_sector_ahead(box_scene):
    """In the middle of the box room a camera sees its 87 of 360 degrees, and after a full turn all."""
    field = Field([box_scene])
    truth = FloorTruth.of(FloorMap(field, 0, 0.1, 0.2), 0.5)
    positions = np.tile(np.array([[0.0, 1.2, 0.0]], np.float32), (9, 1))
    yaws = np.arange(9, dtype=np.float32) * np.float32(math.pi / 4)
    flown = measure_coverage(field, truth, 0, positions, view_radius=3.2, yaws=yaws, profile=PROFILES["camera"])
    assert flown.sensed_share is not None
    assert flown.sensed_share[0] / flown.seen_share[0] == pytest.approx(87 / 360, abs=0.03)
    assert flown.sensed_share[-1] == pytest.approx(flown.seen_share[-1], abs=0.5)
    all_around = measure_coverage(field, truth, 0, positions, view_radius=3.2, yaws=yaws, profile=PROFILES["sphere"])
    np.testing.assert_array_equal(all_around.sensed_share, all_around.seen_share)


def test_frontier_turns_to_look_with_a_camera(apartments):
    config = EvalConfig(starts=2, max_steps=100, sensor=CAMERA, block=2)
    result = evaluate("frontier", build_course(apartments[:1], config))
    assert sum(row["collisions"] for row in result.episodes) == 0
    assert min(row["c_seen_auc"] for row in result.episodes) > 35.0
    assert all(row["c_seen_auc"] < row["c_vis_auc"] and row["sensor"] == "camera" for row in result.episodes)
    assert "camera 64x16" in result.summary["inputs"]


def test_compass_with_a_camera_leaves_a_spot_where_its_shield_stops_it():
    scene = compile_mesh(generate_scene("apartment", 9306), CompileConfig(resolution=256))
    result = evaluate("compass", build_course([scene], EvalConfig(starts=1, max_steps=60, sensor=CAMERA)))
    assert result.episodes[0]["path_length"] > 2.0  # 0.6 m without recovery


def test_c_seen_is_the_headline_of_a_limited_sensor(apartments, capsys):
    config = EvalConfig(starts=3, max_steps=20, sensor=CAMERA, block=6)
    course = build_course(apartments[:2], config)
    ours, theirs = evaluate("compass", course), evaluate("random", course)
    assert compare(ours, theirs).metric == "c_seen_auc"
    low, high = (ours.summary[f"c_seen_auc_{bound}"] for bound in ("low", "high"))
    assert low < ours.summary["c_seen_auc"] < min(high, ours.summary["c_vis_auc"])
    print_results([ours])
    printed = capsys.readouterr().out
    assert "C_seen AUC" in printed and f"{ours.summary['c_seen_auc']:.1f}" in printed


def test_sensors_are_evaluated_one_by_one():
    for settings, words in (
        ({"profiles": ["camera", "lidar"]}, "each sensor by itself"),
        ({"delay": [2, 1]}, "swap them"),
        ({"delayed": True, "delay": [0, 1]}, "leave out delayed"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_config(EvalConfig, {"sensor": settings})
