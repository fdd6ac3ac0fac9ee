import math

import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.kernels import advantages as advantages_kernel
from navi_core.kernels.native.library import find_compiler
from navi_core.learn import gae, gae_reference, group_advantages
from tests.world.emulated_cuda import emulated_cuda


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def flags(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.bool)[:, None]


NONE = flags(0, 0, 0)


@pytest.mark.parametrize("estimate", [gae, gae_reference])
def test_terminal_episode_by_hand(estimate):
    advantages, returns = estimate(
        column(1, 1, 1), column(2, 2, 2), flags(0, 0, 1), NONE, column(9, 9, 9), gamma=1.0, lam=1.0
    )
    assert advantages[:, 0].tolist() == [1.0, 0.0, -1.0]
    assert returns[:, 0].tolist() == [3.0, 2.0, 1.0]


@pytest.mark.parametrize("estimate", [gae, gae_reference])
def test_rollout_end_bootstraps_by_hand(estimate):
    advantages, _ = estimate(
        column(0, 1), column(0.1, 0.2), flags(0, 0), flags(0, 0), column(9, 0.3), gamma=0.9, lam=1.0
    )
    assert advantages[:, 0].tolist() == pytest.approx([1.043, 1.07], abs=1e-12)


@pytest.mark.parametrize("estimate", [gae, gae_reference])
def test_lambda_zero_is_the_temporal_difference(estimate):
    advantages, _ = estimate(column(1, 2, 3), column(4, 5, 6), NONE, NONE, column(0, 0, 7), gamma=0.5, lam=0.0)
    assert advantages[:, 0].tolist() == pytest.approx([1 + 2.5 - 4, 2 + 3 - 5, 3 + 3.5 - 6])


def random_rollout(steps: int, rows: int, dtype=torch.float64):
    g = torch.Generator().manual_seed(steps * 1000 + rows)
    r, v, boot = torch.randn(3, steps, rows, generator=g, dtype=torch.float64).to(dtype)
    ends = torch.rand(2, steps, rows, generator=g) < 0.15
    return r, v, ends[0], ends[1], boot


@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (1, 5), (7, 3), (64, 17)])
def test_gae_equals_the_definition(steps, rows):
    args = random_rollout(steps, rows)
    expected, returns = gae_reference(*args, gamma=0.97, lam=0.9)
    made = gae(*args, gamma=0.97, lam=0.9)
    torch.testing.assert_close(made[0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(made[1], returns, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")
def test_cpp_numba_and_cuda_kernels_give_the_same_bits(monkeypatch, dtype, weighted):
    for steps, rows in ((1, 1), (33, 5), (40, 300)):
        args = random_rollout(steps, rows, dtype)
        args[4][~(args[2] | args[3])[:, :]] = float("nan")  # a bootstrap that nothing may read ...
        args[4][-1] = 1.0  # ... but in the last row
        ratios = torch.rand(2, steps, rows, generator=torch.Generator().manual_seed(1)).to(dtype) * 2
        settings = {"gamma": 0.97, "lam": 0.9, **(dict(zip(("rho", "c"), ratios)) if weighted else {})}
        native = gae(*args, **settings)[0]
        assert native.isfinite().all()
        with monkeypatch.context() as patch:
            patch.setattr(advantages_kernel, "_library", lambda: None)
            assert torch.equal(gae(*args, **settings)[0], native)
        with emulated_cuda():
            there = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in settings.items()}
            found, returns = gae(*(x.cuda() for x in args), **there)
            assert found.is_cuda and torch.equal(found.cpu(), native)
            assert torch.equal(returns.cpu(), native + args[1])


def test_a_device_without_kernel_is_refused():
    args = [x.to("meta") for x in random_rollout(4, 2)]
    with pytest.raises(ConfigError, match="meta"):
        gae(*args, gamma=0.9, lam=0.9)


def test_single_precision_and_one_dimension():
    args = random_rollout(32, 4, torch.float32)
    expected, _ = gae_reference(*(x.double() if x.is_floating_point() else x for x in args), gamma=0.99, lam=0.95)
    advantages, _ = gae(*args, gamma=0.99, lam=0.95)
    assert advantages.dtype == torch.float32
    torch.testing.assert_close(advantages.double(), expected, rtol=1e-5, atol=1e-5)
    one, _ = gae(*(x[:, 2] for x in args), gamma=0.99, lam=0.95)
    assert torch.equal(one, advantages[:, 2])


def test_different_shapes_are_refused():
    args = list(random_rollout(4, 2))
    args[4] = args[4][:3]
    with pytest.raises(ConfigError, match="shapes differ"):
        gae(*args, gamma=0.9, lam=0.9)


def test_group_advantages_by_hand():
    returns = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert group_advantages(returns).tolist() == [-2.0, -1.0, 0.0, 3.0]
    assert group_advantages(returns, "mean_std").tolist() == pytest.approx(
        [-1.069045, -0.534522, 0.0, 1.603567], abs=1e-6
    )
    assert math.isclose(float(group_advantages(returns).sum()), 0.0)


def test_a_group_without_spread_has_no_advantage():
    for mode in ("mean", "mean_std"):
        assert group_advantages(torch.tensor([0.1, 0.1, 0.1 + 1e-9]), mode).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="median"):
        group_advantages(torch.ones(3), "median")
