"""A flight on its way to its file: each decision is in the hands of the system as soon as it is flown.

    .<time>-<pid>.flight beside the dataset's flights, little-endian
        "NAVIFLY1"
        u32 length, u32 CRC-32, JSON: what the flight will say of itself, and the bins of its sensor
        then, of one size each: depth f32, semantic ids u16, valid mask u8, action f32, u32 CRC-32 of these

Taking back is cutting off. A journal is locked by its explorer while that lives; one without a lock was left by an
explorer that was killed, and the next one of the same folder saves its flight.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.demos import Demonstration
from navi_core.demos.demonstration import MAX_BYTES
from navi_core.errors import DemoError
from navi_core.service.explorer.flight_log import FlightLog

__all__ = ["FlightJournal", "left_flights"]

_LOG = logging.getLogger("navi.explore")
_MAGIC = b"NAVIFLY1"
_HEAD = struct.Struct("<II")
_CHECK = struct.Struct("<I")
_MOST_FACTS = 2**24


class FlightJournal:
    """Keeps a flight that is being recorded.

    Args:
        folder: The dataset that the flight is for.
        facts: What its `Demonstration` will say besides observations and actions, as plain data.
        bins: Azimuth and elevation bins of the observations.

    Raises:
        DemoError: The folder cannot be written.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], bins: tuple[int, int]) -> None:
        told = json.dumps({"bins": bins, **facts}).encode()
        head = _MAGIC + _HEAD.pack(len(told), zlib.crc32(told)) + told
        self._path = folder / f".{time.time_ns()}-{os.getpid()}.flight"
        self._begin, self._size, self._kept, self._warned = len(head), _decision_bytes(*bins), 0, False
        # It gets its name when it is locked: nobody finds it without.
        unnamed = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            self._file = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _put(self._file, head, 0)
                os.rename(unnamed, self._path)
            except BaseException:
                os.close(self._file)
                unnamed.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise DemoError(f"cannot be written: {error.strerror or error}", path=folder) from error

    def keep(self, log: FlightLog) -> None:
        """Bring the file to what was flown and not taken back; called after every change.

        A full disk is warned of once, and what it has no room for is written later.
        """
        try:
            if self._kept > len(log):
                self._cut(len(log))
            while self._kept < len(log):
                body = _packed(log, self._kept)
                _put(self._file, body + _CHECK.pack(zlib.crc32(body)), self._begin + self._kept * self._size)
                self._kept += 1
        except OSError as error:
            with suppress(OSError):
                self._cut(self._kept)
            if not self._warned:
                self._warned = True
                _LOG.warning("%s cannot be written (%s); a kill would lose this flight", self._path, error)

    def remove(self) -> None:
        """End: the flight is saved, or is not wanted."""
        # Removed before its lock is given back: nobody finds it without one.
        self._path.unlink(missing_ok=True)
        os.close(self._file)

    def _cut(self, length: int) -> None:
        os.ftruncate(self._file, self._begin + length * self._size)
        self._kept = length


def left_flights(folder: Path) -> Iterator[Demonstration]:
    """Yield the flights that killed explorers were recording; each one's journal goes when the next is asked for.

    Flights of fewer than two decisions are dropped, as by whoever lands after one. What is no journal stays, with a
    warning.
    """
    for path in sorted(folder.glob(".*.flight")):
        try:
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                if not os.fstat(file.fileno()).st_nlink:
                    continue  # its holder ended between the opening and the lock
                found = _read(path, file.read(MAX_BYTES + _MOST_FACTS))
                if found is not None:
                    yield found
                path.unlink(missing_ok=True)
        except (OSError, ValueError, KeyError, TypeError, DemoError) as error:
            _LOG.warning("%s cannot be saved as a flight (%s); look at it, and remove it", path, error)


def _read(path: Path, data: bytes) -> Demonstration | None:
    begin = len(_MAGIC) + _HEAD.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < begin:
        raise ValueError("no journal of a flight")
    length, check = _HEAD.unpack_from(data, len(_MAGIC))
    told = data[begin : begin + length]
    if len(told) != length or zlib.crc32(told) != check:
        raise ValueError("its head is damaged")
    facts = json.loads(told)
    az, el = (int(count) for count in facts.pop("bins"))
    if az < 1 or el < 1:
        raise ValueError(f"a sensor of {az}x{el}")
    size, cells = _decision_bytes(az, el), az * el
    depth, semantic, valid = [], [], []
    actions: list[npt.NDArray[np.float32]] = []
    for at in range(begin + length, len(data) - size + 1, size):
        body = data[at : at + size - _CHECK.size]
        if zlib.crc32(body) != _CHECK.unpack_from(data, at + len(body))[0]:
            # A kill leaves an unfinished end and nothing behind it.
            if at + size < len(data):
                if len(actions) < 2:
                    raise ValueError(f"decision {len(actions)} is damaged")
                _LOG.warning("%s is damaged: the last %d decisions are lost", path, (len(data) - at) // size)
            break
        depth.append(np.frombuffer(body, "<f4", cells))
        semantic.append(np.frombuffer(body, "<u2", cells, 4 * cells))
        valid.append(np.frombuffer(body, np.uint8, cells, 6 * cells))
        actions.append(np.frombuffer(body, "<f4", 4, 7 * cells))
    if len(actions) < 2:
        return None
    starts = np.zeros(len(actions), bool)
    starts[0] = True
    channels = (np.stack(part).astype(np.float32).reshape(-1, az, el) for part in (depth, semantic, valid))
    flown = np.stack(actions).astype(np.float32)
    facts["limits"] = tuple(facts["limits"])
    return Demonstration(np.stack(list(channels), axis=1), flown, starts, source=path, **facts)


def _decision_bytes(azimuth_bins: int, elevation_bins: int) -> int:
    return 7 * azimuth_bins * elevation_bins + 16 + _CHECK.size


def _packed(log: FlightLog, number: int) -> bytes:
    parts = (log.depth[number], "<f4"), (log.semantic[number], "<u2"), (log.valid[number], "u1")
    return b"".join(part.astype(kind).tobytes() for part, kind in (*parts, (log.actions[number], "<f4")))


def _put(file: int, data: bytes, at: int) -> None:
    """Write all of it: of what a full disk has no room for, `pwrite` says so only when it is asked again."""
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done
