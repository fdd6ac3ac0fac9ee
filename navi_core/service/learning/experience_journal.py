"""Rows on their way to the outbox, in a file that outlives the process: what completed before a kill is not lost.

A line is in the hands of the system as soon as it is written, whatever becomes of the process. Each file is locked by
its writer while that lives; one without a lock was left by a killed service, and the next one brings its rows home.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from navi_core.errors import RecordError
from navi_core.record import MetricLog

__all__ = ["ExperienceJournal", "recover_journals"]

_LOG = logging.getLogger("navi.service")
_MOST_LINE = 2**20
_AT_ONCE = 20_000
_STRANGE = "it is not a journal of ours; look at it, and remove it"


class ExperienceJournal:
    """Keeps rows from when they come until the outbox has them.

    Args:
        folder: Of the journals.
        run_id: That the rows belong to.
        context: What every row shares.

    Raises:
        RecordError: The folder or its first file cannot be made.
    """

    def __init__(self, folder: Path, run_id: str, context: dict[str, Any]) -> None:
        self._folder, self._run_id = folder, run_id
        self._head = _line({"run_id": run_id, "context": context})
        self._number = 0
        self._old: list[tuple[Path, int]] = []
        self._warned = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._now = self._begin()
        except OSError as error:
            raise RecordError(f"cannot keep a journal in {folder}: {error.strerror or error}") from error

    def append(self, values: dict[str, Any]) -> None:
        """Keep a row; a full disk is warned of once, and the row is then in memory alone."""
        try:
            _write(self._now[1], _line(values))
        except OSError as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("%s cannot be written (%s); a kill would lose experiences", self._now[0], error)

    def turn(self) -> None:
        """Begin a new file; rows of the one before may go with `forget`. One file at most waits for that."""
        if self._old:
            return
        try:
            begun = self._begin()
        except OSError:
            return  # the present one goes on, and rows are kept for longer than needed
        self._old.append(self._now)
        self._now = begun

    def forget(self) -> None:
        """Remove the files before the present one: the outbox has their rows."""
        while self._old:
            _remove(*self._old.pop())

    def close(self, *, keep: bool = False) -> None:
        """Close all files, and remove them unless they are to be recovered later."""
        for path, descriptor in [*self._old, self._now]:
            os.close(descriptor) if keep else _remove(path, descriptor)
        # Another file may have that number by now.
        self._old, self._now = [], (self._now[0], -1)

    def _begin(self) -> tuple[Path, int]:
        self._number += 1
        path = self._folder / f"{self._run_id}-{self._number:06d}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(descriptor, self._head)
        except OSError:
            # A full disk may still take names: without this every try would leave one, and a descriptor.
            _remove(path, descriptor)
            raise
        return path, descriptor


def recover_journals(folder: Path, outbox: Path) -> int:
    """Write the rows of journals whose services are gone to the outbox; returns how many.

    A row that the outbox has already counts once: its key is its run and number.
    """
    count = 0
    for path in sorted(folder.glob("*.jsonl")):
        try:
            count += _recover(path, outbox)
        except (OSError, RecordError) as error:
            _LOG.warning("%s cannot be recovered now: %s", path, error)
    if count:
        _LOG.info("%d experiences of services that were killed are recorded", count)
    return count


def _recover(path: Path, outbox: Path) -> int:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        # Looked through before anything is recorded of it.
        count = sum(1 for _ in _lines(file)) - 1
        if count > 0:
            file.seek(0)
            lines = _lines(file)
            head = next(lines)
            try:
                log = MetricLog(outbox, str(head["run_id"]), dict(head["context"]))
            except (KeyError, TypeError, ValueError):
                raise RecordError("its head names no run; look at it, and remove it") from None
            for number, values in enumerate(lines, 1):
                log.row("service_experiences", values)
                # By parts: while the outbox could not be written a journal grew as long as that lasted.
                if number % _AT_ONCE == 0:
                    log.flush()
            log.flush()
        path.unlink(missing_ok=True)
    return max(count, 0)


def _lines(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield what the lines of a journal hold; what a kill cut off is the end of the last one.

    Raises:
        RecordError: A line is no JSON object, or longer than ours are.
    """
    while (line := file.readline(_MOST_LINE)).endswith(b"\n"):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise RecordError(_STRANGE)
        yield values
    if len(line) == _MOST_LINE:
        raise RecordError(_STRANGE)


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _write(descriptor: int, line: bytes) -> None:
    """Write a whole line or nothing: a disk that fills takes its beginning, and the next line would end it."""
    size = os.fstat(descriptor).st_size
    if os.write(descriptor, line) < len(line):
        os.ftruncate(descriptor, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _remove(path: Path, descriptor: int) -> None:
    # Removed before its lock is given back: nobody finds it without one.
    path.unlink(missing_ok=True)
    os.close(descriptor)
