"""Queue of step requests of an environment server, and the detector of peers that fly the same drone."""

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from navi_core.config import EnvironmentConfig
from navi_core.errors import WireError
from navi_core.service.server import ServiceMetrics
from navi_core.service.wire import Action, BatchStepRequest, StepRequest, decode

_LOG = logging.getLogger("navi.service")
_WARN_SECONDS = 10.0
"""Shortest interval between two contention warnings [s]; every contention is counted."""
_MAX_PEERS = 8
"""Most peers tracked per drone: a peer that reconnects for every decision must not fill the memory."""


@dataclass
class Request:
    """Queued step request of a peer."""

    envelope: list[bytes]
    """ZeroMQ envelope: the frames before the topic (return address)."""
    batch: bool
    """Whether the reply carries observations (BatchStepRequest)."""
    actions: dict[int, Action]
    """Action of each requested row (drone)."""


class RequestQueue:
    """Bounded queue of step requests (at most `config.backlog`); contention of peers is counted in `metrics`."""

    def __init__(self, config: EnvironmentConfig, metrics: ServiceMetrics) -> None:
        self._config = config
        self._waiting: deque[Request] = deque()
        self._contention = Contention(metrics, config.wire.peer_timeout_seconds)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, envelope: list[bytes], frames: list[bytes]) -> None:
        """Decode and enqueue a step request; a refused one raises a `WireError` with the code of the fault."""
        request = self._decoded(envelope, frames)
        if len(self._waiting) >= self._config.backlog:
            raise WireError("the environment has more requests than it can keep; ask again later", code="busy")
        self._contention.record((row + self._config.first_env_id for row in request.actions), envelope[0])
        self._waiting.append(request)

    def next_batch(self) -> list[Request]:
        """Dequeue the requests of the next simulation batch: the first decision of each drone, in arrival order."""
        batch: list[Request] = []
        later: deque[Request] = deque()
        taken: set[int] = set()
        for request in self._waiting:
            (later if taken & request.actions.keys() else batch).append(request)
            taken |= request.actions.keys()
        self._waiting = later
        return batch

    def _decoded(self, envelope: list[bytes], frames: list[bytes]) -> Request:
        message = decode(frames, self._config.wire)
        if not isinstance(message, StepRequest | BatchStepRequest):
            raise WireError(f"{type(message).__name__} is no request; send StepRequest or BatchStepRequest")
        actions = message.actions if isinstance(message, BatchStepRequest) else (message.action,)
        first, last = self._config.first_env_id, self._config.first_env_id + self._config.sessions - 1
        by_row: dict[int, Action] = {}
        for action in actions:
            if len(action.env_ids) != 1:
                raise WireError(f"an action of {len(action.env_ids)} drones; one per request, or a BatchStepRequest")
            env_id = int(action.env_ids[0])
            if not first <= env_id <= last:
                raise WireError(f"no drone {env_id}; this environment has {first} to {last}", code="unknown_env")
            if env_id - first in by_row:
                raise WireError(f"drone {env_id} is named twice in one batch")
            by_row[env_id - first] = action
        if not by_row:
            raise WireError("a batch without actions")
        return Request(envelope, isinstance(message, BatchStepRequest), by_row)


class Contention:
    """Contention detector: counts and warns of drones that several peers control in turns.

    A restarted actor is no contention: it has another identity, and the former one is silent.

    Args:
        metrics: Counter `contended_total`.
        seconds: Silence after which an earlier peer is forgotten [s].
    """

    def __init__(self, metrics: ServiceMetrics, seconds: float) -> None:
        self._metrics, self._seconds = metrics, seconds
        # Last request of each peer by drone, the latest at the end: three peers may take turns.
        self._peers: dict[int, dict[bytes, float]] = {}
        self._warned = -_WARN_SECONDS

    def record(self, drones: Iterable[int], peer: bytes, now: float | None = None) -> None:
        """Record a step request of a peer (socket identity) for drones by their wire ids; `now` is monotonic [s]."""
        now = time.monotonic() if now is None else now
        for drone in drones:
            peers = self._peers.setdefault(drone, {})
            in_turn = next(reversed(peers), peer) != peer
            last = peers.pop(peer, None)
            if in_turn and last is not None and now - last <= self._seconds:
                self._metrics.count("contended_total", about="requests of drones that two peers fly in turns")
                if now - self._warned >= _WARN_SECONDS:
                    self._warned = now
                    _LOG.warning(
                        "drone %d is flown by two actors in turns, and each receives the other's results: stop one of "
                        "them, or start an environment for each",
                        drone,
                    )
            peers[peer] = now
            if len(peers) > _MAX_PEERS:
                del peers[next(iter(peers))]
