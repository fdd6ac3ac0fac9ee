"""Base class of the two servers: a loop with an orderly stop, heartbeats, metrics and their HTTP pages.

Metrics are served in the Prometheus text exposition format 0.0.4.
"""

import abc
import json
import logging
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.config import WireConfig
from navi_core.errors import ConfigError, ServiceError
from navi_core.service.wire import Publisher, TelemetryEvent
from navi_core.service.wire.sockets import is_loopback

_BUCKETS_MS = (0.5, 1.0, 2.0, 3.5, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1000.0)
_RECENT = 1024
_WHOLE = 2.0**53
"""Below it every whole number is exact in a float."""


def quantile(values: list[float], share: float) -> float:
    """Return the nearest-rank quantile of values, 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class ServiceMetrics:
    """Numbers of one server; thread-safe.

    Args:
        prefix: Begins every name, for instance "navi_actor".
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._help: dict[str, str] = {}
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}

    def count(self, name: str, amount: float = 1, *, about: str = "") -> None:
        """Add to a counter."""
        with self._lock:
            self._help.setdefault(name, about)
            self._counters[name] = self._counters.get(name, 0) + amount

    def gauge(self, name: str, value: float, *, about: str = "") -> None:
        """Set a gauge."""
        with self._lock:
            self._help.setdefault(name, about)
            self._gauges[name] = value

    def latency(self, name: str, seconds: float, *, about: str = "") -> None:
        """Add one duration [s] to a histogram of milliseconds."""
        milliseconds = seconds * 1e3
        with self._lock:
            if name not in self._buckets:
                self._help[name], self._sums[name] = about, 0.0
                self._buckets[name], self._recent[name] = [0] * (len(_BUCKETS_MS) + 1), deque(maxlen=_RECENT)
            self._buckets[name][bisect_left(_BUCKETS_MS, milliseconds)] += 1
            self._sums[name] += milliseconds
            self._recent[name].append(milliseconds)

    def recent(self, name: str) -> list[float]:
        """Return the last thousand durations of a histogram [ms]."""
        with self._lock:
            return list(self._recent.get(name, ()))

    def counter(self, name: str) -> float:
        """Return a counter's value."""
        with self._lock:
            return self._counters.get(name, 0)

    def as_dict(self) -> dict[str, float]:
        """Return counters, gauges, and p50 and p99 of the recent durations [ms]."""
        with self._lock:
            found: dict[str, float] = {**self._counters, **self._gauges}
            for name, values in self._recent.items():
                found |= {f"{name}_p50": quantile(list(values), 0.5), f"{name}_p99": quantile(list(values), 0.99)}
        return found

    def text(self) -> str:
        """Return all numbers in the Prometheus text format."""
        lines: list[str] = []
        with self._lock:
            for kind, values in (("counter", self._counters), ("gauge", self._gauges)):
                for name, value in sorted(values.items()):
                    lines += [*self._head(name, kind), f"{self._prefix}_{name} {_format_number(value)}"]
            for name, buckets in sorted(self._buckets.items()):
                lines += [*self._head(name, "histogram"), *self._histogram(name, buckets)]
        return "\n".join(lines) + "\n"

    def _head(self, name: str, kind: str) -> list[str]:
        about = self._help.get(name) or name.replace("_", " ")
        return [f"# HELP {self._prefix}_{name} {about}", f"# TYPE {self._prefix}_{name} {kind}"]

    def _histogram(self, name: str, buckets: list[int]) -> list[str]:
        total, lines = 0, []
        for edge, count in zip((*_BUCKETS_MS, "+Inf"), buckets):
            total += count
            lines.append(f'{self._prefix}_{name}_bucket{{le="{edge}"}} {total}')
        return [
            *lines,
            f"{self._prefix}_{name}_sum {_format_number(self._sums[name])}",
            f"{self._prefix}_{name}_count {total}",
        ]


def _format_number(value: float) -> str:
    """Format a number with all digits: rates are differences of counters, in the last digits."""
    return str(int(value)) if abs(value) < _WHOLE and value == int(value) else repr(float(value))


_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def host_and_port(address: str) -> tuple[str, int]:
    """Split host:port; a port alone is on loopback.

    Raises:
        ConfigError: It is no address.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address; write 127.0.0.1:9100, or a port alone")
    return host or "127.0.0.1", int(port)


class HealthPages:
    """Serves /health (JSON, 503 unless healthy), /metrics (Prometheus text) and /status (JSON).

    Args:
        address: host:port; port 0 takes any free one.
        metrics: Of the server.
        status: Returns plain data with "healthy"; called from another thread.

    Raises:
        ServiceError: The port is taken.

    Attributes:
        url: Address of the pages.
    """

    def __init__(self, address: str, metrics: ServiceMetrics, status: Callable[[], dict[str, Any]]) -> None:
        host, port = host_and_port(address)

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                if path == "/metrics":
                    self._answer(200, metrics.text(), _TEXT)
                elif path in ("/health", "/status"):
                    page = status()
                    code = 200 if path == "/status" or page.get("healthy") else 503
                    self._answer(code, json.dumps(page), "application/json")
                else:
                    self._answer(404, "pages: /health /metrics /status\n", _TEXT)

            def _answer(self, code: int, text: str, kind: str) -> None:
                body = text.encode()
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing: a scrape comes every few seconds."""

        class Pages(ThreadingHTTPServer):
            daemon_threads = True
            # Waiting connections; beyond it a new one is retried after a second.
            request_queue_size = 128

            def handle_error(self, *about: object) -> None:
                """Ignore clients that disconnect before the answer."""
                if not isinstance(sys.exc_info()[1], OSError):
                    super().handle_error(*about)  # type: ignore[arg-type]

        try:
            self._server = Pages((host, port), Handler)
        except OSError as error:
            raise ServiceError(
                f"http {host}:{port} cannot be served ({error.strerror or error}); choose another port, or 0"
            ) from None
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="navi-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


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
