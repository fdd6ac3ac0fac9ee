"""Service discovery of publishers on this machine, and the feed (ZeroMQ subscriber thread) of their messages.

Telemetry is always received; observations only while a page is open, so that a dashboard without viewers costs the run
nothing. ZeroMQ reconnects by itself, so publishers may be restarted.

A viewer selects a drone upstream: ZeroMQ carries messages from a subscriber's socket to a publisher's (XSUB to XPUB).
The message is 0x02, "drone", and the number as int64 little-endian; the last one of all viewers counts.

Each publisher writes a service-discovery file with its endpoint:

    $NAVI_HOME/live/<name>.json    endpoint, process, scenes, semantic names

The publisher holds the lock of its file while it lives; the next publisher removes files without a lock. The pid of a
killed publisher may belong to another process by now.
"""

import contextlib
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import zmq
from pydantic import TypeAdapter

from navi_core.config import WireConfig
from navi_core.errors import WireError
from navi_core.machine.file_lock import create_locked, is_locked, try_lock
from navi_core.record import navi_home
from navi_core.service.wire import DistanceMatrix, Message
from navi_core.service.wire.sockets import Publisher, Socket, Subscriber

_WORD = struct.Struct("<6sq")
_MARK = b"\x02drone"


def selected_drone(publisher: Publisher) -> int | None:
    """Return the drone that viewers selected since the last call; None without a selection."""
    wanted = None
    for word in publisher.words():
        if len(word) == _WORD.size:
            mark, number = _WORD.unpack(word)
            if mark == _MARK and number >= 0:
                wanted = number
    return wanted


class DroneSelector:
    """Client that selects the drone which a publisher shows, by messages upstream (XSUB to XPUB).

    Args:
        endpoint: Endpoint of the publisher.
        limits: Queue and message limits of the socket.
    """

    def __init__(self, endpoint: str, limits: WireConfig | None = None) -> None:
        self._socket = Socket("XSUB", limits or WireConfig(), "publisher to ask for a drone")
        self._socket.connect(endpoint)
        self._monitor = self._socket.raw.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._drone: int | None = None
        self._due = False

    def select(self, drone: int) -> None:
        """Set the drone that the next `keep` selects; callable from any thread.

        Raises:
            WireError: The number is negative.
        """
        if not 0 <= drone < 2**31:
            raise WireError(f"no drone {drone}; they are numbered from 0")
        self._drone, self._due = drone, True

    def keep(self) -> None:
        """Send a new selection, and resend the last one after a reconnect: a restarted publisher has not received it.

        ZeroMQ repeats subscriptions by itself, but not these messages.
        """
        while self._monitor.poll(0):
            self._monitor.recv_multipart()
            self._due = True
        if self._due and self._drone is not None:
            self._due = False
            self._socket.send([_WORD.pack(_MARK, self._drone)])

    def close(self) -> None:
        """Close the socket and its monitor."""
        self._socket.raw.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()


OBSERVATIONS = "distance_matrix_v2"
TELEMETRY = ("telemetry_event_v2", "action_v2", "step_result_v2")
_WAIT_SECONDS = 0.1
_PAUSE_SECONDS = 0.02
"""Pause between batches [s]: a flood is read fifty times a second, not message by message."""


class Feed:
    """Subscriber thread that passes batches of messages to a handler until closed.

    Args:
        endpoints: Publishers.
        handle: Called with each batch, from the feed's thread.
        limits: Queue and message limits of the sockets.
        watching: Receive observations from the start.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        handle: Callable[[list[Message]], None],
        limits: WireConfig | None = None,
        *,
        watching: bool = False,
    ) -> None:
        self._handle = handle
        self._subscriber = Subscriber(endpoints, TELEMETRY, limits)
        self._selectors = [DroneSelector(endpoint, limits) for endpoint in endpoints]
        self._wanted, self._watching = watching, False
        self._drone: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, name="navi-feed", daemon=True)
        self._thread.start()

    def watch(self, on: bool) -> None:
        """Subscribe to observations, or unsubscribe."""
        self._wanted = on

    def select(self, drone: int) -> None:
        """Select a drone at all publishers; only its observations are passed on."""
        self._drone = drone
        for selector in self._selectors:
            selector.select(drone)

    def close(self) -> None:
        """Stop the thread; the handler is not called after this returns."""
        self._done.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def _read(self) -> None:
        subscriber = self._subscriber
        try:
            while not self._done.is_set():
                # Sockets belong to this thread, so it applies the requests of others.
                if self._wanted != self._watching:
                    self._watching, socket = self._wanted, subscriber.socket.raw
                    change = socket.subscribe if self._watching else socket.unsubscribe
                    change(OBSERVATIONS.encode())
                for selector in self._selectors:
                    selector.keep()
                first = subscriber.receive(_WAIT_SECONDS)
                if first is None:
                    continue
                batch = self._newest([first, *subscriber.waiting()])
                if batch and not self._done.is_set():
                    self._handle(batch)
                time.sleep(_PAUSE_SECONDS)
        finally:
            subscriber.close()
            for selector in self._selectors:
                selector.close()

    def _newest(self, batch: list[Message]) -> list[Message]:
        """Reduce a batch's observations to the newest one of the selected drone, else of the lowest number."""
        observations = [message for message in batch if isinstance(message, DistanceMatrix)]
        drone = self._drone
        if drone is None:
            # A new viewer receives every drone of a service once.
            drone = min((number for message in observations for number in message.env_ids.tolist()), default=-1)
        shown = [message for message in observations if drone in message.env_ids]
        pictures = [message for message in shown if message.overhead.size]
        others = [message for message in batch if not isinstance(message, DistanceMatrix)]
        return [*others, *(message for message in pictures[-1:] if message is not shown[-1]), *shown[-1:]]


_MOST_BYTES = 1 << 20
_MOST_NOTES = 256


@dataclass(frozen=True)
class Announcement:
    """Service-discovery record of one publisher: the JSON content of its discovery file."""

    name: str
    """Name of the run."""
    endpoint: str
    """Endpoint of observations and telemetry."""
    pid: int
    """Process id of the publisher."""
    rows: int
    """Number of selectable drones."""
    scenes: list[str] = field(default_factory=list)
    """Names of the scenes, by scene index."""
    vocabulary: dict[str, int] = field(default_factory=dict)
    """Semantic vocabulary: ids by name."""

    @property
    def key(self) -> str:
        """Unique key of the publisher; one of the same name that was started later has another."""
        return f"{self.name}@{self.endpoint}"


class PublisherNote:
    """Locked service-discovery file of a publisher of this process, from construction until `withdraw`.

    Args:
        announcement: Content of the file.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, announcement: Announcement) -> None:
        folder = navi_home() / "live"
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        self._path = folder / f"{announcement.name}.json"
        self._file = self._written(announcement)

    def change(self, announcement: Announcement) -> None:
        """Atomically replace the content of the publisher's service-discovery file, under the same name."""
        before, self._file = self._file, self._written(announcement)
        os.close(before)

    def withdraw(self) -> None:
        """Delete the service-discovery file, unless a later publisher of the same name has replaced it."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._file), self._path.stat()):
                self._path.unlink()
        os.close(self._file)

    def _written(self, announcement: Announcement) -> int:
        # Where files cannot be locked, readers go by the pid.
        return create_locked(self._path, json.dumps(asdict(announcement)).encode(), without_locks=True)


def announced() -> list[Announcement]:
    """Discover the live publishers on this machine that share this `$NAVI_HOME`, sorted by name."""
    folder = navi_home() / "live"
    living = (note for path in sorted(folder.glob("*.json")) if (note := _read(path)) is not None)
    return list(islice(living, _MOST_NOTES))


def _sweep(folder: Path) -> None:
    """Delete stale service-discovery files (unlocked, pid dead); some versions hold no lock, so a live pid's stays."""
    for path in folder.glob("*.json"):
        # Where files cannot be locked a note stays, too: its publisher may live on another machine.
        with contextlib.suppress(OSError):
            note = None if is_locked(path) else _read(path, living=False)
            if note is not None and not _alive(note.pid):
                path.unlink()


def _read(path: Path, *, living: bool = True) -> Announcement | None:
    """Read and validate a service-discovery file; None for an invalid one, as other processes write these.

    Args:
        path: The service-discovery file.
        living: Also return None where the publisher is gone.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                return None
            note = TypeAdapter(Announcement).validate_json(file.read(), strict=True)
            return note if not living or _locked(file.fileno(), note.pid) else None
    except (OSError, ValueError):
        return None


def _locked(file: int, pid: int) -> bool:
    """Return whether a publisher holds its discovery file's lock; where locks are unsupported, if its pid lives."""
    try:
        return not try_lock(file, shared=True)
    except OSError:
        return _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # Another user's process lives.
        return True
    return True
