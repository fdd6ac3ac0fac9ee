"""How often the two-way interval covers the truth, in simulated worlds of known mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from navi_core.bench.cases import Row
from navi_core.evaluate import two_way_interval

__all__ = ["SPREADS", "IntervalRow", "simulate_interval"]

SPREADS: tuple[tuple[float, float, float], ...] = (
    (1.0, 1.0, 1.0),
    (1.0, 0.0, 1.0),
    (0.0, 1.0, 1.0),
    (0.3, 2.0, 1.0),
    (0.3, 0.3, 1.0),
)
"""Standard deviations of seeds, scenes and what is left, as simulated."""


@dataclass(frozen=True)
class IntervalRow(Row):
    """How one design fared."""

    seeds: int
    """Seeds S."""
    scenes: int
    """Scenes C."""
    seed_spread: float
    """Standard deviation of the seeds' effects."""
    scene_spread: float
    """Standard deviation of the scenes' effects."""
    error_spread: float
    """Standard deviation of what is left."""
    covered: float
    """Share of worlds whose interval holds the true mean."""
    width: float
    """Median width of the interval."""
    worlds: int
    """Worlds simulated."""


def simulate_interval(
    designs: Sequence[tuple[int, int]],
    spreads: Sequence[tuple[float, float, float]] = SPREADS,
    *,
    worlds: int = 2000,
    seed: int = 0,
) -> list[IntervalRow]:
    """Draw worlds of normal effects around 0, and count the intervals that hold 0.

    Args:
        designs: (S, C) pairs.
        spreads: Standard deviations of seeds, scenes and error.
        worlds: Worlds of each design and spread.
        seed: Of the draws.

    Raises:
        EvaluationError: A design has fewer than two seeds or scenes.
    """
    rows = []
    generator = np.random.default_rng(seed)
    for seeds, scenes in designs:
        for of_seed, of_scene, of_error in spreads:
            covered, widths = 0, np.empty(worlds)
            for world in range(worlds):
                drawn = interval_world(generator, seeds, scenes, (of_seed, of_scene, of_error))
                interval = two_way_interval(drawn)
                covered += interval.low <= 0.0 <= interval.high
                widths[world] = interval.high - interval.low
            rows.append(
                IntervalRow(
                    seeds, scenes, of_seed, of_scene, of_error, covered / worlds, float(np.median(widths)), worlds
                )
            )
    return rows


def interval_world(
    generator: np.random.Generator, seeds: int, scenes: int, spread: tuple[float, float, float]
) -> np.ndarray:
    """Return one world (S, C) of true mean 0."""
    return (
        spread[0] * generator.normal(size=(seeds, 1))
        + spread[1] * generator.normal(size=(1, scenes))
        + spread[2] * generator.normal(size=(seeds, scenes))
    )
