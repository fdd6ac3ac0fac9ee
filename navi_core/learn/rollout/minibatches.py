"""Minibatch sampling over training sequences, and flight segments for GRPO and DPO.

Sequences are numbered over all rows of a run, also when several processes share them, so the minibatches of a run do
not depend on its number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.learn.estimators.noise import shuffled, uniforms
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.storage import Rollout


@dataclass(frozen=True)
class Draw:
    """Indices of one minibatch's training sequences in this process's rollout.

    Attributes:
        index: Sequence numbers in this process's rollout, (S,) int64 or a slice.
        count: Sequences of the minibatch in this process.
        total: Sequences of the minibatch over all processes.
        weight: (S,) importance weights of the advantages; None is 1.
    """

    index: Tensor | slice
    count: int
    total: int
    weight: Tensor | None = None


def epoch_minibatches(
    config: TrainConfig, rollout: Rollout, update: int, epoch: int, workers: Workers = ALONE
) -> Iterator[Draw]:
    """Yield one epoch's minibatches: each sequence once, or a sample with replacement in proportion to its |advantage|.

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
    # Several processes select their shares on the host, where no device synchronisation is needed.
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
    """Sample sequences with replacement in proportion to a power of their |advantage|.

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


@dataclass(frozen=True)
class Segments:
    """N segments of a rollout (row, start, length), in the order of their first decision, then by row.

    Attributes:
        row: (N,) int64.
        start: (N,) int64 first decision.
        length: (N,) int64 decisions.
        dropped: Number of discarded segments by reason: `short`, `cut` by the end of the rollout, `truncated`.
    """

    row: np.ndarray
    start: np.ndarray
    length: np.ndarray
    dropped: dict[str, int]

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, index: np.ndarray | slice) -> Segments:
        return Segments(self.row[index], self.start[index], self.length[index], self.dropped)

    def decisions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return step, row and segment number of every decision of the segments, each (M,) int64."""
        number = np.repeat(np.arange(len(self)), self.length)
        first = np.cumsum(self.length) - self.length
        step = np.arange(len(number)) - first[number] + self.start[number]
        return step, self.row[number], number


def find_segments(terminated: Tensor, truncated: Tensor, horizon: int, min_steps: int = 2) -> Segments:
    """Split a rollout into segments of up to `horizon` decisions, whose returns GRPO and DPO compare.

    A segment begins with the rollout, with an episode, and where the previous segment reached its horizon. It is kept
    if its whole horizon lies in the rollout, even if its episode ends earlier. Otherwise, near the end of the rollout
    only failed segments would be kept, and failures would be over-represented. A truncated segment is dropped: its
    return is incomplete (censored).

    Args:
        terminated: (T, B) bool, the episode ended for good at this decision; it wins over `truncated`.
        truncated: (T, B) bool, the episode was cut off at this decision.
        horizon: Decisions after which a segment ends, 1 … T.
        min_steps: Least decisions of a segment that is kept.
    """
    ended, cut = terminated.cpu().numpy(), truncated.cpu().numpy()
    steps, rows = ended.shape
    begun = np.zeros(rows, dtype=np.int64)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    dropped = {"short": 0, "cut": 0, "truncated": 0}
    for t in range(steps):
        length = t + 1 - begun
        closing = ended[t] | cut[t] | (length == horizon)
        whole = begun <= steps - horizon
        censored = cut[t] & ~ended[t] & (length < horizon)
        short = length < min_steps
        counts = closing & whole & ~censored & ~short
        for reason, some in (("cut", ~whole), ("truncated", whole & censored), ("short", whole & ~censored & short)):
            dropped[reason] += int((closing & some).sum())
        row = np.flatnonzero(counts)
        found.append((row, begun[row], length[row]))
        begun[closing] = t + 1
    dropped["cut"] += int((begun < steps).sum())
    row, start, length = (np.concatenate(parts) for parts in zip(*found))
    order = np.lexsort((row, start))
    return Segments(row[order], start[order], length[order], dropped)


def segment_returns(rewards: Tensor, segments: Segments, gamma: float = 1.0) -> Tensor:
    """Compute the return of each segment, Σ γ^t r_t from its first decision, (N,) float64 on the CPU.

    Args:
        rewards: (T, B) rewards of the rollout.
        segments: N segments of the rollout.
        gamma: Discount per decision.
    """
    step, row, number = segments.decisions()
    earned = rewards.detach().double().cpu().numpy()[step, row]
    earned = earned * np.power(gamma, step - segments.start[number])
    return torch.from_numpy(np.bincount(number, weights=earned, minlength=len(segments)))


def on_sequences(
    rollout: Rollout, step: np.ndarray, row: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scatter per-decision values onto the training sequences (S, bptt) that hold those decisions.

    Args:
        rollout: Rollout that holds the sequences.
        step: (M,) steps of the decisions.
        row: (M,) rows of the decisions.
        values: (M,) values of the decisions.

    Returns:
        (S,) int64 sequences, ascending, and (S, bptt) float32 values, 0 where there is no such decision.
    """
    place = (step // rollout.bptt) * rollout.rows + row
    sequences, position = np.unique(place, return_inverse=True)
    laid = np.zeros((len(sequences), rollout.bptt), dtype=np.float32)
    laid[position, step % rollout.bptt] = values
    return sequences, laid
