"""Coverage of confidence intervals, in simulated worlds of known mean."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from navi_core.bench.report import Column, Option, Report, Row, figure, report
from navi_core.errors import ConfigError
from navi_core.evaluate import bootstrap_interval, interval_over_scenes, two_way_interval

SPREADS: tuple[tuple[float, float, float], ...] = (
    (1.0, 1.0, 1.0),
    (1.0, 0.0, 1.0),
    (0.0, 1.0, 1.0),
    (0.3, 2.0, 1.0),
    (0.3, 0.3, 1.0),
)
"""Standard deviations of seeds, scenes and what is left, as simulated."""


def simulate_interval(
    designs: Sequence[tuple[int, int]],
    spreads: Sequence[tuple[float, float, float]] = SPREADS,
    *,
    worlds: int = 2000,
    seed: int = 0,
) -> list[Row]:
    """Draw worlds of normal effects around 0, and count the intervals that hold 0.

    Args:
        designs: (S, C) pairs.
        spreads: Standard deviations of seeds, scenes and error.
        worlds: Worlds of each design and spread.
        seed: Of the draws.

    Returns:
        Rows with the keys:
        seeds: Seeds S.
        scenes: Scenes C.
        seed_spread: Standard deviation of the seeds' effects.
        scene_spread: Standard deviation of the scenes' effects.
        error_spread: Standard deviation of what is left.
        covered: Share of worlds whose interval holds the true mean.
        width: Median width of the interval.
        worlds: Worlds simulated.

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
                {
                    "seeds": seeds,
                    "scenes": scenes,
                    "seed_spread": of_seed,
                    "scene_spread": of_scene,
                    "error_spread": of_error,
                    "covered": covered / worlds,
                    "width": float(np.median(widths)),
                    "worlds": worlds,
                }
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


SHAPES = ("normal", "skewed")
"""Shapes of the effects: normal, or exponential with the long tail below, as of a few flights that are lost."""

_RESAMPLES = 1000


def simulate_starts(
    designs: Sequence[tuple[int, int]],
    spreads: Sequence[float] = (0.5, 1.0),
    *,
    shapes: Sequence[str] = SHAPES,
    worlds: int = 2000,
    seed: int = 0,
) -> list[Row]:
    """Draw worlds of scenes and starts around 0, and count the intervals that hold 0.

    Args:
        designs: (scenes, starts) pairs.
        spreads: Standard deviations of the scenes' effects; that of the starts is 1.
        shapes: Of both effects.
        worlds: Worlds of each row.
        seed: Of the draws.

    Returns:
        Rows with the keys:
        scenes: Scenes.
        starts: Starts in each.
        shape: Of the effects, see `SHAPES`.
        scene_spread: Standard deviation of the scenes' effects, in those of the starts within them.
        covered: Share of worlds whose interval holds the true mean.
        above: Share that lies wholly above it: false "better" verdicts.
        width: Median width of the interval.
        bootstrap_covered: Share of worlds whose bootstrap interval holds the true mean.
        worlds: Worlds simulated.
    """
    rows = []
    generator = np.random.default_rng(seed)
    for scenes, starts in designs:
        for shape in shapes:
            for spread in spreads:
                held, above, resampled, widths = 0, 0, 0, np.empty(worlds)
                for world in range(worlds):
                    drawn = spread * _effects(generator, shape, scenes, 1) + _effects(generator, shape, scenes, starts)
                    values = {f"{number:04d}": row.tolist() for number, row in enumerate(drawn)}
                    ours = interval_over_scenes(values, seed=world, resamples=_RESAMPLES)
                    other = bootstrap_interval(values, seed=world, resamples=_RESAMPLES)
                    held += ours.low <= 0.0 <= ours.high
                    above += ours.low > 0.0
                    resampled += other.low <= 0.0 <= other.high
                    widths[world] = ours.high - ours.low
                rows.append({
                    "scenes": scenes, "starts": starts, "shape": shape, "scene_spread": spread,
                    "covered": held / worlds, "above": above / worlds, "width": float(np.median(widths)),
                    "bootstrap_covered": resampled / worlds, "worlds": worlds,
                })  # fmt: skip
    return rows


def _effects(generator: np.random.Generator, shape: str, scenes: int, starts: int) -> np.ndarray:
    """Return effects (scenes, starts) of mean 0 and deviation 1."""
    if shape == "skewed":
        return 1.0 - generator.exponential(size=(scenes, starts))
    return generator.normal(size=(scenes, starts))


def interval(
    seeds: Annotated[list[int] | None, Option(min=2, max=1000, help="Training seeds; may be repeated.")] = None,
    scenes: Annotated[list[int] | None, Option(min=2, max=10_000, help="Scenes; may be repeated.")] = None,
    starts: Annotated[
        list[int] | None,
        Option(min=1, max=1000, help="Starts of each scene, for the interval of two subjects; may be repeated."),
    ] = None,
    worlds: Annotated[int, Option(min=1, max=1_000_000, help="Simulated worlds of each row.")] = 2000,
    seed: Annotated[int, Option(min=0, help="Seed of the worlds.")] = 0,
) -> Report:
    """Simulate worlds of known mean and count the intervals that contain it."""
    caption = "the interval's nominal coverage is 95 %"
    if starts:
        if seeds:
            raise ConfigError("--seeds and --starts ask for different intervals; give one of them")
        pairs = [(rows, columns) for rows in scenes or [2, 4, 8, 12, 20] for columns in starts]
        flown = list(simulate_starts(pairs, worlds=worlds, seed=seed))
        caption += "; above: equals called better; bootstrap: its coverage, used from 12 scenes on"
        return report("interval", flown, _STARTS_COLUMNS, caption=caption)
    designs = [(rows, columns) for rows in seeds or [3, 5, 8] for columns in scenes or [4, 20]]
    measured = list(simulate_interval(designs, worlds=worlds, seed=seed))
    return report("interval", measured, _SEEDS_COLUMNS, caption=caption)


_SEEDS_COLUMNS: dict[str, Column] = {
    "seeds": figure("seeds"),
    "scenes": figure("scenes"),
    "σ seed": figure("seed_spread", ".1f"),
    "σ scene": figure("scene_spread", ".1f"),
    "σ error": figure("error_spread", ".1f"),
    "covered [%]": figure("covered", ".1f", 100.0),
    "width": figure("width"),
}
_STARTS_COLUMNS: dict[str, Column] = {
    "scenes": figure("scenes"),
    "starts": figure("starts"),
    "effects": figure("shape"),
    "σ scene": figure("scene_spread", ".1f"),
    "covered [%]": figure("covered", ".1f", 100.0),
    "above [%]": figure("above", ".1f", 100.0),
    "width": figure("width"),
    "bootstrap [%]": figure("bootstrap_covered", ".1f", 100.0),
}
