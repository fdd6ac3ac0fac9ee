"""The heads of a recording's messages: found one behind the other, checked, and kept in 32 bytes each.

A session that is recorded for days has millions of messages.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from navi_core.errors import RecordError

__all__ = ["HEAD", "MAGIC", "PACKED", "Entries", "Entry", "open_recording", "walk"]

MAGIC = b"NAVIREC1"
HEAD = struct.Struct("<IIIHHd")
PACKED = 1
_LONGEST_TOPIC = 64


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
        """Add a message by the offset and the bytes of its head."""
        self._offsets.append(offset)
        self._heads += head

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, place: int) -> Entry:
        offset = self._offsets[place]
        at = range(len(self))[place] * HEAD.size
        stored, raw, crc, topic, flags, when = HEAD.unpack_from(self._heads, at)
        return Entry(offset, stored, raw, crc, topic, flags == PACKED, when)

    def __iter__(self) -> Iterator[Entry]:
        return (self[place] for place in range(len(self)))


def open_recording(path: Path) -> tuple[BinaryIO, int]:
    """Open a recording for reading.

    Returns:
        The file, and its size now [bytes].

    Raises:
        RecordError: No such file, or it is no recording.
    """
    try:
        file = path.open("rb")
        size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}; record a session with `navi record`") from None
    try:
        if file.read(len(MAGIC)) != MAGIC:
            raise RecordError(f"{path}: no recording of a session (it does not begin with {MAGIC.decode()})")
    except BaseException:
        file.close()
        raise
    return file, size


def walk(
    file: BinaryIO, path: Path, size: int, most: int, keep: Callable[[int, bytes], None] = lambda offset, head: None
) -> int:
    """Go from head to head; only the last message may be unfinished.

    Args:
        file: A recording.
        path: What errors call it.
        size: Of the file [bytes].
        most: Bytes that a message may have.
        keep: Given the offset and the head of every whole message.

    Returns:
        Where the last whole message ends [bytes].

    Raises:
        RecordError: Something else stands where a message should begin; its offset is named.
    """
    offset, most = len(MAGIC), most + _LONGEST_TOPIC
    while offset + HEAD.size <= size:
        file.seek(offset)
        head = file.read(HEAD.size)
        stored, raw, _, topic, flags, when = HEAD.unpack(head)
        # A head is written with its body in one piece: bytes that are no head are damage, not an end.
        if not (0 < stored <= most and 0 < raw <= most and 0 < topic <= min(raw, _LONGEST_TOPIC)) or flags > PACKED:
            raise RecordError(f"{path}: no message begins at byte {offset}; the file is damaged from there on")
        # Only what becomes smaller is packed. A length that grew could reach beyond the end, as of an unfinished one.
        if (stored >= raw) if flags else (stored != raw):
            raise RecordError(f"{path}: the message at byte {offset} contradicts its own length")
        if not 0 <= when < 1e11:
            raise RecordError(f"{path}: the message at byte {offset} has the time {when}")
        if offset + HEAD.size + stored > size:
            break
        keep(offset, head)
        offset += HEAD.size + stored
    return offset
