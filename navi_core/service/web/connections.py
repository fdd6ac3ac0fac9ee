"""Bounds of HTTP connections to the page: their number, and how long a client may take to ask for something."""

import asyncio
import logging

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_CONNECTIONS = 256
"""Connections that wait for a request at once; a later one is closed. WebSockets do not count."""
REQUEST_SECONDS = 10.0
"""A client that has not sent a whole request for so long is hung up on [s]; uvicorn itself would wait for ever."""


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """HTTP protocol of uvicorn that hangs up on clients which send no request, and on too many of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accept a connection, or close it at once."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._hang_up_if_idle)

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
