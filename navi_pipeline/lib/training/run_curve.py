"""Metric curves of a running training, read from its rows in the outbox, and the monitor that decides on them."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from navi_core.record import outbox_path
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import ObjectiveConfig


class RunCurve:
    """Metric curves of one run, read incrementally from outbox segments; a resumed run's row replaces the earlier one.

    Segments that are there when it is created are not read: `recall` loads earlier rows from the warehouse.

    Args:
        run_id: The run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seen = set(_segments())
        self._values: dict[str, dict[int, float]] = {}

    def read(self) -> list[int]:
        """Read the segments that were added since the last call; return the steps of their rows in order."""
        steps: dict[int, None] = {}
        for name, file in sorted(_segments().items()):
            if name not in self._seen:
                steps |= dict.fromkeys(self._take(file))
        return list(steps)

    def recall(self) -> None:
        """Load the run's metrics from the warehouse.

        Raises:
            RecordError: The warehouse cannot be read.
        """
        Warehouse().ingest()
        rows = Warehouse().query("select name, step, value from metrics where run_id = ?", [self._run_id])
        for name, step, value in rows.dropna().itertuples(index=False):
            self._values.setdefault(name, {})[int(step)] = float(value)

    def at(self, step: int) -> dict[str, float]:
        """Return the metrics of a step by name."""
        return {name: values[step] for name, values in self._values.items() if step in values}

    def points(self, metric: str) -> list[tuple[int, float]]:
        """Return the finite (step, value) pairs of a metric, sorted by step."""
        return sorted((step, value) for step, value in self._values.get(metric, {}).items() if math.isfinite(value))

    @property
    def last_step(self) -> int:
        """Largest step (count of decisions) of any metric of the run."""
        return max((step for values in self._values.values() for step in values), default=0)

    def figure(self, objective: ObjectiveConfig, result: Mapping[str, Any]) -> float | None:
        """Return the value of an objective in the run; None if the run has no such metric.

        Args:
            objective: Metric, direction and aggregation.
            result: Result of the trainer, with figures that no row has (memory_gib, wall_time_hours).
        """
        values = [value for _, value in self.points(objective.metric)]
        if not values:
            known = {name: value for name, value in result.items() if value is not None}
            given = (result.get("metrics", {}) | known).get(objective.metric)
            return float(given) if isinstance(given, int | float) and math.isfinite(given) else None
        better = max if objective.direction == "maximize" else min
        return {"last": values[-1], "median": statistics.median(values), "best": better(values)}[objective.summary]

    def last(self) -> dict[str, float]:
        """Return the latest value of every metric."""
        return {name: self._values[name][max(self._values[name])] for name in sorted(self._values)}

    def _take(self, file: Path) -> list[int]:
        steps = []
        try:
            with file.open(encoding="utf-8") as lines:
                header = json.loads(next(lines))
                if header.get("run_id") == self._run_id:
                    for line in lines:
                        row = json.loads(line)
                        steps.append(int(row["step"]))
                        # Numbers that are not finite stand there by their names.
                        self._values.setdefault(row["name"], {})[steps[-1]] = float(row["value"])
        except FileNotFoundError:
            return []  # it has just been moved to done/, where it is found next
        except (StopIteration, ValueError, KeyError, TypeError):
            pass  # the warehouse puts a broken segment aside with its reason
        self._seen.add(file.name)
        return steps


def _segments() -> dict[str, Path]:
    """Return the metric segments of the home by name."""
    found: dict[str, Path] = {}
    # A segment moves to done/ once it is in the database: looked for there second, it cannot be missed.
    for folder in (outbox_path(), outbox_path() / "done"):
        with suppress(FileNotFoundError):
            found |= {name: folder / name for name in os.listdir(folder) if name.endswith("-metrics.ndjson")}
    return found


class Monitor:
    """Monitor of a training by its metric rows: follows its progress, and decides when to stop it.

    Create it before the trainer starts, and give it as the trainer's `stop`.

    Args:
        run_id: The run.
        report: Called with a line every `interval`.
        seconds: Time from the first update on after which the trainer is stopped [s].
        stall_seconds: Time without progress after which it is stopped [s].
        interval: Seconds between lines [s].
        until_step: Step at which the trainer is stopped; None: no limit.
        on_update: Called with the step and the metrics of every update.

    Attributes:
        step: Step of the latest update; None before the first.
        stalled: Whether the trainer was stopped because it made no progress.
        speeds: Steps per second of every update.
    """

    def __init__(
        self,
        run_id: str,
        *,
        report: Callable[[str], None] = lambda _: None,
        seconds: float = math.inf,
        stall_seconds: float = math.inf,
        interval: float = math.inf,
        until_step: int | None = None,
        on_update: Callable[[int, dict[str, float]], None] = lambda _step, _metrics: None,
    ) -> None:
        self.step: int | None = None
        self.stalled = False
        self.speeds: list[float] = []
        self._report, self._seconds, self._stall_seconds, self._interval = report, seconds, stall_seconds, interval
        self._until_step, self._on_update = until_step, on_update
        self._curve = RunCurve(run_id)
        self._began = self._moved = self._reported = time.monotonic()

    def read(self) -> None:
        """Follow the rows that were written since the last call; call it once more after the training."""
        now = time.monotonic()
        for step in self._curve.read():
            if self.step is None:
                self._began = now
            self.step, self._moved = step, now
            metrics = self._curve.at(step)
            self.speeds += [metrics["sps"]] if "sps" in metrics else []
            self._on_update(step, metrics)

    def __call__(self) -> bool:
        """Return whether the trainer must stop (stalled, step reached, time over); called twice a second."""
        self.read()
        now = time.monotonic()
        if now - self._reported >= self._interval:
            self._reported = now
            speed = f"{self.speeds[-1]:,.0f} steps/s" if self.speeds else "no update yet"
            self._report(f"  monitor: step {self.step or 0:,}, {speed}, {(now - self._began) / 60:.1f} min")
        self.stalled |= now - self._moved > self._stall_seconds
        if self.step is None:
            return self.stalled
        reached = self._until_step is not None and self.step >= self._until_step
        return self.stalled or reached or now - self._began > self._seconds
