"""Page backend of the replay: plays a recorded session to its viewers."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from navi_core.errors import ConfigError
from navi_core.service.recordings import Recording
from navi_core.service.viewing.digest import Digest
from navi_core.service.web.hub import Hub, send_changes
from navi_core.service.web.run_panel import RunPanel
from navi_core.service.web.service_panel import service_message
from navi_core.service.wire import DistanceMatrix

_TICK = 0.05
_TURN = 0.1
"""Longest time of reading messages between two updates of the page [s]."""
_LONGEST_GAP = 2.0
"""Longest playback gap [s]: a longer silence in the recording is shortened to it."""


class ReplayShow:
    """Page backend of the replay: plays a recording to its viewers; pauses without viewers.

    Args:
        recording: Open recording to play.
        title: Shown at the top.

    Raises:
        ConfigError: The recording holds no message.
    """

    def __init__(self, recording: Recording, title: str) -> None:
        if not recording.frames:
            raise ConfigError(f"{recording.path} holds no message; record something with `navi record`")
        self.hub = Hub(self._viewers_changed)
        self.recording, self.title, self._panel = recording, title, RunPanel(self.hub)
        self._times = _shortened(frame.time for frame in recording.frames)
        self._length = self._times[-1]
        self.playing, self._at = True, 0.0
        self._begin()

    async def run(self) -> None:
        """Run the playback loop until cancelled."""
        self.hub.send("hello", {"mode": "replay", "title": self.title, "names": {}})
        before = time.monotonic()
        while True:
            now = time.monotonic()
            if self.playing and self.hub.viewers:
                self._at = min(self._at + now - before, self._length)
                self.playing = self._at < self._length
            self._play()
            before = now
            training = lambda: self._panel.training(self.digest)  # noqa: E731
            send_changes(self.hub, self.digest, training=training, service=lambda: service_message(self.digest, {}))
            self.hub.send_phase("playing" if self.playing else "paused")
            self.hub.send(
                "replay",
                {
                    "at": self._at,
                    "length": self._length,
                    "playing": self.playing,
                    "facts": f"{self.recording.path.name}, {len(self._times):,} messages{self._faults()}",
                },
            )
            await asyncio.sleep(_TICK)

    async def order(self, order: dict[str, Any]) -> None:
        """Execute a command: play or pause (`toggle`), or seek (`seek`, `at` in seconds).

        Raises:
            ConfigError: An unknown order or time.
        """
        if order["do"] == "toggle":
            if not self.playing and self._at >= self._length:
                self._begin()
            else:
                self.playing = not self.playing
        elif order["do"] == "seek":
            at = order.get("at")
            if not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at < 1e9:
                raise ConfigError(f"{str(at)[:40]!r} is no time; expected seconds from 0 to {self._length:.1f}")
            self._seek(min(float(at), self._length))
        else:
            raise ConfigError(f"unknown order {order['do']!r}; allowed: toggle, seek")

    def _begin(self) -> None:
        self.digest = Digest()
        self.digest.changed |= {"trajectory", "training", "service", "scene"}
        self._at, self._next, self.playing = 0.0, 0, True

    def _seek(self, at: float) -> None:
        playing = self.playing
        if at < self._at:
            self._begin()
        self._at, self.playing = at, playing
        self._play()

    def _play(self) -> None:
        """Apply the messages up to the playback time; a long jump takes several iterations."""
        until = time.monotonic() + _TURN
        while self._next < len(self._times) and self._times[self._next] <= self._at and time.monotonic() < until:
            message = self.recording.readable_message(self.recording.frames[self._next])
            self._next += 1
            if message is None:
                continue
            if isinstance(message, DistanceMatrix) and self.digest.row is None and len(message.env_ids):
                self.digest.row = int(message.env_ids[0])
            self.digest.update(message)

    def _faults(self) -> str:
        left_out = f", {self.recording.damaged:,} damaged ones left out" if self.recording.damaged else ""
        between = ", damaged between them" if self.recording.gaps else ""
        return left_out + between + (", damaged behind them" if self.recording.broken_off else "")

    def _viewers_changed(self, _viewers: int) -> None:
        self.digest.changed.add("trajectory")


def _shortened(times: Iterable[float]) -> array[float]:
    """Convert receive times to playback times (s, from 0); each gap is clipped to [0, `_LONGEST_GAP`]."""
    played = array("d", [0.0])
    for before, after in pairwise(times):
        played.append(played[-1] + min(max(after - before, 0.0), _LONGEST_GAP))
    return played
