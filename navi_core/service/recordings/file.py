"""A recorded session: the wire's messages as they came, in one file that is only ever appended to.

    "NAVIREC2"                                              8 bytes
    then, for each message, little-endian:
        mark           4 bytes, f5 4d 53 47
        u32 stored     bytes of the body as stored
        u32 raw        bytes of the body unpacked
        u32 crc        CRC-32 of the stored body
        u16 topic      bytes of the topic, at the front of the body
        u16 flags      1: the body is packed by zlib
        f64 time       seconds since 1970, UTC, when it was received
        u32 check      CRC-32 of the head from `stored` to `time`
        body           topic, then the MessagePack payload

Files of the first format ("NAVIREC1": no mark, no check) are read and gone on with as they are.

Every length is compared with its bound before anything is read. A process that is killed leaves at most one unfinished
message at the end, which readers leave out and the next writer cuts off. Nothing is unpickled.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from navi_core.config import WireConfig
from navi_core.errors import RecordError, WireError
from navi_core.service.recordings.heads import NEWEST, PACKED, Entries, Entry, Format, open_recording, walk
from navi_core.service.wire import TOPICS, Message, decode

__all__ = ["Entry", "Recording", "RecordingWriter"]

_SYNC_SECONDS = 1.0


class Recording:
    """A recorded session, for reading; use it as a context manager.

    Args:
        path: The file.
        limits: Size of a message.

    Raises:
        RecordError: No such file, or it is no recording; the offset of what is wrong is named.

    Attributes:
        entries: The messages, in order.
        end: Where the last whole message ends [bytes].
        unfinished: Bytes behind it, of a message that was being written when its process was killed.
        damage: What is wrong with the file, and what of it is shown; empty of a whole one.
        gaps: Places in it where bytes are left out because they are damaged, and messages go on behind them.
        broken_off: Is it damaged from `end` on?
    """

    def __init__(self, path: Path, limits: WireConfig | None = None) -> None:
        self.path, self._limits = path, limits or WireConfig()
        self._file, self._format, size = open_recording(path)
        self.entries = Entries()
        self.damage, self.gaps, self.broken_off = "", 0, False
        self._damaged: set[int] = set()
        try:
            most = self._limits.max_message_bytes
            self.end = walk(self._file, self._format, path, size, most, self.entries.append, self._gap)
        except RecordError as error:
            if not self.entries:
                self._file.close()
                raise
            # What lies before is whole: a day is not lost for one bit.
            last = self.entries[-1]
            self.damage = self.damage or f"{error}; what lies before is shown"
            self.broken_off, self.end = True, last.offset + self._format.size + last.stored
            size = self.end
        except BaseException:
            self._file.close()
            raise
        self.unfinished = size - self.end

    @property
    def seconds(self) -> float:
        """Time from the first message to the last [s]; while a clock is set back none goes by."""
        return float(self.entries.since_first()[-1]) if self.entries else 0.0

    @property
    def left_out(self) -> int:
        """Messages that `read_known` left out because their bytes are damaged."""
        return len(self._damaged)

    def topic(self, entry: Entry) -> str | None:
        """Return the topic of a message; None where the body is packed and would have to be unpacked."""
        if entry.packed:
            return None
        self._file.seek(entry.offset + self._format.size)
        return self._file.read(entry.topic_length).decode("ascii", "replace")

    def read(self, entry: Entry) -> Message:
        """Return a message.

        Raises:
            RecordError: Its bytes are damaged.
            WireError: They are no message of the wire.
        """
        self._file.seek(entry.offset + self._format.size)
        body = self._file.read(entry.stored)
        if len(body) != entry.stored or zlib.crc32(body) != entry.crc:
            raise RecordError(f"{self.path}: the message at byte {entry.offset} is damaged")
        if entry.packed:
            body = self._unpack(body, entry)
        return decode([body[: entry.topic_length], body[entry.topic_length :]], self._limits)

    def read_known(self, entry: Entry) -> Message | None:
        """Return a message, None for one that cannot be shown.

        The wire would refuse it today (its bounds may be younger than the file), or its bytes are damaged.
        """
        try:
            return self.read(entry)
        except WireError:
            return None
        except RecordError:
            self._damaged.add(entry.offset)
            return None

    def messages(self) -> Iterator[tuple[float, Message]]:
        """Yield the time and the content of every message."""
        for entry in self.entries:
            yield entry.time, self.read(entry)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gap(self, told: str) -> None:
        self.damage, self.gaps = self.damage or told, self.gaps + 1

    def _unpack(self, body: bytes, entry: Entry) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            # Never more than was promised, whatever the bytes would unpack to.
            raw = unpacker.decompress(body, entry.raw)
        except zlib.error as error:
            raise RecordError(f"{self.path}: the message at byte {entry.offset} cannot be unpacked: {error}") from None
        if len(raw) != entry.raw or unpacker.unconsumed_tail or not unpacker.eof:
            raise RecordError(f"{self.path}: the message at byte {entry.offset} unpacks to another length than it says")
        return raw


class RecordingWriter:
    """Appends to a recording; a new file is begun, an earlier one is gone on with.

    Args:
        path: The file.

    Raises:
        RecordError: It cannot be written, another process writes it, or it is something else than a recording.

    Attributes:
        written: Messages written by this writer.
        cut: Bytes of an unfinished message that were cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.written, self.cut = path, 0, 0
        self._format: Format = NEWEST
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RecordError(f"{path}: cannot be written: {error.strerror or error}") from None
        try:
            self._begin()
        except OSError as error:
            os.close(self._file)
            raise RecordError(f"{path}: cannot be written: {error.strerror or error}") from None
        except BaseException:
            os.close(self._file)
            raise
        self._synced = time.monotonic()

    def append(self, topic: bytes, payload: bytes, when: float) -> None:
        """Append one message; it is on the disk a second later at most.

        Args:
            topic: Its topic.
            payload: Its MessagePack bytes.
            when: When it was received [s since 1970].

        Raises:
            RecordError: The topic is none of the wire's, or the disk is full.
        """
        if topic.decode("ascii", "replace") not in TOPICS:
            raise RecordError(f"a message of topic {topic[:40]!r} is not recorded; allowed: {', '.join(TOPICS)}")
        raw = topic + payload
        packed = zlib.compress(raw, 1)
        flags, body = (PACKED, packed) if len(packed) < 0.9 * len(raw) else (0, raw)
        head = self._format.head(len(body), len(raw), zlib.crc32(body), len(topic), flags, when)
        try:
            self._put(head + body)
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        self.written += 1

    def close(self) -> None:
        """Make the file durable and close it.

        Raises:
            RecordError: It could not be made durable.
        """
        try:
            os.fsync(self._file)
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        finally:
            os.close(self._file)

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> None:
        try:
            # Two that append to one file would write over each other.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(f"{self.path}: another process records into it; choose another --out") from None
        if not os.fstat(self._file).st_size:
            self._put(self._format.magic)
            return
        known, self._format, size = open_recording(self.path)
        with known:
            end = walk(known, self._format, self.path, size, WireConfig().max_message_bytes)
        self.cut = size - end
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
