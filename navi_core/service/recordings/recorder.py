"""Recording what publishers send, message by message."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from navi_core.config import WireConfig
from navi_core.errors import ConfigError, WireError
from navi_core.service.recordings.file import RecordingWriter
from navi_core.service.viewing.feed import OBSERVATIONS, TELEMETRY
from navi_core.service.viewing.selection import DroneSelector
from navi_core.service.wire import Subscriber, decode

__all__ = ["Recorded", "record_session"]


@dataclass
class Recorded:
    """What a recording took in."""

    messages: Counter[str] = field(default_factory=Counter)
    """By topic."""
    refused: int = 0
    """Messages that broke the wire's format and were left out."""
    seconds: float = 0.0
    """How long it went on [s]."""
    cut: int = 0
    """Bytes of an unfinished message, of an earlier recording, that were cut off."""


def record_session(
    endpoints: Sequence[str],
    path: Path,
    *,
    drone: int | None = None,
    seconds: float | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[Recorded], None] | None = None,
    limits: WireConfig | None = None,
) -> Recorded:
    """Append what publishers send to a file, until stopped; every message is checked before it is kept.

    Args:
        endpoints: Publishers.
        path: The file; an earlier recording there is gone on with.
        drone: Drone to ask for; None takes what is shown.
        seconds: How long [s]; None until stopped.
        stop: Asked several times a second.
        progress: Told several times a second what there is.
        limits: Of the sockets.

    Raises:
        ConfigError: `seconds` is not above 0.
        RecordError: The file cannot be written, is written by another process, or is something else.
    """
    import zmq

    if seconds is not None and not seconds > 0:
        raise ConfigError(f"{seconds} s is no time to record for; give more than 0, or nothing: until it is stopped")
    limits, began = limits or WireConfig(), time.monotonic()
    selectors = [DroneSelector(endpoint, limits) for endpoint in endpoints] if drone is not None else []
    pending = list(selectors)
    subscriber = Subscriber(endpoints, (OBSERVATIONS, *TELEMETRY), limits)
    done = Recorded()
    try:
        with RecordingWriter(path) as writer:
            done.cut = writer.cut
            while (seconds is None or done.seconds < seconds) and not (stop is not None and stop()):
                pending = [one for one in pending if drone is not None and not one.select(drone)]
                for selector in selectors:
                    selector.keep()
                subscriber.socket.poll(100)
                for _ in range(limits.queue_length):
                    try:
                        frames = subscriber.socket.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    try:
                        decode(frames, limits)
                    except WireError:
                        done.refused += 1
                        continue
                    writer.append(frames[0], frames[1], time.time())
                    done.messages[frames[0].decode()] += 1
                done.seconds = time.monotonic() - began
                if progress is not None:
                    progress(done)
    finally:
        subscriber.close()
        for selector in selectors:
            selector.close()
    return done
