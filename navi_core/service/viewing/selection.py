"""Which drone a publisher shows: a viewer says it upstream, over the connection that it listens on.

ZeroMQ lets a subscriber's socket send words to a publisher's (XSUB to XPUB). The word is 0x02, "drone", and the number
as int64 little-endian; of several viewers the last word counts.
"""

from __future__ import annotations

import struct

from navi_core.config import WireConfig
from navi_core.errors import WireError
from navi_core.service.wire import Publisher
from navi_core.service.wire.sockets import connect, open_socket, readable

__all__ = ["DroneSelector", "selected_drone"]

_WORD = struct.Struct("<6sq")
_MARK = b"\x02drone"


def selected_drone(publisher: Publisher) -> int | None:
    """Return the drone that viewers last asked for since the last call, None where nobody did."""
    wanted = None
    for word in publisher.words():
        if len(word) == _WORD.size:
            mark, number = _WORD.unpack(word)
            if mark == _MARK and number >= 0:
                wanted = number
    return wanted


class DroneSelector:
    """Asks a publisher for a drone.

    Args:
        endpoint: The publisher.
        limits: Of the socket.
    """

    def __init__(self, endpoint: str, limits: WireConfig | None = None) -> None:
        import zmq

        self._socket = open_socket(zmq.XSUB, limits or WireConfig())
        connect(self._socket, endpoint, "publisher to ask for a drone")
        self._met = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._drone: int | None = None

    def select(self, drone: int) -> bool:
        """Ask for a drone; returns whether the word could be sent.

        Raises:
            WireError: The number is negative.
        """
        if not 0 <= drone < 2**31:
            raise WireError(f"no drone {drone}; they are numbered from 0")
        self._drone = drone
        return self._say(drone)

    def keep(self) -> None:
        """Ask again where the publisher was met anew: one that was started again has heard no word.

        ZeroMQ repeats subscriptions by itself, and words not.
        """
        import zmq

        met = False
        while readable(self._met):
            self._met.recv_multipart(zmq.NOBLOCK)
            met = True
        if met and self._drone is not None:
            self._say(self._drone)

    def close(self) -> None:
        """Close the socket."""
        self._socket.disable_monitor()
        self._met.close(linger=0)
        self._socket.close(linger=0)

    def _say(self, drone: int) -> bool:
        import zmq

        try:
            self._socket.send(_WORD.pack(_MARK, drone), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
