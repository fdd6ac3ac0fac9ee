"""The scripted baselines in their order, and how fast an evaluation flies."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated

from navi_core.bench.report import Column, Option, Progress, Repeats, Report, Row, Scenes, figure, report, sizes
from navi_core.config import EvalConfig, PolicyConfig
from navi_core.evaluate import Comparison, EvalResult, build_course, compare, evaluate
from navi_core.policy import build_policy
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene

ORDER = ("planner", "frontier", "forward-plus", "random")
"""Those whose order is claimed, the best first."""


def neighbours(results: Sequence[EvalResult], metric: str = "c_vis_auc") -> list[Comparison]:
    """Compare each of `ORDER` that flew with the next one, by the paired interval over scenes and starts."""
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
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Time evaluations as they are made: flight and measures, without making the course ready; the median counts.

    Args:
        scenes: Where to fly, 16 starts in all.
        subjects: Pilots, or encoder+core of a policy with its initial weights, such as rayvit+mamba2.
        azimuth: Azimuth bins.
        elevation: Elevation bins.
        steps: Decisions of an episode.
        repeats: Turns that each subject takes, after one that is not timed.
        progress: Called as progress(turns done, turns in all).

    Returns:
        Rows with the keys:
        subject: A pilot, or the network.
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
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
    for turn in range(repeats + 1):
        for number, (name, subject) in enumerate(flown.items()):
            cpu, wall = time.process_time(), time.perf_counter()
            evaluate(subject, course, name=name)
            if turn:
                spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            if progress is not None:
                progress(turn * len(flown) + number + 1, (repeats + 1) * len(flown))
    seconds = len(course.starts) * steps * config.dynamics.decision_seconds
    rows = []
    for name, times in spent.items():
        cpu, wall = (sorted(column)[len(times) // 2] for column in zip(*times))
        rows.append(
            {
                "subject": name,
                "size": f"{azimuth}x{elevation}",
                "drones": len(course.starts),
                "simulated_seconds": seconds,
                "per_cpu_second": seconds / cpu,
                "per_wall_second": seconds / wall,
            }
        )
    return rows


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
    """Time evaluations of pilots and networks."""
    ((azimuth, elevation),) = sizes([size])
    scenes = load_scenes(scene or ["rooms-v1:validation"], 512)[:2]
    names = subject or ["forward-plus", "frontier", "rayvit+mamba2", "ring_cnn+gru"]
    rows = time_evaluation(
        scenes, names, azimuth=azimuth, elevation=elevation, steps=steps, repeats=repeats,
        progress=lambda done, total: progress("", done, total),
    )  # fmt: skip
    columns: dict[str, Column] = {
        "subject": figure("subject"),
        "size": figure("size"),
        "drones": figure("drones"),
        "s per CPU s": figure("per_cpu_second", ".1f"),
        "s per s": figure("per_wall_second", ".1f"),
    }
    caption = "simulated seconds, summed over drones, in each of one core and of the clock"
    return report("evaluation", list(rows), columns, words=2, caption=caption)
