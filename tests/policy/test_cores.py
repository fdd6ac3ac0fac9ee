"""Temporal cores: a sequence equals its steps, resets cut, and slow recurrences in float64 agree."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from navi_core.errors import ConfigError
from navi_core.policy import build_core, ssd_scan
from navi_core.policy.cores import GRUBlock, Mamba2Block
from navi_core.policy.cores.gru import gru_scan
from navi_core.policy.cores.mamba2 import _GatedRMSNorm, causal_convolution
from navi_core.policy.cores.mambapy import selective_scan

ORACLES = Path(__file__).resolve().parents[2].parent / "shared" / "oracles"
needs_oracles = pytest.mark.skipif(not ORACLES.is_dir(), reason="the oracle arrays are not at ../shared/oracles")


def oracle(name):
    with np.load(ORACLES / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def relative(ours, theirs):
    return ((ours.detach().double() - theirs.double()).abs().max() / theirs.double().abs().max()).item()


def naive_scan(x, dt, A, B, C, D, h, reset):
    """Walk the recurrence one step at a time in float64."""
    x, dt, A, B, C, D, h = (t.double() for t in (x, dt, A, B, C, D, h))
    per_group = x.shape[2] // B.shape[2]
    out = []
    for t in range(x.shape[1]):
        h = torch.where(reset[:, t, None, None, None], 0.0, h)
        b, c = (m[:, t].repeat_interleave(per_group, dim=1) for m in (B, C))
        decay = torch.exp(dt[:, t] * A)[..., None, None]
        h = decay * h + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, :, None]
        out.append((h * c[:, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(out, 1), h


def scan_inputs(steps, groups=1, seed=0):
    g = torch.Generator().manual_seed(seed)
    rows, heads, width, size = 3, 4, 8, 6
    reset = torch.rand(rows, steps, generator=g) < 0.1
    reset[0, 0] = True
    return {
        "x": torch.randn(rows, steps, heads, width, generator=g),
        "dt": torch.rand(rows, steps, heads, generator=g) * 0.5 + 1e-3,
        "A": -torch.rand(heads, generator=g) * 15 - 1,
        "B": torch.randn(rows, steps, groups, size, generator=g),
        "C": torch.randn(rows, steps, groups, size, generator=g),
        "D": torch.randn(heads, generator=g),
        "h0": torch.randn(rows, heads, width, size, generator=g),
        "reset": reset,
    }


@pytest.mark.parametrize("steps", [1, 7, 64, 65, 150])
@pytest.mark.parametrize("groups", [1, 2])
def test_ssd_scan_equals_the_float64_recurrence(steps, groups):
    given = scan_inputs(steps, groups)
    y, h = ssd_scan(**given)
    wanted_y, wanted_h = naive_scan(*given.values())
    assert relative(y, wanted_y) < 2e-6
    assert relative(h, wanted_h) < 2e-6


def test_ssd_scan_gradients_equal_those_of_the_recurrence():
    names = ("x", "dt", "A", "B", "C", "D", "h0")
    given = scan_inputs(70, 2)
    grads = []
    for scan in (ssd_scan, naive_scan):
        leaves = {n: given[n].clone().requires_grad_() for n in names}
        y, h = scan(*leaves.values(), given["reset"])
        (y.square().sum() + h.square().sum()).backward()
        grads.append([leaves[n].grad for n in names])
    for ours, theirs in zip(*grads):
        assert relative(ours, theirs) < 1e-5


@pytest.mark.parametrize("steps", [8, 70])
@pytest.mark.parametrize("largest", [0.01, 0.1])
def test_decay_gradients_stay_precise_at_full_size(steps, largest):
    """A step's direct output is much larger than the part through decays, and has no part in their gradient."""
    g = torch.Generator().manual_seed(steps)
    rows, heads, width, size = 4, 4, 64, 64
    given = {
        "x": torch.randn(rows, steps, heads, width, generator=g),
        "dt": torch.rand(rows, steps, heads, generator=g) * largest + 1e-3,
        "A": -torch.rand(heads, generator=g) * 15 - 1,
        "B": torch.randn(rows, steps, 1, size, generator=g) / 8,
        "C": torch.randn(rows, steps, 1, size, generator=g) / 8,
        "D": torch.ones(heads),
        "h0": torch.randn(rows, heads, width, size, generator=g) / 10,
    }
    reset, to_y = torch.rand(rows, steps, generator=g) < 0.02, torch.randn(given["x"].shape, generator=g)
    grads = []
    for scan in (ssd_scan, naive_scan):
        leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
        y, h = scan(*leaves.values(), reset)
        ((y * to_y).sum() + 0.01 * h.sum()).backward()
        grads.append({name: x.grad for name, x in leaves.items()})
    off = {name: relative(grads[0][name], grads[1][name]) for name in given}
    assert off.pop("A") < 1e-5 and max(off.values()) < 2e-6, off


def test_ssd_scan_stays_finite_with_strong_decay_and_reset():
    given = scan_inputs(64)
    given["dt"] = given["dt"] * 40
    y, h = ssd_scan(**given)
    wanted_y, _ = naive_scan(*given.values())
    assert torch.isfinite(y).all() and torch.isfinite(h).all()
    assert relative(y, wanted_y) < 2e-6


def test_ssd_scan_without_optional_parts_starts_from_zero():
    given = scan_inputs(9)
    y, h = ssd_scan(given["x"], given["dt"], given["A"], given["B"], given["C"])
    zero = {"D": torch.zeros(4), "h0": torch.zeros_like(given["h0"]), "reset": torch.zeros(3, 9, dtype=torch.bool)}
    wanted_y, wanted_h = naive_scan(*(given | zero).values())
    assert relative(y, wanted_y) < 2e-6
    assert relative(h, wanted_h) < 2e-6


@pytest.mark.parametrize("name", ["dt", "A", "B", "C", "h0", "reset"])
def test_ssd_scan_names_the_misshapen_input(name):
    given = scan_inputs(5)
    given[name] = given[name][:-1]
    with pytest.raises(ConfigError, match=rf"^{name} has shape"):
        ssd_scan(**given)


@pytest.mark.parametrize("name", ["mamba2", "gru", "mingru", "mambapy"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("steps", [1, 33, 80])
def test_a_sequence_equals_its_steps_under_random_resets(name, layers, steps):
    core = build_core(name, layers=layers)
    g = torch.Generator().manual_seed(steps)
    x = torch.randn(4, steps, 128, generator=g)
    reset = torch.rand(4, steps, generator=g) < 0.15
    reset[0, 0], reset[1] = True, False
    start = tuple(torch.randn(part.shape, generator=g) for part in core.initial_state(4))
    kept = tuple(part.clone() for part in start)
    with torch.no_grad():
        y, final = core(x, start, reset)
        state, outputs = start, []
        for t in range(steps):
            out, state = core.step(x[:, t], state, reset[:, t])
            outputs.append(out)
    torch.testing.assert_close(y, torch.stack(outputs, 1), atol=1e-5, rtol=1e-5)
    for ours, theirs, before, after in zip(final, state, kept, start):
        assert ours.shape == before.shape and ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        assert torch.equal(before, after)


@pytest.mark.parametrize("name", ["mamba2", "gru", "mingru", "mambapy"])
def test_a_reset_at_the_first_step_overrides_the_incoming_state(name):
    core = build_core(name)
    x, reset = torch.randn(2, 6, 128), torch.zeros(2, 6, dtype=torch.bool)
    reset[:, 0] = True
    noisy = tuple(torch.randn(part.shape) for part in core.initial_state(2))
    with torch.no_grad():
        y, state = core(x, noisy, reset)
        fresh_y, fresh_state = core(x, core.initial_state(2), torch.zeros_like(reset))
    torch.testing.assert_close(y, fresh_y, atol=1e-6, rtol=1e-6)
    for a, b in zip(state, fresh_state):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)
        assert a.abs().sum() > 0  # the final state is not zeroed


@pytest.mark.parametrize("name", ["mamba2", "gru", "mingru", "mambapy"])
def test_rows_do_not_see_each_others_resets(name):
    core = build_core(name)
    x, state = torch.randn(3, 10, 128), build_core(name).initial_state(3)
    reset = torch.zeros(3, 10, dtype=torch.bool)
    with torch.no_grad():
        plain, _ = core(x, state, reset)
        reset[1, 4] = True
        cut, _ = core(x, state, reset)
    torch.testing.assert_close(cut[[0, 2]], plain[[0, 2]], atol=1e-6, rtol=0)
    assert (cut[1, 4:] - plain[1, 4:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["mamba2", "gru", "mingru", "mambapy"])
def test_gradients_of_a_sequence_equal_those_of_its_steps(name):
    core = build_core(name)
    g = torch.Generator().manual_seed(2)
    x = torch.randn(3, 12, 128, generator=g)
    reset = torch.rand(3, 12, generator=g) < 0.2
    weight = torch.randn(3, 12, 128, generator=g)
    state = tuple(torch.randn(part.shape, generator=g) for part in core.initial_state(3))
    grads = []
    for whole in (True, False):
        core.zero_grad()
        leaf = x.clone().requires_grad_()
        if whole:
            y, last = core(leaf, state, reset)
        else:
            outputs, last = [], state
            for t in range(12):
                out, last = core.step(leaf[:, t], last, reset[:, t])
                outputs.append(out)
            y = torch.stack(outputs, 1)
        ((y * weight).sum() + sum(part.square().sum() for part in last)).backward()
        grads.append([leaf.grad, *(p.grad.clone() for p in core.parameters())])
    for ours, theirs in zip(*grads):
        assert relative(ours, theirs) < 1e-5


def test_gru_backward_equals_finite_differences():
    g = torch.Generator().manual_seed(0)
    shapes = ((5, 2, 9), (2, 3), (9, 3), (9,))
    leaves = [torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes]
    reset = torch.rand(5, 2, generator=g) < 0.4
    assert torch.autograd.gradcheck(lambda *a: gru_scan(*a, reset), leaves)
    assert torch.autograd.gradcheck(lambda *a: gru_scan(*a, None), leaves)


@pytest.mark.parametrize("name", ["gru", "mamba2"])
def test_stack_adds_block_outputs_of_normed_inputs(name):
    stack = build_core(name, layers=2)
    x, reset = torch.randn(3, 5, 128), torch.zeros(3, 5, dtype=torch.bool)
    for norm in (*stack.norms, stack.final_norm):
        torch.nn.init.normal_(norm.weight, 1.0, 0.5)
    wanted = x
    for block, norm in zip(stack.blocks, stack.norms, strict=True):
        wanted = wanted + block(norm(wanted), block.initial_state(3), reset)[0]
    torch.testing.assert_close(stack(x, stack.initial_state(3), reset)[0], stack.final_norm(wanted))


def test_core_initialisation_is_as_published():
    block = Mamba2Block(128, head_width=1)  # 256 heads
    dt, decay = torch.nn.functional.softplus(block.dt_bias.detach()).double(), block.A_log.detach().exp().double()
    # Step sizes are even in their logarithm from .001 to .1, decays from 1 to 16; the skip is 1.
    assert 0.99e-3 < dt.min() < 1.3e-3 and 0.08 < dt.max() < 0.101 and 7e-3 < dt.log().mean().exp() < 14e-3
    assert 1 <= decay.min() < 1.5 and 15.5 < decay.max() <= 16 and float(decay.mean()) == pytest.approx(8.5, abs=1.0)
    assert (block.D == 1).all() and (block.norm.weight == 1).all()
    for parameter in GRUBlock(64).parameters():
        assert parameter.abs().max() <= 1 / 8
        assert float(parameter.detach().std()) == pytest.approx(1 / 8 / 3**0.5, rel=0.1)


def test_gru_without_resets_equals_torch():
    ours, theirs = GRUBlock(16, 24), nn.GRU(16, 24, batch_first=True)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            getattr(theirs, f"{name}_l0").copy_(parameter)
        x, h = torch.randn(3, 11, 16), torch.randn(3, 24)
        y, (last,) = ours(x, (h,), None)
        wanted, wanted_last = theirs(x, h[None])
    torch.testing.assert_close(y, wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(last, wanted_last[0], atol=1e-6, rtol=1e-5)


@needs_oracles
@pytest.mark.parametrize("name", ["ssd_T64_noreset_groups2", "ssd_T8_navi_reset"])
def test_ssd_scan_matches_the_oracle(name):
    z = oracle(name)
    names = ("x", "dt", "A", "B", "C", "D", "h0")
    leaves = {n: z[n].requires_grad_() for n in names}
    y, h = ssd_scan(**leaves, reset=z["reset"])
    assert relative(y, z["y"]) < 2e-6
    assert relative(h, z["hT"]) < 2e-6
    ((y * z["wy"]).sum() + (h * z["wh"]).sum()).backward()
    for n in names:
        assert relative(leaves[n].grad, z[f"g_{n}"]) < 1e-5


@needs_oracles
@pytest.mark.parametrize("name", ["block_T64", "block_small"])
def test_mamba2_block_matches_the_oracle(name):
    z = oracle(name)
    block = Mamba2Block(z["u"].shape[2], state_size=int(z["N"]), head_width=int(z["P"]), groups=int(z["G"]))
    weights = {
        "in_proj.weight": z["in_proj"],
        "conv1d.weight": z["conv_w"][:, None],
        "conv1d.bias": z["conv_b"],
        "norm.weight": z["norm_w"],
        "out_proj.weight": z["out_proj"],
    }
    block.load_state_dict(weights | {n: z[n] for n in ("A_log", "dt_bias", "D")})
    with torch.no_grad():
        y, (window, h) = block(z["u"], (z["conv0"], z["h0"]), z["reset"])
        state, outputs = (z["conv0"], z["h0"]), []
        for t in range(z["u"].shape[1]):
            out, state = block.step(z["u"][:, t], state, z["reset"][:, t])
            outputs.append(out)
    for ours in (y, torch.stack(outputs, 1)):
        assert relative(ours, z["out"]) < 2e-6
    for ours_window, ours_h in ((window, h), state):
        assert relative(ours_window, z["conv_final"]) < 2e-6
        assert relative(ours_h, z["h_final"]) < 2e-6
    # The other gate order is another function: the match above is not an accident.
    assert relative(y, z["out_norm_before_gate"]) > 1e-2


@needs_oracles
def test_gru_matches_the_oracle():
    z = oracle("gru_reset")
    block = GRUBlock(16, 24)
    names = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    block.load_state_dict({ours: z[theirs] for ours, theirs in names.items()})
    y, (h,) = block(z["u"], (z["h0"],), z["reset"])
    assert relative(y, z["y"]) < 2e-6
    assert relative(h, z["hT"]) < 2e-6


def test_selective_scan_backward_equals_finite_differences():
    g = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 3), (2, 4, 3), (3, 2), (2, 4, 2), (2, 4, 2), (3,), (2, 3, 2))
    leaves = [torch.randn(s, generator=g, dtype=torch.float64) for s in shapes]
    leaves[1], leaves[2] = leaves[1].abs(), -leaves[2].abs()
    leaves = [leaf.requires_grad_() for leaf in leaves]
    reset = torch.rand(2, 4, generator=g) < 0.4
    assert torch.autograd.gradcheck(lambda *a: selective_scan(*a, reset), leaves)
    assert torch.autograd.gradcheck(lambda *a: selective_scan(*a, None), leaves)


def test_mambapy_sequence_equals_the_package_from_zero_state():
    core, x = build_core("mambapy"), torch.randn(2, 21, 128)
    y, _ = core(x, core.initial_state(2), None)
    torch.testing.assert_close(y, core.block(x), atol=1e-5, rtol=1e-5)


def test_a_missing_mambapy_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mambapy.mamba", None)
    with pytest.raises(ConfigError, match="pip install mambapy"):
        build_core("mambapy")


def test_mamba2_block_backward_equals_finite_differences():
    g = torch.Generator().manual_seed(0)

    def leaf(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_()

    reset = torch.rand(2, 5, generator=g) < 0.4
    convolution = leaf(2, 5, 3), leaf(2, 3, 2), leaf(3, 1, 3), leaf(3)
    assert torch.autograd.gradcheck(lambda *a: causal_convolution(*a, reset), convolution)
    assert torch.autograd.gradcheck(lambda *a: causal_convolution(*a, None), convolution)
    assert torch.autograd.gradcheck(
        lambda y, z, w: _GatedRMSNorm.apply(y, z, w, 1e-5), (leaf(3, 4), leaf(3, 4), leaf(4))
    )
    x, maps, h0 = leaf(2, 5, 2, 3), (leaf(2, 5, 1, 2), leaf(2, 5, 1, 2)), leaf(2, 2, 3, 2)
    dt, A, D = leaf(2, 5, 2), leaf(2), leaf(2)

    def scan(x, dt, A, B, C, D, h0):
        return ssd_scan(x, dt.exp(), -A.exp(), B, C, D, h0, reset)

    assert torch.autograd.gradcheck(scan, (x, dt, A, *maps, D, h0))


def test_convolution_without_resets_equals_torch():
    raw, window, weight, bias = torch.randn(2, 9, 6), torch.randn(2, 6, 3), torch.randn(6, 1, 4), torch.randn(6)
    out, last = causal_convolution(raw, window, weight, bias, None)
    whole = torch.cat((window, raw.transpose(1, 2)), dim=2)
    wanted = torch.nn.functional.conv1d(whole, weight, bias, groups=6)
    torch.testing.assert_close(out.transpose(1, 2), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(last, whole[:, :, -3:])
