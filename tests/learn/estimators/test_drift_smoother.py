"""Drift smoothing: hand-computed numbers, invariants, the gate, and the effect on Q-learning."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from navi_core.config import SmoothingConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.learn import DriftSmoother, free_energy
from navi_core.learn.estimators.drift_smoother import alpha_step_at, compute_knn_kernel, local_structure
from navi_core.learn.events import CALLABLES
from navi_core.learn.replay.q_batches import QBatch, QSmoothing

PLAIN = SmoothingConfig(enabled=True)
ANGLES = [0.0, 0.1, 0.3, 1.0]


def on_circle(angles):
    a = torch.tensor(angles, dtype=torch.float64)
    return torch.stack((a.cos(), a.sin()), dim=1) * torch.tensor([1.0, 5.0, 0.2, 3.0][: len(a)])[:, None]


def drawn(n=40, f=3, d=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, f, generator=g), torch.randn(n, d, generator=g)


def chord(a, b):
    return 2 * math.sin(abs(a - b) / 2)


def test_two_neighbours_by_hand():
    config = SmoothingConfig(k=2, trust_region_tau=100.0, latent_dim=4)
    h = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    kernel = compute_knn_kernel(on_circle(ANGLES), config)
    assert kernel.index.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    near, far = chord(0, 0.1), chord(0, 0.3)
    assert kernel.sigma.tolist()[0] == pytest.approx(far)
    # The farthest neighbour's weight is exp(−½), for σ is its distance.
    p = math.exp(-(near**2) / (2 * far**2))
    q = math.exp(-0.5)
    assert kernel.weight[0].tolist() == pytest.approx([p / (p + q), q / (p + q)])
    mean = (2 * p + 4 * q) / (p + q)
    out, decision = DriftSmoother(config)(h, on_circle(ANGLES), step=0)
    assert float(out[0]) == pytest.approx(1 + 0.15 * 0.5 * (mean - 1)), "Δt = 4^−½"
    assert decision.applied and decision.alpha_step_used == 0.15 and decision.tau_clip == 0.0
    assert decision.sigma_stats[2] == pytest.approx(chord(1.0, 0.1))
    assert decision.mean_step == pytest.approx(float((out - h).abs().mean()))


def test_step_size_decays_as_cosine_over_the_dimension_time():
    assert [alpha_step_at(PLAIN, s) for s in (0, 50_000, 100_000, 200_000)] == pytest.approx([0.15, 0.075, 0.0, 0.0])
    linear = SmoothingConfig(alpha_step_schedule="linear")
    assert alpha_step_at(linear, 25_000) == pytest.approx(0.1125)
    assert alpha_step_at(SmoothingConfig(alpha_step_schedule="constant"), 10**9) == 0.15
    h, z = drawn()
    loose = {"trust_region_tau": 1e9}
    by_latent = DriftSmoother(SmoothingConfig(**loose))(h, z)[0] - h
    by_h = DriftSmoother(SmoothingConfig(dt_dim="h", **loose))(h, z)[0] - h
    torch.testing.assert_close(by_latent * (64 / 3) ** 0.5, by_h)


def test_a_step_is_clipped_to_the_trust_region():
    h, z = drawn()
    out, decision = DriftSmoother(SmoothingConfig(trust_region_tau=0.01))(100 * h, z)
    norms = (out - 100 * h).norm(dim=1)
    assert float(norms.max()) <= 0.01 * (1 + 2e-2) and decision.tau_clip == 1.0
    few = DriftSmoother(SmoothingConfig(trust_region_tau=float(0.15 / 8)))(h, z)[1]
    assert 0.0 < few.tau_clip < 1.0


def test_the_gate_opens_by_either_sign():
    h, z = drawn()
    floors = SmoothingConfig(td_var_min=1.0, disagreement_min=1.0)
    smoother = DriftSmoother(floors)
    shut, decision = smoother(h, z, td_var=1.0, disagreement=1.0)
    assert shut is h and decision.gated_by_uncertainty and not decision.applied
    assert smoother(h, z, td_var=1.1, disagreement=0.0)[1].applied
    assert smoother(h, z, td_var=0.0, disagreement=1.1)[1].applied
    assert DriftSmoother(floors.model_copy(update={"gate_by_td_variance": False}))(h, z, td_var=0.0)[1].applied


values = arrays(np.float64, (12, 2), elements=st.floats(-100, 100))
latents = arrays(np.float64, (12, 3), elements=st.floats(-10, 10))


@settings(max_examples=60, deadline=None)
@given(values, latents, st.integers(1, 20))
def test_kernel_and_smoothing_invariants(h, z, k):
    h, z = torch.tensor(h), torch.tensor(z)
    config = SmoothingConfig(k=k, alpha_step_init=0.9, latent_dim=1, trust_region_tau=1e6, gate_by_td_variance=False)
    kernel = compute_knn_kernel(z, config)
    assert torch.allclose(kernel.weight.sum(1), torch.ones(12, dtype=torch.float64))
    assert (kernel.index != torch.arange(12)[:, None]).all() and kernel.index.shape[1] == min(k, 11)
    assert all(len(set(row)) == len(row) for row in kernel.index.tolist())
    out, _ = DriftSmoother(config)(h, z)
    around = torch.cat((h[:, None], h[kernel.index]), dim=1)
    assert (out >= around.amin(1) - 1e-9).all() and (out <= around.amax(1) + 1e-9).all()
    constant = torch.full_like(h, 3.7)
    assert torch.allclose(DriftSmoother(config)(constant, z)[0], constant)
    still, decision = DriftSmoother(config.model_copy(update={"alpha_step_init": 0.0}))(h, z)
    assert torch.equal(still, h) and not decision.applied and decision.mean_step == 0.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(12)))
def test_permuted_rows_are_permuted_results(seed, order):
    h, z = drawn(12, 2, 4, seed)
    smoother = DriftSmoother(SmoothingConfig(k=5))
    torch.testing.assert_close(smoother(h[order], z[order])[0], smoother(h, z)[0][order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [3, 8, 16])
def test_kernel_width_is_exact_with_zero_latents(k):
    """Latents of a rectifier may be all zero; inner products alone would give a distance of √2."""
    _, z = drawn(40, 1, 4)
    z[::5] = 0.0
    unit = torch.nn.functional.normalize(z, dim=1)
    apart = torch.cdist(unit.double(), unit.double()).fill_diagonal_(torch.inf).sort(dim=1).values[:, k - 1]
    kernel = compute_knn_kernel(z, SmoothingConfig(k=k, sigma_min=1e-6, sigma_max=9.0))
    torch.testing.assert_close(kernel.sigma.double(), apart.clamp(1e-6, 9.0), rtol=1e-4, atol=1e-4)


def test_each_application_draws_new_noise():
    h, z = drawn()
    smoother = DriftSmoother(SmoothingConfig(k=4, noise_std=0.1))
    one, same, other = (smoother(h, z, 5, draw=n)[0] for n in (7, 7, 8))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_blockwise_neighbours_equal_the_full_matrix():
    _, z = drawn(150, 1, 16)
    dense = compute_knn_kernel(z, SmoothingConfig(block=4096))
    for block in (16, 37, 149):
        blocks = compute_knn_kernel(z, SmoothingConfig(block=block))
        assert torch.equal(blocks.index, dense.index) and torch.equal(blocks.weight, dense.weight)
    unit = torch.nn.functional.normalize(z, dim=1)
    apart = torch.cdist(unit.double(), unit.double()).fill_diagonal_(torch.inf)
    assert torch.equal(dense.index, apart.argsort(dim=1)[:, :16]), "equals the full distance matrix"


def test_importance_and_iterations_and_noise_and_scale():
    h, z = drawn()
    weights = torch.rand(40, generator=torch.Generator().manual_seed(1)) + 0.1
    kernel, weighed = (compute_knn_kernel(z, PLAIN, w) for w in (None, weights))
    wanted = kernel.weight * weights[kernel.index]
    torch.testing.assert_close(weighed.weight, wanted / wanted.sum(1, keepdim=True))
    config = SmoothingConfig(importance_weighted=True, trust_region_tau=1e6)
    assert not torch.equal(DriftSmoother(config)(h, z, importance=weights)[0], DriftSmoother(config)(h, z)[0])
    once = DriftSmoother(SmoothingConfig(trust_region_tau=1e6))
    twice = DriftSmoother(SmoothingConfig(trust_region_tau=1e6, iterations=2))
    torch.testing.assert_close(twice(h, z)[0], once(once(h, z)[0], z)[0])
    noisy = DriftSmoother(SmoothingConfig(noise_std=0.5, trust_region_tau=1e6), seed=4)
    a, b = noisy(h, z, step=3)[0], noisy(h, z, step=3)[0]
    assert torch.equal(a, b) and not torch.equal(a, noisy(h, z, step=4)[0])
    assert float((a - once(h, z, step=3)[0]).std()) == pytest.approx(0.5, rel=0.2)
    kept = DriftSmoother(SmoothingConfig(scale_preservation=True))(h, z)[0]
    torch.testing.assert_close(kept.std(0), h.std(0))
    torch.testing.assert_close(kept.mean(0), h.mean(0))


def test_the_free_energy_by_hand():
    h, delta = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1.0])
    kernel = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    assert float(free_energy(h, delta, kernel, 0.0)) == pytest.approx(0.5 * (1 + 4))
    assert float(free_energy(h, delta, kernel, 2.0)) == pytest.approx(2.5 - 2 * math.log(2))


def test_gradients_flow_through_values_and_not_through_the_kernel():
    h, z = (x.requires_grad_() for x in drawn())
    DriftSmoother(PLAIN)(h, z)[0].square().sum().backward()
    assert h.grad is not None and z.grad is None


def test_local_structure_counts_neighbours_with_like_targets():
    kernel = compute_knn_kernel(on_circle(ANGLES), SmoothingConfig(k=1))
    target = torch.tensor([0.0, 0.1, 0.2, 10.0])
    assert kernel.index.tolist() == [[1], [0], [1], [2]] and local_structure(kernel, target) == 0.75


@pytest.mark.parametrize("rows", [0, 1])
def test_a_row_without_neighbours_stays(rows):
    h = torch.ones(rows)
    out, decision = DriftSmoother(PLAIN)(h, torch.ones(rows, 4))
    assert torch.equal(out, h) and not decision.applied


def test_a_collapsed_latent_space_stays_finite():
    h, _ = drawn()
    for z in (torch.zeros(40, 4), torch.ones(40, 4)):
        out, decision = DriftSmoother(PLAIN)(h, z)
        assert torch.isfinite(out).all() and decision.sigma_stats == pytest.approx((1e-3, 1e-3, 1e-3))


def test_mismatched_shapes_and_settings_are_refused():
    with pytest.raises(ConfigError, match=r"\(5,\)"):
        DriftSmoother(PLAIN)(torch.zeros(5), torch.zeros(4, 2))
    with pytest.raises(ConfigError, match="sigma_min"):
        parse_config(SmoothingConfig, {"sigma_min": 2.0})


def test_functions_are_found_by_name():
    assert set(CALLABLES) == {"apply_consensus_update", "compute_knn_kernel", "early_stop_check"}
    assert CALLABLES["compute_knn_kernel"] is compute_knn_kernel
    with pytest.raises(ConfigError, match="early_stop_check"):
        CALLABLES["knn"]
    with pytest.raises(ConfigError, match="taken"):
        CALLABLES.register("compute_knn_kernel", max)


@pytest.mark.parametrize("weight", [0.0, 0.2])
def test_the_penalty_on_q_and_its_metrics_by_hand(weight):
    """λ·½‖Q − smoothed Q‖² of the decisions that count, over their number; the smoothed values are given."""
    config = SmoothingConfig(enabled=True, apply_to="q_regulariser", k=3, latent_dim=8, trust_region_tau=100.0,
                             alpha_step_schedule="constant", alpha_step_init=2.0, regulariser_weight=0.4,
                             free_energy_weight=weight, temperature=0.5)  # fmt: skip
    h, z = drawn(n=12, f=3)
    values, valid = h.clone().requires_grad_(), torch.ones(12)
    valid[9:] = 0.0
    zero = torch.zeros(12)
    batch = QBatch(zero, zero, valid, valid.sum(), values, z, zero.long(), z)
    smoothing = QSmoothing(config, 0)
    after, penalty = smoothing(batch, None, torch.ones(12), 0, None, 0)
    kernel = compute_knn_kernel(z[:9], config)
    step = 2.0 * 8**-0.5 * (kernel.mean(h[:9]) - h[:9])
    wanted = 0.4 * 0.5 * step.square().sum() / 9
    gradient = torch.zeros_like(h)
    gradient[:9] = -0.4 * step / 9
    if weight:
        gap = h[:9] - kernel.mean(h[:9])
        wanted = wanted + weight * (0.5 * gap.square().sum() - 0.5 * torch.special.entr(kernel.weight).sum()) / 9
        gradient[:9] += weight * gap / 9
    assert after is batch and float(penalty.detach()) == pytest.approx(float(wanted), rel=1e-5)
    penalty.backward()
    torch.testing.assert_close(values.grad, gradient, rtol=1e-4, atol=1e-6)
    # A minibatch of one decision cannot be smoothed: means are over those that were.
    alone = replace(batch, valid=torch.eye(12)[0], count=torch.tensor(1.0))
    assert smoothing(alone, None, torch.ones(12), 0, None, 1)[1] is None
    reported = smoothing.figures()
    assert reported["smoothed_share"] == 0.5 and reported["alpha_step"] == 2.0 and smoothing.figures() == {}
    assert reported["smoothing_step"] == pytest.approx(float(step.norm(dim=1).mean()), rel=1e-5)
