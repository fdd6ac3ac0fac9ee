"""ZeroMQ sockets of the wire: bounded queues, message limits, TCP keep-alive, clear errors.

ZeroMQ's CONFLATE keeps single frames and loses messages of two, so a reader that wants the newest observation
empties its short queue (`Subscriber.waiting`) and keeps the last.
"""

import logging
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import zmq

from navi_core.config import WireConfig
from navi_core.errors import ConfigError, ServiceError, WireError
from navi_core.service.wire.codec import TOPICS, decode, encode, topic_of
from navi_core.service.wire.messages import Message

_LOG = logging.getLogger("navi.wire")
LINGER_MS = 500
_OPTIONS = {
    "LINGER": LINGER_MS,
    # Detects a peer that vanished without closing, and frees its queue. ZeroMQ's heartbeats would abort the process
    # when they drop a reader during a write (libzmq 4.3.5, assertion !_io_error).
    "TCP_KEEPALIVE": 1,
    "TCP_KEEPALIVE_IDLE": 30,
    "TCP_KEEPALIVE_INTVL": 10,
    "RECONNECT_IVL": 50,
    "RECONNECT_IVL_MAX": 1000,
}
"""ZeroMQ options of every socket; times in ms, of TCP keep-alive in s."""
_LAST_PORT = 65535
_MAX_WORDS = 16
_MAX_FRAMES = 1024
"""Most subscription frames read at once: a flood of them does not block the server."""
_MAX_UPSTREAM_BYTES = 256
"""Longest frame from a viewer; a longer one ends its connection. Topics have less than 64 bytes."""
_MAX_STRANGE = 4096
"""Subscriptions to no topic before all readers are hung up on: ZeroMQ keeps each, some 5 kB, and has no limit."""
_REBIND_SECONDS = 2.0
"""How long an endpoint that was unbound is waited for [s]."""
_LISTEN_SECONDS = 0.001
"""Shortest interval of reading subscriptions [s]: every published message checks them."""
# `ipc://@name` is open to every user of the machine.
_ENDPOINT = re.compile(r"tcp://[^\s/:]+:(?P<port>\d{1,5})|(ipc|inproc)://[^\s@]\S*")


def is_loopback(endpoint: str) -> bool:
    """Return whether an endpoint is reachable from this machine alone (loopback, ipc, inproc)."""
    parts = urlsplit(endpoint)
    return parts.scheme in ("ipc", "inproc") or (parts.hostname or "") in ("127.0.0.1", "localhost", "::1")


class Socket:
    """Non-blocking ZeroMQ socket with queue and size limits set.

    Args:
        kind: ZeroMQ's name of its kind: "XPUB", "ROUTER", …
        limits: Queue length and message size.
        purpose: For error messages.
        option: Option of the command that sets the endpoint, for error messages.
        options: Further options by ZeroMQ's names.

    Attributes:
        raw: ZeroMQ's socket.
    """

    def __init__(self, kind: str, limits: WireConfig, purpose: str, option: str = "", **options: int) -> None:
        self._purpose, self._option = purpose, option
        self.raw: zmq.Socket[bytes] = zmq.Context.instance().socket(getattr(zmq, kind))
        queue = {"SNDHWM": limits.queue_length, "RCVHWM": limits.queue_length, "MAXMSGSIZE": limits.max_message_bytes}
        for name, value in (_OPTIONS | queue | options).items():
            self.raw.setsockopt(getattr(zmq, name), value)

    def bind(self, endpoint: str) -> str:
        """Bind the socket and return the endpoint, with the chosen port for port 0.

        Raises:
            ServiceError: The port is taken, or the address is not of this machine.
            ConfigError: It is no endpoint.
        """
        self._check(endpoint)
        try:
            self._bind(endpoint.replace(":0", ":*") if endpoint.endswith(":0") else endpoint)
        except zmq.ZMQError as error:
            self.close()
            if error.errno == zmq.EADDRINUSE:
                raise ServiceError(
                    f"{endpoint} ({self._purpose}) is taken by another process; stop it, or choose another port"
                    f"{self._option and f' with {self._option}'}, for instance port 0 for any free one"
                ) from None
            raise ServiceError(f"{endpoint} ({self._purpose}) cannot be bound: {error}") from None
        last = self.raw.getsockopt(zmq.LAST_ENDPOINT)
        return (last.decode() if isinstance(last, bytes) else str(last)).rstrip("\0")

    def _bind(self, endpoint: str) -> None:
        """Bind; the file of an `ipc://` endpoint may be opened by its user alone."""
        # Of the process: files that other threads create in this moment are private, too.
        mask = os.umask(0o177) if endpoint.startswith("ipc://") else None
        try:
            self.raw.bind(endpoint)
        finally:
            if mask is not None:
                os.umask(mask)

    def rebind(self, endpoint: str) -> None:
        """End all connections of a bound endpoint and bind it again.

        Raises:
            ServiceError: Another process has taken the port.
        """
        self.raw.unbind(endpoint)
        until = time.monotonic() + _REBIND_SECONDS
        while True:
            try:
                self._bind(endpoint)
            except zmq.ZMQError as error:
                # ZeroMQ frees the port in another thread.
                if time.monotonic() > until:
                    raise ServiceError(f"{endpoint} ({self._purpose}) cannot be bound again: {error}") from None
                time.sleep(0.005)
            else:
                return

    def connect(self, endpoint: str) -> None:
        """Connect the socket to an endpoint; the peer need not be there yet.

        Raises:
            ConfigError: It is no endpoint.
        """
        self._check(endpoint)
        self.raw.connect(endpoint)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a multipart message without blocking; return False if the peer is gone or does not read."""
        try:
            self.raw.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            return False
        return True

    def arrived(self, most: int) -> Iterator[list[bytes]]:
        """Receive pending multipart messages without blocking, at most `most` (a flood ends); yield their frames."""
        for _ in range(most):
            # Asking is cheaper than the exception of an empty socket, and plain numbers than pyzmq's enumerations.
            if not int(self.raw.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN):
                return
            try:
                frames = self.raw.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield frames

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; pending messages have `linger_ms` to leave."""
        self.raw.close(linger=linger_ms)

    def _check(self, endpoint: str) -> None:
        """Validate an endpoint; close the socket and raise if it is invalid."""
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None or int(found["port"] or 0) > _LAST_PORT:
            self.close()
            raise ConfigError(
                f"{endpoint[:80]!r} ({self._purpose}) is no endpoint; write for instance tcp://127.0.0.1:5557 "
                "or ipc:///run/user/1000/navi"
            )


def poller_of(*sockets: Socket) -> zmq.Poller:
    """Build a ZeroMQ poller that waits for messages on any of the sockets."""
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket.raw, zmq.POLLIN)
    return poller


class Publisher:
    """Publisher socket (XPUB) of wire messages; tracks the subscriptions by topic.

    Args:
        endpoint: To bind; port 0 takes any free one.
        limits: Queue length per reader; a slow reader loses messages.
        purpose: For error messages.
        option: Option of the command that sets the endpoint, for error messages.

    Attributes:
        endpoint: Bound endpoint.
    """

    def __init__(
        self, endpoint: str, limits: WireConfig | None = None, *, purpose: str = "publisher", option: str = ""
    ) -> None:
        # Every subscription is reported, so that a new reader can be sent the present state.
        self.socket = Socket(
            "XPUB", limits or WireConfig(), purpose, option, XPUB_VERBOSE=1, MAXMSGSIZE=_MAX_UPSTREAM_BYTES
        )
        self.endpoint = self.socket.bind(endpoint)
        self._purpose, self._strange = purpose, 0
        self._watching: set[bytes] = set()
        self._newcomers: set[bytes] = set()
        self._topics = [topic.encode() for topic in TOPICS]
        self._words: deque[bytes] = deque(maxlen=_MAX_WORDS)
        self._listened = -_LISTEN_SECONDS

    def watched(self, topic: str) -> bool:
        """Return whether a topic has a subscriber."""
        self._listen()
        return any(topic.encode().startswith(prefix) for prefix in self._watching)

    def newcomers(self, topic: str) -> bool:
        """Return whether a topic has a new subscriber since the last call."""
        self._listen()
        found = {prefix for prefix in self._newcomers if topic.encode().startswith(prefix)}
        self._newcomers -= found
        return bool(found)

    def words(self) -> list[bytes]:
        """Return the viewers' upstream messages since the last call, newest last; their first byte is above 1."""
        self._listen()
        words = list(self._words)
        self._words.clear()
        return words

    def publish(self, message: Message) -> bool:
        """Publish a message if its topic has a subscriber; return whether it was sent."""
        return self.watched(topic_of(message)) and self.socket.send(encode(message))

    def close(self) -> None:
        """Close the socket; pending messages have half a second to leave."""
        self.socket.close(LINGER_MS)

    def _listen(self) -> None:
        """Read subscription changes and upstream messages from the socket."""
        now = time.monotonic()
        if now < self._listened + _LISTEN_SECONDS:
            return
        self._listened = now
        for frame, *_ in self.socket.arrived(_MAX_FRAMES):
            if not frame:
                continue
            if frame[0] > 1:
                self._words.append(frame)
                continue
            prefix = frame[1:]
            # A prefix of no topic receives nothing; kept, it would be compared with every message.
            if not any(topic.startswith(prefix) for topic in self._topics):
                self._strange += 1
                continue
            # The socket reports every new reader of a topic, but only the last one that leaves.
            if frame[0] == 1:
                self._watching.add(prefix)
                self._newcomers.add(prefix)
            else:
                self._watching.discard(prefix)
        if self._strange > _MAX_STRANGE:
            self._hang_up()

    def _hang_up(self) -> None:
        """End all connections, which frees what strangers subscribed to; readers connect again by themselves."""
        _LOG.warning("%s (%s): more than %s subscriptions to no topic; all readers are hung up on, and may come again",
                     self.endpoint, self._purpose, f"{_MAX_STRANGE:,}")  # fmt: skip
        self._watching.clear()
        self._newcomers.clear()
        self._strange = 0
        self.socket.rebind(self.endpoint)


class Subscriber:
    """Subscriber socket (SUB) of one or several publishers; decodes messages and reconnects by itself.

    Args:
        endpoints: Publishers.
        topics: Topics, for instance "distance_matrix_v2".
        limits: Queue length and message size.

    Attributes:
        refused: Messages that broke the format.
    """

    def __init__(self, endpoints: Sequence[str], topics: Sequence[str], limits: WireConfig | None = None) -> None:
        self._limits = limits or WireConfig()
        self.socket = Socket("SUB", self._limits, "publisher to subscribe to")
        for topic in topics:
            self.socket.raw.subscribe(topic.encode())
        for endpoint in endpoints:
            self.socket.connect(endpoint)
        self.refused = 0

    def receive(self, timeout: float = 0.0) -> Message | None:
        """Receive the next message; None if none comes in time.

        Args:
            timeout: Longest wait [s].
        """
        until = time.monotonic() + timeout
        while True:
            message, left = next(self.waiting(), None), until - time.monotonic()
            if message is not None or left <= 0 or not self.socket.raw.poll(max(1, int(left * 1000))):
                return message

    def waiting(self) -> Iterator[Message]:
        """Yield the decoded messages that have arrived, at most a queue length."""
        return (message for _, message in self.arrived())

    def arrived(self) -> Iterator[tuple[list[bytes], Message]]:
        """Yield frames and decoded content of the messages that have arrived, at most a queue length."""
        for frames in self.socket.arrived(self._limits.queue_length):
            try:
                message = decode(frames, self._limits)
            except WireError:
                self.refused += 1
                continue
            yield frames, message

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
