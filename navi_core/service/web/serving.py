"""HTTP server of the page: clear errors for ports in use, orderly stop at Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from navi_core.errors import ServiceError
from navi_core.service.web.app import MAX_ORDER_BYTES, Show, build_app

if TYPE_CHECKING:
    import uvicorn


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: Address; 127.0.0.1 is reached from this machine alone.
        port: Port; 0 takes a free one.

    Raises:
        ServiceError: The port is taken, or there is no such address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(64)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ServiceError(
            f"cannot serve at {host}:{port}: {reason}; choose another --port (0: any free one)"
        ) from None
    return listener


def serve_page(
    show: Show, listener: socket.socket, host: str = "127.0.0.1", ready: Callable[[str], None] | None = None
) -> None:
    """Serve until interrupted.

    Args:
        show: Content of the page.
        listener: From `listen`; closed at the end.
        host: As given to `listen`; a valid Host of requests.
        ready: Called with the page's address once it can be opened.
    """
    server = _server(show, host)
    # A terminal that is closed ends the page as Ctrl-C does, and what is being recorded is saved; not under nohup.
    ends = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGHUP, server.handle_exit)
    if ready is not None:
        ready(_address(listener))
    try:
        with listener:
            server.run(sockets=[listener])
    finally:
        if ends:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def served_page(show: Show, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve from a thread of this process while the block runs; yields the page's address."""
    listener = listen(host, port)
    server = _server(show, host)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="navi-page", daemon=True)
    thread.start()
    try:
        yield _address(listener)
    finally:
        server.should_exit = True
        thread.join(timeout=10.0)
        listener.close()


def _server(show: Show, host: str) -> uvicorn.Server:
    import uvicorn

    config = uvicorn.Config(
        build_app(show, host),
        log_level="warning",
        access_log=False,
        ws_max_size=4 * MAX_ORDER_BYTES,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{'[' + host + ']' if ':' in host else host}:{port}"
