"""What the two servers share: a loop that stops in order, pages about themselves, signs of life."""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from navi_core.config import WireConfig
from navi_core.service.health import HealthPages
from navi_core.service.metrics import ServiceMetrics
from navi_core.service.wire import Publisher, TelemetryEvent
from navi_core.service.wire.sockets import is_loopback

__all__ = ["Server"]

_LOG = logging.getLogger("navi.service")
_POLL_MS = 100


class Server(abc.ABC):
    """A loop in the calling thread: waits for messages, answers them, stops in order.

    Args:
        name: `environment` or `actor`.
        http: host:port of the pages, None for none.
        limits: Of the wire.

    Attributes:
        metrics: Counters, gauges, latencies.
        draining: Whether nothing new is taken any more.
    """

    def __init__(self, name: str, http: str | None, limits: WireConfig) -> None:
        self.name, self._limits = name, limits
        self.metrics = ServiceMetrics(f"navi_{name}")
        self.draining = False
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._alive = time.monotonic()
        self._beat = 0.0
        self._pages = None if http is None else HealthPages(http, self.metrics, self.status)

    @property
    def url(self) -> str | None:
        """Where the pages are, None without them."""
        return None if self._pages is None else self._pages.url

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Serve until `stop` is called or `stopped()` says so; then answer what was taken, tell the peers, close.

        Args:
            stopped: A further reason to stop, for instance a signal.
        """
        try:
            while not self._stop.is_set() and not stopped():
                self._alive = time.monotonic()
                self.turn(_POLL_MS)
            self.draining = True
            self.drain()
        finally:
            self.close()

    def stop(self) -> None:
        """Ask `run` to drain and return; callable from any thread and from a signal handler."""
        self._stop.set()

    def status(self) -> dict[str, Any]:
        """Return what /health tells: alive, and the metrics."""
        silent = time.monotonic() - self._alive
        return {
            "server": self.name,
            "healthy": not self.draining and silent < self._limits.peer_timeout_seconds,
            "draining": self.draining,
            "uptime_seconds": time.monotonic() - self._started,
            "metrics": self.metrics.as_dict(),
        }

    @abc.abstractmethod
    def turn(self, wait_ms: int) -> None:
        """Wait for messages at most so long, and answer those that came."""

    @abc.abstractmethod
    def drain(self) -> None:
        """Answer what was taken; nothing new comes in."""

    def close(self) -> None:
        """Close the pages; subclasses close their sockets too."""
        if self._pages is not None:
            self._pages.close()

    def heartbeat(self, publisher: Publisher, sessions: int, steps: int) -> None:
        """Publish `<name>.heartbeat` (drones, decisions, seconds up) once a heartbeat's time."""
        now = time.monotonic()
        if now - self._beat >= self._limits.heartbeat_seconds:
            self._beat = now
            numbers = (sessions, steps, time.monotonic() - self._started)
            self.event(publisher, f"{self.name}.heartbeat", numbers)

    def event(
        self, publisher: Publisher, kind: str, numbers: Any, *, episode_id: int = 0, env_id: int = -1, step_id: int = 0
    ) -> None:
        """Publish a telemetry event if anyone watches."""
        if publisher.watched("telemetry_event_v2"):
            payload = np.asarray(numbers, np.float32).reshape(-1)
            publisher.publish(TelemetryEvent(kind, episode_id, env_id, step_id, payload, time.time()))

    def warn_if_open(self, *endpoints: str) -> None:
        """Say so where an endpoint is reachable from other machines: nobody is asked who they are."""
        for endpoint in endpoints:
            if not is_loopback(endpoint):
                _LOG.warning("%s is reachable from other machines, and nothing asks who they are", endpoint)
