"""Benchmark of the warehouse: ingested rows per second, and query times over millions of rows."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from navi_core.record import MetricLog, row_context
from navi_pipeline.lib.warehouse.database import open_database
from navi_pipeline.lib.warehouse.warehouse import Warehouse

QUESTIONS: dict[str, str] = {
    "leaderboard": "select * from leaderboard",
    "training_curve": "select * from training_curve where run_id = 'run-7'",
    "run_summary": "select * from run_summary limit 20",
    "model_lineage": "select * from model_lineage where version = 'v100'",
    "stage_share": "select * from stage_share where run_id = 'run-7'",
}
"""Name → SQL of the timed queries."""

_METRICS = 40
_STEPS_PER_RUN = 2500
_FILL = f"""
insert into metrics by name
select 'run-' || (i // {_METRICS * _STEPS_PER_RUN}) as run_id, 4096 * ((i // {_METRICS}) % {_STEPS_PER_RUN}) as step,
       case i % {_METRICS} when 0 then 'reward_ema' when 1 then 'sps' when 2 then 'view_gain'
            else 'metric_' || (i % {_METRICS}) end as name,
       random() as value, timestamp '2026-01-01' + to_seconds(i // {_METRICS}) as recorded_at, 0 as seed,
       'a machine' as hardware, '{{"torch": "2"}}' as versions, 'abc' as revision, 'c0ffee' as config_hash,
       'segment-' || (i // {_METRICS}) as segment
from range(?) rows(i)
"""
_FILL_STAGES = """
insert into stage_timings by name
select 'run-' || (i // 50000) as run_id, 4096 * ((i // 20) % 2500) as step, 'rollout/stage_' || (i % 20) as stage,
       random() as milliseconds, 10 * random() as total_milliseconds from range(? // 10) rows(i)
"""


@dataclass(frozen=True)
class WarehouseRow:
    """One result of the warehouse benchmark: case, median value, unit.

    Attributes:
        what: Kind of measurement: ingest, query, size.
        name: Name of the case.
        value: Median over the repeats.
        unit: Unit of the value.
        cpu_value: The same by process CPU time instead of wall time.
        rows: Number of rows of the case.
    """

    what: str
    name: str
    value: float
    unit: str
    cpu_value: float
    rows: int


def measure_ingest(rows: int, rows_per_segment: Sequence[int], repeats: int) -> list[WarehouseRow]:
    """Time the ingest of written segments: read, validate, insert, publish the read-only snapshot.

    Args:
        rows: Rows of each ingest.
        rows_per_segment: Sizes of the producers' segments.
        repeats: Ingests of each, into one growing warehouse; the median counts.
    """
    measured = []
    context = row_context() | {"seed": 0, "config_hash": "c"}
    for size in rows_per_segment:
        with tempfile.TemporaryDirectory() as home:
            warehouse = Warehouse(home)
            warehouse.ingest()
            times = []
            for turn in range(repeats):
                log = MetricLog(warehouse.outbox, f"run-{turn}", context)
                for first in range(0, rows, size):
                    for step in range(first, min(first + size, rows), _METRICS):
                        log.scalars(step, {f"metric_{i}": 0.1 * i + step for i in range(_METRICS)})
                    log.flush()
                times.append(_clocked(warehouse.ingest))
            wall, cpu = (rows / median(seconds) for seconds in zip(*times, strict=True))
            measured.append(WarehouseRow("ingest", f"{size:,} rows a segment", wall, "rows/s", cpu, rows))
    return measured


def measure_questions(
    rows: int, repeats: int, *, keep: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> list[WarehouseRow]:
    """Time saved queries, and the ingest of one training update, over a warehouse of `rows` metric rows.

    Args:
        rows: Metric rows; a tenth as many stage timings, and evaluations of 200 versions and 4 pilots stand beside.
        repeats: Times that each question is asked; the median counts. Each opens the snapshot anew.
        keep: Folder that keeps the warehouse; by default it is removed.
        progress: Called with the current task.
    """
    home = Path(tempfile.mkdtemp()) if keep is None else keep
    try:
        warehouse = Warehouse(home)
        progress(f"filling a warehouse with {rows:,} rows")
        _fill(warehouse, rows)
        measured = []
        for name, sql in QUESTIONS.items():
            progress(f"asking {name}")
            measured.append(_timed("query", name, lambda sql=sql: warehouse.query(sql), rows, repeats))  # type: ignore[misc]
        log, step = MetricLog(warehouse.outbox, "run-7", {}), 0

        def one_update() -> None:
            nonlocal step
            step += 4096
            log.scalars(step, {f"metric_{i}": 1.0 for i in range(_METRICS)})
            log.flush()
            warehouse.ingest()

        progress("folding in one update")
        measured.append(_timed("ingest", "one update of 40 rows, with the snapshot", one_update, rows, min(repeats, 5)))
        size = warehouse.snapshot.stat().st_size / 2**20
        measured.append(WarehouseRow("size", "the snapshot", size, "MiB", size, rows))
        return measured
    finally:
        if keep is None:
            shutil.rmtree(home, ignore_errors=True)


def _fill(warehouse: Warehouse, rows: int) -> None:
    log = MetricLog(warehouse.outbox, "fill", {"seed": 0})
    subjects: dict[str, str | None] = dict.fromkeys(("random", "forward-plus", "frontier", "planner"))
    subjects |= {f"v{number:03d}": f"hash{number:03d}" for number in range(1, 201)}
    for number, (subject, weights) in enumerate(subjects.items()):
        shared = {"evaluation_id": f"e{number}", "subject": subject}
        kind = "pilot" if weights is None else "policy"
        log.row("evaluations", shared | {"weights_hash": weights, "subject_kind": kind, "c_vis_auc": number / 300,
                                         "scenes": 16, "episodes": 48, "eval_config_hash": "p"})  # fmt: skip
        for episode in range(48):
            log.row("episodes", shared | {"scene": f"s{episode // 3}", "scene_hash": f"h{episode // 3}",
                                          "start": episode % 3, "c_vis_auc": number / 300})  # fmt: skip
        if weights is not None:
            parents = [f"v{number - 4:03d}"] if number > 4 else []
            log.row("models", {"version": subject, "weights_hash": weights, "parents": parents})
    log.close()
    warehouse.ingest()
    with open_database(warehouse.database) as connection:
        connection.execute(_FILL, [rows])
        connection.execute(_FILL_STAGES, [rows])
    warehouse.publish()


def _timed(what: str, name: str, call: Callable[[], object], rows: int, repeats: int) -> WarehouseRow:
    call()
    times = [_clocked(call) for _ in range(repeats)]
    wall, cpu = (1e3 * median(seconds) for seconds in zip(*times, strict=True))
    return WarehouseRow(what, name, wall, "ms", cpu, rows)


def _clocked(call: Callable[[], object]) -> tuple[float, float]:
    """Run a callable once and return its wall and CPU time [s]."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu
