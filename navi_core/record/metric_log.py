"""Metric log: writes rows as immutable segment files to the outbox; it never opens the database.

A segment is newline-delimited JSON. Its first line is a header

    {"navi_segment": 1, "table": …, "run_id": …, "context": {…}, "rows": n, "sha256": …, "created_at": …}

with the context that every row shares and the SHA-256 of all bytes after the header line; each
further line is one row. A file under its final name is complete: it was written under another name,
synced and renamed. Names sort in the order of writing, also after a clock was set back, and a later
row replaces an earlier one of the same natural key.

A resumed run emits the rows after its last checkpoint a second time. Ingest replaces a row whose natural key it has
already, so that nothing is lost and nothing is doubled. The warehouse's migrations declare the same keys as primary
keys, but for the largest tables; a test compares the two. Scalars also go to TensorBoard, an observer of the log.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import RecordError
from navi_core.record.durable import Closing, write_durably

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_SECONDS = 2.0
"""Shortest time between two flushes of TensorBoard files [s]."""
SEGMENT_VERSION = 1
"""Version of the segment files' layout."""

NATURAL_KEYS: dict[str, tuple[str, ...]] = {
    "metrics": ("run_id", "step", "name"),
    "runs": ("run_id",),
    "scenes": ("name", "source_hash", "compile_hash"),
    "checkpoints": ("run_id", "step"),
    "models": ("version",),
    "promotions": ("alias", "version", "decided_at"),
    "alias_moves": ("alias", "version", "moved_at"),
    "evaluations": ("evaluation_id",),
    "episodes": ("evaluation_id", "scene", "start"),
    "named_courses": ("course", "name"),
    "comparisons": ("comparison_id", "metric"),
    "stage_timings": ("run_id", "step", "stage"),
    "benchmarks": ("run_id", "benchmark", "cell", "repeat", "name"),
    "studies": ("study",),
    "trials": ("study", "trial"),
    "service_experiences": ("run_id", "number"),
    "service_versions": ("run_id", "model_version", "fate"),
    "events": ("run_id", "step", "event", "recorded_at"),
    "nights": ("night",),
    "checks": ("asset", "check_name", "recorded_at"),
}
"""Table name → natural key."""

UNINDEXED_TABLES: tuple[str, ...] = ("metrics", "stage_timings", "service_experiences")
"""Tables of millions of rows, kept unique by the writer alone: an index would be most of the database."""

RUN_TABLES: tuple[str, ...] = ("metrics", "runs", "checkpoints", "stage_timings")
"""Tables whose rows a fresh start of their run drops; models, evaluations and decisions are history and stay."""


_SERIAL = itertools.count()
_AUTO_KEYS = ("run_id", "step", "recorded_at")


class MetricLog(Closing):
    """Buffered writer of metric rows to the outbox; rows are durable once `flush` returns.

    Rows are kept in memory until a flush succeeds, so a flush that failed (a full disk) may be tried
    again. Thread-safe.
    """

    def __init__(self, outbox: Path | str, run_id: str, context: dict[str, Any]) -> None:
        """Open a metric log on an outbox folder.

        Args:
            outbox: Folder of segments; made if missing.
            run_id: Run that the rows belong to.
            context: Columns that all rows share: seed, config_hash, and those of `row_context`.

        Raises:
            RecordError: The outbox cannot be created, or the context is not plain data.
        """
        self.outbox = Path(outbox).absolute()
        self.run_id = run_id
        self._context = {key: _plain(value, f"context.{key}") for key, value in context.items()}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._observers: list[Callable[[int, dict[str, float]], None]] = []
        self._closing: list[Callable[[], None]] = []
        self._step = 0
        self._latest = 0
        self._lock = threading.Lock()
        with RecordError.of_system(f"cannot make the outbox {self.outbox}"):
            self.outbox.mkdir(parents=True, exist_ok=True)

    def observe(
        self, observer: Callable[[int, dict[str, float]], None], close: Callable[[], None] | None = None
    ) -> None:
        """Register an observer callback for later `scalars` calls (TensorBoard); `close` runs when the log closes."""
        self._observers.append(observer)
        if close is not None:
            self._closing.append(close)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Log scalar metrics at a step: one `metrics` row per value.

        Args:
            step: Decisions summed over rows.
            values: Metric name → value; NaN and infinities are kept as such.

        Raises:
            RecordError: A value is not a number.
        """
        step = int(step)
        now = utc_time()
        rows = []
        for name, value in values.items():
            try:
                number = float(value)
            except (TypeError, ValueError) as error:
                raise RecordError(f"metric {name!r} at step {step} is not a number: {value!r}") from error
            rows.append({"step": step, "name": str(name), "value": _plain(number, name), "recorded_at": now})
        with self._lock:
            self._step = step
            self._rows.setdefault("metrics", []).extend(rows)
        for observer in self._observers:
            observer(step, values)

    def row(self, table: str, values: dict[str, Any]) -> None:
        """Append one row to a table's in-memory buffer; `flush` writes it to the outbox.

        `run_id`, `step` (that of the latest `scalars` call) and `recorded_at` are filled in where absent.
        Columns that the table does not have are kept in its `extra` column.

        Args:
            table: One of `NATURAL_KEYS`.
            values: Plain data.

        Raises:
            RecordError: The table is unknown, a key column is missing, or a value is not plain data.
        """
        key = NATURAL_KEYS.get(table)
        if key is None:
            raise RecordError(f"no table {table!r}; allowed: {', '.join(NATURAL_KEYS)}")
        missing = [name for name in key if name not in _AUTO_KEYS and values.get(name) is None]
        if missing:
            raise RecordError(f"a row of {table!r} needs {', '.join(missing)} (its key is {', '.join(key)})")
        row = {_utf8(str(name)): _plain(value, f"{table}.{name}") for name, value in values.items()}
        row.setdefault("step", self._step)
        if table == "events":
            row["kind"] = row["event"]
        row.setdefault("recorded_at", utc_time())
        with self._lock:
            self._rows.setdefault(table, []).append(row)

    def forget(self) -> None:
        """Write a tombstone: ingest drops every row that this run wrote before now (fresh start of the same run).

        Raises:
            RecordError: The mark could not be written.
        """
        with self._lock:
            self._write(None, [])

    def flush(self) -> None:
        """Flush all buffered rows as segment files; they are durable when this returns.

        Raises:
            RecordError: A segment could not be written (for example a full disk). Rows of segments that
                were not written stay in memory for the next flush, and no partial file remains.
        """
        with self._lock:
            for table in list(self._rows):
                rows = self._rows[table]
                if rows:
                    self._write(table, rows)
                del self._rows[table]

    def close(self) -> None:
        """Flush the remaining rows and close the observers."""
        try:
            self.flush()
        finally:
            while self._closing:
                self._closing.pop()()

    def _write(self, table: str | None, rows: list[dict[str, Any]]) -> None:
        body = "".join(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n" for row in rows).encode()
        header = {
            "navi_segment": SEGMENT_VERSION,
            "table": table,
            "run_id": self.run_id,
            "context": self._context,
            "rows": len(rows),
            "sha256": hashlib.sha256(body).hexdigest(),
            "created_at": utc_time(),
            "forget_earlier": table is None,
        }
        self._latest = self._next_number()
        name = f"{self._latest:020d}-{os.getpid()}-{next(_SERIAL):06d}-{table or 'forget'}.ndjson"
        data = json.dumps(header, separators=(",", ":"), allow_nan=False).encode() + b"\n" + body
        try:
            write_durably(self.outbox / name, data)
        except OSError as error:
            what = "let this user write there" if isinstance(error, PermissionError) else "free some space"
            raise RecordError(
                f"cannot write {len(rows)} rows of {table!r} to the outbox {self.outbox}: {error.strerror or error}; "
                f"{what} and give the command again"
            ) from error

    def _next_number(self) -> int:
        """Return the next segment number, above all written ones: the time [ns], unless the clock was set back."""
        latest = self._latest
        # Ingest moves segments from the outbox to done/: in this order none is missed.
        for folder in (self.outbox, self.outbox / "done"):
            with contextlib.suppress(OSError):
                names = [name for name in os.listdir(folder) if name[:20].isdecimal() and name.endswith(".ndjson")]
                latest = max(latest, int(max(names, default="0")[:20]))
        return max(time.time_ns(), latest + 1)


def utc_time(seconds: float | None = None) -> str:
    """Return a time since 1970 [s], by default the present one, as UTC in ISO 8601 with microseconds."""
    seconds = time.time() if seconds is None else seconds
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


def _utf8(text: str) -> str:
    """Convert a text to valid UTF-8, as databases require; non-UTF-8 paths hold lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: object, where: str) -> object:
    """Convert a value to strict JSON data; non-finite floats become their names as strings."""
    if isinstance(value, str):
        return _utf8(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {_utf8(str(name)): _plain(item, f"{where}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, where) for item in value]
    if isinstance(value, Path):
        return _utf8(str(value))
    for name in ("tolist", "item"):  # numpy and torch scalars and arrays, without importing either
        convert = getattr(value, name, None)
        if callable(convert):
            return _plain(convert(), where)
    raise RecordError(f"{where} is {type(value).__name__}, which is not plain data")


class TensorBoardWriter:
    """TensorBoard writer: observer that logs every scalar of a metric log to an event file.

    The file is created with the first scalar; points of an earlier process of the same run from that step on are
    purged, so that a resumed run shows one curve.

    Args:
        directory: Folder of the event files, for example `<run>/tensorboard`.

    Raises:
        RecordError: TensorBoard is not installed.
    """

    def __init__(self, directory: Path | str) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise RecordError("TensorBoard is not installed; pip install tensorboard")
        self.directory = Path(directory)
        self._writer: SummaryWriter | None = None
        self._flushed_at = 0.0

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write one scalar event per value at `step`."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(log_dir=str(self.directory), flush_secs=30, purge_step=int(step))
        for name, value in values.items():
            self._writer.add_scalar(name, float(value), global_step=int(step))
        # A dashboard that is opened now shows this step, too.
        if time.monotonic() - self._flushed_at > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed_at = time.monotonic()

    def close(self) -> None:
        """Flush the buffer and close the event file."""
        if self._writer is not None:
            self._writer.close()
