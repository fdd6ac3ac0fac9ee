"""Counter-based draws against an independent implementation, and their independence of the batch."""

from __future__ import annotations

import torch

from navi_core.world.counter_random import Purpose, uniform

MASK = (1 << 64) - 1


def splitmix(x: int) -> int:
    """The finaliser of SplitMix64 in unbounded integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def twin(seed: int, purpose: int, row: int, episode: int, step: int) -> float:
    x = (seed + 1) * 1_000_003 + purpose
    for part in (row, episode, step):
        x = splitmix(((x + 0x9E3779B97F4A7C15) ^ (part * 0x94D049BB133111EB + 0x9E3779B97F4A7C15)) & MASK)
    return (x >> 11) * 2.0**-53


def test_finaliser_known_answer() -> None:
    # The first output of SplitMix64 seeded with 0 is the finaliser of the golden gamma.
    assert splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_draws_equal_those_of_unbounded_integers() -> None:
    rows = torch.tensor([0, 1, 7, 63, 2**40 + 5, 2**62 + 3])
    for seed in (0, 1, 2**31 - 1):
        for purpose in (Purpose.SPAWN, Purpose.ACTION):
            found = uniform(seed, purpose, rows, 3, 11).tolist()
            assert found == [twin(seed, purpose, row, 3, 11) for row in rows.tolist()]


def test_a_draw_ignores_its_batch() -> None:
    rows = torch.arange(100)
    whole = uniform(4, Purpose.AGE, rows, 2, 9)
    assert torch.equal(uniform(4, Purpose.AGE, rows[37:38], 2, 9), whole[37:38])
    assert torch.equal(uniform(4, Purpose.AGE, rows.flip(0), 2, 9), whole.flip(0))


def test_draws_are_uniform_and_depend_on_every_argument() -> None:
    rows = torch.arange(20_000)
    base = uniform(0, Purpose.SPAWN, rows)
    others = [
        uniform(1, Purpose.SPAWN, rows),
        uniform(0, Purpose.AGE, rows),
        uniform(0, Purpose.SPAWN, rows, 1),
        uniform(0, Purpose.SPAWN, rows, 0, 1),
        uniform(0, Purpose.SPAWN, torch.zeros_like(rows), rows),
        uniform(0, Purpose.SPAWN, torch.zeros_like(rows), 0, rows),
    ]
    for draw in (base, *others):
        assert float(draw.min()) >= 0
        assert float(draw.max()) < 1
        assert abs(float(draw.mean()) - 0.5) < 0.01
        assert abs(float(draw.var()) - 1 / 12) < 0.002
    for draw in others:
        correlation = torch.corrcoef(torch.stack([base[1:], draw[1:]]))[0, 1]
        assert abs(float(correlation)) < 0.03
