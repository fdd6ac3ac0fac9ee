"""Minibatches of sequences: shuffled, in storage order, or drawn by |advantage|.

Sequences are numbered over all rows of a run, also when several processes share them, so that the
minibatches of a run do not depend on how many processes it has.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.learn.estimators.noise import shuffled, uniforms
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.storage import Rollout


@dataclass(frozen=True)
class Draw:
    """The sequences of one minibatch.

    Attributes:
        index: Those of this process's rollout, (S,) int64 or a slice.
        count: How many they are here.
        total: How many the minibatch has over all processes.
        weight: (S,) factor of their advantages; None is 1.
    """

    index: Tensor | slice
    count: int
    total: int
    weight: Tensor | None = None


def epoch_minibatches(
    config: TrainConfig, rollout: Rollout, update: int, epoch: int, workers: Workers = ALONE
) -> Iterator[Draw]:
    """Yield the minibatches of one epoch; every sequence once, unless they are drawn by |advantage|.

    Args:
        config: The run's configuration.
        rollout: This process's rollout, with its advantages.
        update: Number of the update; part of the seed.
        epoch: Number of the epoch; part of the seed.
        workers: Processes of the run.
    """
    ppo, total = config.ppo, rollout.sequences * workers.size
    parts = math.ceil(total / min(ppo.minibatch, total))
    device = rollout.values.device
    if ppo.order == "sequential" and workers.size == 1:
        start = 0
        for number in range(parts):
            # The sizes of torch.tensor_split: the first ones take the remainder.
            size = total // parts + int(number < total % parts)
            yield Draw(slice(start, start + size), size, size)
            start += size
        return
    # Several processes sort out their shares on the host, where that waits for nobody.
    place = device if workers.size == 1 else torch.device("cpu")
    weight = None
    if ppo.order == "sequential":
        order = torch.arange(total)
    elif ppo.order == "shuffled":
        order = shuffled(config.seed, total, update, epoch, device=place)
    else:
        spread = rollout.in_sequences(rollout.advantages).abs().mean(dim=1).unflatten(0, (rollout.chunks, rollout.rows))
        unit = uniforms(config.seed, total, update, epoch, device=place)
        order, weight = drawn_by_advantage(
            workers.columns(spread).flatten().to(place), unit, ppo.advantage_exponent, ppo.advantage_correction
        )
    weights = torch.tensor_split(weight, parts) if weight is not None else [None] * parts
    for part, factor in zip(torch.tensor_split(order, parts), weights):
        if workers.size == 1:
            yield Draw(part, part.numel(), part.numel(), factor)
            continue
        rows = rollout.rows
        chunk, row = part // (rows * workers.size), part % (rows * workers.size)
        mine = row // rows == workers.rank
        index = (chunk * rows + row % rows)[mine].to(device)
        yield Draw(index, index.numel(), part.numel(), None if factor is None else factor[mine].to(device))


def drawn_by_advantage(spread: Tensor, unit: Tensor, exponent: float, correction: float) -> tuple[Tensor, Tensor]:
    """Draw sequences with replacement in proportion to their |advantage| to a power.

    The idea and both exponents are those of prioritised replay (Schaul et al. 2016): p_i ∝ spread_i^α, and
    w_i = (N·p_i)^−β makes up for being drawn more often, wholly at β = 1.

    Args:
        spread: (N,) mean |advantage| of every sequence.
        unit: (M,) uniform numbers in [0, 1).
        exponent: α; 0 draws uniformly.
        correction: β.

    Returns:
        Indices (M,) int64 and their weights (M,).
    """
    # Beside zeros and a single large number, a floor keeps every sequence reachable.
    mass = (spread.double() + 1e-6).pow(exponent)
    cumulative = mass.cumsum(0)
    index = torch.searchsorted(cumulative, unit.double() * cumulative[-1], right=True).clamp_(max=len(mass) - 1)
    probability = mass[index] / cumulative[-1]
    return index, (len(mass) * probability).pow(-correction).to(spread.dtype)
