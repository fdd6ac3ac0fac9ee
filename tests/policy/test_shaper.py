"""Curiosity, episodic memory and reward shaping against hand-computed numbers and slow twins."""

import math

import pytest
import torch
from torch.nn import functional as F

from navi_core.config import ShaperConfig
from navi_core.errors import ConfigError
from navi_core.policy import RND, EpisodicMemory, RewardShaper
from navi_core.policy.shaper import RunningMoments, loop_penalty


def tick_memory(memory: EpisodicMemory, embedding: torch.Tensor):
    unit = memory.unit(embedding)
    found = memory.query(unit)
    memory.append(unit)
    return found


def learn_once(shaper: RewardShaper, embedding: torch.Tensor) -> torch.Tensor:
    loss = shaper.learn(embedding)
    shaper.step()
    return loss


QUIET = dict(rnd_start=0.0, rnd_end=0.0, loop_coefficient=0.0)


def test_rnd_networks_have_the_specified_parameters():
    rnd = RND()
    assert sum(p.numel() for p in rnd.target.parameters()) == 24_768
    assert sum(p.numel() for p in rnd.predictor.parameters()) == 24_768
    assert not any(p.requires_grad for p in rnd.target.parameters())


def test_running_moments_equal_those_of_the_whole_stream():
    moments, stream = RunningMoments(), torch.randn(300, generator=torch.Generator().manual_seed(0)) * 3 + 7
    for part in stream.split([1, 9, 90, 200]):
        moments.update(part)
    assert moments.mean.item() == pytest.approx(stream.double().mean().item(), abs=1e-9)
    assert moments.variance.item() == pytest.approx(stream.double().var(unbiased=False).item(), abs=1e-9)


def test_intrinsic_reward_is_normalised_clamped_and_frozen_in_evaluation():
    rnd = RND(8)
    seen = torch.randn(256, 8)
    rnd.intrinsic(seen)
    usual = rnd.intrinsic(seen)
    # A draw beyond the clamp moves the mean by a little.
    assert usual.mean().abs() < 1e-2 and usual.std() == pytest.approx(1, abs=0.05)
    rnd.eval()
    moments = [buffer.clone() for buffer in rnd.moments.buffers()]
    assert torch.equal(rnd.intrinsic(seen * 100), torch.full((256,), 5.0))
    assert all(torch.equal(a, b) for a, b in zip(moments, rnd.moments.buffers()))


def test_rnd_error_falls_on_known_latents():
    shaper = RewardShaper(ShaperConfig(loop_coefficient=0.0), rows=4, width=16, seed=1)
    target = [p.clone() for p in shaper.rnd.target.parameters()]
    known, new = torch.randn(64, 16), torch.randn(64, 16) + 3
    first = learn_once(shaper, known)
    for _ in range(300):
        last = learn_once(shaper, known)
    assert last < 0.2 * first
    assert shaper.rnd.error(new).mean() > 3 * last
    assert all(torch.equal(a, b) for a, b in zip(target, shaper.rnd.target.parameters()))
    shaper.eval()
    before = [p.clone() for p in shaper.rnd.predictor.parameters()]
    learn_once(shaper, new)
    assert all(torch.equal(a, b) for a, b in zip(before, shaper.rnd.predictor.parameters()))


def test_loop_penalty_by_hand():
    similarity, age = torch.tensor([0.95, 0.95, 0.85, 0.2]), torch.tensor([50, 0, 50, 50])
    half_life = loop_penalty(similarity, age, ShaperConfig())
    assert half_life[0].item() == pytest.approx(0.168179, abs=1e-6)
    assert half_life[1].item() == pytest.approx(0.2, abs=1e-6)
    assert half_life[2:].tolist() == [0, 0]
    exponential = loop_penalty(similarity, age, ShaperConfig(loop_decay="exponential"))
    assert exponential[0].item() == pytest.approx(0.155760, abs=1e-6)


def test_rnd_coefficient_falls_linearly_then_stays():
    shaper = RewardShaper(ShaperConfig(), rows=2, width=8)
    for step, wanted in ((0, 1.0), (250_000, 0.505), (500_000, 0.01), (10**9, 0.01)):
        assert shaper.rnd_coefficient(step) == pytest.approx(wanted)


def test_memory_equals_a_plain_list_with_wrapping_and_episode_ends():
    rows, per_row, width, exclusion = 3, 12, 5, 4
    memory = EpisodicMemory(rows, rows * per_row, width, exclusion=exclusion)
    past = [[] for _ in range(rows)]
    g = torch.Generator().manual_seed(4)
    for _ in range(60):
        embedding = torch.randn(rows, width, generator=g)
        similarity, age = tick_memory(memory, embedding)
        done = torch.rand(rows, generator=g) < 0.05
        memory.clear(done)
        for r in range(rows):
            old = past[r][-per_row:]
            candidates = [
                (F.cosine_similarity(e, embedding[r], dim=0).item(), len(old) - i)
                for i, e in enumerate(old)
                if len(old) - i >= exclusion
            ]
            wanted = max(candidates, default=(0.0, 0))
            assert similarity[r].item() == pytest.approx(wanted[0], abs=1e-6)
            assert age[r].item() == wanted[1]
            past[r] = [] if done[r] else [*past[r], embedding[r]]


def test_memory_round_trips_through_its_state():
    g = torch.Generator().manual_seed(0)
    first, second = (EpisodicMemory(2, 40, 6, exclusion=3) for _ in range(2))
    for _ in range(27):
        tick_memory(first, torch.randn(2, 6, generator=g))
    second.load_state_dict(first.state_dict())
    for _ in range(15):
        e = torch.randn(2, 6, generator=g)
        for a, b in zip(tick_memory(first, e), tick_memory(second, e)):
            assert torch.equal(a, b)
    first.clear(torch.tensor([True, False]))
    tick_memory(first, torch.randn(2, 6, generator=g))
    units = first.state_dict()["units"]
    assert not units[0, 1:].any() and units[1].any(dim=1).all(), "forgotten units are zero"
    with pytest.raises(ConfigError, match="does not fit"):
        EpisodicMemory(3, 60, 6, exclusion=3).load_state_dict(first.state_dict())


def test_memory_smaller_than_its_exclusion_is_refused():
    with pytest.raises(ConfigError, match="use at least 3264"):
        EpisodicMemory(64, 3200, 8, exclusion=50)


def test_parts_with_zero_coefficients_are_not_built():
    shaper = RewardShaper(ShaperConfig(**QUIET), rows=2, width=8)
    assert shaper.rnd is None and shaper.memory is None and shaper.state_dict() == {}
    reward = torch.tensor([1.0, -2.0])
    shaped = shaper.shape(torch.randn(2, 8), reward, torch.ones(2), torch.zeros(2, dtype=torch.bool), 0)
    torch.testing.assert_close(shaped.total, reward - 0.02)
    for part in (shaped.intrinsic, shaped.loop_similarity, shaped.loop_penalty):
        assert part.tolist() == [0, 0]
    assert learn_once(shaper, torch.randn(4, 8)).item() == 0
    assert shaper.rnd_coefficient(0) == 0


def test_shaped_reward_is_the_sum_of_its_parts():
    config = ShaperConfig(velocity_weight=0.5, memory_exclusion=2, memory_capacity=100)
    shaper = RewardShaper(config, rows=2, width=8, seed=3)
    place, reward, speed = torch.randn(2, 8), torch.tensor([0.3, 0.7]), torch.tensor([2.0, 4.0])
    going = torch.zeros(2, dtype=torch.bool)
    for _ in range(4):
        shaper.shape(torch.randn(2, 8), reward, speed, going, 0)
    shaper.shape(place, reward, speed, going, 0)
    shaper.shape(torch.randn(2, 8), reward, speed, torch.tensor([False, True]), 0)
    shaped = shaper.shape(place, reward, speed, going, 250_000)
    assert shaped.loop_similarity[0].item() == pytest.approx(1, abs=1e-6)
    assert shaped.loop_penalty[0].item() == pytest.approx(2 * 0.15 * 2 ** (-2 / 200), abs=1e-6)
    assert shaped.loop_penalty[1].item() == 0  # its episode ended, so nothing is remembered
    wanted = reward - 0.02 + 0.5 * speed + 0.505 * shaped.intrinsic - shaped.loop_penalty
    torch.testing.assert_close(shaped.total, wanted)


def test_last_latent_of_an_episode_is_forgotten():
    config = ShaperConfig(**QUIET | {"loop_coefficient": 2.0}, memory_exclusion=1, memory_capacity=20)
    shaper, place, nothing = RewardShaper(config, rows=1, width=8), torch.randn(1, 8), torch.zeros(1)
    reported = []
    for done in (False, True, False, False):
        reported.append(shaper.shape(place, nothing, nothing, torch.tensor([done]), 0).loop_similarity.item())
    assert reported == pytest.approx([0, 1, 0, 1], abs=1e-6)


def test_shaper_resumes_exactly_and_keeps_global_random_state():
    before = torch.get_rng_state()
    first, second = (RewardShaper(ShaperConfig(), rows=3, width=8, seed=seed) for seed in (1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    g = torch.Generator().manual_seed(0)

    def tick(shaper, embedding):
        learn_once(shaper, embedding)
        return shaper.shape(embedding, embedding[:, 0], embedding[:, 1].abs(), embedding[:, 2] > 2, 7).total

    for _ in range(70):
        tick(first, torch.randn(3, 8, generator=g))
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        e = torch.randn(3, 8, generator=g)
        assert torch.equal(tick(first, e), tick(second, e))
    assert math.isfinite(tick(first, e).sum().item())
