"""The fast path of GRPO: its gradient is that of the learner it stands in for, and whole episodes are compared."""

import numpy as np
import pytest
import torch

from navi_core.config import parse_config
from navi_core.config.fast_grpo import FastGRPOConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.grpo import grpo_loss
from navi_core.learn.fast.grpo import FastGRPO
from tests.learn.test_fast_dqn import forward


def make(**changes):
    data = {"rows": 8, "group_size": 4, "horizon": 60, "epochs": 1, "minibatch": 4096, "hidden": [16, 16]}
    return FastGRPO(parse_config(FastGRPOConfig, data | changes))


def test_a_gradient_is_that_of_the_learners_loss_under_autograd():
    agent = make(ent_coef=0.05)
    agent.collect()
    agent.params[:] += 0.4 * np.random.default_rng(0).standard_normal(len(agent.params)).astype(np.float32)
    lengths, steps = agent._lengths, int(agent._lengths.max())
    mask = torch.arange(steps)[:, None] < torch.from_numpy(lengths)
    flat = torch.tensor(agent.params, dtype=torch.float64, requires_grad=True)
    logits = forward((4, 16, 16, 2), flat, torch.tensor(agent._obs[:steps]).double())[0].log_softmax(-1)
    chosen = logits.gather(-1, torch.tensor(agent._actions[:steps])[..., None]).squeeze(-1)
    total = grpo_loss(
        chosen, torch.tensor(agent._log_probs[:steps]).double(), -(logits.exp() * logits).sum(-1),
        torch.tensor(agent.advantages).expand(steps, 8), mask, segments=8, decisions=int(lengths.sum()),
        ent_coef=0.05, clip=0.2,
    )[0]  # fmt: skip
    total.backward()
    assert 0 < agent.update()["clip_fraction"] < 1
    np.testing.assert_allclose(agent.grads, flat.grad.numpy(), rtol=0, atol=2e-6 * float(flat.grad.abs().max()))


def test_advantages_are_those_of_whole_episodes_in_their_groups():
    agent = make(normalize_group="mean")
    agent.collect()
    assert agent.returns.tolist() == agent._lengths.tolist(), "cart-pole earns 1 a decision"
    groups = agent.returns.reshape(2, 4)
    np.testing.assert_allclose(agent.advantages.reshape(2, 4), groups - groups.mean(1, keepdims=True))
    assert agent.steps == 8 * agent._lengths.max()


def test_groups_whose_episodes_earn_the_same_teach_nothing_and_are_counted():
    agent = make(horizon=3)
    before = agent.params.copy()
    agent.collect()
    assert agent.silent_groups == 2 and set(agent.update().values()) == {0.0}
    assert (agent.params == before).all()


def test_equal_seeds_give_equal_runs():
    one, two, other = make(seed=1, total_steps=3000), make(seed=1, total_steps=3000), make(seed=2, total_steps=3000)
    for agent in (one, two, other):
        agent.train()
    assert (one.params == two.params).all() and (one.params != other.params).any()


def test_cart_pole_is_learned_in_seconds():
    agent = FastGRPO(parse_config(FastGRPOConfig, {"seed": 11}))
    result = agent.train(target=450.0)
    assert result.solved_at is not None and agent.evaluate(50).mean() >= 450.0


def test_groups_must_divide_the_rows():
    with pytest.raises(ConfigError, match="does not divide"):
        parse_config(FastGRPOConfig, {"rows": 10, "group_size": 4})
