"""Page client without a browser: parses the WebSocket's messages as the page does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

from navi_core.service.viewing.page_message import unpack_message


class PageClient:
    """The newest message of each kind, and orders.

    Args:
        socket: An open WebSocket.
    """

    def __init__(self, socket) -> None:
        self._socket = socket
        self.messages: dict[str, dict] = {}

    def order(self, **order) -> None:
        self._socket.send(json.dumps(order))

    def until(self, kind: str, condition=lambda message: True, seconds: float = 15.0) -> dict:
        """Return the first message of a kind that fulfils a condition; each is returned once."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if kind in self.messages and condition(self.messages[kind]):
                return self.messages.pop(kind)
            try:
                data = self._socket.recv(timeout=0.2)
            except TimeoutError:
                continue
            message = unpacked(data) if isinstance(data, bytes) else json.loads(data)
            self.messages[message["kind"]] = message
        raise AssertionError(f"no such {kind} in {seconds} s; there were {sorted(self.messages)}")


def unpacked(data: bytes) -> dict:
    """Return a page message: its facts, and its arrays by name."""
    facts, arrays = unpack_message(data)
    return facts | arrays


@contextmanager
def page_client(address: str) -> Iterator[PageClient]:
    """Open a page's WebSocket."""
    from websockets.sync.client import connect

    with connect(address.replace("http", "ws") + "/ws", max_size=2**26) as socket:
        yield PageClient(socket)
