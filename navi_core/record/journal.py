"""Crash-safe journal: append-only file of checksummed frames with a single writer process.

    magic          8 bytes, the format of the payloads
    then, for each frame, little-endian:
        mark           4 bytes, f5 4d 53 47
        u32 stored     bytes of the body as stored
        u32 raw        bytes of the body unpacked
        u32 crc        CRC-32 of the stored body
        u16 topic      bytes of the topic, at the front of the body
        u16 flags      1: the body is packed by zlib
        f64 time       seconds since 1970, UTC
        u32 check      CRC-32 of the head from `stored` to `time`
        body           topic, then the payload

Every length is compared with its bound before anything is read. A killed writer leaves at most one unfinished frame
at the end: readers leave it out and the next writer cuts it off. Mark and check find the frames behind a damaged one.
"""

import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from navi_core.errors import RecordError
from navi_core.machine.file_lock import create_locked, remove_locked, try_lock, write_at
from navi_core.record.durable import Closing

_PACKED = 1
_MAX_TOPIC = 64
_FACTS = struct.Struct("<IIIHHd")
_CHECK = struct.Struct("<I")
_MARK = b"\xf5MSG"
_SEARCH = 2**16
"""Bytes that are searched for a mark at once."""


@dataclass(frozen=True)
class FrameFormat:
    """Binary layout of a journal's frames."""

    magic: bytes
    """First bytes of the file."""
    checked: bool = True
    """Whether heads have a mark and a checksum; those of NAVIREC1 have neither."""

    @property
    def size(self) -> int:
        """Size of a frame header [bytes]."""
        return _FACTS.size + (len(_MARK) + _CHECK.size if self.checked else 0)

    def head(self, stored: int, raw: int, crc: int, topic: int, flags: int, when: float) -> bytes:
        """Encode a frame header; the arguments are its fields from `stored` to `time`."""
        facts = _FACTS.pack(stored, raw, crc, topic, flags, when)
        return _MARK + facts + _CHECK.pack(zlib.crc32(facts)) if self.checked else facts

    def facts(self, head: bytes) -> bytes | None:
        """Decode a frame header's fields; None where its checksum fails."""
        if not self.checked:
            return head
        facts = head[len(_MARK) : -_CHECK.size]
        return facts if head == _MARK + facts + _CHECK.pack(zlib.crc32(facts)) else None

    def frame(self, topic: bytes, payload: bytes, when: float, *, pack: bool = False) -> bytes:
        """Encode a frame (header and body); it is compressed only where that saves at least a tenth."""
        raw = topic + payload
        packed = zlib.compress(raw, 1) if pack else raw
        flags, body = (_PACKED, packed) if len(packed) < 0.9 * len(raw) else (0, raw)
        return self.head(len(body), len(raw), zlib.crc32(body), len(topic), flags, when) + body


@dataclass(frozen=True)
class Frame:
    """Header of one journal frame."""

    offset: int
    """Position of the head in the file [bytes]."""
    stored: int
    """Bytes of the body as stored."""
    raw: int
    """Bytes of the body unpacked."""
    crc: int
    topic_length: int
    packed: bool
    time: float
    """Seconds since 1970."""


class FrameIndex(Sequence[Frame]):
    """Compact in-memory index of a journal's frame headers (32 bytes each); builds `Frame` objects lazily."""

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._heads = bytearray()

    def append(self, offset: int, facts: bytes) -> None:
        """Append a frame's header by its file offset and encoded fields."""
        self._offsets.append(offset)
        self._heads += facts

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: int) -> Frame:  # type: ignore[override]
        """Return a frame; slices are not supported."""
        offset = self._offsets[number]
        at = range(len(self))[number] * _FACTS.size
        stored, raw, crc, topic, flags, when = _FACTS.unpack_from(self._heads, at)
        return Frame(offset, stored, raw, crc, topic, flags == _PACKED, when)

    def elapsed(self) -> npt.NDArray[np.float64]:
        """Return the frame times (N,) since the first frame [s], monotonic even if the clock was set back."""
        heads = np.frombuffer(self._heads, np.uint8).reshape(len(self), _FACTS.size)
        times: npt.NDArray[np.float64] = heads[:, -8:].copy().view("<f8").reshape(-1)
        if not len(times):
            return times
        back = np.minimum(np.diff(times, prepend=times[0]), 0.0)
        elapsed: npt.NDArray[np.float64] = times - times[0] - np.cumsum(back)
        return elapsed


class Journal(Closing):
    """Read-only journal file with an index of its frames; use it as a context manager.

    Args:
        path: The file.
        formats: Formats that it may have.
        kind: What the file is, for messages.
        max_bytes: Largest body of a frame.
        end_only: Find the end alone: keep no frames, and raise for any damage.

    Raises:
        RecordError: No such file, or another kind of file; or damage at a byte that is named.

    Attributes:
        format: Its format.
        frames: The frames, in order.
        end: Where the last whole frame ends [bytes].
        unfinished: Bytes behind it, of a frame that was being written when its process was killed.
        damage: The first damage that was found; empty for a whole file.
        gaps: Number of places where damaged bytes are left out and frames go on behind them.
        broken_off: Whether it is damaged from `end` on.
    """

    def __init__(
        self, path: Path, formats: Sequence[FrameFormat], *, kind: str, max_bytes: int, end_only: bool = False
    ) -> None:
        self.path, self._max_bytes = path, max_bytes + _MAX_TOPIC
        self.frames, self.damage, self.gaps, self.broken_off = FrameIndex(), "", 0, False
        with RecordError.of_system(str(path)):
            self._file: BinaryIO = path.open("rb")
            size = os.fstat(self._file.fileno()).st_size
        try:
            magic = self._file.read(len(formats[-1].magic))
            found = next((one for one in formats if one.magic == magic), None)
            if found is None:
                known = " or ".join(one.magic.decode() for one in formats)
                raise RecordError(f"{path}: not a {kind} (it does not begin with {known})")
            self.format, self.end = found, len(magic)
            self._index(size, end_only)
        except BaseException:
            self.close()
            raise
        self.unfinished = 0 if self.broken_off else size - self.end

    def read(self, frame: Frame) -> tuple[bytes, bytes]:
        """Read a frame: return its topic and payload.

        Raises:
            RecordError: Its bytes are damaged.
        """
        self._file.seek(frame.offset + self.format.size)
        body = self._file.read(frame.stored)
        if len(body) != frame.stored or zlib.crc32(body) != frame.crc:
            raise RecordError(f"{self.path}: the frame at byte {frame.offset} is damaged")
        if frame.packed:
            unpacker = zlib.decompressobj()
            try:
                # At most the length of the head, whatever the bytes would unpack to.
                body = unpacker.decompress(body, frame.raw)
            except zlib.error as error:
                raise RecordError(
                    f"{self.path}: the frame at byte {frame.offset} cannot be unpacked: {error}"
                ) from None
            if len(body) != frame.raw or unpacker.unconsumed_tail or not unpacker.eof:
                raise RecordError(f"{self.path}: the frame at byte {frame.offset} unpacks to another length")
        return body[: frame.topic_length], body[frame.topic_length :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _index(self, size: int, end_only: bool) -> None:
        """Index the file by scanning from header to header; only the last frame may be incomplete."""
        offset, head_size = self.end, self.format.size
        while offset + head_size <= size:
            self._file.seek(offset)
            facts = self.format.facts(self._file.read(head_size))
            fault = self._fault(facts)
            if facts is None or fault:
                # Bytes that are no head are damage, not an end: a head is written with its body in one piece.
                fault = f"{self.path}: {fault.format(offset)}"
                behind = self._next_head(offset + 1, size) if self.format.checked and not end_only else None
                if behind is None:
                    if end_only or not self.frames:
                        raise RecordError(fault)
                    self.damage = self.damage or f"{fault}; what lies before is kept"
                    self.broken_off = True
                    return
                self.damage = self.damage or f"{fault}; {behind - offset:,} bytes are left out"
                self.gaps += 1
                offset = behind
                continue
            stored = _FACTS.unpack(facts)[0]
            if offset + head_size + stored > size:
                return
            if not end_only:
                self.frames.append(offset, facts)
            offset = self.end = offset + head_size + stored

    def _fault(self, facts: bytes | None) -> str:
        """Return why a frame header is invalid, "" if it is valid; `{}` stands for its file offset."""
        if facts is None:
            return "no frame begins at byte {}"
        stored, raw, _, topic, flags, when = _FACTS.unpack(facts)
        most = self._max_bytes
        if not (0 < stored <= most and 0 < raw <= most and 0 < topic <= min(raw, _MAX_TOPIC)) or flags > _PACKED:
            return "no frame begins at byte {}"
        # Only a body that becomes smaller is packed. A length that grew could reach beyond the end, like an unfinished
        # frame.
        if (stored >= raw) if flags else (stored != raw):
            return "the frame at byte {} contradicts its own length"
        return "" if 0 <= when < 1e11 else f"the frame at byte {{}} has the time {when}"

    def _next_head(self, begin: int, size: int) -> int | None:
        """Search for the next valid frame header after damage; return its offset, None without one."""
        head_size = self.format.size
        while begin + head_size <= size:
            self._file.seek(begin)
            # Heads that begin in this piece lie in it as a whole, but for the end of the file.
            piece = self._file.read(_SEARCH + head_size - 1)
            at = piece.find(_MARK)
            while 0 <= at <= len(piece) - head_size:
                facts = self.format.facts(piece[at : at + head_size])
                if facts is not None and not self._fault(facts):
                    return begin + at
                at = piece.find(_MARK, at + 1)
            begin += _SEARCH
        return None


class JournalWriter(Closing):
    """Writer that appends frames to a journal and holds its exclusive lock; use it as a context manager.

    An earlier journal is continued in its own format, without the unfinished frame at its end.

    Args:
        path: The file.
        formats: Formats that it may have; a new file gets the last one.
        kind: What the file is, for messages.
        max_bytes: Largest body of a frame.

    Raises:
        RecordError: It cannot be written, another process writes it, or it is another kind of file.

    Attributes:
        written: Frames written by this writer.
        cut: Bytes of an unfinished frame that were cut off.
    """

    _format: FrameFormat

    def __init__(self, path: Path, formats: Sequence[FrameFormat], *, kind: str, max_bytes: int) -> None:
        with RecordError.of_system(f"{path}: cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._begin(path, descriptor, formats[-1], 0)
        try:
            with RecordError.of_system(f"{path}: cannot be written"):
                self._take_up(formats, kind, max_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    def _take_up(self, formats: Sequence[FrameFormat], kind: str, max_bytes: int) -> None:
        """Lock the file; initialise an empty one, or truncate an existing journal after its last complete frame."""
        # Two processes that append to one file would overwrite each other.
        if not try_lock(self._descriptor):
            raise RecordError(f"{self.path}: in use by another process; choose another file")
        if os.fstat(self._descriptor).st_size:
            with Journal(self.path, formats, kind=kind, max_bytes=max_bytes, end_only=True) as known:
                self._format, self._end, self.cut = known.format, known.end, known.unfinished
            os.ftruncate(self._descriptor, self._end)
        else:
            self._put(self._format.magic)

    @classmethod
    def create(cls, path: Path, kind: FrameFormat, topic: bytes, payload: bytes, when: float) -> Self:
        """Create a journal with its first frame; the file is renamed into place once it is locked.

        Raises:
            OSError: It cannot be written; nothing is left behind.
        """
        writer = cls.__new__(cls)
        data = kind.magic + kind.frame(topic, payload, when)
        writer._begin(path, create_locked(path, data), kind, len(data))
        return writer

    def _begin(self, path: Path, descriptor: int, kind: FrameFormat, end: int) -> None:
        self.path, self._descriptor, self._format, self._end = path, descriptor, kind, end
        self.written = self.cut = 0

    def append(self, topic: bytes, payload: bytes, when: float, *, pack: bool = False) -> int:
        """Append a frame and return the previous end [bytes]; writes nothing if the disk is too full.

        Raises:
            RecordError: The disk is full.
        """
        before = self._end
        with RecordError.of_system(f"{self.path}: cannot be written"):
            try:
                self._put(self._format.frame(topic, payload, when, pack=pack))
            except OSError:
                with suppress(OSError):
                    self.truncate(before)
                raise
        self.written += 1
        return before

    def truncate(self, end: int) -> None:
        """Truncate the journal to an end position that `append` returned [bytes].

        Raises:
            OSError: It cannot be written.
        """
        os.ftruncate(self._descriptor, end)
        self._end = end

    def sync(self) -> None:
        """Fsync the file.

        Raises:
            RecordError: It could not be made durable.
        """
        with RecordError.of_system(f"{self.path}: cannot be written"):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file and release its lock."""
        # Another file may get the number of the descriptor.
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def remove(self) -> None:
        """Delete the file and release its lock."""
        descriptor, self._descriptor = self._descriptor, -1
        remove_locked(self.path, descriptor)

    def _put(self, data: bytes) -> None:
        write_at(self._descriptor, data, self._end)
        self._end += len(data)
