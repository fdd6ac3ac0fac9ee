"""Observation store: memory, and observations as the policy sees them."""

import math

import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.learn.rollout.storage import ObservationStore
from tests.learn.builders import filled, small_config, small_parts


def panoramas(rows: int = 5) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    obs = torch.rand(rows, 3, 16, 8, generator=g)
    obs[:, 1] = torch.randint(0, 300, (rows, 16, 8), generator=g).float()
    obs[:, 2] = (torch.rand(rows, 16, 8, generator=g) > 0.3).float()
    return obs


def test_full_store_returns_its_observations():
    store, obs = ObservationStore(2, 4, panoramas()), panoramas()
    for t in range(8):
        assert store.write(t, obs + t) is not None
    for number in range(10):
        chunk, row = divmod(number, 5)
        expected = torch.stack([obs[row] + chunk * 4 + t for t in range(4)])
        assert torch.equal(store.sequences(torch.tensor([number]))[0], expected)
        assert torch.equal(store.sequences(slice(number, number + 1))[0], expected)
    assert torch.equal(store.by_step()[6], obs + 6)


def test_compact_store_takes_a_quarter_of_the_memory():
    obs = panoramas()
    compact, full = ObservationStore(1, 2, obs, "compact"), ObservationStore(1, 2, obs)
    seen = compact.write(1, obs)
    assert full.nbytes / compact.nbytes == pytest.approx(12 / 3.125)
    assert (seen[:, 0] - obs[:, 0]).abs().max() <= 2**-12
    assert torch.equal(seen[:, 1], obs[:, 1].clamp(max=255)) and torch.equal(seen[:, 2], obs[:, 2])
    assert torch.equal(compact.by_step()[1], seen)
    assert torch.equal(compact.sequences(torch.tensor([3]))[0, 1], seen[3])
    for metres, most in ((1.0, 0.001), (30.0, 0.04), (99.0, 0.13)):
        depth = torch.full((1, 3, 16, 8), math.log1p(metres) / math.log1p(100.0))
        kept = ObservationStore(1, 1, depth, "compact").write(0, depth)[0, 0, 0, 0].double()
        assert abs(math.expm1(float(kept) * math.log1p(100.0)) - metres) <= most


def test_acting_and_learning_see_the_same_compact_observation():
    config = small_config(storage="compact")
    collector, learner = small_parts(config)
    for index in range(2):
        metrics = learner.update(filled(collector), index=index, steps=0).metrics
        assert metrics["parity_ratio"] < 1e-4 and metrics["parity_value"] < 1e-4


def test_other_observations_are_not_made_compact():
    with pytest.raises(ConfigError, match="storage to full"):
        ObservationStore(1, 2, torch.zeros(4, 7), "compact")
