"""Benchmark of the environment: decisions per second, overhead beyond ray casting, memory growth.

The C++ kernels write the observation while they trace, so a step's own overhead cannot be timed directly. It is 1 − c /
s, with s the time of a step and c that of a plain `Field.cast_rays` of the same rays right after it, which writes
depth, semantic and valid. All further writes of the step count as overhead.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import numpy as np
import torch

from navi_core.bench.report import (
    Drones,
    Option,
    Progress,
    Report,
    Row,
    Scenes,
    Sizes,
    Threads,
    collect,
    figure,
    report,
    sizes,
)
from navi_core.bench.timing import CPU, WALL, clocks, median, resident_bytes
from navi_core.config import EnvConfig
from navi_core.errors import ConfigError
from navi_core.learn.run.process import torch_threads
from navi_core.record.home import load_scenes
from navi_core.scenes import Scene
from navi_core.world import Field, NavigationEnv, RayHits

RESOLUTIONS = ((64, 16), (128, 24), (256, 48))
"""Default azimuth and elevation bins."""
DRONES = (1, 16, 64, 256)
"""Default batch sizes [rows]."""
WARM_UP = 3
"""Warm-up steps of each case."""


def run_env(
    bins: Sequence[tuple[int, int]],
    drones: Sequence[int],
    scenes: Sequence[Scene],
    *,
    threads: int = 1,
    steps: int = 30,
    seed: int = 0,
) -> Iterator[Row]:
    """Benchmark the environment for every batch size and resolution; torch's thread count is restored at the end.

    Args:
        bins: Azimuth and elevation bins.
        drones: Rows.
        scenes: Scenes, shared by the rows.
        threads: Threads of the kernels and of torch.
        steps: Measured steps of a case, after a warm-up.
        seed: Seed of spawns and actions.

    Yields:
        Rows with the keys:
        azimuth_bins: Az.
        elevation_bins: El.
        drones: Rows B.
        threads: Threads of the kernels and of torch.
        tracer: Kernels in use.
        steps_per_second: Decisions of single drones a second of wall time, median over the steps.
        cpu_per_1000: Process CPU seconds for 1000 decisions of single drones, median over the steps.
        cast_per_1000: The same of the plain casts of the steps' rays.
        overhead: Share of a step's CPU time that the plain cast of its rays does not take.
        overhead_wall: The same for wall time.
        memory: Growth of resident memory that the environment and its steps caused [bytes].
        bytes_per_drone: Memory of the rows' state and observation for one drone [bytes].
    """
    with torch_threads(threads):
        field = Field(scenes, threads=threads)
        for (azimuth, elevation), rows in itertools.product(bins, drones):
            config = EnvConfig(azimuth_bins=azimuth, elevation_bins=elevation)
            yield _measure(config, rows, field, threads, steps, seed)


def run_soak(
    scenes: Sequence[Scene],
    *,
    steps: int = 200_000,
    drones: int = 4,
    bins: tuple[int, int] = (16, 8),
    readings: int = 20,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Row:
    """Soak test: step a small environment for long and sample its resident memory.

    Args:
        scenes: Scenes, shared by the rows.
        steps: Number of batched steps.
        drones: Rows.
        bins: Azimuth and elevation bins; few, since it is memory that counts.
        readings: Number of memory samples.
        seed: Seed of spawns and actions.
        progress: Called as progress(steps done, steps in all).
    """
    if steps < readings or readings < 10:
        raise ConfigError(
            f"a long run of {steps} steps with {readings} readings; at least 10 readings, and as many steps"
        )
    config = EnvConfig(azimuth_bins=bins[0], elevation_bins=bins[1], max_steps=100)
    env = NavigationEnv(Field(scenes), drones, config, seed)
    generator = torch.Generator().manual_seed(seed)
    at = [steps * (i + 1) // readings for i in range(readings)]
    resident, done = [], 0
    for target in at:
        for _ in range(done, target):
            env.step(torch.rand(drones, 4, generator=generator) * 2.0 - 1.0)
        done = target
        resident.append(resident_bytes())
        progress(done, steps)
    return soak_row(at, resident)


def soak_row(steps: Sequence[int], resident: Sequence[int]) -> Row:
    """Evaluate the memory samples of a soak test: growth, and whether it is steady.

    Args:
        steps: Steps before each memory sample.
        resident: Resident memory at each sample [bytes].

    Returns:
        A row with steps, resident, growth (from the first reading after a tenth of the run to the last, as a share) and
        steady (whether it grew by at most 1 % and 5 MB).
    """
    settled = next(memory for step, memory in zip(steps, resident) if step >= steps[-1] // 10)
    steady = resident[-1] - settled <= 0.01 * settled + 5e6
    return {"steps": steps, "resident": resident, "growth": resident[-1] / settled - 1.0, "steady": steady}


def _measure(config: EnvConfig, rows: int, field: Field, threads: int, steps: int, seed: int) -> Row:
    before = resident_bytes()
    env = NavigationEnv(field, rows, config, seed)
    hits = RayHits.empty(rows, config.azimuth_bins * config.elevation_bins, field.device)
    generator = torch.Generator().manual_seed(seed)
    times = []
    for _ in range(steps + WARM_UP):
        action = torch.rand(rows, 4, generator=generator) * 2.0 - 1.0
        start = clocks()
        info = env.step(action).info
        stepped = clocks()
        env.sensor.cast(info["position"], info["yaw"], info["scene_index"], out=hits)
        times.append([start, stepped, clocks()])
    memory = resident_bytes() - before
    stepping, casting = np.diff(np.array(times[WARM_UP:]), axis=1).transpose(1, 0, 2)
    cpu, wall = median(stepping, CPU), median(stepping, WALL)
    kept = sum(x.nbytes for x in env.state_dict().values()) // rows
    return {
        "azimuth_bins": config.azimuth_bins,
        "elevation_bins": config.elevation_bins,
        "drones": rows,
        "threads": threads,
        "tracer": field.tracer,
        "steps_per_second": rows / wall,
        "cpu_per_1000": 1000.0 * cpu / rows,
        "cast_per_1000": 1000.0 * median(casting, CPU) / rows,
        "overhead": 1.0 - median(casting, CPU) / cpu,
        "overhead_wall": 1.0 - median(casting, WALL) / wall,
        "memory": memory,
        "bytes_per_drone": kept + 12 * config.azimuth_bins * config.elevation_bins,
    }


def env(
    scene: Scenes = None,
    resolution: Annotated[int, Option(help="Compile resolution.")] = 512,
    size: Sizes = None,
    drones: Drones = None,
    steps: Annotated[int, Option(min=1, help="Measured steps of each case.")] = 30,
    threads: Threads = 1,
    soak: Annotated[
        int, Option(min=0, help="Measure this many steps of a small batch, and their memory, instead.")
    ] = 0,
    *,
    progress: Progress,
) -> Report:
    """Benchmark the environment with random actions, or run a soak test (`soak` steps)."""
    bins, counts = sizes(size) if size else RESOLUTIONS, drones or DRONES
    scenes = load_scenes(scene or ["apartment:0"], resolution)
    if soak:
        return _soak(scenes, soak, progress)
    rows = collect(run_env(bins, counts, scenes, threads=threads, steps=steps), len(bins) * len(counts), progress)
    caption = (
        "CPU ms of a drone's step, and of a plain cast_rays of the same rays right after it; "
        "over: % of the step that the cast does not take, of CPU and of wall time"
    )
    return report(
        "environment",
        rows,
        {
            "sensor": lambda row: f"{row['azimuth_bins']}x{row['elevation_bins']}",
            "drones": figure("drones"),
            "steps/s": figure("steps_per_second", ",.0f"),
            "CPU ms": figure("cpu_per_1000", ".3f"),
            "cast ms": figure("cast_per_1000", ".3f"),
            "over": figure("overhead", ".1f", 100.0),
            "over wall": figure("overhead_wall", ".1f", 100.0),
            "MB": figure("memory", ".0f", 1e-6),
        },
        threads=threads,
        words=1,
        caption=caption,
    )


def _soak(scenes: Sequence[Scene], steps: int, progress: Progress) -> Report:
    result = run_soak(scenes, steps=steps, progress=lambda done, total: progress("", done, total))
    lines = [f"{step:>10,} steps  {memory / 1e6:8.1f} MB" for step, memory in zip(result["steps"], result["resident"])]
    word = "steady" if result["steady"] else "growing"
    lines.append(f"{word}: {100 * result['growth']:+.2f} % after the first tenth (at most 1 % + 5 MB is steady)")
    return Report(result, lines=lines)
