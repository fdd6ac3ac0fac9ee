"""Base class of the servers: message loop with graceful shutdown, heartbeats, Prometheus metrics, HTTP health pages.

Metrics are served in the Prometheus text exposition format 0.0.4.
"""

import abc
import json
import logging
import socket
import sys
import threading
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.config import WireConfig
from navi_core.errors import ConfigError, ServiceError
from navi_core.service.wire import TelemetryEvent
from navi_core.service.wire.sockets import Publisher, is_loopback

_BUCKETS_MS = (0.5, 1.0, 2.0, 3.5, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1000.0)
_RECENT = 1024
_MAX_CONNECTIONS = 64
"""Connections to the health and metrics pages at once: each has a thread."""
_WHOLE = 2.0**53
"""Bound below which every whole number is exact in a double-precision float."""


def quantile(values: list[float], share: float) -> float:
    """Return the nearest-rank quantile of values; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass
class _Histogram:
    """Histogram of durations [ms]: bucket counts, sum, and the latest values."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS_MS) + 1))
    total: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))


class ServiceMetrics:
    """Prometheus metrics of one server (counters, gauges, histograms); thread-safe.

    Args:
        prefix: Begins every name, for instance "navi_actor".
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        # Kind and help by name.
        self._about: dict[str, tuple[str, str]] = {}
        self._values: dict[str, float] = {}
        self._histograms: defaultdict[str, _Histogram] = defaultdict(_Histogram)

    def count(self, name: str, amount: float = 1, *, about: str = "") -> None:
        """Increment a counter."""
        with self._lock:
            self._about.setdefault(name, ("counter", about))
            self._values[name] = self._values.get(name, 0) + amount

    def gauge(self, name: str, value: float, *, about: str = "") -> None:
        """Set a gauge to a value."""
        with self._lock:
            self._about.setdefault(name, ("gauge", about))
            self._values[name] = value

    def latency(self, name: str, seconds: float, *, about: str = "") -> None:
        """Add one duration [s] to a latency histogram in milliseconds."""
        milliseconds = seconds * 1e3
        with self._lock:
            self._about.setdefault(name, ("histogram", about))
            histogram = self._histograms[name]
            histogram.buckets[bisect_left(_BUCKETS_MS, milliseconds)] += 1
            histogram.total += milliseconds
            histogram.recent.append(milliseconds)

    def recent(self, name: str) -> list[float]:
        """Return the latest durations of a histogram [ms], at most 1024."""
        with self._lock:
            return list(self._histograms[name].recent) if name in self._about else []

    def counter(self, name: str) -> float:
        """Return the value of a counter; 0 if it was never incremented."""
        return self._values.get(name, 0)

    def as_dict(self) -> dict[str, float]:
        """Return counters, gauges, and p50 and p99 of the recent durations [ms], by name."""
        with self._lock:
            found = dict(self._values)
            for name, histogram in self._histograms.items():
                for percent in (50, 99):
                    found[f"{name}_p{percent}"] = quantile(list(histogram.recent), percent / 100)
        return found

    def text(self) -> str:
        """Render all metrics in the Prometheus text exposition format."""
        lines: list[str] = []
        with self._lock:
            for kind, name, about in sorted((kind, name, about) for name, (kind, about) in self._about.items()):
                full = f"{self._prefix}_{name}"
                lines += [f"# HELP {full} {about or name.replace('_', ' ')}", f"# TYPE {full} {kind}"]
                if kind != "histogram":
                    lines.append(f"{full} {_format_number(self._values[name])}")
                    continue
                histogram = self._histograms[name]
                totals = list(accumulate(histogram.buckets))
                edges = zip((*_BUCKETS_MS, "+Inf"), totals)
                lines += [f'{full}_bucket{{le="{edge}"}} {total}' for edge, total in edges]
                lines += [f"{full}_sum {_format_number(histogram.total)}", f"{full}_count {totals[-1]}"]
        return "\n".join(lines) + "\n"


def _format_number(value: float) -> str:
    """Format a number with all digits: rates are differences of counters, in the last digits."""
    return str(int(value)) if abs(value) < _WHOLE and value == int(value) else repr(float(value))


_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def host_and_port(address: str) -> tuple[str, int]:
    """Parse `host:port`; a port alone means loopback.

    Raises:
        ConfigError: It is no address.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address; write 127.0.0.1:9100, or a port alone")
    return host or "127.0.0.1", int(port)


class _Pages(ThreadingHTTPServer):
    """HTTP server with a bounded number of connections."""

    daemon_threads = True
    # Waiting connections; beyond it a new one is retried after a second.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._opened: deque[socket.socket] = deque(maxlen=_MAX_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 (the base class's)
        """Answer in a thread; of too many slow clients the oldest is hung up on."""
        if len(self._opened) == _MAX_CONNECTIONS:
            with suppress(OSError):
                self._opened[0].shutdown(socket.SHUT_RDWR)
        self._opened.append(request)
        super().process_request(request, client_address)

    def handle_error(self, *about: object) -> None:
        """Ignore clients that disconnect before the response."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*about)  # type: ignore[arg-type]


class HealthPages:
    """HTTP server thread of /health (JSON, 503 unless healthy), /metrics (Prometheus text) and /status (JSON).

    Args:
        address: host:port; port 0 takes any free one.
        metrics: Metrics of the server.
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
                """Suppress the access log: a scrape comes every few seconds."""

        try:
            self._server = _Pages((host, port), Handler)
        except OSError as error:
            raise ServiceError(
                f"http {host}:{port} cannot be served ({error.strerror or error}); choose another port with --http, "
                "or 0"
            ) from None
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="navi-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shut down the HTTP server and join its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


_LOG = logging.getLogger("navi.service")
_POLL_MS = 100


class Server(abc.ABC):
    """Abstract server with a message loop in the calling thread.

    Args:
        name: `environment` or `actor`.
        http: host:port of the pages, None for none.
        publisher: Socket of observations, actions and telemetry; closed with the server.
        limits: Heartbeat interval and timeouts of the wire.

    Attributes:
        metrics: Counters, gauges, latencies.
        draining: Whether new requests are refused.
        url: Address of the pages, None without them.
    """

    def __init__(self, name: str, http: str | None, publisher: Publisher, limits: WireConfig) -> None:
        self.name, self.publisher, self._limits = name, publisher, limits
        self.metrics = ServiceMetrics(f"navi_{name}")
        self.draining = False
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._alive = time.monotonic()
        self._beat = 0.0
        # Closed with the server, the last one first.
        self._parts = ExitStack()
        self._parts.callback(publisher.close)
        self.url: str | None = None
        if http is not None:
            pages = HealthPages(http, self.metrics, self.status)
            self._parts.callback(pages.close)
            self.url = pages.url
        self.warn_if_reachable(publisher.endpoint)

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Run the message loop until `stop` is called or `stopped()` is true; then drain and close.

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
        """Request a graceful shutdown of `run`; callable from any thread and from a signal handler."""
        self._stop.set()

    def status(self) -> dict[str, object]:
        """Return the data of the /health and /status pages: liveness and metrics."""
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
        """Run one iteration of the message loop: wait at most `wait_ms` for messages, and answer those that arrived."""

    @abc.abstractmethod
    def drain(self) -> None:
        """Drain for shutdown: answer the waiting requests; no new ones are read."""

    def close(self) -> None:
        """Close sockets and HTTP pages."""
        self._parts.close()

    def heartbeat(self, sessions: int, steps: int) -> bool:
        """Publish a `<name>.heartbeat` event (drones, decisions, uptime [s]) once per `heartbeat_seconds`.

        Returns:
            Whether it was time for it; the moment for other periodic reports.
        """
        now = time.monotonic()
        if now - self._beat < self._limits.heartbeat_seconds:
            return False
        self._beat = now
        self.publish_event(f"{self.name}.heartbeat", (sessions, steps, now - self._started))
        return True

    def publish_event(
        self,
        kind: str,
        numbers: npt.ArrayLike,
        *,
        episode_id: int = 0,
        env_id: int = -1,
        step_id: int = 0,
    ) -> None:
        """Publish a telemetry event if the topic has a subscriber."""
        if self.publisher.watched("telemetry_event_v2"):
            payload = np.asarray(numbers, np.float32).reshape(-1)
            self.publisher.publish(TelemetryEvent(kind, episode_id, env_id, step_id, payload, time.time()))

    def warn_if_reachable(self, endpoint: str) -> None:
        """Log a warning for an endpoint that other machines can reach: there is no authentication."""
        if not is_loopback(endpoint):
            _LOG.warning("%s is reachable from other machines, and there is no authentication", endpoint)
