"""A training run's metrics while it runs, read from the segments that its trainer leaves in the outbox."""

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from navi_core.record import outbox_path
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings.studies import ObjectiveConfig


class RunCurve:
    """Collects the metric rows of one run; a row that a resumed run writes again replaces the earlier one.

    Args:
        run_id: The run.
        since: Time of the run's first start, as `time.time_ns()`; earlier segments are not looked at.
    """

    def __init__(self, run_id: str, *, since: int) -> None:
        self._run_id = run_id
        self._since = f"{since:020d}"
        self._seen: set[str] = set()
        self._values: dict[str, dict[int, float]] = {}

    def read(self) -> None:
        """Take in the segments that have come since the last call."""
        outbox = outbox_path()
        # A segment moves to done/ once it is in the database: looked for there second, it cannot be missed.
        for folder in (outbox, outbox / "done"):
            if not folder.is_dir():
                continue
            for file in sorted(folder.iterdir()):
                name = file.name
                if name >= self._since and name.endswith("-metrics.ndjson") and name not in self._seen:
                    self._take(file)

    def recall(self) -> None:
        """Take in what the warehouse has of the run: of a run that is older than its study, or than a compaction.

        Raises:
            RecordError: The warehouse cannot be read.
        """
        warehouse = Warehouse()
        warehouse.ingest()
        rows = warehouse.query("select name, step, value from metrics where run_id = ?", [self._run_id])
        for name, step, value in rows.dropna().itertuples(index=False):
            self._values.setdefault(name, {})[int(step)] = float(value)

    def points(self, metric: str) -> list[tuple[int, float]]:
        """Return step and value of a metric, by step; those that are not finite are left out."""
        return sorted((step, value) for step, value in self._values.get(metric, {}).items() if math.isfinite(value))

    @property
    def last_step(self) -> int:
        """Decisions of the latest row."""
        return max((step for values in self._values.values() for step in values), default=0)

    def figure(self, objective: ObjectiveConfig, result: Mapping[str, Any] | None) -> float | None:
        """Return the value of an objective in the run; None where it has no such metric.

        Args:
            objective: What to look at.
            result: The trainer's answer, which knows what no row does (memory_gib, wall_time_hours).
        """
        values = [value for _, value in self.points(objective.metric)]
        if not values:
            given = (result or {}).get(objective.metric)
            if given is None:
                given = (result or {}).get("metrics", {}).get(objective.metric)
            return float(given) if isinstance(given, int | float) and math.isfinite(given) else None
        if objective.summary == "median":
            return statistics.median(values)
        if objective.summary == "best":
            return max(values) if objective.direction == "maximize" else min(values)
        return values[-1]

    def last(self) -> dict[str, float]:
        """Return the latest value of every metric."""
        return {name: self._values[name][max(self._values[name])] for name in sorted(self._values)}

    def _take(self, file: Path) -> None:
        try:
            with file.open(encoding="utf-8") as lines:
                header = json.loads(next(lines))
                if header.get("run_id") == self._run_id:
                    for line in lines:
                        row = json.loads(line)
                        # Numbers that are not finite stand there by their names.
                        self._values.setdefault(row["name"], {})[int(row["step"])] = float(row["value"])
        except FileNotFoundError:
            return  # it has just been moved to done/, where it is found next
        except (StopIteration, ValueError, KeyError, TypeError):
            pass  # the warehouse puts a broken segment aside with its reason
        self._seen.add(file.name)
