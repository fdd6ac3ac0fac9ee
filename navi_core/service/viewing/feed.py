"""Messages from publishers, read by a thread of their own and handed on in small batches.

Telemetry is always listened to; observations only while somebody looks, so that a dashboard without an open page
costs the run nothing. ZeroMQ reconnects by itself, so what is watched may be restarted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from navi_core.config import WireConfig
from navi_core.service.viewing.selection import DroneSelector
from navi_core.service.wire import DistanceMatrix, Message, Subscriber

__all__ = ["OBSERVATIONS", "TELEMETRY", "Feed"]

OBSERVATIONS = "distance_matrix_v2"
TELEMETRY = ("telemetry_event_v2", "action_v2", "step_result_v2")
_WAIT_SECONDS = 0.1
_PAUSE_SECONDS = 0.02
"""Between batches: a flood is read fifty times a second, not message by message."""


class Feed:
    """Reads publishers until closed.

    Args:
        endpoints: Publishers.
        handle: Called with each batch, from the feed's thread.
        limits: Of the sockets.
        watching: Listen to observations from the start.
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
        self._select: int | None = None
        self._drone: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, name="navi-feed", daemon=True)
        self._thread.start()

    @property
    def refused(self) -> int:
        """Messages that broke the format."""
        return self._subscriber.refused

    def watch(self, on: bool) -> None:
        """Listen to observations, or no longer."""
        self._wanted = on

    def select(self, drone: int) -> None:
        """Ask the publishers for a drone, and pass on observations of that one alone."""
        self._select = self._drone = drone

    def close(self) -> None:
        """Stop reading; the handler is not called any more when this returns."""
        self._done.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def _read(self) -> None:
        subscriber = self._subscriber
        try:
            while not self._done.is_set():
                self._obey()
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

    def _obey(self) -> None:
        """Do what other threads asked for: sockets belong to this one."""
        if self._wanted != self._watching:
            self._watching = self._wanted
            change = self._subscriber.socket.subscribe if self._watching else self._subscriber.socket.unsubscribe
            change(OBSERVATIONS.encode())
        for selector in self._selectors:
            selector.keep()
        if self._select is not None:
            # All of them are asked, also where one is not there.
            said = [selector.select(self._select) for selector in self._selectors]
            self._select = None if any(said) else self._select

    def _newest(self, batch: list[Message]) -> list[Message]:
        """Return the batch with the newest observation alone: of the selected drone, else of the lowest number."""
        newest: DistanceMatrix | None = None
        picture: DistanceMatrix | None = None
        kept: list[Message] = []
        for message in batch:
            if not isinstance(message, DistanceMatrix):
                kept.append(message)
            elif self._is_shown(message, newest):
                newest = message
                picture = message if message.overhead.size else picture
        if picture is not None and picture is not newest:
            kept.append(picture)
        return kept if newest is None else [*kept, newest]

    def _is_shown(self, message: DistanceMatrix, before: DistanceMatrix | None) -> bool:
        if self._drone is not None:
            return self._drone in message.env_ids
        # A newcomer is greeted with every drone of a service.
        lowest = [min(one.env_ids.tolist(), default=math.inf) for one in (message, before) if one is not None]
        return lowest[0] <= lowest[-1]
