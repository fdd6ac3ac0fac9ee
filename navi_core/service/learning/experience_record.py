"""Persistent record of experiences and policy versions: outbox rows, with a crash-recovery journal.

Between two writes a journal holds the completed experiences, so that a killed service loses none.

    <outbox>/journals/<run id>-<number>.journal, a journal (`record/journal.py`) of the format "NAVIEXP1":
        topic "run"    JSON: run_id, context
        topic "row"    JSON: one row of `service_experiences`

The service holds the lock of each file while it lives; the next service writes the rows of files without one to the
outbox. Files of JSON lines (`*.jsonl`), written until 2026-11-24, are read.
"""

import json
import logging
import random
import time
import uuid
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from navi_core.errors import RecordError
from navi_core.machine.file_lock import recover_abandoned
from navi_core.record import MetricLog, outbox_path, row_context
from navi_core.record.events import EventRows
from navi_core.record.journal import FrameFormat, Journal, JournalWriter
from navi_core.service.learning.experience import Experience

_LOG = logging.getLogger("navi.service")

_FLUSH_SECONDS, _MAX_FLUSH_SECONDS = 5.0, 300.0
_ROWS_PER_FLUSH = 20_000
_MAX_WAITING = 200_000
"""Most buffered rows while the disk is full; about 600 MB."""
Row = dict[str, object]

_FORMAT = FrameFormat(b"NAVIEXP1")
_MAX_ROW = 2**20
_STRANGE = "not a journal of experiences; inspect it, then remove it"


class ExperienceJournal:
    """Crash-recovery journal of experience rows: keeps them from their completion until the outbox has them.

    Args:
        folder: Folder of the journals.
        run_id: Run of the rows.
        context: Columns that all rows share.

    Raises:
        RecordError: The folder or its first file cannot be created.
    """

    def __init__(self, folder: Path, run_id: str, context: Row) -> None:
        self._folder, self._run_id = folder, run_id
        self._head = _packed({"run_id": run_id, "context": context})
        self._number = 0
        self._rotated: list[JournalWriter] = []
        self._warned = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._current = self._create()
        except OSError as error:
            raise RecordError(f"cannot keep a journal in {folder}: {error.strerror or error}") from error

    def append(self, row: Row) -> None:
        """Append a row to the journal; on a full disk log one warning, and the row is then in memory alone."""
        try:
            self._current.append(b"row", _packed(row), time.time())
        except RecordError as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("%s; a kill would lose experiences", error)

    def rotate(self) -> None:
        """Rotate to a new journal file, unless an earlier one still waits for `drop_rotated`."""
        if self._rotated:
            return
        try:
            following = self._create()
        except OSError:
            return  # the present file goes on, and keeps its rows for longer than needed
        self._rotated.append(self._current)
        self._current = following

    def drop_rotated(self) -> None:
        """Delete the rotated files, whose rows the outbox has."""
        while self._rotated:
            self._rotated.pop().remove()

    def close(self, *, keep: bool = False) -> None:
        """Close all journal files; delete them unless they are kept for a later recovery."""
        for writer in [*self._rotated, self._current]:
            writer.close() if keep else writer.remove()
        self._rotated = []

    def _create(self) -> JournalWriter:
        self._number += 1
        path = self._folder / f"{self._run_id}-{self._number:06d}.journal"
        return JournalWriter.create(path, _FORMAT, b"run", self._head, time.time())


def recover_journals(folder: Path, outbox: Path) -> int:
    """Recover the journals of killed services: write their rows to the outbox; return the number of rows.

    A row that the outbox already has counts once there: its key is its run and number.
    """
    paths = sorted([*folder.glob("*.jsonl"), *folder.glob("*.journal")])
    report = partial(_LOG.warning, "%s cannot be recovered now: %s")
    count = sum(recover_abandoned(paths, lambda path: _recover(path, outbox), report))
    if count:
        _LOG.info("%d experiences of killed services are recorded", count)
    return count


def _recover(path: Path, outbox: Path) -> int:
    read = _read_lines if path.suffix == ".jsonl" else _read_frames
    # All of it is read before anything is recorded.
    count = sum(1 for _ in read(path)) - 1
    if count > 0:
        rows = read(path)
        head = next(rows)
        try:
            log = MetricLog(outbox, str(head["run_id"]), dict(head["context"]))  # type: ignore[call-overload]
        except (KeyError, TypeError, ValueError):
            raise RecordError(_STRANGE) from None
        for number, row in enumerate(rows, 1):
            log.row("service_experiences", row)
            # A journal that grew while the outbox could not be written may not fit into memory.
            if number % _ROWS_PER_FLUSH == 0:
                log.flush()
        log.flush()
    path.unlink(missing_ok=True)
    return max(count, 0)


def _read_frames(path: Path) -> Iterator[Row]:
    with Journal(path, (_FORMAT,), kind="journal of experiences", max_bytes=_MAX_ROW) as journal:
        if journal.damage:
            raise RecordError(journal.damage)
        for frame in journal.frames:
            yield _unpacked(journal.read(frame)[1])


def _read_lines(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSON Lines file; an unfinished last line is skipped."""
    with path.open("rb") as file:
        while (line := file.readline(_MAX_ROW)).endswith(b"\n"):
            yield _unpacked(line)
        if len(line) == _MAX_ROW:
            raise RecordError(_STRANGE)


def _packed(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def _unpacked(data: bytes) -> Row:
    try:
        row = json.loads(data)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise RecordError(_STRANGE)
    return row


class ServiceRecord:
    """Recorder of a service: rows of `service_experiences`, `service_versions` and `events`.

    Args:
        model: First model of the service.
        seed: Seed of the service.
        config_hash: Hash of the service's settings.
        outbox: Folder of segments; None: that of the Navi home.
        share: Fraction of the experiences that are recorded, drawn at random; the others are only counted.

    Raises:
        RecordError: The outbox or the journal cannot be made.

    Attributes:
        run_id: Name of this service process.
        events: Subscriber that records the events of the service.
        lost: Experiences dropped because the disk was full for too long.
    """

    def __init__(self, model: str, seed: int, config_hash: str, outbox: Path | None = None, share: float = 1.0) -> None:
        self.run_id = f"service-{model}-{uuid.uuid4().hex[:12]}"
        context = {"seed": seed, "config_hash": config_hash} | row_context()
        self._log = MetricLog(outbox if outbox is not None else outbox_path(), self.run_id, context)
        self.events = EventRows(self._log)
        journals = self._log.outbox / "journals"
        recover_journals(journals, self._log.outbox)
        self._journal = ExperienceJournal(journals, self.run_id, context)
        self._completed: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)
        self._share, self._draw = share, random.Random(seed)
        self._number = self.lost = self._reported = 0
        self._wait = _FLUSH_SECONDS
        self._next = 0.0

    def experience(self, experience: Experience) -> None:
        """Buffer a completed experience as a row, without latents, states and observations; waits for no disk."""
        self._number += 1
        # Random: drones complete in turns, so every second experience would be of the same drones.
        if self._share < 1.0 and self._draw.random() >= self._share:
            return
        x, y, z = experience.position.tolist()
        row = {
            "number": self._number,
            "session_id": experience.session_id,
            "model_version": experience.model_version,
            "x": x,
            "y": y,
            "z": z,
            "yaw": experience.yaw,
            "action": experience.action.tolist(),
            "log_prob": experience.log_prob,
            "value": experience.value,
            "gate_send": experience.gate_send,
            "expected_reward": experience.expected_reward,
            "components": dict(experience.components),
            "actual_reward": experience.actual_reward,
            "effective_reward": experience.effective_reward,
            "step": self._number,
        }
        # In this order: a row that a new journal misses is among the completed ones already.
        self.lost += len(self._completed) == _MAX_WAITING
        self._completed.append(row)
        self._journal.append(row)

    def version(self, number: int, fate: str, **numbers: float) -> None:
        """Log a model version's outcome to the table `service_versions`: trained, admitted, held or rolled_back."""
        self._log.row("service_versions", {"model_version": number, "fate": fate, "step": number, **numbers})

    def flush(self, *, now: bool = False) -> None:
        """Flush rows to the outbox: every five seconds at most unless `now`, less often after failures.

        Raises:
            RecordError: The outbox cannot be written; the rows wait for the next time, the last 200,000 of them.
        """
        if now or time.monotonic() >= self._next:
            try:
                self._write()
            except RecordError:
                self._wait = min(2 * self._wait, _MAX_FLUSH_SECONDS)
                raise
            else:
                self._wait = _FLUSH_SECONDS
            finally:
                self._next = time.monotonic() + self._wait

    def close(self) -> None:
        """Flush the last rows and close; on a full disk the journal keeps them for the next service."""
        try:
            self._write()
        except RecordError as error:
            _LOG.warning("the last experiences stay in the journal: %s", error)
            self._journal.close(keep=True)
        else:
            self._journal.close()

    def _write(self) -> None:
        self._journal.rotate()
        self.events.write_pending()
        # Rows of a failed write go first and alone: the log writes all of its rows at every try.
        self._log.flush()
        if self.lost > self._reported:
            self._reported = self.lost
            _LOG.warning("the disk was full for too long: %d experiences are not recorded", self.lost)
        while self._completed:
            # In parts: rows that the log cannot write wait there.
            for _ in range(min(len(self._completed), _ROWS_PER_FLUSH)):
                self._log.row("service_experiences", self._completed.popleft())
            self._log.flush()
        self._journal.drop_rotated()
