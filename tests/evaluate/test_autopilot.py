"""Pilots and policies in a custom loop: their memory ends with an episode, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from navi_core.config import EnvConfig, PolicyConfig, SensorConfig, ShaperConfig, TrainConfig
from navi_core.demos import make_pairs
from navi_core.errors import EvaluationError
from navi_core.evaluate import Autopilot, take_off
from navi_core.models import Checkpoint, Registry, save_checkpoint
from navi_core.pilots import Pilot, Pose
from navi_core.policy import build_policy
from navi_core.record import navi_home
from navi_core.world import Field, NavigationEnv

ENV = EnvConfig(azimuth_bins=32, elevation_bins=8, max_steps=100)
SHAPER = ShaperConfig(memory_capacity=400, memory_exclusion=2)
NETWORK = PolicyConfig(
    encoder="ring_cnn", core="gru", azimuth_bins=32, elevation_bins=8, place_memory=True, recovery=True
)


def registered(tmp_path, network=NETWORK, env=ENV, vocabulary=None):
    """A version with curiosity and loop memory whose actions are large; returns its policy."""
    policy = build_policy(network, 0)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if name.startswith("heads.actor") and weight.shape[0] == 4:
                weight.mul_(80)
    path = save_checkpoint(
        tmp_path / "a.pt",
        Checkpoint.of(
            policy=policy,
            optimizer=None,
            config=TrainConfig(
                actors=2, env=env, policy=network, shaper=ShaperConfig(memory_capacity=400, memory_exclusion=2)
            ),
            step_id=640,
            episode_count=3,
            reward_ema=0.5,
            run_id="test-run",
            wall_time_hours=0.0,
            corpus_summary={"semantic_vocabulary": vocabulary or {}},
        ),
    )
    Registry(navi_home() / "models").register(path)
    return policy


def test_restarted_row_flies_like_a_fresh_one(box_room, tmp_path):
    """The twin is a flyer of one row that flies only the second episode."""
    registered(tmp_path)
    env, pilot = take_off("latest", [box_room], num_envs=3, seed=1)
    assert pilot.name == "v001" and not env.config.stagger
    obs, reported = env.reset(), []
    ends = torch.tensor([20, 13, 7])
    for number in range(30):
        poses = env.poses()
        action = pilot.act(obs)
        reported.append((obs, poses, action))
        step = env.step(action)
        # As if episodes ended at their own times.
        cut = ends == number + 1
        env.counters["episode"] += cut
        pilot.after_step(replace(step, truncated=cut, terminated=torch.zeros_like(cut)))
        obs = step.obs
    for row, begin in ((1, 13), (2, 7)):
        twin = take_off("v001", [box_room], seed=1)[1]._flyer
        twin.begin(torch.tensor([row + 3]), env.field)
        one = slice(row, row + 1)
        for seen, poses, action in reported[begin : begin + 10]:
            pose = Pose(poses["position"][one], poses["yaw"][one], poses["scene_index"][one])
            with torch.no_grad():
                assert torch.allclose(twin.act(seen[one], pose), action[one], atol=1e-5)


@pytest.mark.parametrize("name", ["frontier", "forward-plus", "planner"])
def test_autopilot_flies_pilots_reproducibly(name, box_room, door_room):
    def flight():
        env, pilot = take_off(name, [box_room, door_room], num_envs=4, seed=3)
        obs = env.reset()
        for _ in range(30):
            step = env.step(pilot.act(obs))
            pilot.after_step(step)
            obs = step.obs
        return env.poses()["position"]

    assert torch.equal(flight(), flight())


def test_autopilot_names_the_setting_that_does_not_fit(box_room, tmp_path):
    registered(tmp_path, vocabulary={"surface": 7})
    env = NavigationEnv(Field([box_room]), 1, ENV)
    with pytest.raises(EvaluationError, match="semantic id of 'surface' is 1 in these scenes and 7"):
        Autopilot("v001", env)
    many = NavigationEnv(Field([box_room]), 1, ENV)
    many.field.vocabulary.update(table=7, surface=7)
    with pytest.raises(EvaluationError, match="semantic id of 'table' is 7 in these scenes and 1"):
        Autopilot("v001", many)
    wide = NavigationEnv(Field([box_room]), 1, ENV.model_copy(update={"azimuth_bins": 64}))
    with pytest.raises(EvaluationError, match="v001 reads azimuth_bins 32, the environment has 64"):
        Autopilot("v001", wide)
    with pytest.raises(EvaluationError, match=r"'v009' is no pilot .*latest, v001"):
        take_off("v009", [box_room])


def test_autopilot_takes_range_rows_and_seed_from_the_environment(box_room):
    """A protocol has at most 1,024 rows a block and seeds of its own."""
    short = ENV.model_copy(update={"max_distance": 20.0, "azimuth_bins": 16, "elevation_bins": 4})
    env = NavigationEnv(Field([box_room]), 1100, short)
    network = PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=4)
    for subject, seed in ((build_policy(network, 0), -(2**40)), ("forward-plus", 2**20)):
        pilot = Autopilot(subject, env, seed=seed, deterministic=subject == "forward-plus")
        assert pilot.act(env.reset()).shape == (1100, 4)


@pytest.mark.parametrize("name", ["compass", "planner"])
def test_autopilot_and_pairs_fly_pilots_by_odometry_and_scan_age(box_room, monkeypatch, name):
    late = ENV.model_copy(update={"sensor": SensorConfig(delay=(2, 2), profiles=("camera",)), "stagger": False})
    ages, act = [], Pilot.act

    def noted(pilot, obs, reset=None, pose=None, odometry=None, scan_age=None):
        if pilot.name == name:
            assert (pilot.oldest, pilot.limited) == (2, True)
            assert (pose is None) != (odometry is None)
            ages.append(scan_age.tolist())
        return act(pilot, obs, reset, pose, odometry, scan_age)

    monkeypatch.setattr(Pilot, "act", noted)
    env = NavigationEnv(Field([box_room]), 2, late)
    pilot, obs = Autopilot(name, env), env.reset()
    for _ in range(4):
        obs = env.step(pilot.act(obs)).obs
    make_pairs(env.field, late, 1, winner=name, loser="random", steps=4, rows=2)
    assert ages == [[0, 0], [1, 1], [2, 2], [2, 2]] * (len(ages) // 4) and len(ages) >= 8
