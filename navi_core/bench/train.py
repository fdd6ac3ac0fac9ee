"""How fast a whole training run is: decisions per second of processor time, and where that time goes."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from navi_core.config import TrainConfig
from navi_core.learn import train
from navi_core.record import RunDirectory
from navi_core.world import Field

__all__ = ["Stage", "TrainBenchmark", "run_train"]


@dataclass(frozen=True)
class Stage:
    """A part of a run.

    Attributes:
        name: phase/stage; a second slash is a part of another stage.
        milliseconds: Mean of a call.
        seconds: Sum over the measured updates [s].
        share: Of the time of all stages that are no parts of others.
    """

    name: str
    milliseconds: float
    seconds: float
    share: float


@dataclass(frozen=True)
class TrainBenchmark:
    """What a measured run did.

    Attributes:
        steps: Decisions of the measured updates.
        updates: How many those were.
        wall_seconds: Time on the wall.
        cpu_seconds: Processor time of this process, all threads.
        stages: By time, longest first.
    """

    steps: int
    updates: int
    wall_seconds: float
    cpu_seconds: float
    stages: tuple[Stage, ...]

    @property
    def steps_per_second(self) -> float:
        """Decisions per second on the wall."""
        return self.steps / self.wall_seconds

    @property
    def steps_per_two_cpu_seconds(self) -> float:
        """Decisions for two seconds of processor time: a second of two quiet cores."""
        return 2.0 * self.steps / self.cpu_seconds


def run_train(
    config: TrainConfig,
    field: Field,
    *,
    updates: int = 2,
    warmup: int = 1,
    progress: Callable[[str], None] | None = None,
) -> TrainBenchmark:
    """Train as `navi train ppo` does, records and all, and measure.

    Args:
        config: The run's configuration; its length is set here.
        field: Scenes to fly in.
        updates: Measured updates.
        warmup: Updates before them, in which memory is touched and kernels are built.
        progress: Called with a line after every update.
    """
    per_update = config.actors * config.ppo.rollout
    config = config.model_copy(
        update={"total_steps": per_update * (warmup + updates), "checkpoint_every": per_update * (warmup + updates + 1)}
    )
    marks: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="navi-bench-") as name:
        root = Path(name)
        with RunDirectory.open(root / "runs", asset="bench", partition="train", config=config) as run:
            log = run.metric_log(root / "outbox")

            def mark(done: object) -> None:
                marks.append((time.perf_counter(), time.process_time()))
                if progress is not None:
                    progress(f"update {len(marks)} of {warmup + updates}")

            train(config, run, field=field, log=log, progress=mark)
            log.close()
        stages = _stages(root / "outbox", per_update * warmup)
    (wall, cpu), (wall_end, cpu_end) = marks[warmup - 1], marks[-1]
    return TrainBenchmark(per_update * updates, updates, wall_end - wall, cpu_end - cpu, stages)


def _stages(outbox: Path, after: int) -> tuple[Stage, ...]:
    total: dict[str, float] = {}
    calls: dict[str, float] = {}
    for file in outbox.glob("*-stage_timings.ndjson"):
        for line in file.read_text().splitlines()[1:]:
            row = json.loads(line)
            if row["step"] <= after:
                continue
            name, seconds = row["stage"], 1e-3 * row["total_milliseconds"]
            total[name] = total.get(name, 0.0) + seconds
            calls[name] = calls.get(name, 0.0) + (row["total_milliseconds"] / row["milliseconds"] if seconds else 0.0)
    whole = sum(seconds for name, seconds in total.items() if name.count("/") == 1)
    return tuple(
        Stage(name, 1e3 * seconds / max(calls[name], 1.0), seconds, seconds / whole)
        for name, seconds in sorted(total.items(), key=lambda item: -item[1])
    )
