"""Sockets of the wire: bounded queues, limits, heartbeats, and errors that people understand.

ZeroMQ's own CONFLATE keeps single frames and loses messages of two, so a reader that wants the newest observation
empties its short queue (`Subscriber.waiting`) and keeps the last.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from navi_core.config import WireConfig
from navi_core.errors import ConfigError, ServiceError, WireError
from navi_core.service.wire.codec import TOPICS, decode, encode, topic_of
from navi_core.service.wire.messages import Message

if TYPE_CHECKING:
    import zmq

__all__ = ["Publisher", "Subscriber", "bind", "connect", "is_loopback", "open_socket", "readable", "resolved_endpoint"]

_LINGER_MS = 500
_LAST_PORT = 65535
_MOST_WORDS = 16
_MOST_FRAMES = 1024
"""Subscriptions that are read at once; a flood of them does not keep the server from its work."""
_LISTEN_SECONDS = 0.001
"""How often subscriptions are looked for, at most: every message asks whether it is wanted."""
_ENDPOINT = re.compile(r"tcp://[^\s/:]+:(?P<port>\d{1,5})|(ipc|inproc)://\S+")


def is_loopback(endpoint: str) -> bool:
    """Tell whether an endpoint is reachable from this machine alone."""
    parts = urlsplit(endpoint)
    return parts.scheme in ("ipc", "inproc") or (parts.hostname or "") in ("127.0.0.1", "localhost", "::1")


def open_socket(kind: int, limits: WireConfig) -> zmq.Socket[bytes]:
    """Return a socket of the process's context with the limits set.

    Args:
        kind: `zmq.PUB`, `zmq.ROUTER`, …
        limits: Queue length and message size.
    """
    import zmq

    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, limits.queue_length)
    socket.setsockopt(zmq.RCVHWM, limits.queue_length)
    socket.setsockopt(zmq.MAXMSGSIZE, limits.max_message_bytes)
    # A peer that vanished without closing is noticed, so that its queue does not stay. Not by ZeroMQ's own heartbeats:
    # a reader that they give up while it is written to aborts the process (libzmq 4.3.5, assertion !_io_error).
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    return socket


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Tell whether a message waits; cheaper than the exception that receiving from an empty socket raises."""
    import zmq

    # A plain number: flags of pyzmq's enumerations take longer to combine than the socket to ask.
    return int(socket.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN) != 0  # type: ignore[call-overload]


def bind(socket: zmq.Socket[bytes], endpoint: str, purpose: str) -> str:
    """Bind, and return the endpoint with the port that was taken where it asked for port 0.

    Raises:
        ServiceError: The port is taken, or the address is not this machine's; names the next step.
        ConfigError: It is no endpoint.
    """
    import zmq

    _check(socket, endpoint, purpose)
    try:
        socket.bind(endpoint.replace(":0", ":*") if endpoint.endswith(":0") else endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        if error.errno == zmq.EADDRINUSE:
            raise ServiceError(
                f"{endpoint} ({purpose}) is taken by another process; stop it, or choose another port, "
                "for instance port 0 for any free one"
            ) from None
        raise ServiceError(f"{endpoint} ({purpose}) cannot be bound: {error}") from None
    return resolved_endpoint(socket)


def resolved_endpoint(socket: zmq.Socket[bytes]) -> str:
    """Return where a socket is bound."""
    import zmq

    last = socket.getsockopt(zmq.LAST_ENDPOINT)
    return (last.decode() if isinstance(last, bytes) else str(last)).rstrip("\0")


def connect(socket: zmq.Socket[bytes], endpoint: str, purpose: str) -> None:
    """Connect; the peer need not be there yet.

    Raises:
        ConfigError: It is no endpoint.
    """
    _check(socket, endpoint, purpose)
    socket.connect(endpoint)


def _check(socket: zmq.Socket[bytes], endpoint: str, purpose: str) -> None:
    """Close the socket and refuse what is no endpoint."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or int(found["port"] or 0) > _LAST_PORT:
        socket.close(linger=0)
        raise ConfigError(f"{endpoint[:80]!r} ({purpose}) is no endpoint; write for instance tcp://127.0.0.1:5557")


class Publisher:
    """Publishes messages to whoever subscribed, and knows whether anyone did.

    Args:
        endpoint: Where to bind; port 0 takes any free one.
        limits: Queue length per reader: a slow one loses messages, nobody waits for it.
        purpose: What for; stands in errors.

    Attributes:
        endpoint: Where it is bound.
        sent: Messages handed to the socket.
    """

    def __init__(self, endpoint: str, limits: WireConfig | None = None, *, purpose: str = "publisher") -> None:
        import zmq

        self._limits = limits or WireConfig()
        self._socket = open_socket(zmq.XPUB, self._limits)
        # Every subscription is told, so that a newcomer can be sent what it missed.
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.endpoint = bind(self._socket, endpoint, purpose)
        self.socket = self._socket
        self.sent = 0
        self._watching: set[bytes] = set()
        self._newcomers: set[bytes] = set()
        self._topics = [topic.encode() for topic in TOPICS]
        self._words: deque[bytes] = deque(maxlen=_MOST_WORDS)
        self._listened = -_LISTEN_SECONDS

    def watched(self, topic: str) -> bool:
        """Tell whether anyone subscribed to a topic, or to all."""
        self._listen()
        wanted = topic.encode()
        return any(wanted.startswith(prefix) for prefix in self._watching)

    def newcomers(self, topic: str) -> bool:
        """Tell whether anyone subscribed to a topic since the last call."""
        self._listen()
        wanted = topic.encode()
        found = {prefix for prefix in self._newcomers if wanted.startswith(prefix)}
        self._newcomers -= found
        return bool(found)

    def words(self) -> list[bytes]:
        """Return what viewers said upstream since the last call, newest last; the first byte is above 1."""
        self._listen()
        said = list(self._words)
        self._words.clear()
        return said

    def publish(self, message: Message) -> bool:
        """Send a message if its topic is watched; returns whether it was sent."""
        import zmq

        if not self.watched(topic_of(message)):
            return False
        try:
            self._socket.send_multipart(encode(message), zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        self.sent += 1
        return True

    def close(self) -> None:
        """Close the socket; what was sent has half a second to leave."""
        self._socket.close()

    def _listen(self) -> None:
        """Read the subscriptions that arrived."""
        import zmq

        now = time.monotonic()
        if now < self._listened + _LISTEN_SECONDS:
            return
        self._listened = now
        for _ in range(_MOST_FRAMES):
            if not readable(self._socket):
                return
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not frame or len(frame) > 256:
                continue
            if frame[0] > 1:
                self._words.append(bytes(frame))
                continue
            prefix = bytes(frame[1:])
            # What begins no topic is sent nothing; kept, it would be asked for every message.
            if not any(topic.startswith(prefix) for topic in self._topics):
                continue
            # The socket tells of a topic's last reader leaving only once, and of each that comes.
            if frame[0] == 1:
                self._watching.add(prefix)
                self._newcomers.add(prefix)
            else:
                self._watching.discard(prefix)


class Subscriber:
    """Receives messages from one or several publishers; reconnects by itself.

    Args:
        endpoints: Publishers.
        topics: Topics, for instance "distance_matrix_v2".
        limits: Queue length and message size.

    Attributes:
        refused: Messages that broke the format.
    """

    def __init__(self, endpoints: Sequence[str], topics: Sequence[str], limits: WireConfig | None = None) -> None:
        import zmq

        self._limits = limits or WireConfig()
        self.socket = open_socket(zmq.SUB, self._limits)
        for topic in topics:
            self.socket.subscribe(topic.encode())
        for endpoint in endpoints:
            connect(self.socket, endpoint, "publisher to subscribe to")
        self.refused = 0

    def receive(self, timeout: float = 0.0) -> Message | None:
        """Return the next message, None where none comes in time.

        Args:
            timeout: How long to wait [s].
        """
        import zmq

        until = time.monotonic() + timeout
        while True:
            if timeout <= 0 and not readable(self.socket):
                return None
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                left = until - time.monotonic()
                if left <= 0 or not self.socket.poll(max(1, int(left * 1000))):
                    return None
                continue
            try:
                return decode(frames, self._limits)
            except WireError:
                self.refused += 1

    def waiting(self) -> Iterator[Message]:
        """Yield the messages that have arrived, a queue's length at most: a flood does not hold its reader."""
        for _ in range(self._limits.queue_length):
            message = self.receive()
            if message is None:
                return
            yield message

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(linger=0)
