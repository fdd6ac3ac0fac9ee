"""n-step returns and Double DQN targets against hand-computed numbers and float64 loops."""

import numpy as np
import pytest
import torch

from navi_core.learn import double_dqn_targets, n_step_returns


def test_double_dqn_selects_online_and_evaluates_by_target():
    online = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    target = torch.tensor([[10.0, 20.0, 30.0], [1.0, 9.0, 9.0], [7.0, 7.0, 7.0]])
    got = double_dqn_targets(online, target, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, False, True]), 0.5)
    assert got.tolist() == [11.0, 2.5, 3.0], "plain DQN would take 30 and 9"


def test_non_finite_terminal_value_is_ignored():
    got = double_dqn_targets(
        torch.zeros(1, 2), torch.full((1, 2), float("inf")), torch.ones(1), torch.ones(1, dtype=torch.bool), 0.9
    )
    assert got.tolist() == [1.0]


def test_targets_equal_a_float64_loop():
    g = np.random.default_rng(0)
    online, target = g.normal(size=(2, 500, 7))
    reward, discount, over = g.normal(size=500), g.uniform(size=500), g.uniform(size=500) < 0.2
    wanted = [reward[i] + (0.0 if over[i] else discount[i] * target[i, int(np.argmax(online[i]))]) for i in range(500)]
    single = [torch.tensor(x, dtype=torch.float32) for x in (online, target, reward)]
    got = double_dqn_targets(*single, torch.tensor(over), torch.tensor(discount, dtype=torch.float32))
    assert np.abs(got.numpy() - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_three_steps_by_hand():
    rewards = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])[:, None]
    over = torch.tensor([False, False, True, False, False])[:, None]
    none = torch.zeros_like(over)
    returns, last, discount = n_step_returns(rewards, over, none, gamma=0.5, n=3)
    assert returns[:, 0].tolist() == [1 + 1 + 1, 2 + 2, 4, 8 + 8, 16]
    assert last[:, 0].tolist() == [2, 2, 2, 4, 4]
    assert discount[:, 0].tolist() == [0.0, 0.0, 0.0, 0.25, 0.5]
    returns, last, discount = n_step_returns(rewards, none, over, gamma=0.5, n=3)
    assert last[:, 0].tolist() == [2, 2, 2, 4, 4] and discount[:, 0].tolist() == [0.125, 0.25, 0.5, 0.25, 0.5]


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_n_steps_equal_a_float64_loop(n):
    g = np.random.default_rng(n)
    rewards, gamma = g.normal(size=(30, 6)), 0.97
    terminated, truncated = g.uniform(size=(2, 30, 6)) < 0.1
    returns, last, discount = n_step_returns(
        torch.tensor(rewards, dtype=torch.float32), torch.tensor(terminated), torch.tensor(truncated), gamma=gamma, n=n
    )
    for row in range(6):
        for t in range(30):
            total, end = 0.0, t
            for k in range(t, min(t + n, 30)):
                total, end = total + gamma ** (k - t) * rewards[k, row], k
                if terminated[k, row] or truncated[k, row]:
                    break
            assert last[t, row] == end
            assert float(returns[t, row]) == pytest.approx(total, abs=1e-6 * np.abs(rewards).max() * n)
            wanted = 0.0 if terminated[end, row] else gamma ** (end - t + 1)
            assert float(discount[t, row]) == pytest.approx(wanted, rel=1e-6)
