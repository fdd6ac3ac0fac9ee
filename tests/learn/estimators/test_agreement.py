"""Agreement of estimators and losses with float64 loops and other libraries, to 1e-6 of the largest value."""

import math

import numpy as np
import pytest
import torch

from navi_core.learn.estimators.losses import (
    double_dqn_targets,
    gae,
    group_advantages,
    n_step_returns,
    policy_loss,
    value_loss,
)
from navi_core.learn.replay.prioritized import PrioritizedReplay

STEPS, ROWS, GAMMA, LAM, CLIP = 96, 9, 0.99, 0.95, 0.2


LIMIT = 1e-6


def strays(ours, reference):
    """How far single precision lies from a reference at most, in units of its largest value."""
    ours, reference = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    if ours.shape != reference.shape:
        return math.inf
    return np.abs(ours - reference).max() / np.abs(reference).max()


def rollout(seed=0):
    """Rewards, values, terminated, truncated, bootstrap values (T, B), single precision."""
    g = np.random.default_rng(seed)
    rewards, values, boot = (10 * g.normal(size=(3, STEPS, ROWS))).astype(np.float32)
    ends = g.uniform(size=(2, STEPS, ROWS)) < 0.05
    return rewards, values, ends[0], ends[1] & ~ends[0], boot


def losses(seed=1):
    g = np.random.default_rng(seed)
    old, advantages, before, returns = g.normal(size=(4, 512)).astype(np.float32)
    new = (old + 0.3 * g.normal(size=512)).astype(np.float32)
    values = (before + 0.5 * g.normal(size=512)).astype(np.float32)
    return new, old, advantages, values, returns, before


def test_gae_equals_a_loop():
    r, v, terminated, truncated, boot = rollout()
    wanted = np.zeros((STEPS, ROWS))
    for row in range(ROWS):
        ahead = 0.0
        for t in reversed(range(STEPS)):
            cut = truncated[t, row] or t == STEPS - 1
            following = float(boot[t, row]) if cut else float(v[t + 1, row])
            delta = float(r[t, row]) + (0.0 if terminated[t, row] else GAMMA * following) - float(v[t, row])
            ahead = delta + (0.0 if cut or terminated[t, row] else GAMMA * LAM * ahead)
            wanted[t, row] = ahead
    advantages, returns = gae(*map(torch.from_numpy, rollout()), gamma=GAMMA, lam=LAM)
    assert strays(advantages, wanted) <= LIMIT
    assert strays(returns, wanted + v) <= LIMIT


def test_ppo_losses_equal_a_loop():
    new, old, advantages, values, returns, before = losses()
    gained = wrong = clipped = 0.0
    for p, q, a, v, r, b in zip(*(x.astype(np.float64) for x in (new, old, advantages, values, returns, before))):
        ratio = math.exp(p - q)
        gained += min(ratio * a, min(max(ratio, 1 - CLIP), 1 + CLIP) * a)
        stepped = b + min(max(v - b, -CLIP), CLIP)
        wrong, clipped = wrong + (v - r) ** 2, clipped + max((v - r) ** 2, (stepped - r) ** 2)
    tensors = [torch.from_numpy(x) for x in (new, old, advantages, values, returns, before)]
    assert strays(policy_loss(tensors[0] - tensors[1], tensors[2], CLIP), -gained / 512) <= LIMIT
    assert strays(value_loss(*tensors[3:], None), wrong / 512) <= LIMIT
    assert strays(value_loss(*tensors[3:], CLIP), clipped / 512) <= LIMIT


@pytest.mark.parametrize("mode", ["mean", "mean_std"])
def test_group_advantages_equal_a_loop(mode):
    returns = (100 + 30 * np.random.default_rng(2).normal(size=128)).astype(np.float32)
    mean = sum(map(float, returns)) / 128
    spread = math.sqrt(sum((float(x) - mean) ** 2 for x in returns) / 128) if mode == "mean_std" else 1.0
    assert (
        strays(group_advantages(torch.from_numpy(returns), mode), [(float(x) - mean) / spread for x in returns])
        <= LIMIT
    )


def test_replay_draws_and_weights_equal_a_loop():
    priorities = np.random.default_rng(3).uniform(0.01, 9.0, 200)
    replay = PrioritizedReplay(200, alpha=0.6, beta0=0.4, seed=0)
    replay.add({"item": torch.arange(200)}, priorities)
    items, index, weights = replay.sample(64)
    assert torch.equal(items["item"], index)
    total = sum(p**0.6 for p in priorities)
    # Stratified: draw i falls into the i-th of 64 equal parts of the sum.
    ends = np.cumsum([p**0.6 / total for p in priorities])
    for i, item in enumerate(index.tolist()):
        low = ends[item - 1] if item else 0.0
        assert low <= (i + 1) / 64 + 1e-9 and ends[item] >= i / 64 - 1e-9
    wanted = np.array([(200 * priorities[i] ** 0.6 / total) ** -0.4 for i in index.tolist()])
    assert strays(weights, wanted / wanted.max()) <= LIMIT


@pytest.mark.slow
def test_gae_equals_stable_baselines3():
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    from gymnasium import spaces

    r, v, over, _, boot = rollout()
    none = np.zeros_like(over)
    buffer = buffers.RolloutBuffer(
        STEPS, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), gae_lambda=LAM, gamma=GAMMA, n_envs=ROWS
    )
    starts = np.concatenate((np.zeros((1, ROWS)), over[:-1]))
    for t in range(STEPS):
        buffer.add(np.zeros((ROWS, 1)), np.zeros(ROWS), r[t], starts[t], torch.from_numpy(v[t]), torch.zeros(ROWS))
    buffer.compute_returns_and_advantage(torch.from_numpy(boot[-1]), over[-1])
    args = (torch.from_numpy(x) for x in (r, v, over, none, boot))
    advantages, returns = gae(*args, gamma=GAMMA, lam=LAM)
    assert strays(advantages, buffer.advantages) <= LIMIT
    assert strays(returns, buffer.returns) <= LIMIT


@pytest.mark.slow
def test_targets_advantages_and_losses_equal_rlax():
    rlax = pytest.importorskip("rlax")
    import jax

    jax.config.update("jax_enable_x64", True)
    r, v, over, _, boot = (x.astype(np.float64) for x in rollout())
    discount = GAMMA * (1.0 - over)
    none = np.zeros(over.shape, bool)
    tensors = [torch.from_numpy(x) for x in (*rollout()[:3], none, rollout()[4])]
    advantages = gae(*tensors, gamma=GAMMA, lam=LAM)[0]
    values = np.concatenate((v, boot[-1:]))
    theirs = [
        rlax.truncated_generalized_advantage_estimation(r[:, i], discount[:, i], LAM, values[:, i]) for i in range(ROWS)
    ]
    assert strays(advantages, np.stack(theirs, axis=1)) <= LIMIT

    for n in (1, 3, 10):
        returns, last, share = n_step_returns(tensors[0], tensors[2], tensors[3], gamma=GAMMA, n=n)
        following = torch.from_numpy(values[1:].astype(np.float32))
        ours = returns + share * torch.gather(following, 0, last)
        theirs = [rlax.n_step_bootstrapped_returns(r[:, i], discount[:, i], values[1:, i], n) for i in range(ROWS)]
        assert strays(ours, np.stack(theirs, axis=1)) <= LIMIT

    g = np.random.default_rng(4)
    online, target, now = g.normal(size=(3, 256, 5)).astype(np.float32)
    reward, ended = g.normal(size=256).astype(np.float32), g.uniform(size=256) < 0.2
    ours = double_dqn_targets(*map(torch.from_numpy, (online, target, reward, ended)), GAMMA)
    errors = jax.vmap(rlax.double_q_learning)(
        now.astype(np.float64), np.zeros(256, int), reward.astype(np.float64), GAMMA * (1.0 - ended),
        target.astype(np.float64), online.astype(np.float64),
    )  # fmt: skip
    assert strays(ours, np.asarray(errors) + now[:, 0].astype(np.float64)) <= LIMIT

    new, old, advantages, *_ = losses()
    ratio = np.exp(new.astype(np.float64) - old)
    theirs = rlax.clipped_surrogate_pg_loss(ratio, advantages.astype(np.float64), CLIP)
    assert (
        strays(policy_loss(torch.from_numpy(new) - torch.from_numpy(old), torch.from_numpy(advantages), CLIP), theirs)
        <= LIMIT
    )
