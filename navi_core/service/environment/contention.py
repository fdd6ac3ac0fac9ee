"""Two actors that fly one drone: each is told what the other's decisions led to, and neither knows why."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from navi_core.service.metrics import ServiceMetrics

__all__ = ["Rivals"]

_LOG = logging.getLogger("navi.service")
_QUIET_SECONDS = 10.0
"""It is told of this often at most [s]; all of it is counted."""
_KNOWN = 8
"""Peers of a drone that are known at most: whoever connects anew for each decision must not fill the memory."""


class Rivals:
    """Notices drones that two peers, or more, ask for in turns.

    Of an actor that was started again nothing is said: it has another identity, and the former is not heard of again.

    Args:
        metrics: Where it is counted, as `contended_total`.
        seconds: After so long an earlier peer is no rival [s].
    """

    def __init__(self, metrics: ServiceMetrics, seconds: float) -> None:
        self._metrics, self._seconds = metrics, seconds
        # Of each drone who asked for it and when last, the latest at the end: three may fly it in a round.
        self._heard: dict[int, dict[bytes, float]] = {}
        self._told = -_QUIET_SECONDS

    def heard(self, drones: Iterable[int], peer: bytes, now: float | None = None) -> None:
        """Take note of who asks.

        Args:
            drones: Numbers of the drones on the wire.
            peer: Identity of the asking socket.
            now: Time of a steady clock [s].
        """
        now = time.monotonic() if now is None else now
        for drone in drones:
            peers = self._heard.setdefault(drone, {})
            in_turn = next(reversed(peers), peer) != peer
            last = peers.pop(peer, None)
            if in_turn and last is not None and now - last <= self._seconds:
                self._contended(drone, now)
            peers[peer] = now
            if len(peers) > _KNOWN:
                del peers[next(iter(peers))]

    def _contended(self, drone: int, now: float) -> None:
        self._metrics.count("contended_total", about="requests of drones that two peers fly in turns")
        if now - self._told >= _QUIET_SECONDS:
            self._told = now
            _LOG.warning(
                "drone %d is flown by two actors in turns, and each takes the other's decisions for its own: end one "
                "of them, or let each fly an environment of its own",
                drone,
            )
