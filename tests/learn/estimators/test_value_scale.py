"""Returns in units of their spread: the critic's units move; predictions in raw units and advantages do not."""

import pytest
import torch
from torch import nn

from navi_core.learn import gae_reference
from navi_core.learn.estimators.normalisation import ValueScale
from navi_core.record import StageTimer
from tests.learn.builders import filled, small_config, small_parts


def test_value_scale_moments_by_hand():
    layer = nn.Linear(3, 1)
    scale, seen = ValueScale(layer), torch.randn(50, 3)
    expected = scale.to_raw(layer(seen))
    for returns, mean, square in ((torch.tensor([1.0, 3.0]), 2.0, 5.0), (torch.tensor([7.0, 7.0]), 3.0, 13.8)):
        scale.follow(returns)
        assert float(scale.mean) == pytest.approx(mean) and float(scale.square) == pytest.approx(square)
        assert float(scale.deviation) == pytest.approx((square - mean**2) ** 0.5)
        torch.testing.assert_close(scale.to_raw(layer(seen)), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(scale.to_scaled(scale.to_raw(expected)), expected, rtol=0, atol=1e-5)
    other = ValueScale(layer)
    other.load_state_dict(scale.state_dict())
    assert other.mean == scale.mean and other.square == scale.square


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_initial_weights_keep_raw_value_predictions(before, after):
    """Scaled predictions that entered GAE as raw values would be wrong by the deviation of the returns."""
    collector, one = small_parts(small_config(ppo={"normalise_returns": before}))
    rollout = filled(collector)
    rollout.rewards.mul_(30.0)
    one.update(rollout, index=0, steps=0)
    _, two = small_parts(small_config(ppo={"normalise_returns": after}), seed=1)
    two.policy.load_state_dict(one.policy.state_dict())
    two.begin_from(one.state_dict())
    obs, aux = collector.obs, torch.zeros(len(collector.obs), 3)
    expected = []
    for learner in (one, two):
        values = learner.policy.value(obs, aux, learner.policy.initial_state(len(obs))).detach()
        expected.append(values if learner.scale is None else learner.scale.to_raw(values))
    torch.testing.assert_close(expected[1], expected[0], rtol=1e-4, atol=1e-4)
    if before:
        assert one.scale.deviation > 3 and one.scale.updates == 1, "else units would not show"


def test_the_scale_is_undone_before_advantages_are_estimated():
    collector, learner = small_parts(small_config())
    learner.scale.mean.fill_(5.0)
    learner.scale.square.fill_(34.0)  # deviation 3
    learner.scale.updates = 1
    rollout = filled(collector)
    ppo = learner.config.ppo
    values, bootstrap = rollout.values * 3 + 5, rollout.bootstrap_values * 3 + 5
    ends = rollout.terminated, rollout.truncated
    wanted, returns = gae_reference(rollout.rewards, values, *ends, bootstrap, gamma=ppo.gamma, lam=ppo.gae_lambda)
    learner.prepare(rollout, 0, learner.settings(0), StageTimer())
    normalised = (wanted - wanted.mean()) / wanted.std(correction=0)
    torch.testing.assert_close(rollout.advantages, normalised.float(), rtol=0, atol=1e-4)
    torch.testing.assert_close(learner.scale.to_raw(rollout.returns), returns.float(), rtol=1e-4, atol=1e-4)
