"""Explicit start poses: other rows fly on, and an equal episode is an equal flight."""

from __future__ import annotations

import pytest
import torch

from navi_core.config import EnvConfig
from navi_core.errors import ConfigError
from navi_core.world import Field, NavigationEnv
from navi_core.world.spawning import StartPoses

CONFIG = EnvConfig(
    azimuth_bins=32, elevation_bins=8, max_steps=12, stagger=False, reward={"preset": "navi9"}, sensor={"dropout": 0.1}
)


@pytest.mark.parametrize("tensor_only", [False, True])
def test_repeated_episode_begin_replays_it_for_its_rows_alone(apartments, tensor_only) -> None:
    field = Field(apartments)
    env, whole = (NavigationEnv(field, 4, CONFIG, seed=3, tensor_only=tensor_only) for _ in range(2))
    rows, still = torch.tensor([2, 0]), torch.tensor([1, 3])
    action = torch.tensor([[0.6, 0.1, 0.0, 0.3]]).expand(4, 4)
    flights = []
    for _ in range(3):
        obs = env.begin(rows, torch.tensor([5, 7]), StartPoses(scene=torch.tensor([1, 1])))
        assert env.counters["scene"][rows].tolist() == [1, 1]
        flights.append([obs])
        for _ in range(3):
            step, other = env.step(action), whole.step(action)
            flights[-1] += [step.obs[rows], step.reward[rows], step.info["position"][rows]]
            assert torch.equal(step.obs[still], other.obs[still])
            assert torch.equal(step.reward[still], other.reward[still])
    for again in flights[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, flights[0], strict=True))


@pytest.mark.parametrize("delayed", [False, True])
def test_begin_by_episode_number_equals_reset(apartments, delayed) -> None:
    field, config = Field(apartments), CONFIG.model_dump() | {"sensor": {"dropout": 0.1, "delayed": delayed}}
    env, drawn = (NavigationEnv(field, 3, EnvConfig(**config), seed=3) for _ in range(2))
    rows = torch.arange(3)
    env.step(torch.full((3, 4), 0.4))
    assert torch.equal(env.begin(rows, torch.full((3,), 20), StartPoses()), drawn.reset(episode=20))
    ours, theirs = env.state_dict(), drawn.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"scene": torch.tensor([2])}, "scene is .2.; allowed: 0 to 1"),
        ({"yaw": torch.zeros(2)}, "yaw has shape"),
        ({"position": torch.tensor([[0.0, 1.0, torch.nan]])}, "allowed: numbers below"),
        ({"position": torch.full((1, 3), 50.0)}, "is not in the reachable space of scene"),
        ({"goal": torch.zeros(1, 3)}, "task point_goal alone"),
    ],
)
def test_refused_start_pose_leaves_state_unchanged(apartments, places, message) -> None:
    env = NavigationEnv(Field(apartments), 2, CONFIG, seed=3)
    before = env.state_dict()
    with pytest.raises(ConfigError, match=message):
        env.begin(torch.tensor([1]), torch.tensor([4]), StartPoses(**places))
    assert all(torch.equal(value, before[name]) for name, value in env.state_dict().items())
