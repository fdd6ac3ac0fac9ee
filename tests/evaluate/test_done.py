"""A flight that has nothing left to see hovers, and its row holds the decision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import DynamicsConfig, EvalConfig, PolicyConfig, parse_config
from navi_core.errors import ConfigError, EvaluationError
from navi_core.evaluate import evaluate
from navi_core.policy import build_policy
from navi_core.world.occupancy_memory import OccupancyMemory
from tests.evaluate.conftest import ConstantPilot, boxes_scene
from tests.evaluate.test_protocol import NETWORK, fly_ahead

CONFIG = EvalConfig(starts=2, max_steps=120, azimuth_bins=32, elevation_bins=8, block=2, done_after=10)


@pytest.mark.parametrize("name", ["compass", "frontier", "planner"])
def test_a_pilot_hovers_once_its_map_has_no_frontier(box_room, name):
    result = evaluate(name, [box_room], CONFIG)
    for row, path in zip(result.episodes, result.trajectories, strict=True):
        assert 9 < row["done_at"] < 100 and row["collisions"] == 0
        # It stops within a few decisions, by its own dynamics.
        assert np.ptp(path[row["done_at"] + 10 :], axis=0).max() < 1e-3
        assert row["c_vis_final"] > 95
    on = evaluate(name, [box_room], CONFIG.model_copy(update={"done_after": None}))
    assert [row["done_at"] for row in on.episodes] == [None, None]


def stubborn(**settings):
    return fly_ahead(build_policy(NETWORK.model_copy(update={"place_memory": True, **settings})))


def test_a_policy_that_pushes_against_a_wall_stops_there_when_all_is_seen():
    closet = boxes_scene("closet", ((0, 0, 0), (3.0, 2.4, 2.6)))
    once = CONFIG.model_copy(update={"starts": 1})
    as_trained = once.model_copy(update={"done_after": None})
    hovering = evaluate(stubborn(), [closet], once)
    grinding, trained = (evaluate(stubborn(done_after=after), [closet], as_trained) for after in (0, 10))
    done = [row["done_at"] for row in hovering.episodes]
    assert None not in done and max(done) < 100
    assert [row["done_at"] for row in trained.episodes] == done
    for row, before in zip(hovering.episodes, grinding.episodes, strict=True):
        assert before["collisions"] > 60 and row["collisions"] <= row["done_at"] + 2 and before["done_at"] is None


class Scripted(ConstantPilot):
    """Hovers, and reports at each decision which rows are done, (T, B)."""

    def __init__(self, reports):
        super().__init__(0, 0, 0, 0)
        self._reports = torch.tensor(reports)

    def _decide(self, obs):
        self.done = self._reports[self._step[0]]
        return super()._decide(obs)


def test_done_at_is_the_decision_from_which_on_the_subject_is_done(box_room):
    reports = [[True, True, False], [True, False, False], [True, True, False]]
    flown = evaluate(Scripted(reports), [box_room], EvalConfig(starts=3, max_steps=3, block=3))
    assert [row["done_at"] for row in flown.episodes] == [0, 2, None]


def test_without_a_map_the_end_of_a_flight_is_refused(box_room):
    with pytest.raises(EvaluationError, match="forward-plus keeps no map"):
        evaluate("forward-plus", [box_room], CONFIG)
    with pytest.raises(EvaluationError, match=r"policy has no occupancy map.*policy\.place_memory"):
        evaluate(build_policy(NETWORK), [box_room], CONFIG)
    with pytest.raises(ConfigError, match=r"policy\.done_after"):
        parse_config(PolicyConfig, {"done_after": 5})


def test_a_memory_with_a_goal_is_never_done():
    memory = OccupancyMemory(2, 32, 8, DynamicsConfig(), 10.0)
    wall = torch.zeros(2, 3, 32, 8)
    wall[:, 0], wall[:, 2] = 0.05, 1.0
    pose = torch.zeros(2, 4)
    memory.begin(wall, pose=pose)
    for _ in range(4):
        memory.follow(wall, pose, torch.arange(2))
    assert memory.done(4).tolist() == [True, True]
    assert memory.done(0).tolist() == [False, False]
    memory.follow(wall[:1], pose[:1], torch.tensor([1]), goal=torch.tensor([[1.0, 1.0, 0.0, 0.0]]))
    assert memory.done(4, torch.tensor([1])).tolist() == [False]
