"""Benchmarks of evaluation speed, order of the scripted baselines, and coverage of confidence intervals."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated

import numpy as np

from navi_core.bench.report import Column, Option, Progress, Repeats, Report, Row, Scenes, figure, report, sizes
from navi_core.bench.timing import WALL, median, take_turns
from navi_core.config import EvalConfig, PolicyConfig
from navi_core.errors import ConfigError
from navi_core.evaluate import (
    Comparison,
    EvalResult,
    bootstrap_interval,
    build_course,
    compare,
    evaluate,
    interval_over_scenes,
    two_way_interval,
)
from navi_core.policy import build_policy
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene

ORDER = ("planner", "frontier", "forward-plus", "random")
"""Scripted pilots in the expected order of coverage, best first."""


def neighbours(results: Sequence[EvalResult], metric: str | None = None) -> list[Comparison]:
    """Compare adjacent scripted pilots of `ORDER` by the paired confidence interval over scenes and starts."""
    by_name = {result.subject: result for result in results}
    flown = [by_name[name] for name in ORDER if name in by_name]
    return [compare(better, worse, metric) for better, worse in pairwise(flown)]


def time_evaluation(
    scenes: Sequence[Scene],
    subjects: Sequence[str],
    *,
    azimuth: int,
    elevation: int,
    steps: int,
    repeats: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Row]:
    """Benchmark evaluations (flight and metrics, without building the course) by their median time.

    Args:
        scenes: Scenes of the evaluation, 16 starts in all.
        subjects: Pilots, or encoder+core of a policy with its initial weights, such as rayvit+mamba2.
        azimuth: Azimuth bins.
        elevation: Elevation bins.
        steps: Decisions of an episode.
        repeats: Turns that each subject takes, after one that is not timed.
        progress: Called as progress(turns done, turns in all).

    Returns:
        Rows with the keys:
        subject: Name of the pilot or network.
        size: Azimuth and elevation bins of its observations.
        drones: Drones that flew together.
        simulated_seconds: Seconds flown, summed over drones [s].
        per_cpu_second: Simulated seconds in each of the process's own; one thread flies.
        per_wall_second: Simulated seconds in each of the clock's, which other programs share.
    """
    bins = {"azimuth_bins": azimuth, "elevation_bins": elevation}
    config = EvalConfig(starts=max(1, 16 // len(scenes)), max_steps=steps, **bins)
    course = build_course(scenes, config)
    flown = {}
    for name in subjects:
        encoder, plus, core = name.partition("+")
        flown[name] = build_policy(PolicyConfig(encoder=encoder, core=core, **bins), seed=0) if plus else name
    done, total = itertools.count(1), (repeats + 1) * len(flown)

    def fly(name: str) -> None:
        evaluate(flown[name], course, name=name)
        progress(next(done), total)

    times = take_turns({name: partial(fly, name) for name in flown}, repeats, warmup=1)
    seconds = len(course.starts) * steps * config.dynamics.decision_seconds
    return [
        {
            "subject": name,
            "size": f"{azimuth}x{elevation}",
            "drones": len(course.starts),
            "simulated_seconds": seconds,
            "per_cpu_second": seconds / median(turns),
            "per_wall_second": seconds / median(turns, WALL),
        }
        for name, turns in times.items()
    ]


def evaluation(
    subject: Annotated[
        list[str] | None, Option(help="A pilot, or encoder+core such as rayvit+mamba2; may be repeated.")
    ] = None,
    scene: Scenes = None,
    size: Annotated[str, Option(help="Azimuth and elevation bins.", metavar="AZxEL")] = "256x48",
    steps: Annotated[int, Option(min=1, help="Decisions of an episode.")] = 50,
    repeats: Repeats = 3,
    *,
    progress: Progress,
) -> Report:
    """Benchmark the speed of evaluations for pilots and networks."""
    ((azimuth, elevation),) = sizes([size])
    scenes = load_scenes(scene or ["rooms-v1:validation"], 512)[:2]
    names = subject or ["forward-plus", "frontier", "rayvit+mamba2", "ring_cnn+gru"]
    rows = time_evaluation(
        scenes, names, azimuth=azimuth, elevation=elevation, steps=steps, repeats=repeats,
        progress=lambda done, total: progress("", done, total),
    )  # fmt: skip
    caption = "simulated seconds, summed over drones, in each of one core and of the clock"
    return report(
        "evaluation",
        list(rows),
        {
            "subject": figure("subject"),
            "size": figure("size"),
            "drones": figure("drones"),
            "s per CPU s": figure("per_cpu_second", ".1f"),
            "s per s": figure("per_wall_second", ".1f"),
        },
        words=2,
        caption=caption,
    )


SPREADS: tuple[tuple[float, float, float], ...] = (
    (1.0, 1.0, 1.0),
    (1.0, 0.0, 1.0),
    (0.0, 1.0, 1.0),
    (0.3, 2.0, 1.0),
    (0.3, 0.3, 1.0),
)
"""Simulated standard deviations: (seeds, scenes, residual)."""


def simulate_interval(
    designs: Sequence[tuple[int, int]],
    spreads: Sequence[tuple[float, float, float]] = SPREADS,
    *,
    worlds: int = 2000,
    seed: int = 0,
) -> list[Row]:
    """Monte Carlo coverage of the two-way interval: simulate worlds of true mean 0, count intervals that contain 0.

    Args:
        designs: (S, C) pairs.
        spreads: Standard deviations of seeds, scenes and error.
        worlds: Worlds of each design and spread.
        seed: Seed of the simulation.

    Returns:
        Rows with the keys:
        seeds: Seeds S.
        scenes: Scenes C.
        seed_spread: Standard deviation of the seeds' effects.
        scene_spread: Standard deviation of the scenes' effects.
        error_spread: Standard deviation of the residuals.
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
    """Sample one world (S, C) of normal seed, scene and residual effects with true mean 0."""
    return (
        spread[0] * generator.normal(size=(seeds, 1))
        + spread[1] * generator.normal(size=(1, scenes))
        + spread[2] * generator.normal(size=(seeds, scenes))
    )


SHAPES = ("normal", "skewed")
"""Distributions of the effects: normal, or exponential with a long lower tail, as of a few failed flights."""

_RESAMPLES = 1000


def simulate_starts(
    designs: Sequence[tuple[int, int]],
    spreads: Sequence[float] = (0.5, 1.0),
    *,
    shapes: Sequence[str] = SHAPES,
    worlds: int = 2000,
    seed: int = 0,
) -> list[Row]:
    """Monte Carlo coverage of the interval over scenes and starts: count the intervals that contain the true mean 0.

    Args:
        designs: (scenes, starts) pairs.
        spreads: Standard deviations of the scenes' effects; that of the starts is 1.
        shapes: Distributions of both effects, see `SHAPES`.
        worlds: Worlds of each row.
        seed: Seed of the simulation.

    Returns:
        Rows with the keys:
        scenes: Scenes.
        starts: Starts in each.
        shape: Distribution of the effects, see `SHAPES`.
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
    """Sample random effects (scenes, starts), normal or skewed, of mean 0 and standard deviation 1."""
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
    """Benchmark the coverage of 95 % confidence intervals by simulation."""
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
