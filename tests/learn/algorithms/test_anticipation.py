"""Occupancy anticipation: its target is the unseen floor around, nobody acts by it, and the features learn it."""

import math

import pytest
import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.config.policy import ANTICIPATED
from navi_core.errors import ConfigError
from navi_core.world import Field, NavigationEnv
from tests.evaluate.conftest import boxes_scene
from tests.learn.builders import filled, small_config, small_parts

ROWS = 3
ANTICIPATING = dict(
    encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=8, privileged_critic=True, anticipation=0.5
)


def collected(apartments):
    config = small_config(rows=ROWS, env={"max_steps": 12, "episodes_per_scene": 1}, policy=ANTICIPATING)
    env = NavigationEnv(Field(apartments), ROWS, config.env, 0)
    return env, *small_parts(config, env)


def test_target_tells_where_floor_is_unseen():
    env = NavigationEnv(Field([boxes_scene("hall", ((0, 0, 0), (16, 2.4, 16)))]), 1, small_config(rows=1).env, 0)
    env.view.seen.zero_()

    def around(x, z, yaw):
        scene = torch.zeros(1, dtype=torch.int64)
        return env.view.unseen_around(torch.tensor([[x, 1.2, z]]), torch.tensor([yaw]), scene)[0].view(2, 16)

    assert (around(8.0, 8.0, 0.3) == 1.0).all()
    # Beside the western wall: floor to the right of a drone that looks north, none to its left, nor once it is seen.
    near, far = around(0.5, 8.0, 0.0)
    assert near[4] == far[4] == 1.0 and near[12] < 0.3 and far[12] == 0.0
    turned = around(0.5, 8.0, math.pi / 2)[0]
    assert turned[8] == 1.0 and turned[0] < 0.3  # to the left is west
    env.view.seen.fill_(True)
    assert (around(8.0, 8.0, 0.0) == 0.0).all()


def test_target_rides_behind_the_privileged_inputs(apartments):
    env, collector, learner = collected(apartments)
    rollout = filled(collector)
    assert rollout.aux.shape[-1] == 3 + 3 + ANTICIPATED
    torch.testing.assert_close(collector.aux[:, -ANTICIPATED:], env.unseen_around())
    target = rollout.aux[..., -ANTICIPATED:]
    assert (target >= 0).all() and (target <= 1).all() and target.std() > 0.05
    before = [weight.clone() for weight in learner.policy.anticipation.parameters()]
    metrics = learner.update(rollout, index=0, steps=0).metrics
    assert metrics["parity_ratio"] < 1e-4 and metrics["parity_value"] < 1e-4
    assert any((old != new).any() for old, new in zip(before, learner.policy.anticipation.parameters()))


def test_features_learn_to_predict(apartments):
    _, collector, learner = collected(apartments)
    rollout = filled(collector)
    policy = learner.policy
    optimiser = torch.optim.Adam(policy.parameters(), lr=0.01)
    batch = rollout.minibatch(slice(0, rollout.sequences))
    errors = []
    for _ in range(30):
        out = policy.evaluate(batch.obs, batch.aux, batch.state, batch.reset, batch.actions)
        errors.append(float(out.anticipation_loss.detach().mean()))
        optimiser.zero_grad()
        out.anticipation_loss.mean().backward()
        optimiser.step()
    assert errors[-1] < 0.7 * errors[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": {"anticipation": 0.1}}, "policy.privileged_critic"),
        ({"policy": {"anticipation": 0.1, "privileged_critic": True}, "algorithm": "grpo"}, "not of grpo"),
        (
            {"policy": {"anticipation": 0.1, "privileged_critic": True, "goal": True}, "env": {"task": "point_goal"}},
            "env.task point_goal",
        ),
    ],
)
def test_anticipation_is_refused_where_nothing_learns_it(settings, words):
    with pytest.raises(ConfigError, match=words):
        parse_config(TrainConfig, settings)
