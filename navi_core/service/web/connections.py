"""Bounds of HTTP connections to the page: their number, the size of a request, and the time that it may take."""

import asyncio
import logging

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_CONNECTIONS = 256
"""Connections that wait for a request at once; a later one is closed. WebSockets do not count."""
REQUEST_SECONDS = 10.0
"""A client that has not sent a whole request for so long is hung up on [s]; uvicorn itself would wait for ever."""
MAX_REQUEST_BYTES = 64 * 1024
"""Longest request with its headers [bytes]; uvicorn's own parser would take any number of headers."""


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """HTTP protocol of uvicorn that hangs up on clients which send no request, and on too many of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accept a connection, or close it at once."""
        super().connection_made(transport)
        self._received, self._counted = 0, self.cycle
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._hang_up_if_idle)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, unless the client has sent too much since the last head of a request was whole."""
        if self.cycle is not self._counted:
            self._counted, self._received = self.cycle, 0
        self._received += len(data)
        if self._received > MAX_REQUEST_BYTES:
            self.transport.close()
        else:
            super().data_received(data)

    def _hang_up_if_idle(self) -> None:
        if self not in self.connections:  # Closed, or a WebSocket by now.
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._hang_up_if_idle)


def shorten_log(record: logging.LogRecord) -> bool:
    """Log filter: text of a client that is not UTF-8 is its fault, and no traceback of ours."""
    if "UTF-8" in record.getMessage():
        record.exc_info = None
    return True
