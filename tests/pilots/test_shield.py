"""Shield of policies: commands are slowed towards surfaces and cells that the own map does not know to be free."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import EnvConfig, SensorConfig, TrainConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.mapping.occupancy_map import HIT
from navi_core.pilots.shield import Shield
from navi_core.world import Field, NavigationEnv
from navi_core.world.occupancy_memory import OccupancyMemory, pose_rows

AHEAD, BACK, RIGHT, DOWN = ([1.0, 0, 0, 0], [-1.0, 0, 0, 0], [0, 0, 1.0, 0], [0, -1.0, 0, 0])


def shielded(scene, profile: str, rows: int = 4):
    """Return an environment in the middle of the box room, its maps, its shield and its first observations."""
    config = EnvConfig(azimuth_bins=64, elevation_bins=16, sensor=SensorConfig(profiles=(profile,)), stagger=False)
    env = NavigationEnv(Field([scene]), rows, config, seed=1)
    memory = OccupancyMemory.of_env(config, rows, 0.2, shielded=True)
    obs, now = env.reset(), env.poses()
    memory.begin(obs, pose=pose_rows(now["position"], now["yaw"]))
    return env, memory, Shield(memory), obs


def test_camera_flies_ahead_and_neither_sideways_nor_down(box_scene):
    _, _, shield, obs = shielded(box_scene, "camera")
    flown = shield.apply(torch.tensor([AHEAD, BACK, RIGHT, DOWN]), obs)
    assert flown[0, 0] > 0.1
    assert flown[1].abs().max() < 0.3 and flown[2].abs().max() < 0.5 and flown[3, 1] == 0.0


def test_full_sphere_is_not_slowed_in_the_open(box_scene):
    env, _, shield, obs = shielded(box_scene, "sphere")
    command = torch.tensor([AHEAD, BACK, RIGHT, DOWN]) * 0.2
    open_rows = env.observe()[:, 0].amin(dim=(1, 2)) > 0.15
    assert open_rows.any()
    level = command * torch.tensor([1.0, 0.0, 1.0, 1.0])
    torch.testing.assert_close(shield.apply(command, obs)[open_rows], level[open_rows])


@pytest.mark.parametrize("profile", ["sphere", "lidar", "camera"])
def test_random_commands_behind_the_shield_seldom_collide(box_scene, profile):
    env, memory, shield, obs = shielded(box_scene, profile, rows=8)
    generator, collided = torch.Generator().manual_seed(3), 0.0
    for step in range(60):
        if step % 10 == 0:
            wanted = torch.rand(8, 4, generator=generator) * 2.0 - 1.0
        batch = env.step(shield.apply(wanted, obs))
        obs, pose = batch.obs, pose_rows(batch.info["position"], batch.info["yaw"])
        memory.follow(obs, pose, torch.arange(8))
        collided += float(batch.info["collision"].sum())
    assert collided <= {"sphere": 0.0, "lidar": 0.0, "camera": 12.0}[profile]


def test_bump_marks_a_hit_beside_the_drone(box_scene):
    env, memory, _, obs = shielded(box_scene, "camera")
    now = env.poses()
    memory.executed(np.array([RIGHT] * 4, np.float32), np.arange(4))
    memory.follow(obs, pose_rows(now["position"], now["yaw"]), torch.arange(4))
    assert ((memory.marks & HIT) != 0).sum(axis=(1, 2)).tolist() == [1, 1, 1, 1]


def met(memory, point):
    """Let a former scan of every row have met a surface at a point of the drone's frame [m]."""
    memory.nearby(np.array([[point]] * 4, np.float32), np.ones((4, 1), bool), np.arange(4), 1.5)


def test_shield_remembers_what_left_the_view(box_scene):
    _, memory, shield, obs = shielded(box_scene, "camera")
    before = shield.apply(torch.tensor([RIGHT] * 4), obs)
    met(memory, (0.225, 0.0, 0.0))
    after = shield.apply(torch.tensor([RIGHT] * 4), obs)
    assert (after[:, 2] < before[:, 2]).all()
    kept = memory.state_dict()["near"]
    assert not torch.isnan(kept).all()
    before = {name: value.clone() for name, value in memory.state_dict().items() if name != "near"}
    memory.load_state_dict(before)  # of an earlier version
    assert torch.isnan(kept).all()
    met(memory, (0.225, 0.0, 0.0))
    memory.begin(obs, pose=torch.zeros(4, 4))
    assert torch.isnan(kept).all()


def test_shield_of_a_faster_or_wider_body_leaves_less_speed(box_scene):
    _, memory, shield, obs = shielded(box_scene, "sphere")
    met(memory, (0.0, 0.0, -0.8))
    command, own = torch.tensor([AHEAD] * 4), torch.tensor([[1.0, 0.15, 0.85]] * 4)
    plain = shield.apply(command, obs)
    torch.testing.assert_close(shield.apply(command, obs, bodies=own), plain)
    for body in ([2.0, 0.15, 0.85], [1.0, 0.6, 0.85]):
        assert (shield.apply(command, obs, bodies=torch.tensor([body] * 4))[:, 0] < plain[:, 0]).all()


def test_shield_is_refused_without_map_or_another_learner():
    for settings, words in (
        ({"policy": {"shield": True}}, "policy.place_memory"),
        (
            {"policy": {"shield": True, "place_memory": True}, "algorithm": "grpo"},
            "policy.shield acts in the flights of ppo and of clones",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_config(TrainConfig, settings)
