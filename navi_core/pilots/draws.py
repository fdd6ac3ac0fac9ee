"""Random numbers of pilots: pure functions of (seed, key, episode, step), independent of the batch.

A generator that is advanced gives a row other numbers as soon as another row joins its batch. These come from the
world's counter-based draws; several numbers of one decision take neighbouring lanes of its step counter.
"""

import math

import torch
from torch import Tensor

from navi_core.world.counter_random import Purpose, uniform

_LANES = 16
"""Numbers that one decision may draw."""


def draw_uniform(
    seed: int, keys: Tensor, episode: Tensor, step: Tensor, *, lanes: range, purpose: Purpose = Purpose.PILOT
) -> Tensor:
    """Draw uniform numbers in [0, 1).

    Args:
        seed: Seed of the experiment.
        keys: Whom the draws belong to, int64 (B,).
        episode: Episode counter, int64 (B,).
        step: Decision counter, int64 (B,).
        lanes: Which of a decision's 16 numbers.
        purpose: Stream; two purposes never share numbers.

    Returns:
        float32 (B, len(lanes)).
    """
    lane = torch.arange(lanes.start, lanes.stop, device=keys.device)
    counter = step[:, None] * _LANES + lane
    unit = uniform(seed, purpose, keys[:, None].expand_as(counter), episode[:, None], counter)
    # Cut, not rounded, to 24 bits: rounding would now and then give 1.
    return (torch.floor(unit * 2.0**24) * 2.0**-24).to(torch.float32)


def draw_normal(seed: int, keys: Tensor, episode: Tensor, step: Tensor, *, axes: int) -> Tensor:
    """Draw standard normal action noise by Box and Muller's transform; arguments as in `draw_uniform`.

    Returns:
        float32 (B, axes).
    """
    lanes = range(axes)
    radius = draw_uniform(seed, keys, episode, step, lanes=lanes, purpose=Purpose.ACTION).to(torch.float64)
    angle = draw_uniform(seed, keys, episode, step, lanes=lanes, purpose=Purpose.ACTION_PAIR).to(torch.float64)
    noise = torch.sqrt(-2.0 * torch.log1p(-radius)) * torch.cos(2.0 * math.pi * angle)
    return noise.to(torch.float32)
