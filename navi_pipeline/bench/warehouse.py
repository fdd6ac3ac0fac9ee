"""Benchmark of the warehouse: ingested rows per second, and query times over millions of rows."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from navi_core.bench.timing import take_turns
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

UPDATE, SNAPSHOT = "one update of 40 rows, with the snapshot", "the snapshot"
"""Names of the measurements besides the queries."""

_METRICS = 40
_STEPS_PER_RUN = 2500
_SUBJECTS = """
(select unnest(['random', 'forward-plus', 'frontier', 'planner']) as subject, null as weights_hash
 union all select format('v{:03d}', i), format('hash{:03d}', i) from range(1, 201) versions(i))
"""
"""Four pilots and 200 versions."""
_ROWS = {
    "metrics": f"""
select 'run-' || (i // {_METRICS * _STEPS_PER_RUN}) as run_id, 4096 * ((i // {_METRICS}) % {_STEPS_PER_RUN}) as step,
       case i % {_METRICS} when 0 then 'reward_ema' when 1 then 'sps' when 2 then 'view_gain'
            else 'metric_' || (i % {_METRICS}) end as name,
       random() as value, timestamp '2026-01-01' + to_seconds(i // {_METRICS}) as recorded_at, 0 as seed,
       'a machine' as hardware, '{{"torch": "2"}}' as versions, 'abc' as revision, 'c0ffee' as config_hash,
       'segment-' || (i // {_METRICS}) as segment
from range($rows) rows(i)
""",
    "stage_timings": """
select 'run-' || (i // 50000) as run_id, 4096 * ((i // 20) % 2500) as step, 'rollout/stage_' || (i % 20) as stage,
       random() as milliseconds, 10 * random() as total_milliseconds from range($rows // 10) rows(i)
""",
    "evaluations": f"""
select 'e-' || subject as evaluation_id, subject, weights_hash, random() as c_vis_auc, 16 as scenes, 48 as episodes,
       if(weights_hash is null, 'pilot', 'policy') as subject_kind, 'p' as eval_config_hash from {_SUBJECTS}
""",
    "episodes": f"""
select 'e-' || subject as evaluation_id, subject, 's' || (i // 3) as scene, 'h' || (i // 3) as scene_hash,
       i % 3 as start, random() as c_vis_auc from {_SUBJECTS}, range(48) starts(i)
""",
    "models": """
select format('v{:03d}', i) as version, format('hash{:03d}', i) as weights_hash,
       if(i > 1, [format('v{:03d}', i - 1)], []) as parents from range(1, 201) versions(i)
""",
}
"""Table → query of its synthetic rows, for the parameter `rows`: rows of metrics; a tenth are stage timings."""


def measure_ingest(rows: int, rows_per_segment: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Time the ingest of written segments: read, validate, insert, publish the read-only snapshot.

    Args:
        rows: Rows of each ingest.
        rows_per_segment: Sizes of the producers' segments.
        repeats: Ingests of each, into one growing warehouse; the median counts.

    Returns:
        A row for each size: what, name, value (median), unit, cpu_value (by process CPU time), rows.
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
                times += take_turns({"ingest": warehouse.ingest}, 1, warmup=0)["ingest"].tolist()
            cpu, wall = rows / np.median(times, axis=0)
            measured.append(_row("ingest", f"{size:,} rows a segment", wall, "rows/s", cpu, rows))
    return measured


def measure_questions(rows: int, repeats: int, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time saved queries, and the ingest of one training update, over a warehouse of `rows` metric rows.

    Args:
        rows: Metric rows; a tenth as many stage timings, and evaluations of 200 versions and 4 pilots stand beside.
        repeats: Times that each question is asked; the median counts. Each opens the snapshot anew.
        progress: Called with the current task.

    Returns:
        A row for each question as from `measure_ingest`, one for the update, and one for the snapshot's size.
    """
    with tempfile.TemporaryDirectory() as home:
        warehouse = Warehouse(home)
        progress(f"filling a warehouse with {rows:,} rows")
        warehouse.ingest()
        with open_database(warehouse.database) as connection:
            for table, select in _ROWS.items():
                values = {"rows": rows} if "$rows" in select else {}
                connection.execute(f"insert into {table} by name {select}", values)
        warehouse.publish()
        measured = []
        for name, sql in QUESTIONS.items():
            progress(f"asking {name}")
            measured.append(_timed("query", name, partial(warehouse.query, sql), rows, repeats))
        log, steps = MetricLog(warehouse.outbox, "run-7", {}), count(4096, 4096)

        def one_update() -> None:
            log.scalars(next(steps), {f"metric_{i}": 1.0 for i in range(_METRICS)})
            log.flush()
            warehouse.ingest()

        progress("folding in one update")
        measured.append(_timed("ingest", UPDATE, one_update, rows, min(repeats, 5)))
        size = warehouse.snapshot.stat().st_size / 2**20
        return [*measured, _row("size", SNAPSHOT, size, "MiB", size, rows)]


def _timed(what: str, name: str, call: Callable[[], object], rows: int, repeats: int) -> dict[str, Any]:
    cpu, wall = 1e3 * np.median(take_turns({name: call}, repeats, warmup=1)[name], axis=0)
    return _row(what, name, wall, "ms", cpu, rows)


def _row(what: str, name: str, value: float, unit: str, cpu_value: float, rows: int) -> dict[str, Any]:
    return {
        "what": what,
        "name": name,
        "value": float(value),
        "unit": unit,
        "cpu_value": float(cpu_value),
        "rows": rows,
    }
