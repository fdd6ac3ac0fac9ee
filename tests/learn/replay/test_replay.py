"""Prioritised replay: exact proportional sampling, importance weights, a ring of items, and refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from navi_core.errors import CheckpointError, ConfigError
from navi_core.learn import PrioritizedReplay
from navi_core.learn.replay.prioritized import SumTree


def items(numbers):
    x = torch.as_tensor(numbers, dtype=torch.float32)
    return {"obs": x[:, None] * torch.ones(3), "number": x.long()}


def slow_draw(weights, count, uniforms):
    """The tree's slow twin: running sums in float64 and a search."""
    ends = np.cumsum(weights)
    return np.searchsorted(ends, (np.arange(count) + uniforms) / count * ends[-1], side="right")


def test_sum_tree_draws_equal_running_sums():
    g = np.random.default_rng(0)
    for size in (1, 2, 7, 64, 1000):
        tree, weights = SumTree(size), g.uniform(0, 3, size) * (g.uniform(size=size) > 0.3)
        weights[size // 2] = 1.0
        tree.set(np.arange(size), weights)
        assert tree.total == pytest.approx(weights.sum(), rel=1e-12)
        for number in range(5):
            drawn = tree.draw(50, 3, number)
            assert (weights[drawn] > 0).all()
            # Each stratum's draw lies between those of its two ends.
            low, high = (slow_draw(weights, 50, np.full(50, u)) for u in (0.0, 1.0 - 1e-12))
            assert (low <= drawn).all() and (drawn <= high).all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1e6)), min_size=1, max_size=60),
    st.integers(0, 2**32),
)
def test_sum_tree_total_follows_its_latest_weights(changes, seed):
    tree, weights = SumTree(13), np.zeros(13)
    for place, weight in changes:
        tree.set(np.array([place]), np.array([weight]))
        weights[place] = weight
    np.testing.assert_array_equal(tree.weights(np.arange(13)), weights)
    assert tree.total == pytest.approx(weights.sum(), rel=1e-12)
    if tree.total > 0:
        assert (weights[tree.draw(20, seed, 0)] > 0).all()


def test_items_are_drawn_in_proportion_to_priority_to_the_alpha():
    replay = PrioritizedReplay(64, alpha=0.6, beta0=0.4, seed=1)
    priorities = torch.rand(64, generator=torch.Generator().manual_seed(0)) * 5 + 0.01
    replay.add(items(range(64)), priorities)
    share = (priorities.double() ** 0.6) / (priorities.double() ** 0.6).sum()
    counts = torch.zeros(64, dtype=torch.float64)
    for _ in range(400):
        counts += torch.bincount(replay.sample(100)[1], minlength=64)
    expected = 40_000 * share
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 103.4, "0.1 % of true samples lie above, with 63 degrees of freedom"
    assert (counts - expected).abs().max() < 5 * expected.max().sqrt()


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_are_those_of_the_paper(beta):
    replay = PrioritizedReplay(10, alpha=0.7, beta0=beta, seed=0)
    priorities = np.arange(1.0, 11.0)
    replay.add(items(range(10)), priorities)
    _, index, weights = replay.sample(32)
    share = priorities**0.7 / (priorities**0.7).sum()
    wanted = (10 * share[index.numpy()]) ** -beta
    np.testing.assert_allclose(weights.numpy(), wanted / wanted.max(), rtol=1e-6)


def test_full_importance_weights_make_the_mean_unbiased():
    replay = PrioritizedReplay(50, alpha=1.0, beta0=0.0, seed=0)
    values = torch.rand(50, generator=torch.Generator().manual_seed(3)).double()
    replay.add({"value": values}, values + 0.1)
    replay.anneal(1.0)
    assert replay.beta == 1.0
    batch, _, weights = replay.sample(200_000)
    mean = (batch["value"] * weights).sum() / weights.sum()
    assert float(mean) == pytest.approx(float(values.mean()), abs=2e-3)


def test_beta_rises_on_a_straight_line():
    replay = PrioritizedReplay(4, beta0=0.4)
    seen = []
    for share in (-1.0, 0.0, 0.5, 1.0, 2.0):
        replay.anneal(share)
        seen.append(replay.beta)
    assert seen == pytest.approx([0.4, 0.4, 0.7, 1.0, 1.0])


def test_new_items_replace_oldest_at_largest_priority():
    replay = PrioritizedReplay(8, alpha=0.5, seed=0)
    replay.add(items(range(6)), torch.full((6,), 4.0))
    places = replay.add(items(range(6, 12)))
    assert places.tolist() == [6, 7, 0, 1, 2, 3] and len(replay) == 8 and replay.added == 12
    assert replay.priorities().tolist() == [2.0] * 8
    batch, index, _ = replay.sample(500)
    assert set(batch["number"].tolist()) == set(range(4, 12))
    assert torch.equal(batch["obs"][:, 0].long(), batch["number"])
    replay.update(index[:1], [9.0])
    replay.add(items([12]))
    assert float(replay.priorities().max()) == 3.0 and float(replay.priorities()[4]) == 3.0


def test_draws_follow_updated_priorities():
    replay = PrioritizedReplay(100, alpha=1.0, seed=4)
    replay.add(items(range(100)), np.ones(100))
    replay.update(torch.arange(100), torch.where(torch.arange(100) < 10, 91.0, 1.0))
    _, index, _ = replay.sample(2000)
    assert float((index < 10).float().mean()) == pytest.approx(0.91, abs=0.001)


def test_alpha_zero_draws_uniformly_with_weights_of_one():
    replay = PrioritizedReplay(20, alpha=0.0, seed=0)
    replay.add(items(range(20)), np.geomspace(1e-3, 1e3, 20))
    _, index, weights = replay.sample(2000)
    assert torch.bincount(index, minlength=20).tolist() == [100] * 20 and bool((weights == 1).all())


def test_storage_keeps_the_types_it_is_given():
    replay = PrioritizedReplay(10)
    replay.add({"depth": torch.zeros(2, 4, dtype=torch.float16), "bits": np.zeros((2, 3), np.uint8)})
    assert replay.nbytes == 10 * (4 * 2 + 3)


def test_replay_state_restores_bit_for_bit():
    one, two = PrioritizedReplay(16, seed=3), PrioritizedReplay(16, seed=3)
    one.add(items(range(20)[:16]), np.arange(1.0, 17.0))
    one.add(items(range(16, 21)))
    one.sample(5)
    one.anneal(0.3)
    two.load_state_dict(one.state_dict())
    for _ in range(3):
        (a, i, u), (b, j, v) = one.sample(7), two.sample(7)
        assert torch.equal(i, j) and torch.equal(u, v) and all(torch.equal(a[k], b[k]) for k in a)
        for replay in (one, two):
            replay.update(i, u + 0.5)
            replay.add(items([30]))
    with pytest.raises(CheckpointError, match="capacity 8"):
        PrioritizedReplay(8).load_state_dict(one.state_dict())
    with pytest.raises(CheckpointError):
        two.load_state_dict(one.state_dict() | {"weights": torch.ones(3)})


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda r: r.add({}), "no tensor"),
        (lambda r: r.add(items(range(9))), "capacity 8"),
        (lambda r: r.add({"obs": torch.zeros(2, 3), "number": torch.zeros(3)}), "leading axis"),
        (lambda r: r.add(items(range(2)) | {"more": torch.zeros(2)}), "more"),
        (lambda r: r.add({"obs": torch.zeros(2, 4), "number": torch.zeros(2).long()}), r"\(4,\)"),
        (lambda r: r.add(items(range(2)), [1.0]), "2 positive"),
        (lambda r: r.add(items(range(2)), [1.0, float("nan")]), "positive finite"),
        (lambda r: r.add(items(range(2)), [1.0, 0.0]), "positive finite"),
        (lambda r: r.update([0, 4], [1.0, 1.0]), "holds 4"),
        (lambda r: r.update([-1], [1.0]), "holds 4"),
        (lambda r: r.sample(0), "0 items"),
    ],
)
def test_refused_items_leave_the_replay_unchanged(act, words):
    replay = PrioritizedReplay(8)
    replay.add(items(range(4)), np.arange(1.0, 5.0))
    before = replay.priorities()
    with pytest.raises(ConfigError, match=words):
        act(replay)
    assert torch.equal(replay.priorities(), before) and replay.added == 4


def test_replay_beyond_system_memory_is_refused():
    with pytest.raises(ConfigError, match=r"lower replay\.capacity"):
        PrioritizedReplay(2**20).add({"obs": torch.zeros(1, 10**6)})
    with pytest.raises(ConfigError, match=r"lower replay\.capacity"):
        PrioritizedReplay(2**45)
    with pytest.raises(ConfigError, match="alpha -1"):
        PrioritizedReplay(4, alpha=-1)
    with pytest.raises(ConfigError, match="holds 0"):
        PrioritizedReplay(4).sample(1)
