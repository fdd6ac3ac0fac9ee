"""Web application (FastAPI): page, static files, WebSocket, and the HTTP server (uvicorn).

A port in use has a clear error, and Ctrl-C stops in order.
"""

import asyncio
import gzip
import hashlib
import json
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Annotated, Any, Protocol

import uvicorn
from fastapi import FastAPI, Query, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

from navi_core.errors import ConfigError, NaviError, ServiceError
from navi_core.service.viewing.meshes import stored_mesh
from navi_core.service.viewing.page_message import pack_message
from navi_core.service.web.access import STATIC, AccessToken, Admission
from navi_core.service.web.connections import BoundedProtocol, shorten_log
from navi_core.service.web.hub import Hub, Viewer

MAX_ORDER_BYTES = 4096
"""Longest command message of a page [bytes]."""
_HEADERS = {
    # The page loads nothing from other servers.
    "Content-Security-Policy": "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; "
    "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_DOCUMENT_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
"""Headers of a self-contained document: it runs no script and loads nothing."""
_BEAT_SECONDS = 2.0
"""Heartbeat interval of a WebSocket connection [s]: the page detects a dead one by it."""
_PATIENCE_SECONDS = 30.0
"""Timeout after which a page that receives nothing is disconnected [s]: its machine sleeps."""
NO_TOKEN_CODE = 4401
"""Close code of a WebSocket without the token, or whose token was renewed: the page asks for it."""
MAX_VIEWERS = 64
"""Open pages at once; a later one is refused, and tries again by itself."""
_LOG = logging.getLogger("navi.web")


class Show(Protocol):
    """Protocol of a page's content provider: live dashboard, replay of a recording, or explorer."""

    hub: Hub
    """Message hub of the page's viewers."""

    async def run(self) -> None:
        """Run the update loop until cancelled."""

    async def order(self, order: dict[str, Any]) -> None:
        """Execute a command message of a page.

        Raises:
            NaviError: It cannot be executed; the page shows the message.
        """


def build_app(show: Show, host: str = "127.0.0.1", access: AccessToken | None = None) -> FastAPI:
    """Build the FastAPI application that serves a page.

    Scripts and styles are public; what they show, and orders, need the token.

    Args:
        show: Content of the page.
        host: Name or address of the server.
        access: Token that is asked for; None asks for none.
    """
    admission = Admission(host, access)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(show.run())
        task.add_done_callback(_log_failure)
        yield
        task.cancel()
        with suppress(asyncio.CancelledError, NaviError):
            await task

    app = FastAPI(title="Navi", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.middleware("http")
    async def headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if (refusal := admission.refusal(request)) is not None:
            return refusal
        response: Response = await call_next(request)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.get("/healthz")
    async def health() -> dict[str, Any]:
        return {"status": "ok"}

    app.get("/scene/{key}.mesh")(_mesh)
    page = pack_message("page", {"version": _page_version()})

    @app.websocket("/ws")
    async def viewer(connection: WebSocket) -> None:
        if admission.is_foreign(connection) or show.hub.viewers >= MAX_VIEWERS:
            await connection.close(code=1008)
            return
        allowed = partial(admission.accepts, connection.query_params.get("token"))
        await connection.accept()
        if allowed():
            await _serve_viewer(show, connection, page, allowed)
        else:
            # Accepted before: of a refused connection a browser learns no reason.
            await connection.close(code=NO_TOKEN_CODE)

    @app.get("/compare")
    def compare(run: Annotated[list[str], Query()]) -> Response:
        return _comparison(show, run)

    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _mesh(key: str, request: Request) -> Response:
    """Answer with a stored mesh; its name is its content, so browsers keep it."""
    data = stored_mesh(key)
    if data is None:
        return Response("no such mesh\n", 404, media_type="text/plain")
    headers = {"Cache-Control": "private, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        data = gzip.decompress(data)
    return Response(data, headers=headers, media_type="application/octet-stream")


def _comparison(show: Show, runs: list[str]) -> Response:
    """Return the page that compares runs, or a text with the reason why there is none."""
    render = getattr(show, "comparison", None)
    try:
        if render is None:
            raise ConfigError("this page compares no runs; next: navi runs compare A B")
        return HTMLResponse(render(runs), headers=_DOCUMENT_HEADERS)
    except NaviError as error:
        return Response(f"{error}\n", 404, media_type="text/plain; charset=utf-8")


async def _serve_viewer(show: Show, connection: WebSocket, page: bytes, allowed: Callable[[], bool]) -> None:
    """Serve one WebSocket connection until the page disconnects or its token is renewed: messages out, orders in."""
    viewer = show.hub.join()
    # First of all: a page of an earlier server may not understand the rest, and reloads itself.
    with suppress(WebSocketDisconnect, RuntimeError):
        await connection.send_bytes(page)
    sending = asyncio.create_task(_send(connection, viewer, show.hub, allowed))
    try:
        while (received := await connection.receive())["type"] != "websocket.disconnect" and allowed():
            await _execute(show, connection, received.get("text") or "")
    except (WebSocketDisconnect, RuntimeError):
        pass
    finally:
        show.hub.leave(viewer)
        sending.cancel()


async def _send(connection: WebSocket, viewer: Viewer, hub: Hub, allowed: Callable[[], bool]) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):
        while True:
            try:
                message = await asyncio.wait_for(viewer.take(), _BEAT_SECONDS)
            except TimeoutError:
                message = pack_message("beat", {})
            if not allowed():
                await connection.close(code=NO_TOKEN_CODE)
                return
            try:
                await asyncio.wait_for(connection.send_bytes(message), _PATIENCE_SECONDS)
            except TimeoutError:
                hub.leave(viewer)
                return


async def _execute(show: Show, connection: WebSocket, text: str) -> None:
    """Parse and execute a command message; an invalid one is answered with its error."""
    order: object = None
    with suppress(ValueError, RecursionError):
        order = json.loads(text) if len(text) <= MAX_ORDER_BYTES else None
    try:
        if not isinstance(order, dict) or not isinstance(order.get("do"), str):
            raise ConfigError("an order is a JSON object with the text `do`")
        await show.order(order)
    except NaviError as error:
        await connection.send_json({"kind": "refused", "reason": str(error)})


def _page_version() -> str:
    """Return a version hash of the page's static files."""
    digest = hashlib.sha256()
    for file in sorted(STATIC.iterdir()):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("the page is not updated any more: %s", error)


def listen(host: str, port: int) -> socket.socket:
    """Open a listening TCP socket.

    Args:
        host: Address; 127.0.0.1 is reached from this machine alone.
        port: Port; 0 takes a free one.

    Raises:
        ServiceError: The port is taken, or there is no such address.
    """
    is_v6 = ":" in host
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=64, dualstack_ipv6=is_v6)
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServiceError(
            f"cannot serve at {host}:{port}: {reason}; choose another --port (0: any free one)"
        ) from None


def serve_page(
    show: Show,
    listener: socket.socket,
    host: str = "127.0.0.1",
    ready: Callable[[str], None] | None = None,
    access: AccessToken | None = None,
) -> None:
    """Run the web server until interrupted.

    Args:
        show: Content of the page.
        listener: From `listen`; closed at the end.
        host: As given to `listen`; a valid Host of requests.
        ready: Called with the page's address once it can be opened.
        access: As in `build_app`.
    """
    server = _server(show, host, access)
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
def served_page(show: Show, host: str = "127.0.0.1", port: int = 0, access: AccessToken | None = None) -> Iterator[str]:
    """Context manager that serves a page from a background thread; yields its address, without the token."""
    listener = listen(host, port)
    server = _server(show, host, access)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), name="navi-page", daemon=True)
    thread.start()
    try:
        yield _address(listener)
    finally:
        server.should_exit = True
        thread.join(timeout=10.0)
        listener.close()


def _server(show: Show, host: str, access: AccessToken | None) -> uvicorn.Server:
    config = uvicorn.Config(
        build_app(show, host, access),
        log_level="warning",
        access_log=False,
        http=BoundedProtocol,
        ws_max_size=4 * MAX_ORDER_BYTES,
        timeout_graceful_shutdown=2,
    )
    logging.getLogger("uvicorn.error").addFilter(shorten_log)
    return uvicorn.Server(config)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{'[' + host + ']' if ':' in host else host}:{port}"
