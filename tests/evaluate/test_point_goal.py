"""Point-goal evaluation: SPL by hand, frozen goals, and the planner as the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from navi_core.config import EvalConfig, PolicyConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate import build_course, compare, evaluate
from navi_core.evaluate.flight.course import Start
from navi_core.evaluate.flight.frozen_starts import Flight
from navi_core.evaluate.protocol import goal_metrics, path_weight
from navi_core.pilots.planner import PlannerPilot
from navi_core.policy import build_policy
from navi_core.world import Field, FloorMap

CONFIG = EvalConfig(starts=3, max_steps=80, task="point_goal")


@pytest.fixture(scope="module")
def course(door_room):
    return build_course([door_room], CONFIG)


def flown(success, *points):
    """A flight along a polyline, and its length [m]."""
    path = np.array([(x, 1.25, z) for x, z in points], np.float32)
    steps = len(path) - 1
    flight = Flight(path, np.zeros(steps + 1), np.zeros(steps, bool), np.ones(steps), success)
    return flight, float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum())


def test_spl_by_hand(box_room):
    floor = FloorMap(Field([box_room]), 0, 0.1, 0.2)
    start = Start(0, "box", 0, (1.05, 1.25, 2.05), 0.0, 1, (4.05, 1.25, 2.05))

    def reported(success, *points):
        return goal_metrics(floor, start, *flown(success, *points))

    straight = reported(True, (1.05, 2.05), (4.05, 2.05))
    assert straight["success"] is True
    assert straight["geodesic"] == pytest.approx(3.0, abs=0.001) and straight["spl"] == pytest.approx(1.0)
    # 1 m aside, 3 m along and 1 m back: 3 / 5. It failed to stop: nothing, but all of the way was covered.
    detour = ((1.05, 2.05), (1.05, 3.05), (4.05, 3.05), (4.05, 2.05))
    assert reported(True, *detour)["spl"] == pytest.approx(0.6, abs=0.005)
    failed = reported(False, *detour)
    assert failed["spl"] == 0.0 and failed["soft_spl"] == pytest.approx(0.6, abs=0.005)
    # A third of the way, straight: 1 − 2/3.
    third = reported(False, (1.05, 2.05), (2.05, 2.05))
    assert third["soft_spl"] == pytest.approx(1 / 3, abs=0.001)
    assert third["goal_distance"] == pytest.approx(2.0, abs=0.001)
    # Its last place is too near the wall for a way: 0.9 m straight to it from one that has a way of 1.0.
    aside = reported(True, (1.05, 2.05), (4.05, 3.05), (4.05, 3.95))
    assert aside["goal_distance"] == pytest.approx(1.0 + 0.9, abs=0.01)
    # Away from the goal it is 0, not less.
    assert reported(False, (1.05, 2.05), (0.55, 2.05))["soft_spl"] == 0.0
    assert [path_weight(3.0, p) for p in (2.0, 3.0, 6.0)] == [1.0, 1.0, 0.5]


def test_goals_are_frozen_reachable_and_far_enough(course, door_room):
    again = build_course([door_room], CONFIG)
    assert [s.goal for s in course.starts] == [s.goal for s in again.starts]
    assert len({s.goal for s in course.starts}) == 3
    for start in course.starts:
        away = np.hypot(start.goal[0] - start.position[0], start.goal[2] - start.position[2])
        assert away >= CONFIG.goal.min_distance and start.goal[1] == start.position[1]
    many = build_course([door_room], CONFIG.model_copy(update={"starts": 16})).starts
    assert all(np.hypot(s.goal[0] - s.position[0], s.goal[2] - s.position[2]) >= 2.0 for s in many)
    # Starts are those of exploring.
    plain = build_course([door_room], CONFIG.model_copy(update={"task": "explore"}))
    assert [(s.position, s.yaw, s.key) for s in plain.starts] == [(s.position, s.yaw, s.key) for s in course.starts]
    assert all(s.goal is None for s in plain.starts)


def test_planner_reaches_every_goal_and_random_does_not(course):
    planner, random = evaluate("planner", course), evaluate("random", course)
    assert planner.summary["success"] == 1.0 and planner.summary["spl"] > 0.93
    assert planner.summary["goal_distance"] <= CONFIG.goal.success_radius
    # A flight ends where it stops at the goal.
    for row, path in zip(planner.episodes, planner.trajectories, strict=True):
        assert row["steps"] == len(path) - 1 < CONFIG.max_steps and row["success"] is True
    assert random.summary["spl"] < 0.4 and random.episodes[0]["geodesic"] == planner.episodes[0]["geodesic"]
    verdict = compare(planner, random, "goal_distance")
    assert verdict.mean_difference < 0


def test_compass_reaches_goals_by_its_own_map(course):
    compass = evaluate("compass", course)
    assert compass.summary["success"] == 1.0 and compass.summary["spl"] > 0.8
    assert sum(row["collisions"] for row in compass.episodes) == 0
    assert "goal, exact pose" in compass.summary["inputs"]


def test_flight_ends_with_its_first_stop_at_the_goal(box_room, constant):
    """Of two drones that hover one begins at its goal; the other flies to the end of the time."""
    course = build_course([box_room], EvalConfig(starts=1, max_steps=6, task="point_goal", block=4))
    (start,) = course.starts
    x, y, z = start.position
    # Towards the middle of the room.
    aside = 0.9 * course.config.goal.success_radius * (1 if z < 2 else -1)
    there = replace(start, goal=(x, y, z + aside))
    course = replace(course, starts=(there, replace(start, index=1)))
    result = evaluate(constant(0, 0, 0, 0), course)
    assert [(row["success"], row["steps"]) for row in result.episodes] == [(True, 1), (False, 6)]
    assert [len(path) for path in result.trajectories] == [2, 7]
    assert "coverage_curve" not in result.summary  # flights of different lengths have none


def test_a_pilots_episode_does_not_depend_on_its_block_which_is_not_filled_up(door_room, monkeypatch):
    rows, act_at = set(), PlannerPilot.act_at

    def counted(self, obs, pose):
        rows.add(len(obs))
        return act_at(self, obs, pose)

    monkeypatch.setattr(PlannerPilot, "act_at", counted)
    one = evaluate("planner", [door_room], CONFIG.model_copy(update={"starts": 2, "block": 16}))
    two = evaluate("planner", [door_room], CONFIG.model_copy(update={"starts": 3, "block": 16}))
    three = evaluate("planner", [door_room], CONFIG.model_copy(update={"starts": 3, "block": 2}))
    assert rows == {1, 2, 3}
    for a, b, c in zip(one.episodes, two.episodes, three.episodes):
        assert a == b == c


def test_goal_conditioned_policy_needs_a_goal(course, door_room, caplog):
    config = PolicyConfig(azimuth_bins=16, elevation_bins=8, encoder="ring_cnn", core="none", width=16, goal=True)
    policy = build_policy(config, seed=1)
    first, other = (evaluate(policy, course, name=name) for name in "ab")
    assert np.array_equal(first.trajectories[0], other.trajectories[0])
    blind = policy.aux.weight.data[:, 3:].clone()
    policy.aux.weight.data[:, 3:] = 0.0
    assert not np.array_equal(first.trajectories[0], evaluate(policy, course, name="c").trajectories[0])
    policy.aux.weight.data[:, 3:] = blind
    with pytest.raises(EvaluationError, match="--task point_goal"):
        evaluate(policy, [door_room], EvalConfig(starts=1, max_steps=2))
    explorer = build_policy(config.model_copy(update={"goal": False}), seed=1)
    evaluate(explorer, course, name="e")
    assert "e has no goal input" in caplog.text
