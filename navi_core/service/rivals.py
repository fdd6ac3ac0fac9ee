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


class Rivals:
    """Notices drones that two peers ask for in turns.

    Of an actor that was started again nothing is said: it has another identity, and the former is not heard of again.

    Args:
        metrics: Where it is counted, as `contended_total`.
        seconds: After so long an earlier peer is no rival [s].
    """

    def __init__(self, metrics: ServiceMetrics, seconds: float) -> None:
        self._metrics, self._seconds = metrics, seconds
        # Of each drone the peer that asks, the one before it, and when that was last heard of.
        self._heard: dict[int, tuple[bytes, bytes | None, float]] = {}
        self._asked: dict[int, float] = {}
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
            current, before, last = self._heard.get(drone, (peer, None, now))
            if peer != current:
                if peer == before and now - last <= self._seconds:
                    self._contended(drone, now)
                before, last = current, self._asked[drone]
            self._heard[drone], self._asked[drone] = (peer, before, last), now

    def _contended(self, drone: int, now: float) -> None:
        self._metrics.count("contended_total", about="requests of drones that two peers fly in turns")
        if now - self._told >= _QUIET_SECONDS:
            self._told = now
            _LOG.warning(
                "drone %d is flown by two actors in turns, and each takes the other's decisions for its own: end one "
                "of them, or let each fly an environment of its own",
                drone,
            )
