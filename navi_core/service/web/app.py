"""The web application: the page, its files, and one WebSocket between the page and whatever it shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from navi_core.errors import NaviError
from navi_core.service.web.hub import Hub, Viewer

if TYPE_CHECKING:
    from fastapi import FastAPI, WebSocket

__all__ = ["MOST_ORDER_BYTES", "STATIC", "Show", "build_app"]

STATIC = Path(__file__).parent / "static"
MOST_ORDER_BYTES = 4096
"""Longest message that a page may send."""
_HEADERS = {
    # The page is what this server sends, and nothing else.
    "Content-Security-Policy": "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
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


def build_app(show: Show) -> FastAPI:
    """Return the application that shows `show`."""
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
        response: Response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    @app.get("/healthz")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "viewers": show.hub.viewers}

    app.add_api_websocket_route("/ws", _websocket(show))
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _websocket(show: Show) -> Any:
    from fastapi import WebSocket, WebSocketDisconnect

    async def endpoint(socket: WebSocket) -> None:
        if not _same_site(socket):
            await socket.close(code=1008)
            return
        await socket.accept()
        viewer = show.hub.join()
        sending = asyncio.create_task(_send(socket, viewer))
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


async def _send(socket: WebSocket, viewer: Viewer) -> None:
    from fastapi import WebSocketDisconnect

    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await socket.send_bytes(await viewer.take())


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


def _same_site(socket: WebSocket) -> bool:
    """Tell whether the page came from here: other sites in the same browser must not fly the drone."""
    origin = socket.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == socket.headers.get("host")


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("what the page shows has stopped: %s", error)
