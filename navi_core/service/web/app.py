"""The web application: the page, its files, and one WebSocket between the page and whatever it shows."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import logging
import socket as socket_library
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from navi_core.errors import NaviError
from navi_core.service.web.hub import Hub, Viewer
from navi_core.service.web.packing import pack_message

if TYPE_CHECKING:
    from fastapi import FastAPI, WebSocket

__all__ = ["MOST_ORDER_BYTES", "STATIC", "Show", "build_app"]

STATIC = Path(__file__).parent / "static"
MOST_ORDER_BYTES = 4096
"""Longest message that a page may send."""
_HEADERS = {
    # The page is what this server sends, and nothing else.
    "Content-Security-Policy": "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; "
    "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_BEAT_SECONDS = 2.0
"""A page is told something at least so often: it knows a dead connection by its silence."""
_PATIENCE_SECONDS = 30.0
"""A page that takes nothing for so long is none: its machine sleeps."""
_LOG = logging.getLogger("navi.web")


class Show(Protocol):
    """What the page shows: a live run, a recording, or a drone flown by hand."""

    hub: Hub
    """Where its messages go."""

    async def run(self) -> None:
        """Work until cancelled."""

    async def order(self, order: dict[str, Any]) -> None:
        """Do what a page asked for.

        Raises:
            NaviError: It cannot be done; the page is told.
        """


def build_app(show: Show, host: str = "127.0.0.1") -> FastAPI:
    """Return the application that shows `show`.

    Args:
        show: What is shown.
        host: Name or address that it is served at.
    """
    from fastapi import FastAPI, Request, Response
    from fastapi.staticfiles import StaticFiles

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(show.run())
        task.add_done_callback(_tell_failure)
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, NaviError):
            await task

    app = FastAPI(title="Navi", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.middleware("http")
    async def headers(request: Request, call_next: Any) -> Response:
        if not _by_own_name(request.headers.get("host", ""), host):
            # A site whose name is made to lead here would else be read, and would fly the drone, as this page does.
            told = "this page answers to addresses, to localhost and to the name of its machine"
            return Response(f"{told}; another name is given with --host\n", 400, media_type="text/plain")
        response: Response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    @app.get("/healthz")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "viewers": show.hub.viewers}

    app.add_api_websocket_route("/ws", _websocket(show, host))
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _websocket(show: Show, host: str) -> Any:
    from fastapi import WebSocket, WebSocketDisconnect

    page = pack_message("page", {"version": _page_version()})

    async def endpoint(socket: WebSocket) -> None:
        if not _same_site(socket) or not _by_own_name(socket.headers.get("host", ""), host):
            await socket.close(code=1008)
            return
        await socket.accept()
        viewer = show.hub.join()
        # First of all: a page that an earlier server sent may not understand the rest, and fetches itself anew.
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await socket.send_bytes(page)
        sending = asyncio.create_task(_send(socket, viewer, show.hub))
        try:
            while True:
                said = await socket.receive()
                if said["type"] == "websocket.disconnect":
                    break
                await _obey(show, socket, said.get("text") or "")
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            show.hub.leave(viewer)
            sending.cancel()

    # The annotations are text here, and FastAPI resolves them in this module.
    endpoint.__annotations__["socket"] = WebSocket
    return endpoint


async def _send(socket: WebSocket, viewer: Viewer, hub: Hub) -> None:
    from fastapi import WebSocketDisconnect

    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            try:
                message = await asyncio.wait_for(viewer.take(), _BEAT_SECONDS)
            except TimeoutError:
                message = pack_message("beat", {})
            try:
                await asyncio.wait_for(socket.send_bytes(message), _PATIENCE_SECONDS)
            except TimeoutError:
                hub.leave(viewer)
                return


async def _obey(show: Show, socket: WebSocket, text: str) -> None:
    """Pass an order on; a page that sends nonsense is told so and nothing happens."""
    try:
        order = json.loads(text) if len(text) <= MOST_ORDER_BYTES else None
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, dict) or not isinstance(order.get("do"), str):
        await socket.send_json({"kind": "refused", "reason": "an order is a JSON object with the text `do`"})
        return
    try:
        await show.order(order)
    except NaviError as error:
        await socket.send_json({"kind": "refused", "reason": str(error)})


def _page_version() -> str:
    """Return what the page and its scripts are known by."""
    digest = hashlib.sha256()
    for file in sorted(STATIC.iterdir()):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _same_site(socket: WebSocket) -> bool:
    """Tell whether the page came from here: other sites in the same browser must not fly the drone."""
    origin = socket.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == socket.headers.get("host")


def _by_own_name(called: str, host: str) -> bool:
    """Tell whether a browser called this server by an address or a name of its own (a request's Host)."""
    try:
        # With a dot behind it a name is complete, and the same.
        name = (urlsplit(f"//{called}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    machine = socket_library.gethostname().lower()
    own = {"localhost", host.lower().removesuffix("."), machine, f"{machine}.local", machine.partition(".")[0]}
    return name in own or name.endswith(".localhost")


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("what the page shows has stopped: %s", error)
