"""Page backends: live dashboard of publishers, followed through restarts, and replay of a recorded session."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import threading
import time
import urllib.request
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import zmq

from navi_core.config import WireConfig
from navi_core.config.service import ACTION_ENDPOINT, OBSERVATION_ENDPOINT
from navi_core.errors import ConfigError
from navi_core.service.recordings import Recording
from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.feed import Announcement, Feed, announced
from navi_core.service.web.hub import Hub, send_changes
from navi_core.service.wire import DistanceMatrix, Message

_LOG = logging.getLogger("navi.web")
SERVICE = "service"
"""Source key of a service at its default ports."""
_TICK = 0.05
_LOOK_SECONDS = 1.0
"""Polling interval of discovery notes and status pages [s]."""
_STALE_SECONDS = 1.0
"""Time without a new decision after which a run is shown as updating [s]."""
_LOST_SECONDS = 6.0
"""Timeout without messages after which the page shows "waiting for data" [s]."""
_MAX_STATUS_BYTES = 1 << 20


class LiveShow:
    """Page backend of the live dashboard: shows a running training or service.

    Args:
        endpoints: Publishers to watch; none: those found on this machine, else the default ports.
        status: Addresses of servers' pages, http://host:port, whose /status is shown.
        limits: Queue and message limits of the sockets.
        discover: Search for trainings on this machine.

    Raises:
        ConfigError: An address of a status page is invalid.
    """

    def __init__(
        self,
        endpoints: Sequence[str] = (),
        status: Sequence[str] = (),
        limits: WireConfig | None = None,
        *,
        discover: bool = True,
    ) -> None:
        self.hub = Hub(self._viewers_changed)
        self.digest = Digest()
        self._endpoints, self._limits, self._discover = tuple(endpoints), limits, discover
        self._status = [_status_page(address) for address in status]
        self._groups: dict[str, dict[str, Any]] = {address: {"status": "not read yet"} for address in self._status}
        self._reading: dict[str, threading.Thread] = {}
        self._found: dict[str, Announcement] = {}
        self._chosen: str | None = None
        self._wanted: str | None = None
        self._feed: Feed | None = None
        self._inbox: list[list[Message]] = []
        self._row: int | None = None
        """Shown drone; None until one is selected or published."""

    async def run(self) -> None:
        """Run the dashboard's update loop until cancelled."""
        self._loop = asyncio.get_running_loop()
        self.hub.send("hello", {"mode": "dashboard", "title": "Navi", "names": {}})
        looked = -_LOOK_SECONDS
        try:
            while True:
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    looked = time.monotonic()
                    await asyncio.to_thread(self._discover_sources)
                    self._select_source()
                self._handle_inbox()
                send_changes(self.hub, self.digest, groups=self._groups)
                self.hub.send_phase(*self._phase())
                await asyncio.sleep(_TICK)
        finally:
            self._close_feed()

    async def order(self, order: dict[str, Any]) -> None:
        """Execute a command: select a source (`source`, `key`) or a drone (`drone`, `row`).

        Raises:
            ConfigError: No such source or drone.
        """
        if order["do"] == "source":
            key = order.get("key")
            if not isinstance(key, str) or key not in self._sources():
                raise ConfigError(f"no source {str(key)[:60]!r}; choose one of {', '.join(self._sources())}")
            self._wanted = key
            self._select_source()
        elif order["do"] == "drone":
            row = order.get("row")
            if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < 2**31:
                raise ConfigError(f"no drone {str(row)[:40]!r}; they are numbered from 0")
            await asyncio.to_thread(self._discover_sources)
            drones = self._drones()
            if drones is not None and not drones[0] <= row <= drones[1]:
                raise ConfigError(f"no drone {row}; they are numbered from {drones[0]} to {drones[1]}")
            self._show_drone(row)
        else:
            raise ConfigError(f"unknown order {order['do']!r}; allowed: source, drone")

    def _sources(self) -> dict[str, str]:
        """Return the data sources that the dashboard can show: key → display name."""
        found = {note.key: note.name for note in self._found.values()}
        if self._endpoints:
            return {SERVICE: ", ".join(self._endpoints), **found}
        return {**found, SERVICE: "service"}

    def _discover_sources(self) -> None:
        if self._discover:
            self._found = {note.key: note for note in announced()}
        for address in self._status:
            # A slow or endless status page delays only its own numbers.
            if address not in self._reading or not self._reading[address].is_alive():
                self._reading[address] = threading.Thread(target=self._read_status, args=(address,), daemon=True)
                self._reading[address].start()

    def _read_status(self, address: str) -> None:
        self._groups[address] = _status_of(address)

    def _select_source(self) -> None:
        """Open the selected source, or the successor of one that ended."""
        if self._status or self.digest.sessions or self.digest.others:
            # Status pages were read, and silent sessions are left out.
            self.digest.changed.add("service")
        sources = self._sources()
        if self._wanted not in sources:
            # A restarted run has another process and port.
            name = (self._wanted or "").rpartition("@")[0]
            again = [key for key in sources if name and key.rpartition("@")[0] == name]
            if again or self._wanted is None or self._found:
                self._wanted = (again or list(sources))[0]
        elif self._wanted == SERVICE and not self._endpoints and self._found and self.digest.matrix is None:
            self._wanted = next(iter(self._found))
        if self._wanted != self._chosen and self._wanted in sources:
            self._open_source(self._wanted)
        self._send_sources()

    def _open_source(self, key: str) -> None:
        same_run = self._chosen is not None and self._chosen.rpartition("@")[0] == key.rpartition("@")[0] != ""
        self._close_feed()
        self._chosen = key
        note = self._found.get(key)
        if note is not None:
            endpoints: Sequence[str] = (note.endpoint,)
        else:
            endpoints = self._endpoints or (OBSERVATION_ENDPOINT, ACTION_ENDPOINT)
        if not same_run or (note is not None and self._row is not None and self._row >= note.rows):
            # Another run has other drones.
            self._row = None
        self.digest.row = self._row
        if not same_run:
            self.digest = Digest()
            for kind in ("frame", "map", "trajectory", "training", "service"):
                self.hub.forget(kind)
            self.digest.changed |= {"trajectory", "training", "service", "scene"}
        names = {number: name for name, number in note.vocabulary.items()} if note is not None else {}
        title = note.name if note is not None else self._sources()[key]
        self.hub.send("hello", {"mode": "dashboard", "title": title, "names": {str(n): v for n, v in names.items()}})
        try:
            self._feed = Feed(endpoints, self._receive, self._limits, watching=self.hub.viewers > 0)
        except (ConfigError, zmq.ZMQError) as error:
            # The note of another process may be invalid; the page continues.
            _LOG.warning("%s cannot be watched: %s", key, error)
            return
        if self._row is not None:
            self._feed.select(self._row)

    def _send_sources(self) -> None:
        named = self._sources()
        if self._chosen is not None and self._chosen not in named:
            # Its last state is still shown.
            named[self._chosen] = f"{self._chosen.rpartition('@')[0]} (ended)"
        sources = [{"key": key, "name": name} for key, name in named.items()]
        facts = {"sources": sources, "chosen": self._chosen, "drones": self._drones(), "row": self._row}
        if facts != getattr(self, "_sent_sources", None):
            self._sent_sources = facts
            self.hub.send("sources", facts)

    def _drones(self) -> tuple[int, int] | None:
        """Return the first and the last drone number of the source; None if they are unknown."""
        if self._chosen in self._found:
            return 0, self._found[self._chosen].rows - 1
        if self.digest.sessions:
            return min(self.digest.sessions), max(self.digest.sessions)
        rows = int(self.digest.scene.get("rows", 0))
        return (0, rows - 1) if rows else None

    def _show_drone(self, row: int) -> None:
        self._row = self.digest.row = row
        if self._feed is not None:
            # Publishers send one drone alone.
            self._feed.select(row)

    def _receive(self, batch: list[Message]) -> None:
        """Hand a batch of messages from the feed's thread over to the event loop."""
        self._loop.call_soon_threadsafe(self._inbox.append, batch)

    def _handle_inbox(self) -> None:
        inbox, self._inbox = self._inbox, []
        for batch in inbox:
            for message in batch:
                self.digest.update(message)
        if self._row is None and self.digest.row is not None:
            self._show_drone(self.digest.row)

    def _phase(self) -> tuple[str, str]:
        """Return phase and text of the page's status badge."""
        now = time.monotonic()
        if now - self.digest.alive_at > _LOST_SECONDS:
            return "waiting", "waiting for data"
        if now - self.digest.fresh_at > _STALE_SECONDS:
            trains = self.digest.step or self.digest.perf
            return "updating", "updating" if trains else "no new observation"
        return "live", "live"

    def _viewers_changed(self, viewers: int) -> None:
        self.digest.changed.add("trajectory")
        if self._feed is not None:
            self._feed.watch(viewers > 0)

    def _close_feed(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        self._inbox.clear()


def _status_page(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{address[:80]!r} is no address of a status page; write for instance http://127.0.0.1:9100")
    return address.rstrip("/")


def _status_of(address: str) -> dict[str, Any]:
    """Fetch a server's /status JSON and flatten it to at most 64 numbers and texts by dotted key."""
    try:
        with urllib.request.urlopen(f"{address}/status", timeout=1.0) as answer:
            data = json.loads(answer.read(_MAX_STATUS_BYTES))
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return {"status": f"no answer ({getattr(reason, 'strerror', None) or reason})"[:120]}
    return dict(list(_flat(data))[:64]) if isinstance(data, dict) else {"status": "no JSON object"}


def _flat(data: dict[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in data.items():
        if isinstance(value, dict) and depth < 3:
            rows += _flat(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, int | float | str):
            rows.append((f"{prefix}{name}"[:80], value if not isinstance(value, str) else value[:120]))
    return rows


_TURN = 0.1
"""Longest time of reading messages between two updates of the page [s]."""
_LONGEST_GAP = 2.0
"""Longest playback gap [s]: a longer silence in the recording is shortened to it."""


class ReplayShow:
    """Page backend of the replay: plays a recording to its viewers; pauses without viewers.

    Args:
        recording: Open recording to play.
        title: Shown at the top.

    Raises:
        ConfigError: The recording holds no message.
    """

    def __init__(self, recording: Recording, title: str) -> None:
        if not recording.frames:
            raise ConfigError(f"{recording.path} holds no message; record something with `navi record`")
        self.hub = Hub(self._viewers_changed)
        self.recording, self.title = recording, title
        self._times = _shortened(frame.time for frame in recording.frames)
        self._length = self._times[-1]
        self.playing, self._at = True, 0.0
        self._begin()

    async def run(self) -> None:
        """Run the playback loop until cancelled."""
        self.hub.send("hello", {"mode": "replay", "title": self.title, "names": {}})
        before = time.monotonic()
        while True:
            now = time.monotonic()
            if self.playing and self.hub.viewers:
                self._at = min(self._at + now - before, self._length)
                self.playing = self._at < self._length
            self._play()
            before = now
            send_changes(self.hub, self.digest)
            self.hub.send_phase("playing" if self.playing else "paused")
            self.hub.send(
                "replay",
                {
                    "at": self._at,
                    "length": self._length,
                    "playing": self.playing,
                    "facts": f"{self.recording.path.name}, {len(self._times):,} messages{self._faults()}",
                },
            )
            await asyncio.sleep(_TICK)

    async def order(self, order: dict[str, Any]) -> None:
        """Execute a command: play or pause (`toggle`), or seek (`seek`, `at` in seconds).

        Raises:
            ConfigError: An unknown order or time.
        """
        if order["do"] == "toggle":
            if not self.playing and self._at >= self._length:
                self._begin()
            else:
                self.playing = not self.playing
        elif order["do"] == "seek":
            at = order.get("at")
            if not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at < 1e9:
                raise ConfigError(f"{str(at)[:40]!r} is no time; expected seconds from 0 to {self._length:.1f}")
            self._seek(min(float(at), self._length))
        else:
            raise ConfigError(f"unknown order {order['do']!r}; allowed: toggle, seek")

    def _begin(self) -> None:
        self.digest = Digest()
        self.digest.changed |= {"trajectory", "training", "service", "scene"}
        self._at, self._next, self.playing = 0.0, 0, True

    def _seek(self, at: float) -> None:
        playing = self.playing
        if at < self._at:
            self._begin()
        self._at, self.playing = at, playing
        self._play()

    def _play(self) -> None:
        """Apply the messages up to the playback time; a long jump takes several iterations."""
        until = time.monotonic() + _TURN
        while self._next < len(self._times) and self._times[self._next] <= self._at and time.monotonic() < until:
            message = self.recording.readable_message(self.recording.frames[self._next])
            self._next += 1
            if message is None:
                continue
            if isinstance(message, DistanceMatrix) and self.digest.row is None and len(message.env_ids):
                self.digest.row = int(message.env_ids[0])
            self.digest.update(message)

    def _faults(self) -> str:
        left_out = f", {self.recording.damaged:,} damaged ones left out" if self.recording.damaged else ""
        between = ", damaged between them" if self.recording.gaps else ""
        return left_out + between + (", damaged behind them" if self.recording.broken_off else "")

    def _viewers_changed(self, _viewers: int) -> None:
        self.digest.changed.add("trajectory")


def _shortened(times: Iterable[float]) -> array[float]:
    """Convert receive times to playback times (s, from 0); each gap is clipped to [0, `_LONGEST_GAP`]."""
    played = array("d", [0.0])
    for before, after in pairwise(times):
        played.append(played[-1] + min(max(after - before, 0.0), _LONGEST_GAP))
    return played
