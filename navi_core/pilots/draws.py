"""Counter-based random draws: pure functions of (seed, purpose, key, episode, step), never of a batch.

A generator that is advanced gives a row other numbers as soon as another row is added to its batch. Here every
number is a hash of what it belongs to, so a row flies the same life alone and among a thousand others
(Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). The mixer is SplitMix64's finaliser
(Steele, Lea & Flood 2014), in wrapping 64-bit integer arithmetic.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

__all__ = ["normal", "stable_key", "uniform"]


def _signed(word: int) -> int:
    """Return the 64-bit `word` as the two's-complement number that an int64 tensor holds."""
    return word - (1 << 64) if word >= 1 << 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def stable_key(*parts: str | int) -> int:
    """Return a 63-bit key of `parts`, the same on every machine and in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def uniform(seed: int, purpose: str, keys: Tensor, *counters: Tensor, draws: int) -> Tensor:
    """Draw uniform numbers in [0, 1).

    Args:
        seed: Seed of the experiment.
        purpose: Name of the use; two uses never share numbers.
        keys: Whom the draws belong to, int64 (B,).
        counters: Further int64 (B,) counters, such as episode and step.
        draws: Numbers per row, N.

    Returns:
        float32 (B, N), multiples of 2⁻²⁴.
    """
    bits = _bits(seed, purpose, keys, counters, draws)
    return _shift(bits, 40).to(torch.float32) * 2.0**-24


def normal(seed: int, purpose: str, keys: Tensor, *counters: Tensor, draws: int) -> Tensor:
    """Draw standard normal numbers by Box and Muller's transform; arguments as in `uniform`.

    Returns:
        float32 (B, N).
    """
    bits = _bits(seed, purpose, keys, counters, 2 * draws)
    unit = _shift(bits, 11).to(torch.float64) * 2.0**-53
    radius = torch.sqrt(-2.0 * torch.log(1.0 - unit[:, :draws]))
    return (radius * torch.cos(2.0 * math.pi * unit[:, draws:])).to(torch.float32)


def _bits(seed: int, purpose: str, keys: Tensor, counters: tuple[Tensor, ...], draws: int) -> Tensor:
    word = _mix(keys.to(torch.int64) ^ stable_key(seed, purpose))
    for counter in counters:
        word = _mix(word ^ (counter.to(torch.int64) * _GOLDEN))
    lanes = torch.arange(1, draws + 1, device=keys.device, dtype=torch.int64) * _GOLDEN
    return _mix(word[:, None] + lanes)


def _mix(word: Tensor) -> Tensor:
    word = word + _GOLDEN
    word = (word ^ _shift(word, 30)) * _MIX_1
    word = (word ^ _shift(word, 27)) * _MIX_2
    return word ^ _shift(word, 31)


def _shift(word: Tensor, places: int) -> Tensor:
    """Shift right without sign: torch's `>>` on int64 copies the sign bit down."""
    return (word >> places) & ((1 << (64 - places)) - 1)
