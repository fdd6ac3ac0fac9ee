"""Commands of policy actions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from navi_core.config import ActorConfig, GateConfig
from navi_core.service.actor.commands import Commands
from navi_core.service.gate import RolloutGate
from navi_core.service.policies.sessions import SessionTable
from navi_core.service.server import ServiceMetrics
from navi_core.service.wire import RobotPose
from navi_core.world import NavigationEnv
from navi_core.world.rewards import HEADING_SECTORS, MOST_VISITS
from tests.service.conftest import SMALL, TINY, tiny_model
from tests.service.learning.test_learning_actor import matrix


def test_commands_receive_resets_and_velocities(stage) -> None:
    """Of two drones one begins; the other keeps what the gate remembers of it."""
    gate = RolloutGate(stage.field, SMALL, GateConfig(threshold=-10.0), capacity=4)
    metrics = ServiceMetrics("navi_actor")
    commands = Commands(tiny_model(), ActorConfig(max_sessions=4), gate, metrics)
    env = NavigationEnv(stage.field, 2, SMALL.model_copy(update={"stagger": False}), seed=3)
    obs, pose = env.reset(), env.poses()
    table = SessionTable(tiny_model().runner, 4, None)
    group = []
    for row in range(2):
        x, y, z = pose["position"][row].tolist()
        there = replace(matrix(0), env_ids=np.array([row], np.int32))
        there = replace(there, robot_pose=RobotPose(x, y, z, 0.0, 0.0, float(pose["yaw"][row]), 0.0))
        group.append(table.open(there, 0.0))
    action = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.5]])
    for reset in ([True, True], [False, True], [False, False]):
        before = [session.velocity.clone() for session in group]
        command, proposal = commands.of(group, obs, torch.tensor(reset), action, table)
        assert torch.equal(command, proposal.command)
        for row, session in enumerate(group):
            assert torch.equal(session.velocity_before, before[row])
            assert torch.equal(session.velocity, proposal.velocity[row])
    visits = gate._past.visits[[session.slot for session in group]]
    counts = (visits >> HEADING_SECTORS & MOST_VISITS).amax(dim=1)
    assert counts.tolist() == [3, 2]
    assert metrics.counter("gate_send_total") + metrics.counter("gate_wait_total") == 6


def test_a_drone_with_nothing_left_to_see_hovers() -> None:
    """Walls all around: the map has no frontier, so after three decisions the command is zero."""
    model = tiny_model(config=TINY.model_copy(update={"place_memory": True}))
    commands = Commands(model, ActorConfig(max_sessions=4, done_after=3), None, ServiceMetrics("navi_actor"))
    table = SessionTable(model.runner, 4, None)
    group = [table.open(matrix(0), 0.0)]
    walls = torch.zeros(1, 3, TINY.azimuth_bins, TINY.elevation_bins)
    walls[:, 0], walls[:, 2] = 0.05, 1.0
    action, flown = torch.tensor([[1.0, 0.0, 0.0, 0.5]]), []
    for _ in range(4):
        _, _, reset = table.gather(group, walls)
        flown.append(commands.of(group, walls, reset, action, table)[0])
    assert [torch.equal(command, action) for command in flown] == [True, True, False, False]
    assert not flown[3].any()
