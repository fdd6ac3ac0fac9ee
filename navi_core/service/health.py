"""Health and metrics pages of a server: plain HTTP, one thread, loopback unless told otherwise."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from navi_core.errors import ConfigError, ServiceError
from navi_core.service.metrics import ServiceMetrics

__all__ = ["HealthPages", "host_and_port"]

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def host_and_port(address: str) -> tuple[str, int]:
    """Split host:port; a port alone is on loopback.

    Raises:
        ConfigError: It is neither.
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
        url: Where the pages are.
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
                    told = status()
                    code = 200 if path == "/status" or told.get("healthy") else 503
                    self._answer(code, json.dumps(told), "application/json")
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
                """Say nothing: a scrape every few seconds is no news."""

        class Pages(ThreadingHTTPServer):
            daemon_threads = True
            # Connections that wait: beyond it a newcomer tries again after a second.
            request_queue_size = 128

            def handle_error(self, *about: Any) -> None:
                """Say nothing of those who ask and are gone before the answer, as a scrape that took too long is."""
                if not isinstance(sys.exc_info()[1], OSError):
                    super().handle_error(*about)

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
