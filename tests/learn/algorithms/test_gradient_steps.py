"""Gradients that add up over parts, also where a backward pass gives them in memory that its next run overwrites."""

import pytest
import torch

from navi_core.learn.algorithms.gradient_steps import GradientSteps
from navi_core.learn.parallel import Workers
from navi_core.policy import RewardShaper
from navi_core.record import StageTimer
from tests.learn.builders import CPU, small_config


class Replayed(torch.autograd.Function):
    """weight · x, whose gradient lies in the same memory every time, as that of a replayed graph does."""

    memory = torch.zeros(3)

    @staticmethod
    def forward(ctx, weight, x):
        ctx.save_for_backward(x)
        return weight @ x

    @staticmethod
    def backward(ctx, grad):
        Replayed.memory.copy_(grad * ctx.saved_tensors[0])
        return Replayed.memory.view(3), None


@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_accumulate_outside_graph_memory(parts):
    policy = torch.nn.Module()
    policy.weight = torch.nn.Parameter(torch.ones(3))
    config = small_config()
    steps = GradientSteps(policy, RewardShaper(config.shaper, 2, 8, 0), 0.1, CPU, ("loss",), (), "ppo", replayed=True)
    xs = torch.randn(2, parts, 3, generator=torch.Generator().manual_seed(0))
    for several in xs:
        steps.zero_grad()
        for x in several:
            Replayed.apply(policy.weight, x).backward()
            steps.accumulate(torch.zeros(1), torch.zeros(0))
        assert policy.weight.grad.data_ptr() != Replayed.memory.data_ptr()
        torch.testing.assert_close(policy.weight.grad, several.sum(0))
        steps.step(1e9, StageTimer())
    assert policy.weight.ne(1.0).all()


class Twins(Workers):
    """Two processes of a run with equal rows."""

    def sum(self, *tensors):
        for x in tensors:
            x.mul_(2)


def test_a_step_follows_the_summed_gradient_of_all_processes():
    policy = torch.nn.Module()
    policy.weight = torch.nn.Parameter(torch.ones(3))
    shaper = RewardShaper(small_config().shaper, 2, 8, 0)
    steps = GradientSteps(policy, shaper, 0.1, CPU, ("loss",), (), "ppo", Twins(0, 2))
    steps.zero_grad()
    policy.weight.sum().backward()
    steps.step(1e9, StageTimer())
    torch.testing.assert_close(policy.weight.grad, torch.full((3,), 2.0))
