"""Crash-recovery journal of a manual flight that is being recorded: a killed explorer loses no decision.

    .<time>-<pid>.flight beside the dataset's flights, a journal (`record/journal.py`) of the format "NAVIFLY2":
        topic "facts"       JSON: the facts of the `Demonstration`, and the bins of its sensor
        topic "decision"    depth f32, semantic ids u16, valid mask u8, action f32, little-endian

Undo cuts frames off. The explorer holds the journal's lock while it lives; the next explorer of the same folder saves
the flight of a journal without one. Files of "NAVIFLY1", written until 2026-11-24, are read.
"""

import json
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.demos import Demonstration
from navi_core.demos.demonstration import MAX_BYTES
from navi_core.errors import DemoError, RecordError
from navi_core.machine.file_lock import recover_abandoned
from navi_core.record.journal import FrameFormat, Journal, JournalWriter

_LOG = logging.getLogger("navi.explore")
_FORMAT = FrameFormat(b"NAVIFLY2")
_VERSION_1 = b"NAVIFLY1"
_VERSION_1_HEAD = struct.Struct("<II")
_MAX_FACTS = 2**24


class FlightJournal:
    """Crash-recovery journal of a manual flight: decisions in memory, synchronised to the file after every change.

    A full disk is warned of once; the decisions that it refused are written later.

    Args:
        folder: Dataset of the flight.
        facts: Fields of its `Demonstration` besides observations and actions, as plain data, and the `bins` of its
            sensor.

    Raises:
        DemoError: The folder cannot be written.

    Attributes:
        decisions: Each as the bytes of its frame: depth stays exact, ids take two bytes and the valid mask one.
    """

    def __init__(self, folder: Path, facts: Mapping[str, object]) -> None:
        path = folder / f".{time.time_ns()}-{os.getpid()}.flight"
        try:
            self._writer = JournalWriter.create(path, _FORMAT, b"facts", json.dumps(facts).encode(), time.time())
        except OSError as error:
            raise DemoError(f"cannot be written: {error.strerror or error}", path=folder) from error
        self.decisions: list[bytes] = []
        self._offsets: list[int] = []
        self._warned = False

    def __len__(self) -> int:
        """Return the number of recorded decisions."""
        return len(self.decisions)

    def add(self, observation: npt.NDArray[np.float32], action: npt.NDArray[np.float32]) -> None:
        """Append one decision: the observation before it, (3, Az, El), and the action, (4,)."""
        depth, semantic, valid = observation
        columns = (depth, "<f4"), (semantic, "<u2"), (valid > 0.5, "u1"), (action, "<f4")
        self.decisions.append(b"".join(column.astype(dtype).tobytes() for column, dtype in columns))
        self._write()

    def cut(self, length: int) -> None:
        """Truncate the recording to its first `length` decisions (undo)."""
        del self.decisions[length:]
        self._write()

    def remove(self) -> None:
        """Delete the journal file, once the flight is saved or discarded."""
        self._writer.remove()

    def _write(self) -> None:
        """Synchronise the journal file with the decisions in memory: truncate or append."""
        try:
            if len(self._offsets) > len(self):
                self._writer.truncate(self._offsets[len(self)])
                del self._offsets[len(self) :]
            for decision in self.decisions[len(self._offsets) :]:
                self._offsets.append(self._writer.append(b"decision", decision, time.time()))
        except (OSError, RecordError) as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("%s; a kill would lose this flight", error)


def flight_of(facts: Mapping[str, Any], decisions: Sequence[bytes], source: Path) -> Demonstration:
    """Build a `Demonstration` from the facts and decisions of a journal.

    Args:
        facts: As given to `FlightJournal`.
        decisions: At least one.
        source: The file, or the folder of a flight that is recorded.
    """
    az, el = _bins(facts["bins"])
    channels = [("depth", "<f4", (az, el)), ("semantic", "<u2", (az, el)), ("valid", "u1", (az, el))]
    rows = np.frombuffer(b"".join(decisions), np.dtype([*channels, ("action", "<f4", 4)]))
    observations = np.stack([rows[name].astype(np.float32) for name, *_ in channels], axis=1)
    starts = np.arange(len(rows)) == 0
    fields = {name: value for name, value in facts.items() if name != "bins"} | {"limits": tuple(facts["limits"])}
    return Demonstration(observations, rows["action"].astype(np.float32), starts, source=source, **fields)


def recover_flights(folder: Path, save: Callable[[Demonstration], None]) -> None:
    """Recover the flights of killed explorers: save them as demonstrations and delete their journals.

    Flights of fewer than two decisions are dropped, as `ExplorerSession.finish` does. A file that is no journal stays,
    with a warning.
    """

    def recover(path: Path) -> None:
        demo = _read(path)
        if demo is not None:
            save(demo)
        path.unlink(missing_ok=True)

    report = partial(_LOG.warning, "%s cannot be saved as a flight (%s); inspect it, then remove it")
    recover_abandoned(sorted(folder.glob(".*.flight")), recover, report)


def _read(path: Path) -> Demonstration | None:
    """Read the flight of a journal up to the first damage; None if it has fewer than two decisions."""
    if path.stat().st_size > MAX_BYTES + _MAX_FACTS:
        raise ValueError(f"larger than {MAX_BYTES:,} bytes")
    with path.open("rb") as file:
        is_version_1 = file.read(len(_VERSION_1)) == _VERSION_1
    head, decisions, lost = _read_version_1(path.read_bytes()) if is_version_1 else _read_frames(path)
    if lost:
        if len(decisions) < 2:
            raise ValueError(f"decision {len(decisions)} is damaged")
        _LOG.warning("%s is damaged: the last %d decisions are lost", path, lost)
    return flight_of(json.loads(head), decisions, path) if len(decisions) >= 2 else None


def _bins(bins: list[int]) -> tuple[int, int]:
    az, el = (int(count) for count in bins)
    if az < 1 or el < 1:
        raise ValueError(f"a sensor of {az}x{el}")
    return az, el


def _read_frames(path: Path) -> tuple[bytes, list[bytes], int]:
    """Read a journal: facts, consecutive undamaged decisions, and the number of decisions lost behind damage."""
    payloads: list[bytes] = []
    with Journal(path, (_FORMAT,), kind="journal of a flight", max_bytes=MAX_BYTES) as journal:
        end = len(_FORMAT.magic)
        for frame in journal.frames:
            if frame.offset != end:
                break
            try:
                payloads.append(journal.read(frame)[1])
            except RecordError:
                break
            end = frame.offset + journal.format.size + frame.stored
        lost = len(journal.frames) - len(payloads) + journal.gaps + journal.broken_off
    if not payloads:
        raise ValueError("its facts are damaged")
    return payloads[0], payloads[1:], lost


def _read_version_1(data: bytes) -> tuple[bytes, list[bytes], int]:
    """Read a version 1 journal (u32 length, u32 CRC-32, facts, then decisions with u32 CRC-32); as `_read_frames`."""
    length, check = _VERSION_1_HEAD.unpack_from(data.ljust(16), len(_VERSION_1))
    begin = len(_VERSION_1) + _VERSION_1_HEAD.size
    head = data[begin : begin + length]
    if len(head) != length or zlib.crc32(head) != check:
        raise ValueError("its facts are damaged")
    az, el = _bins(json.loads(head)["bins"])
    size = 7 * az * el + 20
    decisions: list[bytes] = []
    for at in range(begin + length, len(data) - size + 1, size):
        body = data[at : at + size - 4]
        if zlib.crc32(body) != int.from_bytes(data[at + size - 4 : at + size], "little"):
            # A kill leaves an unfinished end and nothing behind it.
            return head, decisions, (len(data) - at) // size if at + size < len(data) else 0
        decisions.append(body)
    return head, decisions, 0
