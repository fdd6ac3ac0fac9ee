"""Point-goal flight: paths of known length, rewards, and ends of episodes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from navi_core.config import EnvConfig, GoalConfig
from navi_core.errors import ConfigError, SceneError
from navi_core.world import Field, FloorMap, NavigationEnv
from navi_core.world.goals import reached, relative_goal, way_lengths, way_to
from tests.evaluate.conftest import boxes_scene

SMALL = EnvConfig(azimuth_bins=16, elevation_bins=6, max_steps=8, stagger=False, task="point_goal",
                  reward={"preset": "point_goal"}, goal={"per_scene": 4})  # fmt: skip


@pytest.fixture(scope="module")
def door_floor():
    """8 × 2.4 × 4 m, parted at x = 4 by a wall 0.2 m thick with a door from z = 1.5 to z = 2.5."""
    wall = (((3.9, 0, 0), (4.1, 2.4, 1.5)), ((3.9, 0, 2.5), (4.1, 2.4, 4)))
    return FloorMap(Field([boxes_scene("door", ((0, 0, 0), (8, 2.4, 4)), *wall)]), 0, 0.1, 0.2)


def test_goal_path_leads_through_the_door(door_floor):
    goal = np.array([6.0, 1.2, 0.6])
    ways = way_to(door_floor, goal)
    seen, behind = way_lengths(door_floor, ways, np.array([[7.0, 1.2, 3.0], [2.0, 1.2, 0.6]]))
    assert seen == pytest.approx(math.hypot(1.0, 2.4), rel=0.02)
    # A taut string keeps 0.2 m off both edges of the door: a tangent, an arc, 0.2 m, an arc, a tangent.
    corner = math.hypot(1.9, 0.9)
    tangent, turn = math.sqrt(corner**2 - 0.2**2), math.atan2(0.9, 1.9) + math.asin(0.2 / corner)
    assert behind == pytest.approx(2 * (tangent + 0.2 * turn) + 0.2, rel=0.03)
    # There and back are as long.
    back = way_lengths(door_floor, way_to(door_floor, np.array([2.0, 1.2, 0.6])), goal[None])[0]
    assert back == pytest.approx(behind, rel=0.02)
    with pytest.raises(SceneError, match="not reachable"):
        way_to(door_floor, np.array([4.0, 1.2, 0.7]))


def test_goal_is_relative_to_the_drone_frame():
    position, yaw = torch.zeros(3, 3), torch.tensor([0.0, math.pi / 2, 0.0])
    goal = torch.tensor([[0.0, 0.5, -2.0], [-3.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    reported = relative_goal(position, yaw, goal)
    # Ahead, ahead after a quarter turn to the left, and to the right.
    wanted = [[math.log(3.0), 2 / 3, 0.0, 0.5], [math.log(4.0), 3 / 4, 0.0, 0.0], [math.log(2.0), 0.0, -1 / 2, 0.0]]
    assert torch.allclose(reported, torch.tensor(wanted), atol=1e-6)
    # At its own place it lies nowhere, and nothing jumps there.
    assert relative_goal(position[:1], yaw[:1], position[:1]).tolist() == [[0.0, 0.0, 0.0, 0.0]]
    beside = relative_goal(position[:1], yaw[:1], torch.tensor([[0.01, 0.0, 0.0]])).tolist()
    assert beside == [pytest.approx([0.01, 0.0, -0.01, 0.0], abs=1e-3)]


def test_goal_is_reached_by_stopping_near_it():
    place = torch.tensor([[0.5, 0.0, 0.0], [0.51, 0.0, 0.0], [0.1, 0.0, 0.0]])
    speed = torch.tensor([0.25, 0.0, 0.3])
    assert reached(place, speed, torch.zeros(3, 3), GoalConfig()).tolist() == [True, False, False]


def put(env, row, position):
    state = env.state_dict()
    state["position"][row], state["velocity"][row] = position, 0.0
    env.load_state_dict(state)


def test_stopping_at_the_goal_terminates_with_success_reward(apartments):
    env = NavigationEnv(Field(apartments), 3, SMALL, seed=2)
    goal = env.goals.of(env.counters["scene"])
    first = env.relative_goals()
    assert (env.goals.way >= SMALL.goal.min_distance).all()
    assert (env.goals.way + 0.2 >= (goal - env.poses()["position"]).norm(dim=1)).all()
    way = env.goals.way.clone()
    put(env, 1, goal[1])
    out = env.step(torch.zeros(3, 4))
    assert out.terminated.tolist() == [False, True, False] == out.info["success"].tolist()
    assert not out.truncated.any()
    assert out.info["goal"][1, 0] < 0.1
    terms = out.info["reward_terms"]
    assert terms["goal_success"].tolist() == [0.0, 10.0, 0.0]
    # Progress is rewarded for the whole path that the test skipped.
    assert float(terms["goal_progress"][1]) == pytest.approx(float(way[1]), abs=0.15)
    assert float(out.reward[1]) == pytest.approx(float(terms["goal_progress"][1]) + 10.0)
    # The next episode has begun, elsewhere and with a goal of its own.
    assert env.counters["episode"].tolist() == [0, 1, 0]
    assert env.counters["length"].tolist() == [1, 0, 1]
    assert not torch.equal(env.relative_goals()[1], first[1])
    assert torch.equal(out.final_obs[0], out.obs[0])
    assert not torch.equal(out.final_obs[1], out.obs[1])


def test_goal_progress_sums_to_path_in_kernels_and_tensors(apartments):
    envs = [NavigationEnv(Field(apartments), 4, SMALL, seed=5, tensor_only=plain) for plain in (False, True)]
    generator, paid, before = torch.Generator().manual_seed(0), torch.zeros(4), envs[0].goals.way.clone()
    for _ in range(8):
        action = torch.rand(4, 4, generator=generator) * 2 - 1
        a, b = (env.step(action) for env in envs)
        paid += a.info["reward_terms"]["goal_progress"]
        for name in ("goal", "way", "success"):
            assert torch.equal(a.info[name], b.info[name]), name
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(*(env.relative_goals() for env in envs))
    assert torch.allclose(paid, before - a.info["way"], atol=1e-4)
    assert a.truncated.all()
    assert not a.terminated.any()


def test_row_goals_are_equal_alone_and_after_restore(apartments):
    field, seen = Field(apartments), set()
    whole, part, other = (
        NavigationEnv(field, rows, SMALL, seed=7, first_row=first) for rows, first in ((3, 0), (1, 2), (1, 2))
    )
    for step in range(30):
        if step == 20:
            other.load_state_dict(part.state_dict())
            part = other
        assert torch.equal(whole.relative_goals()[2:], part.relative_goals())
        seen.add(tuple(part.goals.of(part.counters["scene"])[0].tolist()))
        action = torch.ones(3, 4) * 0.3
        some = whole.step_rows(torch.tensor([2, 0, 1]), action)
        assert torch.equal(some.reward[:1], part.step(action[:1]).reward)
    assert len(seen) > 1


def test_goal_paths_beyond_memory_limit_are_refused(apartments, monkeypatch):
    monkeypatch.setattr("navi_core.world.goals._MOST_BYTES", 1 << 20)
    with pytest.raises(ConfigError, match="per_scene"):
        NavigationEnv(Field(apartments), 1, SMALL)
