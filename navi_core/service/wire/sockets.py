"""Sockets of the wire: bounded queues, limits, heartbeats, clear errors.

ZeroMQ's CONFLATE keeps single frames and loses messages of two, so a reader that wants the newest observation
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

_LINGER_MS = 500
_LAST_PORT = 65535
_MAX_WORDS = 16
_MAX_FRAMES = 1024
"""Subscriptions that are read at once: a flood of them does not block the server."""
_LISTEN_SECONDS = 0.001
"""Shortest interval of reading subscriptions [s]: every message asks for them."""
_ENDPOINT = re.compile(r"tcp://[^\s/:]+:(?P<port>\d{1,5})|(ipc|inproc)://\S+")


def is_loopback(endpoint: str) -> bool:
    """Return whether an endpoint is reachable from this machine alone."""
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
    # Detects a peer that vanished without closing, and frees its queue. ZeroMQ's heartbeats would abort the process
    # when they drop a reader during a write (libzmq 4.3.5, assertion !_io_error).
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    return socket


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message waits; cheaper than the exception of receiving from an empty socket."""
    import zmq

    # Plain numbers: combining pyzmq's enumerations takes longer than asking the socket.
    return int(socket.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN) != 0


def bind(socket: zmq.Socket[bytes], endpoint: str, purpose: str) -> str:
    """Bind a socket and return its endpoint, with the chosen port for port 0.

    Raises:
        ServiceError: The port is taken, or the address is not of this machine.
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
    """Return the endpoint of a bound socket."""
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
    """Refuse an invalid endpoint, and close the socket."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or int(found["port"] or 0) > _LAST_PORT:
        socket.close(linger=0)
        raise ConfigError(f"{endpoint[:80]!r} ({purpose}) is no endpoint; write for instance tcp://127.0.0.1:5557")


class Publisher:
    """Publishes messages to subscribers, and knows the subscriptions.

    Args:
        endpoint: To bind; port 0 takes any free one.
        limits: Queue length per reader; a slow reader loses messages.
        purpose: For error messages.

    Attributes:
        endpoint: Bound endpoint.
        sent: Number of sent messages.
    """

    def __init__(self, endpoint: str, limits: WireConfig | None = None, *, purpose: str = "publisher") -> None:
        import zmq

        self._limits = limits or WireConfig()
        self._socket = open_socket(zmq.XPUB, self._limits)
        # Reports every subscription, so that a new reader can be sent the present state.
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.endpoint = bind(self._socket, endpoint, purpose)
        self.socket = self._socket
        self.sent = 0
        self._watching: set[bytes] = set()
        self._newcomers: set[bytes] = set()
        self._topics = [topic.encode() for topic in TOPICS]
        self._words: deque[bytes] = deque(maxlen=_MAX_WORDS)
        self._listened = -_LISTEN_SECONDS

    def watched(self, topic: str) -> bool:
        """Return whether a topic has a subscriber."""
        self._listen()
        wanted = topic.encode()
        return any(wanted.startswith(prefix) for prefix in self._watching)

    def newcomers(self, topic: str) -> bool:
        """Return whether a topic has a new subscriber since the last call."""
        self._listen()
        wanted = topic.encode()
        found = {prefix for prefix in self._newcomers if wanted.startswith(prefix)}
        self._newcomers -= found
        return bool(found)

    def words(self) -> list[bytes]:
        """Return the words that viewers sent upstream since the last call, newest last; the first byte is above 1."""
        self._listen()
        words = list(self._words)
        self._words.clear()
        return words

    def publish(self, message: Message) -> bool:
        """Send a message if its topic has a subscriber; return whether it was sent."""
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
        """Close the socket; pending messages have half a second to leave."""
        self._socket.close()

    def _listen(self) -> None:
        """Read subscriptions and words."""
        import zmq

        now = time.monotonic()
        if now < self._listened + _LISTEN_SECONDS:
            return
        self._listened = now
        for _ in range(_MAX_FRAMES):
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
            # A prefix of no topic receives nothing; kept, it would be compared with every message.
            if not any(topic.startswith(prefix) for topic in self._topics):
                continue
            # The socket reports every new reader of a topic, but only the last one that leaves.
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
            timeout: Longest wait [s].
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
        """Yield the messages that have arrived, a queue's length at most: a flood does not block the reader."""
        for _ in range(self._limits.queue_length):
            message = self.receive()
            if message is None:
                return
            yield message

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(linger=0)
