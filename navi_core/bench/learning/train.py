"""Benchmark of training throughput: decisions per CPU-second of a whole run, and the time of each stage."""

import json
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from navi_core.bench.report import Assignments, Log, Option, Report, Row, Scenes, Table, machine
from navi_core.bench.task_runs import temporary_run
from navi_core.config import TrainConfig
from navi_core.learn import EventBus, UpdateMade, train
from navi_core.learn.run.records import run_device
from navi_core.presets import resolve_config
from navi_core.record.home import load_scenes
from navi_core.world import Field


# More than 60 lines: one measurement, its arguments and its row.
def run_train(
    config: TrainConfig,
    field: Field,
    *,
    updates: int = 2,
    warmup: int = 1,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Row:
    """Train as `navi train ppo` does, metric logging included, and measure throughput, stages and memory.

    Args:
        config: The run's configuration; its length is set here.
        field: Scenes to fly in.
        updates: Measured updates.
        warmup: Updates before them, in which memory is touched and kernels are built. Where the time was up before
            any other, they are what is measured.
        seconds: Time after which the run ends with the update it has made last [s]; None: no bound.
        progress: Called with a line after every update.

    Returns:
        A row with the keys:
        steps: Decisions of the measured updates.
        updates: How many those were.
        wall_seconds: Time on the wall.
        cpu_seconds: Processor time of this process, all threads.
        stages: By time, longest first: name (phase/stage; a second slash is a part of another stage), milliseconds
            (mean of a call), seconds (sum over the measured updates), share (of the time of all stages that are no
            parts of others).
        total_steps: Decisions of the whole run, those that warmed up among them.
        reward_ema: Smoothed reward after the last update.
        curve: (decisions, smoothed reward) after every update.
        complete: False where the time was up before the last update.
        peak_memory_mb: Largest resident memory of this process so far [MB].
        steps_per_second: Decisions per second on the wall.
        steps_per_2_cpu_seconds: Decisions for two seconds of processor time: a second of two quiet cores.
        forward_ms: Mean time of the policy's call for one decision of all rows [ms]; None where nothing was recorded.

    Raises:
        TimeoutError: Not one update was made in time.
    """
    per_update = config.actors * config.ppo.rollout
    planned = warmup + updates
    config = config.model_copy(
        update={"total_steps": per_update * planned, "checkpoint_every": per_update * (planned + 1)}
    )
    marks: list[tuple[float, float]] = []
    curve: list[tuple[int, float]] = []

    def mark(done: UpdateMade) -> None:
        marks.append((time.perf_counter(), time.process_time()))
        curve.append((done.step, done.metrics["reward_ema"]))
        progress(f"update {len(curve)} of {planned}")

    with temporary_run(config, "train") as (run, log):
        began = (time.perf_counter(), time.process_time())

        def late() -> bool:
            return seconds is not None and time.perf_counter() - began[0] > seconds

        result = train(config, run, field=field, log=log, stop=late, events=EventBus({UpdateMade: mark}, strict=True))
        log.close()
        if not curve:
            raise TimeoutError(
                f"not one update of {per_update:,} decisions was made in {seconds:g} s; give it more time"
            )
        skipped = warmup if len(curve) > warmup else 0
        stages = _stages(log.outbox, per_update * skipped)
    (wall, cpu), (wall_end, cpu_end) = (began, *marks)[skipped], marks[-1]
    measured = len(curve) - skipped
    return {
        "steps": per_update * measured,
        "updates": measured,
        "wall_seconds": wall_end - wall,
        "cpu_seconds": cpu_end - cpu,
        "stages": stages,
        "total_steps": result.steps,
        "reward_ema": result.reward_ema,
        "curve": curve,
        "complete": len(curve) == planned,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "steps_per_second": per_update * measured / (wall_end - wall),
        "steps_per_2_cpu_seconds": 2.0 * per_update * measured / (cpu_end - cpu),
        "forward_ms": next((s["milliseconds"] for s in stages if s["name"] == "rollout/forward"), None),
    }


def _stages(outbox: Path, after: int) -> list[Row]:
    total: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, float] = defaultdict(float)
    for file in outbox.glob("*-stage_timings.ndjson"):
        for line in file.read_text().splitlines()[1:]:
            row = json.loads(line)
            if row["step"] <= after:
                continue
            name, seconds = row["stage"], 1e-3 * row["total_milliseconds"]
            total[name] += seconds
            calls[name] += row["total_milliseconds"] / row["milliseconds"] if seconds else 0.0
    whole = sum(seconds for name, seconds in total.items() if name.count("/") == 1)
    return [
        {
            "name": name,
            "milliseconds": 1e3 * seconds / max(calls[name], 1.0),
            "seconds": seconds,
            "share": seconds / whole,
        }
        for name, seconds in sorted(total.items(), key=lambda item: -item[1])
    ]


def measure_train(
    preset: Annotated[str, Option(help="Preset: demo, quick, standard.")] = "standard",
    file: Annotated[Path | None, Option(flag="--config", help="YAML or JSON file of settings.")] = None,
    assign: Assignments = None,
    scene: Scenes = None,
    actors: Annotated[int, Option(min=1, help="Environment rows.")] = 16,
    rollout: Annotated[int, Option(min=1, help="Decisions per row and update.")] = 64,
    updates: Annotated[int, Option(min=1, help="Measured updates, after one warm-up.")] = 2,
    seconds: Annotated[float | None, Option(min=0.1, help="End with the last update made in this time.")] = None,
    memory_limit: Annotated[
        float | None, Option(min=0.1, help="Limit of the process's address space (GiB); exit code 12 beyond.")
    ] = None,
    *,
    log: Log,
) -> Report:
    """Benchmark a few training updates with the time of every stage."""
    config = resolve_config(
        preset=preset, file=file, flags={"actors": actors, "ppo": {"rollout": rollout}}, assignments=assign or ()
    )
    with limit_memory(memory_limit), memory_faults():
        scenes = load_scenes(scene or ["apartment:0,1"], config.compile.resolution)
        field = Field(scenes, device=run_device(config), threads=config.threads)
        result = run_train(config, field, updates=updates, seconds=seconds, progress=log)
    policy = config.policy
    title = (
        f"{policy.azimuth_bins}x{policy.elevation_bins}, {policy.encoder} + {policy.core}, {config.ppo.epochs} "
        f"epochs, on {machine()['hardware']}:\n{result['steps_per_2_cpu_seconds']:.0f} steps per 2 CPU-seconds, "
        f"{result['steps_per_second']:.0f} steps/s on the wall"
    )
    cells = [
        (
            ("  " if is_part(stage) else "") + stage["name"],
            f"{stage['milliseconds']:.2f}",
            f"{stage['seconds']:.2f}",
            f"({stage['share']:.1%})" if is_part(stage) else f"{stage['share']:.1%}",
        )
        for stage in result["stages"]
    ]
    return Report(result, [Table(title, ("stage", "mean [ms]", "total [s]", "share"), cells, words=1)])


def is_part(stage: Row) -> bool:
    """Return whether a stage is nested in another one, by its name."""
    return bool(stage["name"].count("/") > 1)


_WORDS = ("allocate memory", "out of memory", "bad_alloc", "Cannot allocate")
"""Substrings of out-of-memory errors of torch, C++ and the system; torch raises a plain RuntimeError on the CPU."""


@contextmanager
def limit_memory(gibibytes: float | None) -> Iterator[None]:
    """Context manager that limits the address space of this process.

    Args:
        gibibytes: Most that it may take, what it has already included [GiB]; None: no bound.
    """
    if gibibytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def memory_faults() -> Iterator[None]:
    """Context manager that converts out-of-memory errors of torch and C++ into `MemoryError`.

    Raises:
        MemoryError: Memory ran out in the block.
    """
    try:
        yield
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        if any(words in str(error) for words in _WORDS):
            raise MemoryError(first) from error
        raise
