"""Step requests of an actor: each is repeated under its step id until the environment answers it."""

import logging
import time
from collections.abc import Iterable, Iterator

from navi_core.config import WireConfig
from navi_core.errors import WireError
from navi_core.service.metrics import ServiceMetrics
from navi_core.service.policies.sessions import Session
from navi_core.service.wire import BatchStepRequest, Fault, Message, decode, encode
from navi_core.service.wire.sockets import connect, open_socket, readable

_LOG = logging.getLogger("navi.service")
_BACK_OFF_SECONDS = 0.5
"""Pause after a request was refused or could not be sent [s]."""
_WARN_SECONDS = 1.0
"""Shortest time between two warnings of refusals [s]; all are counted."""


class StepClient:
    """Socket to the environment that flies an actor's requests.

    Args:
        endpoint: Of the environment.
        limits: Of the wire.
        metrics: Counters of the actor.

    Attributes:
        socket: To be polled for answers.
    """

    def __init__(self, endpoint: str, limits: WireConfig, metrics: ServiceMetrics) -> None:
        import zmq

        self._limits, self._metrics = limits, metrics
        self._single_until = self._warned = 0.0
        self.socket = open_socket(zmq.DEALER, limits)
        # Requests to an environment that is gone must not wait for the next one at its address.
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        connect(self.socket, endpoint, "environment to step")

    def answers(self) -> Iterator[Message]:
        """Yield the answers that have arrived, a queue's length at most."""
        import zmq

        for _ in range(self._limits.queue_length):
            if not readable(self.socket):
                return
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            try:
                message = decode(frames[1:] if frames[:1] == [b""] else frames, self._limits)
            except WireError as error:
                self._metrics.count("malformed_total", about="messages that broke the format")
                _LOG.warning("an answer of the environment cannot be decoded: %s", error)
                continue
            yield message

    def send(self, group: list[Session]) -> None:
        """Send the pending requests of some drones as one batch."""
        import zmq

        actions = [session.request for session in group if session.request is not None]
        request = BatchStepRequest(tuple(actions), actions[0].step_id, time.time())
        try:
            self.socket.send_multipart([b"", *encode(request)], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            # No environment, or it does not read: the request is sent again soon.
            self._metrics.count("unsent_total", about="requests that could not be sent")
            self._back_off(group)

    def refused(self, fault: Fault, sessions: Iterable[Session]) -> None:
        """Handle a fault: pause, and send each drone's request alone for a while.

        A fault names no drone: one drone that cannot be flown must not block the others of its batch.
        """
        self._metrics.count("faults_total", about="requests that the environment refused")
        now = time.monotonic()
        if now > self._warned + _WARN_SECONDS:
            self._warned = now
            _LOG.warning("the environment refused a request (%s): %s", fault.code, fault.message)
        self._single_until = now + 10 * self._limits.peer_timeout_seconds
        sessions = list(sessions)
        self._back_off(sessions)
        for session in sessions:
            # The environment lives, and flew none of these.
            session.published = session.published or session.matrix

    def resend_late(self, sessions: Iterable[Session]) -> list[Session]:
        """Repeat requests whose answer is late; the environment recognises them by their step ids.

        Only drones that publish are asked again: an environment that was restarted has other drones in other places.

        Returns:
            Drones whose environment was restarted; their requests are dropped.
        """
        now = time.monotonic()
        late: list[Session] = []
        restarted: list[Session] = []
        for session in sessions:
            if session.request is None or session.published is None:
                continue
            if now - session.requested_at > self._limits.peer_timeout_seconds:
                (restarted if session.is_environment_restarted else late).append(session)
        for session in restarted:
            session.request = None
        if late:
            self._metrics.count("repeated_total", len(late), about="requests sent again")
            for session in late:
                session.requested_at, session.published = now, None
            for group in [[session] for session in late] if now < self._single_until else [late]:
                self.send(group)
        return restarted

    def close(self) -> None:
        """Close the socket."""
        self.socket.close(linger=0)

    def _back_off(self, sessions: Iterable[Session]) -> None:
        """Have requests sent again after a short pause."""
        soon = time.monotonic() - self._limits.peer_timeout_seconds + _BACK_OFF_SECONDS
        for session in sessions:
            session.requested_at = min(session.requested_at, soon)
