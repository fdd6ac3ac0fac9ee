"""Ends of episodes: terminated, truncated, both; resets, autoreset, bootstrap."""

from dataclasses import dataclass

import pytest
import torch

from navi_core.config import PolicyConfig, ShaperConfig, TrainConfig
from navi_core.learn.estimators.noise import action_noise
from navi_core.learn.rollout.collector import Collector
from navi_core.policy import RewardShaper, build_policy
from navi_core.world import StepBatch
from tests.learn.toy_environments import MixedEndingsEnv

ROWS, STEPS, BPTT = 5, 24, 8
POLICY = PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=8, aux="full")
SHAPER = ShaperConfig(rnd_start=0.0, rnd_end=0.0, loop_coefficient=0.5, memory_exclusion=2, memory_capacity=2000)


@dataclass
class Moment:
    """One decision, kept whole by the slow twin."""

    obs: torch.Tensor
    aux: torch.Tensor
    reset: torch.Tensor
    state: tuple
    after: tuple
    aux_after: torch.Tensor
    batch: StepBatch
    value: torch.Tensor
    total: torch.Tensor


def collector(core: str = "gru", **kw) -> Collector:
    policy = build_policy(POLICY.model_copy(update={"core": core}), seed=1)
    env = MixedEndingsEnv(ROWS, **kw)
    config = TrainConfig(seed=1, env={"azimuth_bins": 16, "elevation_bins": 8}, policy=POLICY)
    return Collector(env, policy, RewardShaper(SHAPER, ROWS, 128, 1), config, device=torch.device("cpu"))


@torch.no_grad()
def replay(core: str = "gru") -> list[Moment]:
    """The rollout again, written down naively."""
    c = collector(core)
    noise = action_noise(1, ROWS, 0, STEPS)
    obs, aux, state, reset = c.obs, c.aux, c.state, c.reset
    moments = []
    for t in range(STEPS):
        out = c.policy.act(obs, aux, state, reset, noise[t])
        batch = c.env.step(out.action)
        done = batch.terminated | batch.truncated
        shaped = c.shaper.shape(out.embedding, batch.reward, batch.info["speed"], done, t * ROWS)
        aux_after = torch.stack((shaped.total, shaped.loop_similarity, shaped.intrinsic), -1)
        moments.append(Moment(obs, aux, reset, state, out.state, aux_after, batch, out.value, shaped.total))
        obs, state, reset = batch.obs, out.state, done
        aux = torch.where(done[:, None], torch.zeros(()), aux_after)
    return moments


@pytest.fixture(scope="module", params=["gru", "mamba2"])
def both(request):
    c = collector(request.param)
    rollout = c.new_rollout(STEPS, BPTT)
    stats = c.collect(rollout)
    return rollout, replay(request.param), c, stats


def test_the_rollout_holds_every_kind_of_ending_inside_chunks(both):
    rollout, *_ = both
    inside = torch.arange(STEPS) % BPTT != BPTT - 1
    end, cut = rollout.terminated[inside], rollout.truncated[inside]
    assert (end & ~cut).any() and (~end & cut).any() and (end & cut).any()


def test_reset_equals_done_of_the_previous_step(both):
    rollout, moments, *_ = both
    done = rollout.terminated | rollout.truncated
    assert rollout.reset[0].all()
    assert torch.equal(rollout.reset[1:], done[:-1])
    for t, m in enumerate(moments):
        assert torch.equal(rollout.reset[t], m.reset)


def test_new_episode_starts_with_its_obs_and_zero_aux(both):
    rollout, moments, *_ = both
    for t, m in enumerate(moments[:-1]):
        done = rollout.terminated[t] | rollout.truncated[t]
        assert torch.equal(rollout.observations.by_step()[t + 1], m.batch.obs)
        assert (rollout.aux[t + 1][done] == 0).all()
        assert torch.equal(rollout.aux[t + 1][~done], m.aux_after[~done])
        if done.any():
            assert not torch.equal(m.batch.obs[done], m.batch.final_obs[done])


def test_chunk_starts_keep_the_carried_state(both):
    rollout, moments, *_ = both
    for chunk in range(STEPS // BPTT):
        for kept, expected in zip(rollout.chunk_state, moments[chunk * BPTT].state):
            assert torch.equal(kept[chunk], expected)
    assert all(x[1:].abs().sum() > 0 for x in rollout.chunk_state)


def test_the_final_state_is_not_zeroed(both):
    _, moments, c, _ = both
    for carried, expected in zip(c.state, moments[-1].after):
        assert torch.equal(carried, expected)
        assert carried.abs().sum() > 0


@torch.no_grad()
def test_truncation_bootstraps_from_terminal_obs_and_state(both):
    rollout, moments, c, _ = both
    checked = 0
    for t, m in enumerate(moments):
        cut = m.batch.truncated & ~m.batch.terminated
        rows = cut if t < STEPS - 1 else torch.ones_like(cut)
        if not rows.any():
            continue
        expected = c.policy.value(m.batch.final_obs, m.aux_after, m.after)
        torch.testing.assert_close(rollout.bootstrap_values[t][rows], expected[rows], rtol=0, atol=1e-6)
        wrong = c.policy.value(m.batch.obs, m.aux_after, m.after)
        assert t == STEPS - 1 or (wrong - expected)[rows].abs().max() > 1e-5
        checked += int(rows.sum())
    assert checked > ROWS


def test_advantages_stop_at_every_ending(both):
    rollout, moments, *_ = both
    rollout.estimate_advantages(gamma=0.9, lam=0.8)
    for b in range(ROWS):
        for t in range(STEPS):
            m = moments[t]
            end, cut = bool(m.batch.terminated[b]), bool(m.batch.truncated[b])
            if not (end or cut):
                continue
            future = 0.0 if end else float(rollout.bootstrap_values[t, b])
            expected = float(m.total[b]) + 0.9 * future - float(m.value[b])
            assert float(rollout.advantages[t, b]) == pytest.approx(expected, abs=1e-5)


def test_small_terminal_buffer_keeps_bootstrap_values(both):
    rollout, *_ = both
    core = "gru" if len(rollout.chunk_state) == 1 else "mamba2"
    c = collector(core)
    small = type(rollout)(STEPS, BPTT, c.obs, c.aux, c.state, terminal_capacity=1)
    assert small.terminal.capacity == ROWS
    c.collect(small)
    torch.testing.assert_close(small.bootstrap_values, rollout.bootstrap_values, rtol=0, atol=1e-6)


def test_episode_statistics_count_ended_episodes(both):
    _, moments, _, stats = both
    lengths = [
        int(m.batch.info["episode_length"][b])
        for m in moments
        for b in range(ROWS)
        if m.batch.terminated[b] or m.batch.truncated[b]
    ]
    assert stats.episodes == len(lengths)
    assert stats.episode_length == pytest.approx(sum(lengths) / len(lengths))
    assert stats.means["pay"] == pytest.approx(
        float(torch.stack([m.batch.info["reward_terms"]["pay"] for m in moments]).mean()), abs=1e-6
    )
    assert stats.rewards == pytest.approx([float(m.total.mean()) for m in moments], abs=1e-6)


@pytest.mark.parametrize("axes", [1, 4, 5])
def test_noise_numbers_are_drawn_once(axes):
    noise = action_noise(8, 3, 100, 40, axes=axes)
    assert noise.shape == (40, 3, axes) and len(noise.unique()) == noise.numel()
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.25) and float(noise.std()) == pytest.approx(1.0, abs=0.2)


def test_a_row_draws_the_same_noise_in_any_batch_and_any_rollout():
    wide = action_noise(3, 8, 0, 20)
    assert torch.equal(action_noise(3, 2, 0, 20), wide[:, :2])
    assert torch.equal(action_noise(3, 8, 5, 6), wide[5:11])
    assert not torch.equal(action_noise(4, 8, 0, 20), wide)
    many = action_noise(0, 64, 0, 512)
    assert abs(float(many.mean())) < 0.01 and abs(float(many.std()) - 1) < 0.01
    assert float((many[..., 0] * many[..., 1]).mean()) == pytest.approx(0, abs=0.02)


def test_bootstrap_values_are_zero_without_truncation() -> None:
    """An update rescales the whole buffer in place; unused entries that are not zeroed would overflow."""
    c = collector()
    rollout = c.new_rollout(STEPS, BPTT)
    for _ in range(3):
        c.collect(rollout)
        unused = ~(rollout.truncated & ~rollout.terminated)
        unused[-1] = False
        assert unused.any() and (rollout.bootstrap_values[unused] == 0).all()
        rollout.bootstrap_values.mul_(1e6).sub_(3.0)  # as an update's change of units does


def test_curiosity_falls_by_the_decisions_of_all_rows() -> None:
    c, steps = collector(), []
    shape = c.shaper.shape
    c.shaper.shape = lambda *given, **named: steps.append(given[4]) or shape(*given, **named)
    rollout = c.new_rollout(STEPS, BPTT)
    for _ in range(2):
        c.collect(rollout)
    assert steps == [ROWS * t for t in range(2 * STEPS)]
