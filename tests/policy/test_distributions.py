"""Action distributions against the framework's own, and policies that act by them."""

import math

import pytest
import torch
from torch.distributions import AffineTransform, Beta, Independent, Normal, TransformedDistribution
from torch.distributions import Categorical as FrameworkCategorical
from torch.fx.experimental.proxy_tensor import make_fx

from navi_core.config import PolicyConfig, parse_config
from navi_core.config.world import MOTION_PRIMITIVES
from navi_core.errors import ConfigError
from navi_core.policy import build_policy, parameter_counts, policy_macs
from navi_core.policy.distributions import Categorical, DiagonalGaussian, ScaledBeta, _int32, _uniform, table_index

TABLE = torch.tensor(list(MOTION_PRIMITIVES.values()))
SMALL = dict(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=4)


def framework_beta(ours):
    return Independent(Beta(ours.alpha, ours.beta), 1)


def scaled_beta(ours):
    return Independent(TransformedDistribution(Beta(ours.alpha, ours.beta), [AffineTransform(-1.0, 2.0)]), 1)


def test_gaussian_equals_torch():
    one = DiagonalGaussian(torch.randn(5, 3, 4), torch.randn(4) * 0.3)
    theirs = Independent(Normal(one.mean, one.log_std.exp()), 1)
    actions = torch.randn(5, 3, 4)
    torch.testing.assert_close(one.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(one.entropy(), theirs.entropy())


def test_beta_equals_torch_scaled_to_the_action_range():
    one = ScaledBeta(2 * torch.randn(5, 3, 8))
    actions = torch.rand(5, 3, 4) * 1.9 - 0.95
    torch.testing.assert_close(one.log_prob(actions), scaled_beta(one).log_prob(actions), atol=1e-4, rtol=1e-5)
    wanted = framework_beta(one).entropy() + 4 * math.log(2)
    torch.testing.assert_close(one.entropy(), wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(one.typical(), 2 * framework_beta(one).mean - 1)


def test_beta_draw_hash_fits_32_bit_arithmetic():
    """GPU compilers multiply axis and draw indices in 32 bits, so constants must fit."""

    def hashed(x: int, k: int) -> float:
        x = (x ^ (k * 0x85EBCA6B)) & 0xFFFFFFFF
        for _ in range(2):
            x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
            x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
            x = ((x ^ (x >> 16)) + k) & 0xFFFFFFFF
        return (x + 0.5) / 2**32

    bits = [-7, 0, 3 * 2**20, 2**31 - 1 + 3 * 0x9E3779B1]
    for step, first in ((6, 0), (6, 5), (1, 0)):
        wanted = [hashed(x, step * i + first) for i, x in enumerate(bits)]
        assert _uniform(torch.tensor(bits), torch.arange(4), step, first).tolist() == wanted
    for number in (0, -1, 2**31 - 1, 2**31, 6 * 0x85EBCA6B):
        assert -(2**31) <= _int32(number) < 2**31 and (_int32(number) - number) % 2**32 == 0


def test_index_constants_of_beta_draws_fit_32_bits():
    graph = make_fx(lambda outputs, noise: ScaledBeta(outputs).sample(noise))(
        torch.zeros(2, 8), torch.zeros(2, 4)
    ).graph
    counts, constants = set(), []
    for node in graph.nodes:
        name = str(node.target)
        if name.startswith("aten.arange") or (name.startswith(("aten.mul", "aten.add")) and node.args[0] in counts):
            counts.add(node)
            constants += [x for x in node.args if isinstance(x, int)]
    assert len(constants) > 10 and all(-(2**31) <= x < 2**31 for x in constants)


@pytest.mark.parametrize("raw", [0.0, 30.0, 1000.0, 10_000.0])
def test_concentrated_beta_log_prob_and_entropy_stay_precise(raw):
    """In single precision log π of α ≈ 1000 is off by 5e-3: a ratio of PPO moved by 0.6 % for rounding alone."""
    outputs = raw + 0.3 * torch.randn(500, 8)
    actions = ScaledBeta(outputs).sample(torch.randn(500, 4))
    one, exact = (ScaledBeta(outputs.to(kind)) for kind in (torch.float, torch.double))
    same = {"atol": 2e-6, "rtol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(one.log_prob(actions), exact.log_prob(actions.double()), **same)
    torch.testing.assert_close(one.entropy(), exact.entropy(), **same)
    assert one.log_prob(actions).dtype == one.entropy().dtype == torch.float


def test_concentrated_beta_gradients_equal_double_precision():
    outputs, actions = 300 + 0.3 * torch.randn(50, 8), 0.1 * torch.rand(50, 4)
    found = []
    for dtype in (torch.float, torch.double):
        given = outputs.to(dtype).requires_grad_()
        ours = ScaledBeta(given)
        found.append(torch.autograd.grad((ours.log_prob(actions.to(dtype)) + ours.entropy()).sum(), given)[0])
    assert found[0].dtype == torch.float
    torch.testing.assert_close(found[0].double(), found[1], rtol=1e-4, atol=1e-6)


def test_categorical_equals_torch():
    one = Categorical(torch.randn(5, 3, len(TABLE)), TABLE)
    theirs = FrameworkCategorical(logits=one.log_probs)
    index = torch.randint(len(TABLE), (5, 3))
    assert torch.equal(table_index(TABLE[index], one.table), index)
    torch.testing.assert_close(one.log_prob(TABLE[index]), theirs.log_prob(index))
    torch.testing.assert_close(one.entropy(), theirs.entropy())
    assert torch.equal(one.typical(), TABLE[one.log_probs.argmax(-1)])


@pytest.mark.parametrize("outputs", [(-3.0, -3.0), (0.0, 2.0), (5.0, 1.0), (30.0, 40.0)])
def test_beta_draws_follow_the_beta_distribution(outputs):
    count = 40_000
    ours = ScaledBeta(torch.tensor([outputs[0]] * 4 + [outputs[1]] * 4).expand(count, 8))
    drawn = ours.sample(torch.randn(count, 4))
    theirs = Beta(ours.alpha[0, :1], ours.beta[0, :1]).sample((4 * count,)).flatten() * 2 - 1
    grid = torch.linspace(0.02, 0.98, 25)
    below = torch.stack([(drawn.flatten() <= q).float().mean() for q in theirs.quantile(grid)])
    assert (below - grid).abs().max() < 0.008  # four deviations of both empirical distributions
    axes = torch.corrcoef(drawn.t()) - torch.eye(4)
    assert axes.abs().max() < 0.025


def test_beta_draws_depend_on_noise_and_not_on_the_batch():
    outputs, noise = torch.randn(6, 8), torch.randn(6, 4)
    whole = ScaledBeta(outputs).sample(noise)
    assert torch.equal(whole[3:4], ScaledBeta(outputs[3:4]).sample(noise[3:4]))
    assert whole.abs().max() < 1


def test_categorical_draws_follow_the_probabilities():
    logits = torch.randn(len(TABLE))
    drawn = Categorical(logits.expand(60_000, -1), TABLE).sample(torch.randn(60_000, 4))
    index = table_index(drawn, TABLE)
    share = torch.bincount(index, minlength=len(TABLE)) / 60_000
    assert (share - logits.softmax(0)).abs().max() < 0.008


def test_motion_primitives_are_named_different_and_in_range():
    assert 12 <= len(MOTION_PRIMITIVES) <= 27
    assert len(set(MOTION_PRIMITIVES.values())) == len(MOTION_PRIMITIVES)
    assert TABLE.shape[1] == 4 and TABLE.abs().max() <= 1
    assert MOTION_PRIMITIVES["hover"] == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", ["beta", "discrete"])
def test_a_new_policy_of_any_distribution_explores_evenly(kind):
    policy = build_policy(PolicyConfig(**SMALL, distribution=kind))
    obs, aux, reset = torch.rand(2, 3, 16, 4), torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)
    out = policy.act(obs, aux, policy.initial_state(2), reset, torch.randn(2, 4))
    seen = policy.evaluate(obs[:, None], aux[:, None], policy.initial_state(2), reset[:, None], out.action[:, None])
    torch.testing.assert_close(seen.log_prob[:, 0], out.log_prob, atol=1e-5, rtol=1e-5)
    assert policy.heads.log_std is None and out.action.abs().max() <= 1
    if kind == "discrete":
        assert (seen.entropy - math.log(len(TABLE))).abs().max() < 1e-2
        assert all(tuple(a.tolist()) in {tuple(row.tolist()) for row in TABLE} for a in out.action)
    else:
        assert (policy.act(obs, aux, policy.initial_state(2), reset, None).action).abs().max() < 0.1


def test_separate_critic_shares_no_parameters_with_actor():
    policy = build_policy(PolicyConfig(**SMALL, separate_value=True))
    obs, aux, reset = torch.rand(2, 5, 3, 16, 4), torch.zeros(2, 5, 3), torch.zeros(2, 5, dtype=torch.bool)
    out = policy.evaluate(obs, aux, policy.initial_state(2), reset, torch.zeros(2, 5, 4))
    out.value.sum().backward()
    assert all(p.grad is None for part in (policy.encoder, policy.core, policy.heads.actor) for p in part.parameters())
    assert all(p.grad is not None for p in policy.critic_trunk.parameters())
    counts = parameter_counts(policy)
    assert counts["critic_trunk"] == counts["encoder"] + counts["aux"] + counts["core"]
    macs = policy_macs(policy)
    assert macs["critic_trunk"] == macs["encoder"] + macs["aux"] + macs["core"]
    same = build_policy(PolicyConfig(**SMALL))
    assert all(torch.equal(value, policy.state_dict()[name]) for name, value in same.state_dict().items())


def test_contradictory_settings_are_refused():
    with pytest.raises(ConfigError, match="separate_value and stop_value_gradient"):
        parse_config(PolicyConfig, {"separate_value": True, "stop_value_gradient": True})
