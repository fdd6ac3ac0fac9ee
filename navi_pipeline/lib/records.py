"""Persistence of the pipeline: JSON documents between assets, metric logs, benchmark rows, folders, content hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from navi_core.errors import RecordError
from navi_core.record import MetricLog, outbox_path, row_context
from navi_core.record.durable import Closing, write_durably
from navi_core.record.home import navi_home

PACKAGE = Path(__file__).resolve().parents[1]
"""Path of the package `navi_pipeline`."""


def shipped_folder(name: str) -> Path:
    """Resolve a data folder: inside the installed package, or beside it in a checkout.

    The link beside the package may be missing: Git writes a text file where symbolic links are not supported or
    disabled, as do some archive tools.
    """
    inside = PACKAGE / name
    return (inside if inside.is_dir() else PACKAGE.parent / name).resolve()


def pipeline_folder() -> Path:
    """Return the folder of the assets' JSON documents; it is created if missing."""
    folder = navi_home() / "pipeline"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def content_key(*parts: object) -> str:
    """Return the first 16 hex digits of the SHA-256 of JSON data."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_text(path: Path, text: str, kind: str = "") -> None:
    """Write a text file atomically; missing parent folders are created.

    Args:
        path: The file.
        text: Content.
        kind: Name of the file in the error message, such as "the report ".

    Raises:
        RecordError: The file cannot be written.
    """
    with RecordError.of_system(f"cannot write {kind}{path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text.encode())


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document atomically.

    Raises:
        RecordError: The file cannot be written.
    """
    write_text(path, json.dumps(document, indent=1) + "\n")


def read_document(path: Path, *, made_by: str) -> dict[str, Any]:
    """Load a JSON document.

    Args:
        path: The file.
        made_by: Asset that makes it, named when it is missing.

    Raises:
        RecordError: The file is missing or broken.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path} is missing; materialize {made_by} first in `navi pipeline ui`") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is broken ({error}); materialize {made_by} again") from error
    if not isinstance(document, dict):
        raise RecordError(f"{path} holds {type(document).__name__}, not an object; materialize {made_by} again")
    return document


def pipeline_log(run_id: str, *, seed: int | None = None, config_hash: str | None = None) -> MetricLog:
    """Create a metric log whose rows carry the full context (hardware, versions, revision).

    Args:
        run_id: Run that the rows belong to: a training run, or the asset's name.
        seed: Seed of the recorded run.
        config_hash: Hash of the run's configuration.
    """
    return MetricLog(outbox_path(), run_id, row_context() | {"seed": seed, "config_hash": config_hash})


Outcome = Literal["ok", "out_of_memory", "crash", "timeout"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Possible outcomes of a benchmark cell."""


class BenchmarkLog(Closing):
    """Context manager that records one run of a sweep or benchmark in the table `benchmarks`.

    Every run has a unique name, so the runs of a benchmark form its history.

    Args:
        benchmark: Name of the sweep or benchmark, for example `resolution_sweep`.
        run_id: Name of this run; by default the benchmark's with the time. The same name again replaces its rows.
        config_hash: Hash of the measured configuration.
    """

    def __init__(self, benchmark: str, *, run_id: str | None = None, config_hash: str | None = None) -> None:
        self.benchmark = benchmark
        self.run_id = run_id or f"{benchmark}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        self._log = pipeline_log(self.run_id, config_hash=config_hash)

    def cell(
        self,
        cell: str,
        values: Mapping[str, tuple[float, str]],
        *,
        repeat: int = 0,
        seed: int | None = None,
        step: int = 0,
        profile: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        outcome: Outcome = "ok",
        detail: str | None = None,
    ) -> None:
        """Record one repeated measurement of a benchmark cell; its rows are durable when this returns.

        Args:
            cell: Name of the cell, for example `256x48` or `gru`.
            values: Name → (value, unit), for example `{"steps_per_second": (812.0, "1/s")}`; may be empty where the
                cell failed.
            repeat: Number of the repeat.
            seed: Seed of the repeat.
            step: Training decisions before the measurement.
            profile: Size of the cell, for example `quick`; means are over cells of one profile.
            parameters: Settings that make the cell.
            outcome: Outcome of the cell.
            detail: Reason of a failure.

        Raises:
            RecordError: A cell without numbers that did not fail, or the rows could not be written.
        """
        if outcome not in OUTCOMES:
            raise RecordError(f"outcome {outcome!r} of cell {cell!r}; allowed: {', '.join(OUTCOMES)}")
        if not values and outcome == "ok":
            raise RecordError(f"cell {cell!r} of {self.benchmark} has no value and did not fail")
        shared = {
            "benchmark": self.benchmark,
            "cell": cell,
            "repeat": repeat,
            "seed": seed,
            "step": step,
            "profile": profile,
            "parameters": dict(parameters or {}),
            "outcome": outcome,
            "detail": detail,
        }
        numbers: Mapping[str, tuple[float | None, str]] = values or {"outcome": (None, "")}
        for name, (value, unit) in numbers.items():
            self._log.row("benchmarks", shared | {"name": name, "value": value, "unit": unit})
        self._log.flush()

    def close(self) -> None:
        """Write what is left."""
        self._log.close()
