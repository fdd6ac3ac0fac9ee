"""The heads of a recording's messages: found one behind the other, checked, and kept in 32 bytes each.

A session that is recorded for days has millions of messages. A head begins with a mark and ends with a checksum of its
own, so that the messages behind a damaged one are found again; those of the first format have neither.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from navi_core.errors import RecordError

__all__ = ["FORMATS", "NEWEST", "PACKED", "Entries", "Entry", "Format", "open_recording", "walk"]

PACKED = 1
_LONGEST_TOPIC = 64
_FACTS = struct.Struct("<IIIHHd")
_CHECK = struct.Struct("<I")
_MARK = b"\xf5MSG"
_LOOK = 2**16
"""Bytes that are searched for a mark at once."""


@dataclass(frozen=True)
class Format:
    """How the heads of a file are written."""

    magic: bytes
    """What the file begins with."""
    checked: bool
    """Do they have a mark and a checksum?"""

    @property
    def size(self) -> int:
        """Bytes of a head."""
        return _FACTS.size + (len(_MARK) + _CHECK.size if self.checked else 0)

    def head(self, stored: int, raw: int, crc: int, topic: int, flags: int, when: float) -> bytes:
        """Return a head: bytes of the body as stored and unpacked, its CRC-32, bytes of the topic, flags, time."""
        facts = _FACTS.pack(stored, raw, crc, topic, flags, when)
        return _MARK + facts + _CHECK.pack(zlib.crc32(facts)) if self.checked else facts

    def facts(self, head: bytes) -> bytes | None:
        """Return what a head says, None where its own checksum says otherwise."""
        if not self.checked:
            return head
        facts = head[len(_MARK) : -_CHECK.size]
        return facts if head == _MARK + facts + _CHECK.pack(zlib.crc32(facts)) else None


FORMATS = (Format(b"NAVIREC1", False), Format(b"NAVIREC2", True))
NEWEST = FORMATS[-1]


@dataclass(frozen=True)
class Entry:
    """One message of a recording, not yet read."""

    offset: int
    """Of its head in the file."""
    stored: int
    """Bytes of the body as stored."""
    raw: int
    """Bytes of the body unpacked."""
    crc: int
    topic_length: int
    packed: bool
    time: float
    """When it was received [s since 1970]."""


class Entries:
    """The messages of a recording, in order; an `Entry` is made of one when it is asked for."""

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._heads = bytearray()

    def append(self, offset: int, head: bytes) -> None:
        """Add a message by the offset of its head and what that says."""
        self._offsets.append(offset)
        self._heads += head

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, place: int) -> Entry:
        offset = self._offsets[place]
        at = range(len(self))[place] * _FACTS.size
        stored, raw, crc, topic, flags, when = _FACTS.unpack_from(self._heads, at)
        return Entry(offset, stored, raw, crc, topic, flags == PACKED, when)

    def since_first(self) -> npt.NDArray[np.float64]:
        """Return (N,) times from the first message on [s]; while a clock is set back none goes by."""
        heads = np.frombuffer(self._heads, np.uint8).reshape(len(self), _FACTS.size)
        times = heads[:, -8:].copy().view("<f8").reshape(-1)
        if not len(times):
            return times
        back = np.minimum(np.diff(times, prepend=times[0]), 0.0)
        return times - times[0] - np.cumsum(back)

    def __iter__(self) -> Iterator[Entry]:
        return (self[place] for place in range(len(self)))


def open_recording(path: Path) -> tuple[BinaryIO, Format, int]:
    """Open a recording for reading.

    Returns:
        The file, its format, and its size now [bytes].

    Raises:
        RecordError: No such file, or it is no recording.
    """
    try:
        file = path.open("rb")
        size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}; record a session with `navi record`") from None
    try:
        magic = file.read(len(NEWEST.magic))
        kind = next((one for one in FORMATS if one.magic == magic), None)
        if kind is None:
            known = " or ".join(one.magic.decode() for one in FORMATS)
            raise RecordError(f"{path}: no recording of a session (it does not begin with {known})")
    except BaseException:
        file.close()
        raise
    return file, kind, size


def walk(
    file: BinaryIO,
    kind: Format,
    path: Path,
    size: int,
    most: int,
    keep: Callable[[int, bytes], None] = lambda offset, facts: None,
    gap: Callable[[str], None] | None = None,
) -> int:
    """Go from head to head; only the last message may be unfinished.

    Args:
        file: A recording.
        kind: Its format.
        path: What errors call it.
        size: Of the file [bytes].
        most: Bytes that a message may have.
        keep: Given the offset and what the head says of every whole message.
        gap: Told of damage behind which messages go on; left out, that is an error, too.

    Returns:
        Where the last whole message ends [bytes].

    Raises:
        RecordError: Something else stands where a message should begin; its offset is named.
    """
    offset, end, most = len(kind.magic), len(kind.magic), most + _LONGEST_TOPIC
    while offset + kind.size <= size:
        file.seek(offset)
        facts = kind.facts(file.read(kind.size))
        fault = _fault(facts, most)
        if facts is None or fault:
            behind = _next_head(file, kind, offset + 1, size, most) if gap is not None and kind.checked else None
            if gap is None or behind is None:
                # Bytes that are no head are damage, not an end: a head is written with its body in one piece.
                raise RecordError(f"{path}: {fault.format(offset)}")
            gap(f"{path}: {fault.format(offset)}; {behind - offset:,} bytes are left out")
            offset = behind
            continue
        stored = _FACTS.unpack(facts)[0]
        if offset + kind.size + stored > size:
            break
        keep(offset, facts)
        offset = end = offset + kind.size + stored
    return end


def _fault(facts: bytes | None, most: int) -> str:
    """Say why no message begins with such a head, "" where one does; `{}` stands for its offset."""
    if facts is None:
        return "no message begins at byte {}"
    stored, raw, _, topic, flags, when = _FACTS.unpack(facts)
    if not (0 < stored <= most and 0 < raw <= most and 0 < topic <= min(raw, _LONGEST_TOPIC)) or flags > PACKED:
        return "no message begins at byte {}"
    # Only what becomes smaller is packed. A length that grew could reach beyond the end, as of an unfinished one.
    if (stored >= raw) if flags else (stored != raw):
        return "the message at byte {} contradicts its own length"
    return "" if 0 <= when < 1e11 else f"the message at byte {{}} has the time {when}"


def _next_head(file: BinaryIO, kind: Format, begin: int, size: int, most: int) -> int | None:
    """Return where the next head begins, None without one."""
    while begin + kind.size <= size:
        file.seek(begin)
        # Heads that begin in this piece lie in it as a whole.
        piece = file.read(_LOOK + kind.size - 1)
        at = piece.find(_MARK)
        while at >= 0:
            facts = kind.facts(piece[at : at + kind.size])
            if facts is not None and not _fault(facts, most):
                return begin + at
            at = piece.find(_MARK, at + 1)
        begin += _LOOK
    return None
