"""Counter-based random number generator: pure functions of the purpose, so that a row is independent of its batch.

Every draw hashes (seed, purpose, row, episode, step) with the finaliser of SplitMix64 (Steele, Lea &
Flood 2014). The arithmetic is int64 with wrap-around, the same on every device.
"""

import enum

import torch


class Purpose(enum.IntEnum):
    """Purpose of a random draw; each purpose is an independent random stream."""

    SPAWN = 1
    AGE = 2
    SCENE = 3
    ACTION = 4
    ACTION_PAIR = 5
    PILOT = 6
    START = 7
    SENSOR = 8
    TASK = 9
    GOAL = 10
    SCATTER = 11
    ODOMETRY = 12
    PROFILE = 13
    DELAY = 14
    BODY = 15


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical (zero-filling) right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    return x ^ _shift_right(x, 31)


def _wrap(value: int) -> int:
    """Wrap a whole number around to int64 (two's complement)."""
    return (value + 2**63) % 2**64 - 2**63


def stream_key(seed: int, purpose: Purpose) -> int:
    """Return the 64-bit stream key of a seed and purpose: the initial word of the counter hash of its draws."""
    return _wrap((seed + 1) * 1_000_003 + int(purpose))


def spread(word: torch.Tensor, part: torch.Tensor | int) -> torch.Tensor:
    """Mix a counter into random words by hashing; shapes broadcast: words (B, 1) and counters (R,) give (B, R)."""
    # A whole number stays on the host: made a tensor, it would be copied to the device in every call.
    key = _wrap(part * _MIX2 + _GOLDEN) if isinstance(part, int) else part.to(torch.int64) * _MIX2 + _GOLDEN
    return _mix((word + _GOLDEN) ^ key)


def words(
    seed: int,
    purpose: Purpose,
    row: torch.Tensor,
    episode: torch.Tensor | int = 0,
    step: torch.Tensor | int = 0,
) -> torch.Tensor:
    """Return 64 random bits per row as int64 (hash of the counters); arguments as `uniform`."""
    word = torch.full_like(row, stream_key(seed, purpose), dtype=torch.int64)
    for part in (row, episode, step):
        word = spread(word, part)
    return word


def uniform(
    seed: int,
    purpose: Purpose,
    row: torch.Tensor,
    episode: torch.Tensor | int = 0,
    step: torch.Tensor | int = 0,
) -> torch.Tensor:
    """Draw one uniform random number in [0, 1) per row.

    Args:
        seed: Seed of the run.
        purpose: Stream.
        row: Integer tensor of row keys; the others broadcast against it.
        episode: Episode counter.
        step: Step counter.

    Returns:
        float64 tensor of the broadcast shape, with 53 random bits.
    """
    return _shift_right(words(seed, purpose, row, episode, step), 11).to(torch.float64) * 2.0**-53
