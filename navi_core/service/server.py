"""Base class of the two servers: a loop with an orderly stop, status pages, heartbeats."""

import abc
import logging
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from navi_core.config import WireConfig
from navi_core.service.metrics import HealthPages, ServiceMetrics
from navi_core.service.wire import Publisher, TelemetryEvent
from navi_core.service.wire.sockets import is_loopback

_LOG = logging.getLogger("navi.service")
_POLL_MS = 100


class Server(abc.ABC):
    """Message loop in the calling thread.

    Args:
        name: `environment` or `actor`.
        http: host:port of the pages, None for none.
        limits: Of the wire.

    Attributes:
        metrics: Counters, gauges, latencies.
        draining: Whether new requests are refused.
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
        """Address of the pages, None without them."""
        return None if self._pages is None else self._pages.url

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Serve until `stop` is called or `stopped()` is true; then answer the waiting requests and close.

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

    def status(self) -> dict[str, object]:
        """Return the /health page as plain data: liveness and metrics."""
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
        """Wait for messages, at most `wait_ms`, and answer those that arrived."""

    @abc.abstractmethod
    def drain(self) -> None:
        """Answer the waiting requests; no new ones are read."""

    def close(self) -> None:
        """Close the pages; subclasses close their sockets too."""
        if self._pages is not None:
            self._pages.close()

    def heartbeat(self, publisher: Publisher, sessions: int, steps: int) -> None:
        """Publish `<name>.heartbeat` (drones, decisions, uptime [s]) once per `heartbeat_seconds`."""
        now = time.monotonic()
        if now - self._beat >= self._limits.heartbeat_seconds:
            self._beat = now
            numbers = (sessions, steps, time.monotonic() - self._started)
            self.publish_event(publisher, f"{self.name}.heartbeat", numbers)

    def publish_event(
        self,
        publisher: Publisher,
        kind: str,
        numbers: npt.ArrayLike,
        *,
        episode_id: int = 0,
        env_id: int = -1,
        step_id: int = 0,
    ) -> None:
        """Publish a telemetry event if it has a subscriber."""
        if publisher.watched("telemetry_event_v2"):
            payload = np.asarray(numbers, np.float32).reshape(-1)
            publisher.publish(TelemetryEvent(kind, episode_id, env_id, step_id, payload, time.time()))

    def warn_if_reachable(self, *endpoints: str) -> None:
        """Warn of endpoints that other machines can reach: there is no authentication."""
        for endpoint in endpoints:
            if not is_loopback(endpoint):
                _LOG.warning("%s is reachable from other machines, and there is no authentication", endpoint)
