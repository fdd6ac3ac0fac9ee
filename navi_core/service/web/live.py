"""Page backend of the dashboard: live publishers, followed through restarts, and stored runs."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from navi_core.config import WireConfig
from navi_core.config.service import ACTION_ENDPOINT, OBSERVATION_ENDPOINT
from navi_core.errors import ConfigError
from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.feed import Announcement, Feed, announced
from navi_core.service.web.hub import Hub, send_changes
from navi_core.service.web.run_panel import RunPanel
from navi_core.service.web.service_panel import service_message, service_title, status_of, status_page
from navi_core.service.wire import Message

_LOG = logging.getLogger("navi.web")
SERVICE = "service"
"""Source key of a service at its default ports."""
STORED = "stored"
"""Endpoint in the source key of a run that publishes nothing, `<run>@stored`: its folder is shown."""
_TRAINING_SECONDS = 1.0
"""Shortest time between two messages with the curves of a run [s]."""
_TICK = 0.05
_LOOK_SECONDS = 1.0
"""Polling interval of discovery notes and status pages [s]."""
_STILL_SECONDS = 1.0
"""Time without a new observation after which a service is shown as standing still [s]."""
_UPDATE_SECONDS = 10.0
"""Time without a new decision after which a training is shown as updating [s]; shorter updates would flicker."""
_LOST_SECONDS = 6.0
"""Time without messages after which a source is shown as stale [s]."""


class LiveShow:
    """Page backend of the live dashboard: shows a running training or service.

    Args:
        endpoints: Publishers to watch; none: those found on this machine, else the default ports.
        status: Addresses of servers' pages, http://host:port, whose /status is shown.
        limits: Queue and message limits of the sockets.
        discover: Search for trainings on this machine.
        comparison: Renders the page that compares runs, by their names; None: there is none.

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
        comparison: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        self.hub = Hub(self._viewers_changed)
        self.digest = Digest()
        self.comparison = comparison
        self._endpoints, self._limits, self._discover = tuple(endpoints), limits, discover
        self._status = [status_page(address) for address in status]
        self._groups: dict[str, dict[str, Any]] = {address: {"status": "not read yet"} for address in self._status}
        self._reading: dict[str, threading.Thread] = {}
        self._found: dict[str, Announcement] = {}
        self._chosen: str | None = None
        self._wanted: str | None = None
        self._feed: Feed | None = None
        self._inbox: list[list[Message]] = []
        self._row: int | None = None
        """Shown drone; None until one is selected or published."""
        self._panel = RunPanel(self.hub)
        self._asked = False
        """Whether a page selected the source."""
        self._training_at = self._opened_at = 0.0
        self._reads = threading.Lock()
        """Mutex of the threads that read the folders of runs."""

    async def run(self) -> None:
        """Run the dashboard's update loop until cancelled."""
        self._loop = asyncio.get_running_loop()
        looked = -_LOOK_SECONDS
        try:
            while True:
                if time.monotonic() - looked >= _LOOK_SECONDS:
                    looked = time.monotonic()
                    await asyncio.to_thread(self._discover_sources)
                    self._select_source()
                    self._send_hello()
                    self._panel.send()
                self._handle_inbox()
                self._send_changes()
                self.hub.send_phase(*self._phase())
                await asyncio.sleep(_TICK)
        finally:
            self._close_feed()

    async def order(self, order: dict[str, Any]) -> None:
        """Execute a command: select a source (`source`, `key`), a drone (`drone`, `row`) or a second curve (`other`).

        Raises:
            ConfigError: No such source, drone or curve.
        """
        if order["do"] == "source":
            key = order.get("key")
            if not isinstance(key, str) or key not in self._sources():
                raise ConfigError(f"no source {str(key)[:60]!r}; choose one of {', '.join(self._sources())}")
            self._wanted, self._asked = key, True
            self._select_source()
            await asyncio.to_thread(self._read_run)
        elif order["do"] == "other":
            self._panel.compare_with(str(order["key"]) if order.get("key") else None)
            await asyncio.to_thread(self._read_run)
            self._panel.send()
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
            raise ConfigError(f"unknown order {order['do']!r}; allowed: source, drone, other")

    def _send_changes(self) -> None:
        """Send what changed; curves at most once a second."""
        early = time.monotonic() - self._training_at < _TRAINING_SECONDS
        later = self.digest.changed & ({"training"} if early else set())
        self.digest.changed -= later
        if "training" in self.digest.changed:
            self._training_at = time.monotonic()
        send_changes(
            self.hub,
            self.digest,
            training=lambda: self._panel.training(self.digest),
            service=lambda: service_message(self.digest, self._groups),
        )
        self.digest.changed |= later

    def _send_hello(self) -> None:
        """Send title and mode of the page: dashboard of a run, service, or empty."""
        if self._chosen != SERVICE:
            mode, title = "dashboard", (self._chosen or "").rpartition("@")[0]
        elif self._endpoints or self._status or math.isfinite(self.digest.alive_at):
            mode, title = "service", service_title(self._groups)
        else:
            mode, title = "empty", "Nothing runs here"
        note = self._found.get(self._chosen or "")
        names = {} if note is None else {str(number): name for name, number in note.vocabulary.items()}
        facts = {"mode": mode, "title": title, "names": names, "comparison": self.comparison is not None}
        self.hub.send_change("hello", facts)

    def _sources(self) -> dict[str, str]:
        """Return the data sources that the dashboard can show: key → display name."""
        found = {note.key: note.name for note in self._found.values()}
        living = set(found.values())
        stored = {f"{run}@{STORED}": f"{run} ({state})" for run, state in self._panel.runs.items() if run not in living}
        if self._endpoints:
            return {SERVICE: SERVICE, **found, **stored}
        return {**found, SERVICE: SERVICE, **stored}

    def _discover_sources(self) -> None:
        if self._discover:
            self._found = {note.key: note for note in announced()}
        self._read_run()
        for address in self._status:
            # A slow or endless status page delays only its own numbers.
            if address not in self._reading or not self._reading[address].is_alive():
                self._reading[address] = threading.Thread(target=self._read_status, args=(address,), daemon=True)
                self._reading[address].start()

    def _read_run(self) -> None:
        with self._reads:
            if self._panel.read(viewers=self.hub.viewers > 0):
                self.digest.changed.add("training")

    def _read_status(self, address: str) -> None:
        self._groups[address] = status_of(address)

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
        elif self._found and not self._asked and not self._shows_service() and self._wanted not in self._found:
            self._wanted = next(iter(self._found))
        if self._wanted != self._chosen and self._wanted in sources:
            self._open_source(self._wanted)
        self._send_sources()

    def _shows_service(self) -> bool:
        return self._wanted == SERVICE and (bool(self._endpoints) or self.digest.matrix is not None)

    def _open_source(self, key: str) -> None:
        same_run = self._chosen is not None and self._chosen.rpartition("@")[0] == key.rpartition("@")[0] != ""
        self._close_feed()
        self._chosen, self._opened_at = key, time.monotonic()
        note = self._found.get(key)
        if note is not None:
            endpoints: Sequence[str] = (note.endpoint,)
        else:
            endpoints = self._endpoints or (OBSERVATION_ENDPOINT, ACTION_ENDPOINT) if key == SERVICE else ()
        if not same_run or (note is not None and self._row is not None and self._row >= note.rows):
            # Another run has other drones.
            self._row = None
        self.digest.row = self._row
        if not same_run:
            self.digest = Digest()
            for kind in ("frame", "map", "trajectory", "training", "service"):
                self.hub.forget(kind)
            self.digest.changed |= {"trajectory", "training", "service", "scene"}
            self._panel.watch(None if key == SERVICE else key.rpartition("@")[0])
        self._send_hello()
        if not endpoints:
            return
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
            name = self._chosen.rpartition("@")[0]
            named[self._chosen] = f"{name} ({self._panel.runs.get(name) or 'ended'})"
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
        ended = None if self._chosen in self._found else self._panel.ended()
        if ended is not None:
            return ended
        alive = self.digest.alive_at
        if alive == -math.inf and self._chosen == SERVICE:
            return "waiting", "no data yet"
        if (silent := now - max(alive, self._opened_at)) > _LOST_SECONDS:
            return "stale", f"no data for {silent:.0f} s"
        if alive == -math.inf:
            return "waiting", "no data yet"
        trains, still = self.digest.step or self.digest.perf, now - self.digest.fresh_at
        if still > (_UPDATE_SECONDS if trains else _STILL_SECONDS):
            return "updating", "updating the policy" if trains else "no new observation"
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
